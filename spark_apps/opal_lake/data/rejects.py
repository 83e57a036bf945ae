"""Rows that cannot go into a table: why, where they came from, and what they held."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from opal_lake.data.json_rows import JsonForm
from opal_lake.data.shown_values import json_rows, values_of
from opal_lake.data.utf8 import holds_text, rows_not_utf8
from opal_lake.decoding import decoding
from opal_lake.definition.constraints import false_reason, null_reason
from opal_lake.definition.generated import GeneratedColumn, generated_reason
from opal_lake.definition.schema import (
    DELETED,
    RESERVED_PREFIX,
    Atomic,
    Field,
    schema_from_json,
    schema_to_json,
)
from opal_lake.definition.table_spec import MAX_KEY_BYTES, TableSpec
from opal_lake.errors import count_text

BAD = "_opal_bad"  # what a source reader found wrong with a row
SOURCE = "_opal_source"  # where the row was
ROW = "_opal_row"  # the text of the row, before its values got types
# A JSON list of the columns whose values the row lacks because they did not change: their values
# are those of the previous row of its key.
UNCHANGED = "_opal_unchanged"
NOTES = (BAD, SOURCE, ROW, UNCHANGED)
EXAMPLES = 5
MAX_REASONS, OTHER_REASONS = 20, "other reasons"
EXAMPLE_CHARACTERS = 1000
# Stored with rejected rows, and compared by a replay: do not change it
LACKING = (
    "the row lacks values that did not change, "
    "and only an ingest that makes rows visible at once looks them up"
)
# The key of the JSON's form in the metadata of a file of rejected rows whose `row` is JSON
_FORM = b"opal.json"
# A mask of bad rows, and the reason of all, or an array with that of each row
_Complaint = tuple[npt.NDArray[np.bool_], Any]
SCHEMA = pa.schema([("reason", pa.string()), ("source", pa.string()), ("row", pa.string())])


@dataclass(slots=True, kw_only=True)
class Rejects:
    """The bad rows of a task, by reason, and a few examples.

    With `keep`, all bad rows are put aside in `quarantined`. The text of a row begins with the
    columns `keys`, so that a cut example still says which row it is.
    """

    keep: bool
    keys: Sequence[str] = ()
    form: JsonForm | None = None
    counts: Counter[str] = field(default_factory=Counter)
    examples: list[dict[str, str | None]] = field(default_factory=list)
    quarantined: list[pa.Table] = field(default_factory=list)

    def add(self, rows: pa.Table, reasons: Sequence[str]) -> None:
        """Add bad rows with the reason of each."""
        self.counts = fewer_reasons(self.counts + Counter(reasons))
        missing_examples = EXAMPLES - len(self.examples)
        described = rows if self.keep else rows.slice(0, missing_examples)
        sources: list[Any] = [None] * described.num_rows
        if SOURCE in described.column_names:
            sources = values_of(described[SOURCE])
        texts = _row_texts(described, self.keys)
        columns = [
            pa.array(reasons[: len(texts)], pa.string()),
            pa.array(sources, pa.string()),
            pa.array(texts, pa.string()),
        ]
        table = pa.table(columns, schema=SCHEMA)
        self.examples += shown_rejects(table.slice(0, missing_examples))
        if self.keep:
            self.quarantined.append(table)

    def encode(self) -> bytes:
        """Encode the quarantined rows as a file of rejected rows."""
        sink = pa.BufferOutputStream()
        rows = pa.concat_tables(self.quarantined)
        if self.form is not None:
            rows = rows.replace_schema_metadata({_FORM: _form_to_json(self.form)})
        pq.write_table(rows, sink, compression="zstd")
        return bytes(sink.getvalue())


class StoredRejects(NamedTuple):
    """The rows of a file of rejected rows.

    `form` is the form of the JSON in their column `row`; None if it lacks some of the source's
    data.
    """

    rows: pa.Table
    form: JsonForm | None


def read_rejects(data: bytes, path: str) -> StoredRejects:
    """Decode a file of rejected rows; raise FormatError if it is damaged."""
    with decoding(path, "Parquet"):
        # No threads: one may release the bytes last, and abort the process if Python ends then.
        with pq.ParquetFile(pa.BufferReader(data)) as file:
            rows = file.read(use_threads=False)
        if rows.schema.remove_metadata() != SCHEMA:
            raise ValueError(f"its columns are {rows.schema.names}")
        form_json = (rows.schema.metadata or {}).get(_FORM)
        form = None
        if form_json is not None:
            form = _form_from_json(form_json)
    return StoredRejects(rows.replace_schema_metadata(), form)


def _form_to_json(form: JsonForm) -> bytes:
    assert form.schema is not None
    data = {"time_unit": form.time_unit, "schema": schema_to_json(form.schema)}
    return json.dumps(data, ensure_ascii=False).encode()


def _form_from_json(text: bytes) -> JsonForm:
    data = json.loads(text)
    return JsonForm(time_unit=data["time_unit"], schema=schema_from_json(data["schema"]))


def shown_rejects(rows: pa.Table) -> list[dict[str, str | None]]:
    """Return rejected rows for display, long ones cut."""
    return [_short(row) for row in rows.to_pylist()]


def fewer_reasons(counts: Counter[str]) -> Counter[str]:
    """Return the most frequent reasons; count all other ones as OTHER_REASONS.

    A source can have a different reason for every row.
    """
    if len(counts) <= MAX_REASONS:
        return counts
    frequent = Counter(dict(counts.most_common(MAX_REASONS - 1)))
    frequent[OTHER_REASONS] += counts.total() - frequent.total()
    return frequent


def rejects_text(counts: Counter[str], examples: Iterable[object]) -> str:
    """Return the lines of a message: the number of rows for each reason, and examples."""
    lines = [f"  {count_text(number, 'row')}: {reason}" for reason, number in counts.most_common()]
    lines.append("for example:")
    lines.extend(f"  {_example_text(example)}" for example in examples)
    return "\n".join(lines)


def _example_text(example: object) -> str:
    """Return a rejected row in one line: its values, its source and the reason."""
    if not isinstance(example, Mapping):
        return str(example)
    source = f" of {example['source']}" if example.get("source") else ""
    return f"{example['row']}{source}: {example['reason']}"


def _row_texts(rows: pa.Table, keys: Sequence[str]) -> list[Any]:
    """Return the text of each row: the source's own, or JSON with the keys first."""
    if ROW in rows.column_names:
        return values_of(rows[ROW])
    names = [name for name in rows.column_names if not name.startswith(RESERVED_PREFIX)]
    names.sort(key=lambda name: name not in keys)
    return json_texts(rows.select(names))


