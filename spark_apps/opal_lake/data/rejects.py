"""Rows that cannot go into a table: why, where they came from, and what they held."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from opal_lake.data.json_rows import JsonForm
from opal_lake.data.shown_values import values_of
from opal_lake.data.utf8 import holds_text, rows_not_utf8
from opal_lake.decoding import decoding
from opal_lake.definition.schema import RESERVED_PREFIX, Atomic, Field
from opal_lake.definition.table_spec import MAX_KEY_BYTES, TableSpec

# What a source reader found wrong with a row already, where the row stood, what it held before it was given types, and a JSON list of the
# columns whose values it lacks, as they did not change: they stay those of the row before it
BAD, SOURCE, ROW, UNCHANGED = NOTES = ("_opal_bad", "_opal_source", "_opal_row", "_opal_unchanged")
EXAMPLES = 5
MOST_REASONS, OTHER_REASONS = 20, "other reasons"
EXAMPLE_CHARACTERS = 1000
LACKING = "the row lacks values that did not change, and only an ingest that makes rows visible at once looks them up"
# In the metadata of a file of rejected rows: that `row` is JSON, and how it is read
_FORM = b"opal.json"
SCHEMA = pa.schema([("reason", pa.string()), ("source", pa.string()), ("row", pa.string())])


@dataclass(slots=True, kw_only=True)
class Rejects:
    """Bad rows of one task: all are counted, a few are shown, and in quarantine all are kept."""

    keep: bool
    form: JsonForm | None = None
    counts: Counter[str] = field(default_factory=Counter)
    examples: list[dict[str, str | None]] = field(default_factory=list)
    kept: list[pa.Table] = field(default_factory=list)

    def add(self, rows: pa.Table, reasons: Sequence[str]) -> None:
        self.counts = fewer_reasons(self.counts + Counter(reasons))
        shown = rows if self.keep else rows.slice(0, EXAMPLES - len(self.examples))
        sources = (
            values_of(shown[SOURCE]) if SOURCE in shown.column_names else [None] * shown.num_rows
        )
        texts = values_of(shown[ROW]) if ROW in shown.column_names else _row_texts(shown)
        columns = (reasons[: len(texts)], sources, texts)
        table = pa.table([pa.array(column, pa.string()) for column in columns], schema=SCHEMA)
        self.examples += [
            _short(example) for example in table.slice(0, EXAMPLES - len(self.examples)).to_pylist()
        ]
        if self.keep:
            self.kept.append(table)

    def encode(self) -> bytes:
        sink = pa.BufferOutputStream()
        rows = pa.concat_tables(self.kept)
        if self.form is not None:
            form = json.dumps({"time_unit": self.form.time_unit}).encode()
            rows = rows.replace_schema_metadata({_FORM: form})
        pq.write_table(rows, sink, compression="zstd")
        return bytes(sink.getvalue())


class StoredRejects(NamedTuple):
    """The rows in a file of rejected rows; `form` is None where their text does not say all."""

    rows: pa.Table
    form: JsonForm | None


def read_rejects(data: bytes, path: str) -> StoredRejects:
    """Decode a file of rejected rows; FormatError if it is damaged."""
    with decoding(path, "Parquet"):
        # No threads: one may let go of the bytes last, and aborts the process if Python ends then
        with pq.ParquetFile(pa.BufferReader(data)) as file:
            rows = file.read(use_threads=False)
        if rows.schema.remove_metadata() != SCHEMA:
            raise ValueError(f"its columns are {rows.schema.names}")
        given = (rows.schema.metadata or {}).get(_FORM)
        form = None if given is None else JsonForm(time_unit=json.loads(given)["time_unit"])
    return StoredRejects(rows.replace_schema_metadata(), form)


def shown_rejects(rows: pa.Table) -> list[dict[str, str | None]]:
    """Return rejected rows to look at, long ones cut."""
    return [_short(row) for row in rows.to_pylist()]


def fewer_reasons(counts: Counter[str]) -> Counter[str]:
    """The most frequent ones, and the others as one: a source can have a reason of its own for every row."""
    if len(counts) <= MOST_REASONS:
        return counts
    kept = Counter(dict(counts.most_common(MOST_REASONS - 1)))
    kept[OTHER_REASONS] += counts.total() - kept.total()
    return kept


def _row_texts(rows: pa.Table) -> list[str]:
    names = [name for name in rows.column_names if not name.startswith(RESERVED_PREFIX)]
    return [
        row_text(dict(zip(names, row, strict=True)))
        for row in zip(*(values_of(rows[name]) for name in names), strict=True)
    ]


def _short(example: dict[str, str | None]) -> dict[str, str | None]:
    """As much of a row as fits into a message and a commit."""
    row = example["row"] or ""
    return (
        example
        if len(row) <= EXAMPLE_CHARACTERS
        else {**example, "row": row[:EXAMPLE_CHARACTERS] + "..."}
    )


def row_text(row: dict[str, Any]) -> str:
    """A row as JSON, whatever it holds."""
    return json.dumps(row, ensure_ascii=False, default=_text_of)


def _text_of(value: object) -> str:
    if isinstance(value, Decimal):
        return format(value, "f")
    return value.hex() if isinstance(value, bytes) else str(value)


def split_bad_rows(rows: pa.Table, spec: TableSpec, rejects: Rejects) -> pa.Table:
    """The rows that can go in; the others go to `rejects`. Columns have their logical names."""
    reasons: npt.NDArray[np.object_] | None = None
    for bad, reason in _complaints(rows, spec):
        reasons = np.full(rows.num_rows, None, object) if reasons is None else reasons
        here = bad & (reasons == None)  # noqa: E711  # elementwise: the first complaint about a row stands
        reasons[here] = reason if isinstance(reason, str) else reason[here]
    good = rows
    if reasons is not None:
        bad = reasons != None  # noqa: E711  # elementwise
        rejects.add(rows.filter(pa.array(bad)), list(reasons[bad]))
        good = rows.filter(pa.array(~bad))
    return good.drop_columns([name for name in NOTES if name in good.column_names])


def _complaints(rows: pa.Table, spec: TableSpec) -> list[tuple[npt.NDArray[np.bool_], Any]]:
    """Masks of bad rows with the reason, one text or one a row; nothing at all for clean batches, which cost next to nothing."""
    complaints: list[tuple[npt.NDArray[np.bool_], Any]] = []
    if BAD in rows.column_names and rows[BAD].null_count < rows.num_rows:
        complaints.append((_mask(pc.is_valid(rows[BAD])), np.array(rows[BAD].to_pylist(), object)))
    if UNCHANGED in rows.column_names and rows[UNCHANGED].null_count < rows.num_rows:
        complaints.append((_mask(pc.is_valid(rows[UNCHANGED])), LACKING))
    for role, column in spec.required:
        if rows[column.name].null_count:
            complaints.append(
                (_mask(pc.is_null(rows[column.name])), f"{role} column {column.name!r} is null")
            )
    sizes = _key_bytes(rows, spec.keys)
    if sizes is not None and (pc.max(sizes).as_py() or 0) > MAX_KEY_BYTES:
        complaints.append(
            (_mask(pc.greater(sizes, MAX_KEY_BYTES)), f"key is longer than {MAX_KEY_BYTES} bytes")
        )
    for column in spec.schema.fields:
        if holds_text(column.type) and column.name in rows.column_names:
            not_utf8 = rows_not_utf8(rows[column.name])
            if not_utf8 is not None:
                complaints.append(
                    (not_utf8, f"column {column.name!r} holds text that is not UTF-8")
                )
    return complaints


def _key_bytes(rows: pa.Table, keys: Sequence[Field]) -> pa.ChunkedArray | None:
    sizes = None
    for key in keys:
        column = rows[key.name]
        if isinstance(key.type, Atomic) and key.type.name in ("string", "binary"):
            wide = (
                pa.large_string() if key.type.name == "string" else pa.large_binary()
            )  # Arrow has three types for each
            own = pc.fill_null(
                pc.binary_length(column if _has_length(column.type) else column.cast(wide)), 0
            ).cast(pa.int64())
            sizes = own if sizes is None else pc.add(sizes, own)
    return sizes


def _has_length(kind: pa.DataType) -> bool:
    return any(
        is_kind(kind)
        for is_kind in (
            pa.types.is_string,
            pa.types.is_large_string,
            pa.types.is_binary,
            pa.types.is_large_binary,
        )
    )


def _mask(array: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    return np.asarray(array.to_numpy(), np.bool_)
