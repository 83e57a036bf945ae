"""Small ORC files whose rows take much memory, for tests of their size."""

from typing import Any

import pyarrow as pa
import pyarrow.orc as orc

from opal_lake.definition.table_spec import TableLayout, TableSpec, plan_spec

KINDS = {
    "text": pa.string(),
    "numbers": pa.list_(pa.int64()),
    "texts": pa.list_(pa.string()),
    "tree": pa.struct([("a", pa.map_(pa.string(), pa.list_(pa.string()))), ("b", pa.int8())]),
}


def spec_of(kind: pa.DataType) -> TableSpec:
    schema = pa.schema([("k", pa.int64()), ("at", pa.int64()), ("v", kind)])
    return plan_spec(schema, TableLayout(keys=["k"], delta="at", file_format="orc"))


def bomb(name: str) -> tuple[bytes, pa.DataType, int]:
    """Return a file of a few KB, made in small parts, whose rows take 300 or 400 MB."""
    sink = pa.BufferOutputStream()
    kind = KINDS["numbers"] if name == "lists" else KINDS["text"]
    value: Any = [7] * 10_000 if name == "lists" else "x" * 100_000
    part = pa.array([value] * 100, kind)
    writer = orc.ORCWriter(
        sink, compression="zstd", batch_size=100, dictionary_key_size_threshold=0.5
    )
    for _ in range(40):
        writer.write(pa.table({"v": part}))
    writer.close()
    return bytes(sink.getvalue()), kind, 4_000