def _short(example: dict[str, str | None]) -> dict[str, str | None]:
    """Cut the text of a row, so that it fits into a message and a commit."""
    row = example["row"] or ""
    if len(row) <= EXAMPLE_CHARACTERS:
        return example
    return {**example, "row": row[:EXAMPLE_CHARACTERS] + "..."}


def json_texts(rows: pa.Table) -> list[str]:
    """Return each row as JSON text, whatever values it has."""
    return [json.dumps(row, ensure_ascii=False) for row in json_rows(rows)]


def split_bad_rows(
    rows: pa.Table, spec: TableSpec, rejects: Rejects, *, checks_constraints: bool = True
) -> pa.Table:
    """Return the rows that fit the table; add the others to `rejects`.

    Columns have their logical names. With `checks_constraints=False`, rows may violate constraints:
    some of their values are not known yet.
    """
    good = _without_bad(rows, _complaints(rows, spec), rejects)
    # Only now, as an expression may fail on texts that are not UTF-8
    good = with_generated(good, spec.generated)
    if checks_constraints:
        good = without_violations(good, spec, rejects)
    return good.drop_columns([name for name in NOTES if name in good.column_names])


def with_generated(rows: pa.Table, columns: Iterable[GeneratedColumn]) -> pa.Table:
    """Return rows with the values of generated columns where they are null."""
    for column in columns:
        name = column.field.name
        values = rows[name]
        if values.null_count:
            values = pc.coalesce(values, column.expression.values(rows))
            rows = rows.set_column(rows.column_names.index(name), name, values)
    return rows


def without_violations(rows: pa.Table, spec: TableSpec, rejects: Rejects) -> pa.Table:
    """Return the rows that meet all constraints; add the others to `rejects`."""
    if not spec.not_null_ids and not spec.constraints and not spec.generated:
        return rows
    return _without_bad(rows, _violations(rows, spec), rejects)


def _without_bad(rows: pa.Table, complaints: Iterable[_Complaint], rejects: Rejects) -> pa.Table:
    """Return the rows without a complaint; add the others to `rejects`."""
    reasons: npt.NDArray[np.object_] | None = None
    for bad, reason in complaints:
        if reasons is None:
            reasons = np.full(rows.num_rows, None, object)
        # The first complaint about a row stays.
        is_new = bad & (reasons == None)  # noqa: E711  # elementwise
        reasons[is_new] = reason if isinstance(reason, str) else reason[is_new]
    if reasons is None:
        return rows
    bad = reasons != None  # noqa: E711  # elementwise
    rejects.add(rows.filter(pa.array(bad)), list(reasons[bad]))
    return rows.filter(pa.array(~bad))


