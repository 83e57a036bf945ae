"""Every column of a data file has its field id, also nested ones; readers hide the ids."""

import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from opal_lake import layout
from opal_lake.data.data_file import decode_file
from opal_lake.definition.schema import Array, Field, Map, Struct, arrow_schema
from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.engine.in_process import InProcess
from opal_lake.log.commit import decode_commit, encode_commit
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import Table, create_on
from tests.kit.check import check_table
from tests.opal_lake.shop import reopen

FORMATS = pytest.mark.parametrize("file_format", ["parquet", "orc"])
KEY_OF_FORMAT = {"parquet": b"PARQUET:field_id", "orc": b"iceberg.id"}
HIDDEN = [
    ("_opal_segment", 2147483001),
    ("_opal_offset", 2147483002),
    ("_opal_deleted", 2147483003),
]
OF_REWRITTEN = [("_row_id", 2147483540), ("_last_updated_sequence_number", 2147483539)]

_PLACE = pa.struct([("the town", pa.string()), ("at", pa.timestamp("us", tz="UTC"))])
SCHEMA = pa.schema(
    [
        ("sku", pa.string()),
        ("at", pa.int64()),
        ("price", pa.decimal128(9, 2)),
        ("places", pa.list_(pa.field("element", _PLACE))),
        ("by day", pa.map_(pa.date32(), pa.list_(pa.field("element", pa.int32())))),
    ]
)


def rows(*values: tuple[str, int]) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {
                "sku": sku,
                "at": at,
                "price": None if at % 5 == 4 else at,
                "places": [{"the town": sku, "at": at}, None],
                "by day": [(at, [at, None])],
            }
            for sku, at in values
        ],
        SCHEMA,
    )


def stored_ids(schema: Iterable[pa.Field], file_format: str) -> Iterator[tuple[str, int]]:
    """Names and ids of columns as a file has them, depth first."""
    for column in schema:
        yield column.name, int((column.metadata or {})[KEY_OF_FORMAT[file_format]])
        kind = column.type
        if pa.types.is_map(kind):
            yield from stored_ids([kind.key_field, kind.item_field], file_format)
        elif pa.types.is_list(kind):
            yield from stored_ids([kind.value_field], file_format)
        elif pa.types.is_struct(kind):
            yield from stored_ids(kind, file_format)


def known_ids(fields: Iterable[Field], file_format: str) -> Iterator[tuple[str, int]]:
    for field in fields:
        # Arrow's reader of ORC calls every element so
        is_item = file_format == "orc" and field.physical == "element"
        yield "item" if is_item else field.physical, field.id
        match field.type:
            case Struct(fields=members):
                yield from known_ids(members, file_format)
            case Array(element=element):
                yield from known_ids([element], file_format)
            case Map(key=key, value=value):
                yield from known_ids([key, value], file_format)


def stored_schema(table: Table, path: str, file_format: str) -> pa.Schema:
    source = pa.BufferReader(table.storage.get(path))
    return pq.read_schema(source) if file_format == "parquet" else orc.ORCFile(source).schema


def table_of(file_format: str) -> Table:
    table_layout = TableLayout(
        keys=["sku"], delta="at", deletes="price IS NULL", file_format=file_format
    )
    made = create_on(MemoryStorage(), plan_spec(SCHEMA, table_layout))
    return replace(made, executor=InProcess(tasks=1))


@pytest.fixture(params=["parquet", "orc"])
def table(request: pytest.FixtureRequest) -> Table:
    """Make a table with files of an ingest, a compaction, a Z-order and an upsert.

    The upsert follows an added column.
    """
    made = table_of(request.param)
    for start in (0, 10):
        made.ingest(rows(*((f"k{number}", number) for number in range(start, start + 10))))
    made.metagen()
    made.compact()
    made.zorder(["price", "sku"])
    made.add_columns({"note": pa.struct([("it's", pa.string())])})
    later = rows(("k1", 30), ("k2", 34))
    notes = pa.array([{"it's": "late"}, None], pa.struct([("it's", pa.string())]))
    made.ingest(later.append_column("note", notes), metadata="inline")
    return made


