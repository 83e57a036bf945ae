"""The declarations of the operations: what JSON they read and write, and what they refuse."""

import json
import subprocess
import sys
from contextlib import suppress
from dataclasses import FrozenInstanceError, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from opal_lake.errors import InvalidInputError
from opal_lake.operations import NAMES, operation_named
from opal_lake.operations.compact import Compact
from opal_lake.operations.consume import Consume
from opal_lake.operations.create import Create, NewTable
from opal_lake.operations.ingest import Ingest, IngestSource
from opal_lake.operations.job_spec import JobSpec
from opal_lake.operations.maintain import Maintain
from opal_lake.operations.retain import Retain
from opal_lake.operations.zorder import ZOrder
from opal_lake.result import JobResult

SOURCES = Path(__file__).parents[3] / "spark_apps"
NEEDED: dict[str, dict[str, Any]] = {
    "create": {"keys": ["id"], "delta": "at"},
    "ingest": {"source": {"files": ["in.csv"]}},
    "changes": {"start": 8, "end": "2026-01-31T12:00:00Z"},
    "consume": {"function": "shop:revenue", "after": 3},
    "discard": {"partition_key": "2026-11-24"},
    "bootstrap": {"keys": ["id"], "delta": "at", "source": "old", "format": "parquet"},
    "zorder": {"columns": ["a", "b"]},
    "restore": {"version": 7},
    "erase": {"where": "id = 7"},
    "mutate": {"increments": ["incr"], "ids": ["id"]},
    "sql": {"sql": ["SELECT 1"], "args": {"a": 1}, "catalogs": {"lake": "/lake"}},
    "add_columns": {"columns": {"discount": "double"}},
    "alter": {"changes": [{"rename": "a", "to": "b"}]},
    "set_properties": {"properties": {"window": "30d", "zorder": None}},
}


@pytest.mark.parametrize("name", NAMES)
def test_every_operation_goes_through_json(name: str) -> None:
    spec = JobSpec.of(name, "lake/t", NEEDED.get(name, {}), "t")
    assert spec.operation == operation_named(name)(**NEEDED.get(name, {}))
    assert JobSpec.from_json(spec.to_json()) == spec
    assert json.loads(spec.to_json()) == {
        "operation": name,
        "table": "lake/t",
        "arguments": NEEDED.get(name, {}),
        "token": "t",
    }


def test_a_spec_needs_no_more_than_an_operation_and_a_table() -> None:
    spec = JobSpec.from_json('{"operation": "metagen", "table": "lake/t"}')
    assert (spec.operation.name, spec.table, spec.token) == ("metagen", "lake/t", None)
    with pytest.raises(InvalidInputError, match="'table'"):
        JobSpec.from_json('{"operation": "metagen"}')


@pytest.mark.parametrize(
    "name, given, stored",
    [
        (
            "compact",
            {"mode": "major", "look_back": timedelta(days=30)},
            {"mode": "major", "look_back": "30d"},
        ),
        (
            "compact",
            {"mode": "major", "look_back": "400", "target_mb": None},
            {"mode": "major", "look_back": "400"},
        ),
        ("compact", {"mode": "minor", "only_if_due": False}, {}),
        (
            "maintain",
            {"zorder": "a, b", "dead_share": 0.3},
            {"zorder": ["a", "b"], "dead_share": 30},
        ),
        (
            "maintain",
            {"zorder": "", "look_back": "", "archive_after": 5},
            {"zorder": [], "look_back": "", "archive_after": 5},
        ),
        (
            "maintain",
            {"unclustered_share": 1.0, "small_files": 8},
            {"unclustered_share": 100, "small_files": 8},
        ),
        (
            "create",
            {"keys": ("id",), "delta": "at", "tie_break": None},
            {"keys": ["id"], "delta": "at"},
        ),
        ("zorder", {"columns": ("a",), "whole": True}, {"columns": ["a"], "whole": True}),
        ("read", {"version": 0, "event_time": 5}, {"version": 0, "event_time": 5}),
    ],
)
def test_values_are_stored_as_in_json_and_defaults_are_left_out(
    name: str, given: dict[str, Any], stored: dict[str, Any]
) -> None:
    assert JobSpec.of(name, "t", given).operation.to_arguments() == stored


