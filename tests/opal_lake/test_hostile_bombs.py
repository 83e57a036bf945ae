"""Small files that stand for gigabytes, or nest without end.

They end in an error that names them, and take no memory.
"""

import json
import struct
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap

from opal_lake import layout
from opal_lake.data.data_file import decode_file
from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.errors import FormatError, InvalidInputError, OpalError
from opal_lake.events.bitmap import BitmapBase, decode_base, encode_base, words_of
from opal_lake.events.segment_log import SCHEMA as EVENTS
from opal_lake.events.segment_log import decode_events
from opal_lake.key_store.run import _HEAD, MAGIC, decode_run
from opal_lake.log.checkpoint import decode_root
from opal_lake.log.commit import canonical_json, decode_commit, seal, unseal
from opal_lake.log.sections import ALWAYS_INFLATED, decode_section, encode_section
from opal_lake.log.visibility import read_base
from opal_lake.storage.local.store import LocalStorage
from opal_lake.storage.memory import MemoryStorage
from opal_lake.storage.verified import MAX_SEALED
from tests.opal_lake.shop import create, reopen, rows

DEEP = b"[" * 200_000 + b"]" * 200_000


def inflating(plain: bytes, times: int) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        for _ in range(times):
            stream.write(plain)
    return bytes(sink.getvalue())


def test_a_section_inflates_to_no_more_than_an_honest_one() -> None:
    for line, message in (
        (b'"' + b"0" * (1 << 20) + b'"\n', "decompress to more than"),
        (b"0" * (1 << 20), "a line of more than"),
    ):
        bomb = inflating(line, 600)
        assert len(bomb) < 60_000
        with pytest.raises(FormatError, match=rf"bomb\.zst .*{message}"):
            decode_section(bomb, "bomb.zst", len)


def test_a_list_that_compresses_well_can_still_be_read() -> None:
    line = [None, None, 4_194_304] * 4000
    times = ALWAYS_INFLATED // len(canonical_json(line)) + 10
    data = encode_section((line for _ in range(times)), lambda item: item)
    assert len(decode_section(data, "wide.zst", lambda item: 1)) == times
    assert decode_section(
        encode_section([1, "a\n", {"b": None}], lambda item: item), "x", lambda item: item
    ) == [1, "a\n", {"b": None}]
    assert decode_section(encode_section([], str), "x", str) == []


def test_json_without_end_is_damage() -> None:
    with pytest.raises(FormatError, match=r"deep.json .*nested"):
        decode_commit(seal(DEEP), "deep.json")
    with pytest.raises(FormatError, match=r"deep.json"):
        decode_root(seal(b'{"format":1,"spec":' + DEEP + b"}"), "deep.json")
    with pytest.raises(FormatError, match=r"deep.zst .*nested"):
        decode_section(inflating(DEEP + b"\n", 1), "deep.zst", str)
    with pytest.raises(FormatError, match=r"long.json"):
        decode_commit(seal(b'{"format":1,"version":' + b"9" * 100_000 + b"}"), "long.json")
    with pytest.raises(FormatError, match=r"half.json"):
        decode_commit(seal(b'{"format":1,"token":"\\ud800"}'), "half.json")


def test_a_type_of_60_levels_is_read_and_one_of_100_is_refused_in_commits_and_new_tables() -> None:
    storage = MemoryStorage()
    create(storage)
    path = layout.commit_path(0)
    body = unseal(storage.get(path), path)
    for depth, fits in ((60, True), (100, False), (400, False)):
        kind: object = "long"
        for number in range(depth - 1):
            kind = {
                "array": {
                    "id": 100 + number,
                    "name": "element",
                    "physical": "element",
                    "type": kind,
                }
            }
        column = {"id": 99, "name": "deep", "physical": "deep", "type": kind}
        fields = [
            field for field in body["actions"]["spec"]["schema"]["fields"] if field["id"] != 99
        ]
        body["actions"]["spec"]["schema"]["fields"] = [*fields, column]
        storage.delete([path])
        storage.put_if_absent(path, seal(canonical_json(body)))
        if fits:
            assert reopen(storage).snapshot_at().spec.schema.names[-1] == "deep"
        else:
            with pytest.raises(FormatError, match=path):
                reopen(storage).snapshot_at()
    deep = pa.int64()
    for _ in range(100):
        deep = pa.list_(deep)
    with pytest.raises(InvalidInputError, match="nests too deep"):
        plan_spec(
            pa.schema([("k", pa.string()), ("at", pa.int64()), ("deep", deep)]),
            TableLayout(keys=["k"], delta="at"),
        )