def test_every_column_of_every_file_has_its_field_id(table: Table) -> None:
    spec = table.snapshot_at().spec
    assert [field.id for field in spec.schema.fields] == [1, 2, 3, 4, 8, 12]
    with_note = without_note = 0
    paths = [stored.path for stored in table.storage.list(layout.DATA)]
    for path in paths:
        stored = stored_schema(table, path, spec.file_format)
        fields = [field for field in spec.schema.fields if field.physical in stored.names]
        expected = [*known_ids(fields, spec.file_format), *HIDDEN]
        expected += OF_REWRITTEN if "_row_id" in stored.names else []
        assert [*stored_ids(stored, spec.file_format)] == expected
        with_note += "note" in stored.names
        without_note += "note" not in stored.names
    assert with_note == 1
    assert without_note >= 3
    assert check_table(table) == []


def test_no_reader_shows_field_ids(table: Table) -> None:
    known = arrow_schema(table.snapshot_at().spec.schema)
    for shown in (
        table.read(),
        table.read(columns=["places", "sku"]),
        table.read(event_time=12, where="at > 3"),
        table.read(version=0),
        table.get([{"sku": "k1"}, {"sku": "k3"}]),
        table.changes(0),
        table.changes(0, mode="netChanges"),
        table.history_view(),
    ):
        assert shown.schema.metadata is None
        for column in shown.schema:
            if column.name in known.names:
                expected = known.field(column.name)
                assert column.equals(expected, check_metadata=True), column
            assert column.metadata is None


def with_ids(column: pa.Field, ids: Mapping[str, int | None], file_format: str) -> pa.Field:
    """Return the column with another field id, or with none."""
    if column.name not in ids:
        return column
    number = ids[column.name]
    metadata = {} if number is None else {KEY_OF_FORMAT[file_format]: str(number)}
    return column.with_metadata(metadata)


def with_other_ids(table: Table, ids: Mapping[str, int | None]) -> tuple[Table, str]:
    """Return a table whose first file has other field ids, and the file's path."""
    path = layout.commit_path(1)
    spec = table.snapshot_at().spec
    commit = decode_commit(table.storage.get(path), path)
    (file,) = commit.actions.ingested
    stored = decode_file(table.storage.get(file.path), spec, None, file.path, rows=file.rows)
    schema = pa.schema([with_ids(column, ids, spec.file_format) for column in stored.schema])
    changed = pa.table(stored.columns, schema=schema)
    sink = pa.BufferOutputStream()
    if spec.file_format == "parquet":
        pq.write_table(changed, sink, compression="zstd", store_schema=False)
    else:
        orc.write_table(changed, sink, compression="zstd")
    data = sink.getvalue().to_pybytes()
    known = replace(file, size=len(data), crc32=zlib.crc32(data))
    others = {
        path: encode_commit(replace(commit, actions=replace(commit.actions, ingested=(known,)))),
        file.path: data,
    }
    storage = MemoryStorage()
    for each in table.storage.list(""):
        storage.put_if_absent(each.path, others.get(each.path) or table.storage.get(each.path))
    return reopen(storage), file.path


@FORMATS
@pytest.mark.parametrize(
    "ids, message",
    [
        ({"price": None}, "column price has the field ids None, should have 3"),
        ({"at": 7}, "column at has the field ids 7, should have 2"),
        ({"places": 1}, "column places has the field ids 1, 5, 6, 7, should have 4, 5, 6, 7"),
        (
            {"_opal_offset": 3},
            "column _opal_offset has the field ids 3, should have 2147483002",
        ),
    ],
)
def test_check_reports_a_file_with_other_field_ids(
    file_format: str, ids: Mapping[str, int | None], message: str
) -> None:
    made = table_of(file_format)
    made.ingest(rows(("k1", 1), ("k2", 2)))
    same, _ = with_other_ids(made, {})
    assert check_table(same) == []
    forged, path = with_other_ids(made, ids)
    (finding,) = check_table(forged)
    assert (finding.invariant, finding.path) == ("I10", path)
    assert finding.message.startswith(message)