@pytest.mark.parametrize(
    "name, given, said",
    [
        ("fly", {}, "operation 'fly' is unknown; use one of create, ingest"),
        ("create", {"keys": ["id"]}, "create needs the argument delta; add it$"),
        (
            "create",
            {"keys": "id", "delta": "at"},
            r"keys='id' is a text; give a list: keys=\['id'\]",
        ),
        (
            "create",
            {"keys": ["id"], "delta": "at", "file_format": "csv"},
            "file_format='csv' is unknown; use one of parquet, orc",
        ),
        (
            "ingest",
            {"source": {}, "create": {"key": ["id"]}},
            "create has no argument key; its arguments are keys, delta",
        ),
        (
            "ingest",
            {"source": {}, "metadata": "later"},
            "metadata='later' is unknown; use one of batch, inline",
        ),
        ("ingest", {"source": {}, "reject_threshold": 5}, "add on_bad_rows='quarantine'"),
        (
            "ingest",
            {"source": "in.csv"},
            "ingest: argument source must map names to values, got a text",
        ),
        (
            "changes",
            {"start": -1},
            "start=-1 is not a valid start; give a version such as 8, a commit time such as",
        ),
        (
            "changes",
            {"start": 1, "mode": "net"},
            "mode='net' is unknown; use one of none, dropCarryovers, netChanges",
        ),
        (
            "read",
            {"version": True},
            "read: argument version is true or false; give a whole number, or leave it out",
        ),
        ("read", {"format": "xml"}, "format='xml' is unknown; use one of parquet, csv, json, orc"),
        (
            "consume",
            {"function": "f", "after": 1},
            "function='f' does not name a function; write it as 'package.module:function'",
        ),
        (
            "consume",
            {"function": "shop:f", "partition_key": "mon", "rows": "changes"},
            "rows='changes' does not go with partition_key; give after",
        ),
        (
            "consume",
            {"function": "shop:f", "after": 1, "rows": "all"},
            "rows='all' is unknown; use one of visible, changes",
        ),
        (
            "consume",
            {"function": "shop:f"},
            "consume needs either partition_key, such as '2026-11-01', or after",
        ),
        ("compact", {"mode": "middle"}, "mode='middle' is unknown; use one of minor, major"),
        (
            "compact",
            {"look_back": "30d"},
            "a minor compaction, which keeps all history; add mode='major'",
        ),
        (
            "compact",
            {"mode": "major"},
            "needs look_back, the span that stays readable; add look_back='90d'",
        ),
        (
            "compact",
            {"archive_codec": "zstd:19"},
            "has no effect without archive_after; add archive_after='365d'",
        ),
        ("compact", {"mode": "major", "look_back": -1}, "look_back=-1 is negative"),
        ("compact", {"mode": "major", "look_back": ""}, "look_back='' is not a duration"),
        (
            "compact",
            {"target_mb": 0},
            "target_mb must be a whole number of megabytes from 1 to 1048576, got 0",
        ),
        (
            "compact",
            {"archive_codec": "zstd:23"},
            "archive_codec='zstd:23' is not a codec; write 'zstd:1' to 'zstd:22'",
        ),
        ("zorder", {"columns": list("abcdefghi")}, "columns has 9 columns; give 1 to 8"),
        (
            "zorder",
            {"columns": "a"},
            r"columns='a' is not a list of columns; write columns=\['customer_id', 'created_at'\]",
        ),
        (
            "retain",
            {"window": "30 days"},
            "window='30 days' is not a duration; write it as '12h', '30d', '2w' or '1h30m'",
        ),
        ("retain", {"window": 30}, "window=30 is not a duration"),
        (
            "maintain",
            {"dead_share": 1.5},
            "dead_share=1.5 is not a percentage; write a whole number from 1 to 100",
        ),
        (
            "maintain",
            {"policy": {}},
            "maintain has no argument policy; its arguments are target_mb, zorder",
        ),
        (
            "set_properties",
            {"properties": ["window"]},
            "is not a mapping; write properties=",
        ),
        (
            "read",
            {"writer_options": ["x"]},
            "argument writer_options must map names to values, each a text, got a list",
        ),
        (
            "read",
            {"columns": "id"},
            "columns='id' is a text; give a list",
        ),
        ("metagen", [], "arguments of metagen must map names to values, got a list"),
    ],
)
def test_a_wrong_argument_is_refused_with_advice(name: str, given: Any, said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        JobSpec.of(name, "t", given)


ODD: tuple[Any, ...] = (
    *(5, -1, 0.5, True, "x", "", [], [5], ["x", None], [[]], [{}], None),
    *({}, {"x": 5}, {"x": None}, {5: "x"}, {5: "x", "x": 5}, {"files": 5}),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Buggy(JobResult):
    def __post_init__(self) -> None:
        raise TypeError("a bug in a check")


def test_a_bug_in_a_check_is_not_taken_for_a_wrong_argument() -> None:
    with pytest.raises(TypeError, match="a bug in a check"):
        Buggy.from_dict({"operation": "metagen", "table": "t"})
    with pytest.raises(
        InvalidInputError, match="Buggy needs the field 'operation', 'table'; add it"
    ):
        Buggy.from_dict({})
    with pytest.raises(InvalidInputError, match="Buggy has no field colour; its fields are counts"):
        Buggy.from_dict({"operation": "metagen", "table": "t", "colour": "red"})


@pytest.mark.parametrize("name", NAMES)
def test_an_odd_argument_raises_no_error_but_invalid_input(name: str) -> None:
    for argument in operation_named(name).fields():
        for value in ODD:
            with suppress(InvalidInputError):
                JobSpec.from_dict(
                    {
                        "operation": name,
                        "table": "t",
                        "arguments": {**NEEDED.get(name, {}), argument: value},
                    }
                )


def test_a_declaration_is_frozen_and_equal_by_its_values() -> None:
    declaration = Compact(mode="major", look_back="30d")
    assert (
        declaration
        == Compact(mode="major", look_back=timedelta(days=30))
        != Compact(mode="major", look_back="31d")
    )
    assert repr(declaration) == "Compact(mode='major', look_back='30d')"
    with pytest.raises(FrozenInstanceError):
        declaration.mode = "minor"  # type: ignore[misc]  # which is what is tested


def test_none_stands_for_an_argument_that_is_not_given() -> None:
    assert Maintain(delete=None, dry_run=None) == Maintain()
    with pytest.raises(InvalidInputError, match="ingest needs source, got None"):
        Ingest(source=None)


def test_a_name_alone_is_not_an_operation() -> None:
    with pytest.raises(InvalidInputError, match=r"write JobSpec.of\('compact', table, arguments\)"):
        JobSpec(operation="compact", table="t")  # type: ignore[type-var]  # what is refused


def test_a_share_that_rounds_to_nothing_is_refused() -> None:
    assert Maintain(dead_share=0.006).dead_share == 1
    with pytest.raises(InvalidInputError, match=r"dead_share=0.004 is not a percentage"):
        Maintain(dead_share=0.004)


def test_an_open_value_is_checked_at_its_run() -> None:
    def is_open(value: object) -> bool:
        return isinstance(value, str) and "{{" in value

    given = {
        "mode": "{{ mode }}",
        "look_back": "30d",
        "target_mb": "{{ mb }}",
        "archive_codec": None,
    }
    assert Compact.checked(given, is_open) == {
        "mode": "{{ mode }}",
        "look_back": "30d",
        "target_mb": "{{ mb }}",
    }
    assert Compact.filled_in({"mode": "major", "look_back": "30", "target_mb": "64"}) == {
        "mode": "major",
        "look_back": 30,
        "target_mb": 64,
    }
    assert Maintain.filled_in({"dead_share": "0.5", "window": "30"}) == {
        "dead_share": 0.5,
        "window": "30",
    }


def test_the_parameters_of_a_function_become_arguments() -> None:
    def zorder(
        table: str, columns: list[str], whole: bool = False, target_mb: int | None = None
    ) -> dict[str, Any]:
        return ZOrder.among(locals())

    assert zorder("t", ["a"]) == {"columns": ["a"], "whole": False}


def test_operation_within_another_becomes_a_declaration() -> None:
    made = IngestSource(source={"files": ["in.csv"]}, create=NewTable(keys=["id"], delta="at"))
    assert made == IngestSource.of(
        {"source": {"files": ["in.csv"]}, "create": {"keys": ["id"], "delta": "at"}}
    )
    assert Create(**vars(made.create), if_absent=True).if_absent
    assert Consume(function="a:b", partition_key="k").arguments == {}
    assert Retain().to_arguments() == {}


def test_declarations_need_no_arrow() -> None:
    """Airflow imports them to parse a DAG file."""
    code = (
        f"import sys; sys.path.insert(0, {str(SOURCES)!r})\n"
        "from opal_lake.operations import operation_named; operation_named('read')\n"
        "assert not {'numpy', 'pyarrow', 'pyroaring', 'pyspark', 'airflow'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