def test_a_commit_of_gigabytes_is_not_read(tmp_path: Path) -> None:
    storage = LocalStorage.open(str(tmp_path))
    table = create(storage)
    table.ingest(*rows([("a", 1, 1)]))
    with (tmp_path / layout.commit_path(2)).open("wb") as file:
        file.truncate(2 << 30)  # no block of it is on the disk
    with pytest.raises(
        FormatError, match=rf"{layout.commit_path(2)} has more than {MAX_SEALED:,} bytes"
    ):
        reopen(storage).snapshot_at()


def test_a_referenced_file_is_read_as_far_as_it_should_be_long(tmp_path: Path) -> None:
    storage = LocalStorage.open(str(tmp_path))
    table = create(storage)
    table.ingest(*rows([("a", 1, 1)]))
    table.metagen()
    file = tmp_path / next(iter(table.snapshot_at().files))
    with file.open("r+b") as stream:
        stream.truncate(8 << 30)
    with pytest.raises(FormatError, match=file.name):
        reopen(storage).read()


def test_bitmap_bases_with_false_sizes_are_refused() -> None:
    whole = BitMap()
    whole.add_range(0, 1 << 32)  # half a megabyte that stands for 16 GB of offsets
    with pytest.raises(FormatError, match=r"x.bits .*it marks row"):
        decode_base(encode_base({1: whole}, {}), "x.bits")
    with pytest.raises(FormatError, match="in a segment that has 10 rows"):
        words_of(BitMap([10]), 10)
    good = encode_base({1: BitMap([1, 2])}, {})
    for length in (0xFFFFFFFF, 0x7FFFFFFF, 0):
        with pytest.raises(FormatError, match=r"x\.bits"):
            decode_base(good[:8] + struct.pack("<I", length) + good[12:], "x.bits")
    for segments in ([[1, 1 << 40]], [[1, -1]], [["x", 3]], [[1]], 7, [[1, 26], [2, 26]], DEEP):
        head = DEEP if segments is DEEP else json.dumps({"segments": segments}).encode()
        forged = struct.pack("<8sII", b"OPALBIT1", len(head), zlib.crc32(head)) + head + good[-26:]
        with pytest.raises(FormatError, match=r"x\.bits"):
            decode_base(forged, "x.bits")


def test_a_bitmap_base_marks_no_rows_that_its_segment_does_not_have() -> None:
    """A few bytes stand for 32 million rows, each of which takes 4 bytes when read."""
    storage = MemoryStorage()
    table = create(storage)
    table.ingest(*rows([("a", 1, 1)]))
    table.metagen()
    snapshot = table.snapshot_at()
    marks = BitMap()
    marks.add_range(0, 1 << 25)
    data = encode_base({next(iter(snapshot.segments)): marks}, {})
    assert len(data) < 10_000
    path = layout.bitmap_path(0, 2, "w", None)
    storage.put_if_absent(path, data)
    base = BitmapBase(
        group=0, path=path, size=len(data), crc32=zlib.crc32(data), version=2, write_id="w"
    )
    with pytest.raises(
        FormatError, match=rf"{path} marks row 33,554,431 of segment .* has only 1 rows;"
    ):
        read_base(snapshot, base)


