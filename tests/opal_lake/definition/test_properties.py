"""Properties of a table: their values, their changes, and those that a creator may request."""

import pytest

from opal_lake.definition.properties import PROPERTIES, default_of
from opal_lake.definition.requested_spec import refuse_another_spec
from opal_lake.definition.schema import DELETED
from opal_lake.definition.table_spec import TableLayout
from opal_lake.errors import InvalidInputError
from opal_lake.operations.ingest import Ingest
from opal_lake.storage import Storage, open_storage
from opal_lake.write.ingest_job import IngestRun, commit_ingest, start_ingest
from opal_lake.write.ingest_task import IngestTask, ingest_rows
from tests.kit.check import check_table
from tests.opal_lake.shop import SCHEMA, content, create, reopen, rows

LAYOUT = {"keys": ["sku"], "delta": "at", "deletes": "price IS NULL"}


@pytest.fixture
def storage(request: pytest.FixtureRequest) -> Storage:
    return open_storage(f"memory://{request.node.name}")


@pytest.mark.parametrize(
    "name,value",
    [
        ("zorder", "sku,at"),
        ("zorder", ["sku", "at"]),
        ("zorder", ""),
        ("window", "12h"),
        ("look_back", "1000"),
        ("look_back", 1000),
        ("look_back", ""),
        ("archive_after", "90"),
        ("archive_codec", "zstd:19"),
        ("dead_share", 100),
        ("target_mb", 64),
    ],
)
def test_maintenance_properties_are_set_and_read_back(
    storage: Storage, name: str, value: object
) -> None:
    table = create(storage)
    result = table.set_properties({name: value})  # type: ignore[dict-item]  # of several types
    text = ",".join(value) if isinstance(value, list) else str(value)
    assert (
        result.operation,
        result.version,
        str(reopen(storage).snapshot_at().spec.properties[name]),
    ) == ("set_properties", 1, text)
    assert check_table(table) == []


@pytest.mark.parametrize(
    "name,value,message",
    [
        ("zorder", "sku,nothing", "no column 'nothing'"),
        ("zorder", "sku,sku", "name each column only once, not sku twice"),
        ("window", "soon", "'soon'; write a span of time such as 30d, 2w"),
        ("window", "", "has an empty value; give one, such as 7d, or None for the default"),
        ("zorder", "none", "no column of that name; for no Z-order use zorder=''"),
        ("look_back", "-3", "'-3'; write a span of time such as 30d, 2w"),
        ("archive_codec", "zip", "use a codec from"),
        ("dead_share", 101, "from 1 to 100"),
        ("fold_files", 1, "0, or a whole number from 2"),
        ("small_files", 0, "from 1"),
        ("small_files", "16", "from 1"),
        ("read_verify", "never", "one of full"),
        ("windw", "7d", "'windw' is unknown; did you mean 'window'"),
        ("colour", "red", "'colour' is unknown; the properties are group_rows, "),
        ("window", 5.5, "5.5, of type float; give a text, a whole number"),
        ("target_mb", 5.5, "5.5, of type float; give a text|use a whole number"),
        ("drift", b"x", "b'x', of type bytes; give a text"),
        ("zorder", [5], "of type list; give a text"),
        ("zorder", True, "use a text"),
    ],
)
def test_invalid_value_is_refused_and_changes_nothing(
    storage: Storage, name: str, value: int | str, message: str
) -> None:
    table = create(storage)
    with pytest.raises(InvalidInputError, match=message):
        table.set_properties({name: value})
    assert table.snapshot_at().version == 0
    with pytest.raises(InvalidInputError, match=message):
        create(open_storage(f"{storage.uri}-new"), **{name: value})


def test_setting_the_same_value_makes_no_commit_and_setting_none_restores_the_default(
    storage: Storage,
) -> None:
    table = create(storage, window="3d")
    assert table.set_properties({"window": "3d"}).version is None
    assert table.set_properties({"window": None}).version == 1
    assert (table.snapshot_at().spec.properties, table.snapshot_at().spec.word("window")) == (
        {},
        "7d",
    )


def test_property_change_with_a_token_is_applied_once(storage: Storage) -> None:
    table = create(storage)
    first = table.set_properties({"window": "1d"}, token="t")
    table.set_properties({"window": "2d"})
    again = table.set_properties({"window": "1d"}, token="t")
    assert (again.version, again.repeated) == (first.version, True)
    assert table.snapshot_at().spec.word("window") == "2d"
    assert table.set_properties({"window": "2d"}, token="empty").version is None
    assert table.set_properties({"window": "1d"}, token="empty").repeated


def test_a_change_conflicts_with_no_ingest_that_began_before_it(storage: Storage) -> None:
    table = create(storage)
    run = start_ingest(table, Ingest([]))
    assert isinstance(run, IngestRun)
    batch, deleted = rows([("ax", 1, 10)])
    task = IngestTask(storage=storage, spec=run.base.spec, number=run.number, task=0, attempt="0")
    output = ingest_rows(batch.append_column(DELETED, [deleted]).to_batches(), task)
    table.set_properties({"segment_rows": 3, "zorder": "sku"})
    assert commit_ingest(table.log, run, [output]).version == 2
    table.metagen()
    assert content(table) == [("ax", 1, 10)]
    assert check_table(table) == []


def test_group_rows_cannot_be_lowered_below_the_rows_of_a_group(storage: Storage) -> None:
    table = create(storage)
    table.ingest(*rows([("ax", 1, 10), ("bow", 1, 10), ("cup", 1, 10)]))
    with pytest.raises(InvalidInputError, match="holds 3 rows"):
        table.set_properties({"group_rows": 2})
    table.set_properties({"group_rows": 3})
    table.ingest(*rows([("dye", 1, 10)]))
    assert len(table.snapshot_at().root.groups) == 2
    assert check_table(table) == []


def test_a_creator_may_request_the_maintenance_properties_of_the_creation(storage: Storage) -> None:
    table = create(storage, window="30d", segment_rows=100)
    table.set_properties({"window": "1d", "zorder": "sku", "checkpoint_commits": 4})
    refuse_another_spec(
        storage.uri,
        table.snapshot_at().spec,
        SCHEMA,
        TableLayout(**LAYOUT, properties={"window": "30d", "segment_rows": 100}),
    )
    refuse_another_spec(storage.uri, table.snapshot_at().spec, SCHEMA, TableLayout(**LAYOUT))
    with pytest.raises(InvalidInputError, match="property segment_rows is 100, not 7"):
        refuse_another_spec(
            storage.uri,
            table.snapshot_at().spec,
            SCHEMA,
            TableLayout(**LAYOUT, properties={"segment_rows": 7}),
        )


def test_defaults_pass_their_own_checks(storage: Storage) -> None:
    table = create(storage, **{name: default_of(name) for name in PROPERTIES})
    assert table.snapshot_at().spec.integer("target_mb") == 256


def test_an_age_is_shown_in_the_unit_of_the_delta_column(storage: Storage) -> None:
    table = create(storage)
    with pytest.raises(InvalidInputError, match="the delta column 'at' is a number; give a number"):
        table.set_properties({"look_back": "30d"})
    assert table.set_properties({"look_back": 30}).version == 1
