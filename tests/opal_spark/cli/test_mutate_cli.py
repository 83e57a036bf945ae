"""`opal mutate`: its flags, its properties file, and what it shows."""

import json
from pathlib import Path

import pytest

from opal_lake.cli import main
from opal_lake.cli.command import OpalParser
from opal_lake.errors import InvalidInputError
from opal_lake.exit_codes import INPUT, OK
from opal_lake.operations.mutate import Mutate
from opal_spark.cli.mutate import add_mutate
from tests.fixtures_cli import metadata, opal_commands
from tests.opal_spark.mutate.folders import cells, put

__all__ = ["metadata", "opal_commands"]

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("opal_commands", "spark")]


def test_the_command_merges_by_a_properties_file_and_flags_count_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path / "master" / "part-r-00000", "1,a,5\n2,b,5\n3,c,5\n")
    put(tmp_path / "incr" / "x", "1,late,4\n4,d,6\n")
    put(tmp_path / "incr" / "gone", "2\n")
    properties = put(
        tmp_path / "p",
        "id.field.ordinals=0\ntemporal.ordering.field.ordinal=2\ndeleted.record.file.prefix=del\nnum.reducer=3\n",
    )
    words = [
        "mutate",
        str(tmp_path / "master"),
        str(tmp_path / "incr"),
        "--properties",
        str(properties),
        "--delete-prefix",
        "gone",
    ]
    assert main([*words, "--json", "--dry-run"]) == OK
    shown = capsys.readouterr()
    assert (json.loads(shown.out)["counts"]["deletes"], "num.reducer" in shown.err) == (1, True)
    assert main([*words, "--dry-run"]) == OK
    assert capsys.readouterr().out.startswith("would have merged ")
    assert main(words) == OK
    shown = capsys.readouterr()
    assert shown.out.startswith("merged ")
    assert "1 mutation came late" in shown.out
    assert cells(tmp_path, header=False) == [["1", "a", "5"], ["3", "c", "5"], ["4", "d", "6"]]
    assert main(words) == OK
    assert capsys.readouterr().out.startswith("nothing to do")


@pytest.mark.parametrize("is_said", [False, True])
def test_a_flag_counts_more_than_the_properties_also_where_it_says_the_default(
    tmp_path: Path, is_said: bool
) -> None:
    properties = put(
        tmp_path / "p",
        "id.field.ordinals=0\ntemporal.ordering.field.ordinal=2\ntemporal.ordering.field.numeric=false\n"
        "deleted.op.code=X\nfield.delim.regex=;\n",
    )
    defaults = {
        "order": "file_position",
        "order_type": "numeric",
        "deleted_op": "D",
        "delimiter": ",",
    }
    flags = [
        word for name, value in defaults.items() for word in (f"--{name.replace('_', '-')}", value)
    ]
    parser, seen = OpalParser(prog="opal"), list[Mutate]()
    add_mutate(parser.add_subparsers(dest="command"), lambda _, job: seen.append(job))
    args = parser.parse(
        [
            "mutate",
            str(tmp_path / "m"),
            str(tmp_path),
            "--properties",
            str(properties),
            *(flags if is_said else []),
        ]
    )
    args.conf = []  # as Spark's part adds to every verb
    args.run(args)
    arguments = {name: getattr(seen[0], name) for name in defaults}
    assert arguments == (
        defaults
        if is_said
        else {"order": "2", "order_type": "text", "deleted_op": "X", "delimiter": ";"}
    )


def test_wrong_arguments_of_mutate_name_the_next_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path / "incr" / "x.csv", "id,v\n1,a\n")
    assert main(["mutate", str(tmp_path / "master"), str(tmp_path / "incr")]) == INPUT
    assert "needs the fields of a record's id: give --id FIELD" in capsys.readouterr().err
    assert main(["mutate", str(tmp_path / "master"), str(tmp_path / "incr"), "--id", "nr"]) == INPUT
    assert (
        "names the field 'nr', which records do not have; known are id, v"
        in capsys.readouterr().err
    )


def test_wrong_increments_are_reported_before_spark_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, started = (
        ["mutate", str(tmp_path / "master"), str(tmp_path / "none.csv"), "--id", "id"],
        list[Mutate](),
    )
    parser = OpalParser(prog="opal")
    add_mutate(parser.add_subparsers(dest="command"), lambda _, job: started.append(job))
    args = parser.parse(words)
    with pytest.raises(InvalidInputError, match="does not exist: it is neither a file"):
        args.run(args)
    assert not started
    assert main(words) == INPUT
    assert "does not exist: it is neither a file" in capsys.readouterr().err