@pytest.mark.parametrize(
    "said",
    [
        {"blocks": 1 << 31},
        {"count": 1 << 40},
        {"count": 1 << 40, "blocks": 1, "block": 1 << 40},
        {"ties": 1 << 40},
        {"filter": [1 << 50, 0]},
        {"count": -1},
        {"count": "x"},
        {"block": 0},
        {"filter": 7},
    ],
    ids=str,
)
def test_runs_are_as_large_as_their_directory(said: dict[str, object]) -> None:
    header = {
        "block": 8192,
        "blocks": 1,
        "count": 1,
        "directory_crc32": 0,
        "filter": [0, 0],
        "ties": 0,
    } | said
    head = json.dumps(header).encode()
    with pytest.raises(FormatError, match=r"x\.run"):
        decode_run(_HEAD.pack(MAGIC, len(head), zlib.crc32(head)) + head + bytes(28), "x.run")


def test_a_block_of_a_run_inflates_to_the_size_of_its_entries() -> None:
    body = bytes(8) + inflating(bytes(1 << 20), 64)
    directory = np.zeros(
        1,
        np.dtype(
            [("fence", "<u8"), ("at", "<u8"), ("size", "<u4"), ("plain", "<u4"), ("crc32", "<u4")]
        ),
    )
    directory["size"], directory["plain"], directory["crc32"] = (
        len(body),
        0xFFFFFFFF,
        zlib.crc32(body),
    )
    listed = directory.tobytes()
    header = {
        "block": 8192,
        "blocks": 1,
        "count": 1,
        "directory_crc32": zlib.crc32(listed),
        "filter": [0, 0],
        "ties": 0,
    }
    head = json.dumps(header).encode()
    with pytest.raises(FormatError, match=r"x.run .*more than 1 entries take"):
        decode_run(_HEAD.pack(MAGIC, len(head), zlib.crc32(head)) + head + listed + body, "x.run")


def test_a_parquet_file_holds_the_rows_that_its_size_allows() -> None:
    """Columns of one value by dictionary and run length.

    A few KB would be gigabytes of events, or of rows.
    """
    many = 12_000_000
    sink = pa.BufferOutputStream()
    events = pa.table(
        [pa.array(np.ones(many, kind)) for kind in (np.int64, np.int32, np.int64)], schema=EVENTS
    )
    pq.write_table(
        events,
        sink,
        compression="zstd",
        use_dictionary=True,
        store_schema=False,
        max_rows_per_page=many,
        row_group_size=many,
    )
    data = bytes(sink.getvalue())
    assert len(data) < 10_000
    before = pa.total_allocated_bytes()
    with pytest.raises(FormatError, match=r"x.parquet .*12,000,000 rows"):
        decode_events(data, "x.parquet", many)
    spec = plan_spec(
        pa.schema([("segment", pa.int64()), ("until", pa.int64())]),
        TableLayout(keys=["segment"], delta="until"),
    )
    with pytest.raises(FormatError, match=r"x.parquet .*12,000,000 rows"):
        decode_file(data, spec, ["segment"], "x.parquet", rows=many)
    assert pa.total_allocated_bytes() - before < 1 << 20


def test_a_commit_claims_no_more_than_its_files_can_hold() -> None:
    storage = MemoryStorage()
    table = create(storage)
    for at in (1, 2):
        table.ingest(*rows([("a", at, at)]))
        table.metagen()
    storage.delete(
        [stored.path for stored in storage.list(layout.CHECKPOINTS)]
    )  # else nobody reads what it stands for
    for version, part, claim in (
        (1, "ingested", "rows"),
        (4, "add_logs", "events"),
        (4, "add_runs", "entries"),
    ):
        path = layout.commit_path(version)
        before = storage.get(path)
        body = unseal(before, path)
        body["actions"][part][0][claim] = 1 << 40
        storage.delete([path])
        storage.put_if_absent(path, seal(canonical_json(body)))
        with pytest.raises(OpalError, match=path):
            reopen(storage).snapshot_at()
        storage.delete([path])
        storage.put_if_absent(path, before)