def _violations(rows: pa.Table, spec: TableSpec) -> Iterator[_Complaint]:
    """Yield a mask of the rows that violate a constraint, with the reason.

    A row violates a CHECK if its condition is false or has no answer, not if it is null.
    """
    is_bound: npt.NDArray[np.bool_] | bool = True  # whether constraints hold for a row
    if DELETED in rows.column_names:
        is_bound = ~_mask(pc.fill_null(rows[DELETED], False))
    for column in spec.not_null:
        values = rows[column.name]
        if values.null_count:
            yield _mask(pc.is_null(values)) & is_bound, null_reason(column.name)
    for generated in spec.generated:
        values, expected = rows[generated.field.name], generated.expression.values(rows)
        is_equal = pc.fill_null(pc.equal(values, expected), False)
        is_right = pc.or_(is_equal, pc.and_(pc.is_null(values), pc.is_null(expected)))
        if not pc.all(is_right).as_py():
            reason = generated_reason(generated.field.name, generated.expression.text)
            yield ~_mask(is_right) & is_bound, reason
    for name, check in spec.checks:
        answers = check.answers(rows)
        is_false = pc.fill_null(pc.invert(answers.values), False)
        if pc.any(is_false).as_py():
            yield _mask(is_false) & is_bound, false_reason(name, check.text)
        if answers.failed is not None and pc.any(answers.failed).as_py():
            yield _mask(answers.failed) & is_bound, check.failure


def _complaints(rows: pa.Table, spec: TableSpec) -> list[_Complaint]:
    """Return masks of bad rows, each with a reason or an array of reasons by row.

    A mask is made only if a cheap count shows that rows are bad: clean batches have no mask.
    """
    complaints: list[_Complaint] = []
    if BAD in rows.column_names and rows[BAD].null_count < rows.num_rows:
        reasons = np.array(rows[BAD].to_pylist(), object)
        complaints.append((_mask(pc.is_valid(rows[BAD])), reasons))
    if UNCHANGED in rows.column_names and rows[UNCHANGED].null_count < rows.num_rows:
        complaints.append((_mask(pc.is_valid(rows[UNCHANGED])), LACKING))
    for role, column in spec.required:
        values = rows[column.name]
        if values.null_count:
            reason = f"{role} column {column.name!r} is null"
            complaints.append((_mask(pc.is_null(values)), reason))
    sizes = _key_bytes(rows, spec.keys)
    if sizes is not None and (pc.max(sizes).as_py() or 0) > MAX_KEY_BYTES:
        reason = f"key is longer than {MAX_KEY_BYTES} bytes"
        complaints.append((_mask(pc.greater(sizes, MAX_KEY_BYTES)), reason))
    for column in spec.schema.fields:
        if not holds_text(column.type) or column.name not in rows.column_names:
            continue
        not_utf8 = rows_not_utf8(rows[column.name])
        if not_utf8 is not None:
            complaints.append((not_utf8, f"column {column.name!r} holds text that is not UTF-8"))
    return complaints


def _key_bytes(rows: pa.Table, keys: Sequence[Field]) -> pa.ChunkedArray | None:
    """Return the bytes of the texts and binaries in the key of each row.

    Return None if no key column is a text or a binary.
    """
    total = None
    for key in keys:
        if not isinstance(key.type, Atomic) or key.type.name not in ("string", "binary"):
            continue
        column = rows[key.name]
        if not _has_length(column.type):
            # Arrow's other types of texts and binaries have no `binary_length`.
            wide = pa.large_string() if key.type.name == "string" else pa.large_binary()
            column = column.cast(wide)
        sizes = pc.fill_null(pc.binary_length(column), 0).cast(pa.int64())
        total = sizes if total is None else pc.add(total, sizes)
    return total


def _has_length(kind: pa.DataType) -> bool:
    """Return whether Arrow has `binary_length` for a type of texts or binaries."""
    types = pa.types
    is_text = types.is_string(kind) or types.is_large_string(kind)
    return bool(is_text or types.is_binary(kind) or types.is_large_binary(kind))


def _mask(array: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    if isinstance(array, pa.Array):
        return np.asarray(array.to_numpy(zero_copy_only=False), np.bool_)
    return np.asarray(array.to_numpy(), np.bool_)
