"""Stored rows that violate a constraint that is about to be added.

The visible rows are checked, and the pending ones, which a MetaGen makes visible later. Other rows
are never current again, unless a restore brings them back: then they are checked by the restore.
Files are checked once each, so that a repeat after a lost race reads only newer files.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from opal_lake.data.column_read import column_parts
from opal_lake.data.columns import to_fields
from opal_lake.data.condition_bounds import predicate_of
from opal_lake.data.prune import may_match
from opal_lake.data.rejects import (
    EXAMPLES,
    Rejects,
    fewer_reasons,
    rejects_text,
    without_violations,
)
from opal_lake.data.segment import DataFile
from opal_lake.definition.conditions.nodes import Opposite, may_fail
from opal_lake.definition.schema import DELETED, OFFSET, SEGMENT, Field
from opal_lake.definition.table_spec import TableSpec
from opal_lake.log.snapshot import Snapshot
from opal_lake.log.visibility import invalid_rows
from opal_lake.read.read import FileRead, bounds_of_all, hidden_rows

if TYPE_CHECKING:
    from opal_lake.engine.executor import Executor

_WORK_BYTES = 256 << 20  # of the files that one task checks, unless a file has more


@dataclass(slots=True)
class CheckedFiles:
    """The files that meet new constraints, in states of one epoch and one spec.

    A restore begins a new epoch: it may show rows of a checked file that were not visible before.
    With another spec, a condition may mean another column.
    """

    of: tuple[int, TableSpec] | None = None
    paths: set[str] = field(default_factory=set)

    def unchecked(self, snapshot: Snapshot) -> list[DataFile]:
        """Return the files of a state that were not checked yet."""
        now = (snapshot.root.epoch, snapshot.spec)
        if self.of != now:
            self.of = now
            self.paths.clear()
        return [file for file in snapshot.files.values() if file.path not in self.paths]


@dataclass(frozen=True, slots=True, kw_only=True)
class Violations:
    """The numbers of rows that violate a constraint, by reason, and examples of them."""

    counts: Counter[str]
    examples: Sequence[dict[str, str | None]]

    @property
    def rows(self) -> int:
        return self.counts.total()

    @property
    def text(self) -> str:
        """The lines of a message: the reasons, and examples."""
        return rejects_text(self.counts, [example["row"] for example in self.examples])


def stored_violations(
    snapshot: Snapshot, spec: TableSpec, executor: "Executor", checked: CheckedFiles
) -> Violations | None:
    """Return the stored rows that violate constraints of `spec`, or None.

    These are visible or pending rows.

    `spec` may have other columns than the state: those that it gets together with the constraints.
    """
    if not spec.not_null_ids and not spec.constraints and not spec.generated:
        return None
    files = checked.unchecked(snapshot)
    suspects = [file for file in files if _may_violate(file, spec)]
    outputs: list[Violations] = []
    if suspects:
        task = partial(_violations_in, spec=spec)
        outputs = executor.run(task, _works(snapshot, suspects, spec))
    counts: Counter[str] = Counter()
    examples: list[dict[str, str | None]] = []
    for output in outputs:
        counts.update(output.counts)
        examples += output.examples
    if counts:
        return Violations(counts=fewer_reasons(counts), examples=examples[:EXAMPLES])
    checked.paths.update(file.path for file in files)
    return None


def _may_violate(file: DataFile, spec: TableSpec) -> bool:
    """Return whether a file may hold a row that violates a constraint, by its bounds."""
    if spec.generated:
        return True
    bounds = bounds_of_all(file, spec)
    for number in spec.not_null_ids:
        if number not in bounds or bounds[number].nulls:
            return True
    for _, check in spec.checks:
        is_false = predicate_of(Opposite(value=check.typed))
        if may_fail(check.typed) or may_match(is_false, bounds, file.rows):
            return True
    return False


def _works(snapshot: Snapshot, files: Iterable[DataFile], spec: TableSpec) -> list[list[FileRead]]:
    """Return the reads of files, by tasks. Rows of pending segments are not hidden."""
    invalid = invalid_rows(snapshot)
    works: list[list[FileRead]] = []
    size = _WORK_BYTES
    for file in files:
        if size + file.size > _WORK_BYTES:
            works.append([])
            size = 0
        hidden = {number: invalid[number] for number in file.segments if number in invalid}
        read = FileRead(storage=snapshot.storage, spec=spec, file=file, as_of=None, invalid=hidden)
        works[-1].append(read)
        size += file.size
    return works


def _violations_in(reads: Sequence[FileRead], _: str, *, spec: TableSpec) -> Violations:
    """Check the rows of some files."""
    rejects = Rejects(keep=False)
    fields = _needed_fields(spec)
    for read in reads:
        for rows in _live_rows(read, fields):
            without_violations(rows, spec, rejects)
    return Violations(counts=rejects.counts, examples=rejects.examples)


def _needed_fields(spec: TableSpec) -> list[Field]:
    """Return the columns of constraints, and the keys, by which a person finds a row."""
    ids = [*spec.key_ids, *spec.not_null_ids]
    for column in spec.generated:
        names = [column.field.name, *column.expression.column_names]
        ids += [spec.schema.field(name).id for name in names]
    for _, check in spec.checks:
        ids += [spec.schema.field(name).id for name in check.column_names]
    return [spec.by_id(number) for number in dict.fromkeys(ids)]


def _live_rows(read: FileRead, fields: Sequence[Field]) -> Iterator[pa.Table]:
    """Yield by parts the visible or pending rows of a file that delete nothing."""
    names = [column.physical for column in fields]
    names += [SEGMENT, OFFSET]
    if read.spec.deletes is not None:
        names.append(DELETED)
    for part in column_parts(read.storage, read.file, read.spec, list(dict.fromkeys(names))):
        hidden = hidden_rows(part, read)
        if DELETED in part.column_names:
            hidden |= np.asarray(pc.fill_null(part[DELETED], False).to_numpy(), np.bool_)
        yield to_fields(part.filter(pa.array(~hidden)), read.spec, fields)
