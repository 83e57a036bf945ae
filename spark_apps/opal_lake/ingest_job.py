"""An ingest from its tasks' outputs to the commit, whoever ran the tasks: one process over Arrow, or Spark."""

import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count

from opal_lake import layout
from opal_lake.commit import Actions, Commit, SideFile, file_to_json
from opal_lake.commit_log import CommitLog, Draft, Proposal
from opal_lake.errors import FormatError, InvalidInputError, NoRowsError, count_text
from opal_lake.group import plan_groups
from opal_lake.ingest import IngestOutput
from opal_lake.job import ON_BAD_ROWS, JobResult
from opal_lake.rejects import EXAMPLES, fewer_reasons
from opal_lake.ruled import Ruled, rule_counts, rule_notes
from opal_lake.sections import encode_section
from opal_lake.segment import DataFile
from opal_lake.snapshot import Snapshot

MOST_INLINE_FILES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestRun:
    """An ingest on its way: what it claimed, and what makes repeats harmless."""

    number: int
    base: Snapshot
    started_us: int
    token: str | None = None
    application: tuple[str, int] | None = None
    partition_key: str | None = None
    quarantine: bool = False
    refuse_empty: bool = False
    expected_rows: int | None = None


def check_on_bad_rows(on_bad_rows: str) -> bool:
    """Whether bad rows are put aside."""
    if on_bad_rows not in ON_BAD_ROWS:
        raise InvalidInputError(f"on_bad_rows={on_bad_rows!r} is unknown; use one of {', '.join(ON_BAD_ROWS)}")
    return on_bad_rows == "quarantine"


def commit_ingest(log: CommitLog, run: IngestRun, outputs: Sequence[IngestOutput], ruled: Ruled | None = None) -> JobResult:
    """Add the segments, pending unless the rule was applied to them inline.

    Fails before anything is in the log when there were bad rows that nobody wants put aside.
    """
    rejected = fewer_reasons(sum((Counter(dict(output.rejected)) for output in outputs), Counter()))
    examples = tuple(example for output in outputs for example in output.examples)[:EXAMPLES]
    if rejected and not run.quarantine:
        raise InvalidInputError(_refusal(rejected, examples))
    if run.refuse_empty and not rejected and not any(output.files for output in outputs):
        raise NoRowsError(
            "the source has no row; nothing was ingested. If that is to be expected: on_empty='accept' (`opal ingest --accept-empty`)"
        )
    met = rejected.total() + sum(file.rows for output in outputs for file in output.files)
    if run.expected_rows not in (None, met):
        raise InvalidInputError(
            f"the source gave {count_text(met, 'row')}, listed were {run.expected_rows:,}: it changed, or was not read whole; "
            "nothing was ingested"
        )
    files = sorted((file for output in outputs for file in output.files), key=lambda file: file.segments)
    counts = _counts(files, rejected, ruled)
    tries = count()

    def build(head: Snapshot, winners: Sequence[Commit]) -> Draft | None:
        if not files and run.token is None and run.application is None and not rejected:
            return None
        placed = place(files, head)
        actions = _processing(ruled, head, winners, placed) if ruled else Actions()
        if len(placed) <= MOST_INLINE_FILES:
            actions = replace(actions, ingested=placed)
        else:
            actions = replace(actions, ingested_side=_write_side(log, run.number, next(tries), placed))
        notes = [f"rejected {count_text(number, 'row')}: {reason}" for reason, number in rejected.most_common()]
        notes += [*rule_notes(ruled.counts), *_pending_notes(head)] if ruled else ()
        result = JobResult(operation="ingest", table=log.storage.uri, counts=counts, notes=tuple(notes), examples=examples)
        return Draft(actions=actions, result=result, changes_view=bool(actions.processed))

    proposal = Proposal(
        operation="ingest",
        number=run.number,
        build=build,
        started_us=run.started_us,
        token=run.token,
        application=run.application,
        partition_key=run.partition_key,
    )
    return log.commit(run.base, proposal)


def _counts(files: Sequence[DataFile], rejected: Counter[str], ruled: Ruled | None) -> dict[str, int]:
    counts = {"rows": sum(file.rows for file in files), "files": len(files), "bytes": sum(file.size for file in files)}
    if ruled is not None and ruled.counts["rows"] != counts["rows"]:
        raise FormatError(f"the tasks wrote {counts['rows']} rows and applied the rule to {ruled.counts['rows']}; nothing was ingested")
    return counts | {"rejected": rejected.total()} | (rule_counts(ruled.counts, len(files)) if ruled else {})


def _pending_notes(head: Snapshot) -> list[str]:
    """What an inline ingest does not take up."""
    pending = head.root.pending
    return [f"{count_text(pending, 'segment')} of earlier ingests wait for a metagen; an inline ingest leaves them"] if pending else []


def _processing(ruled: Ruled, head: Snapshot, winners: Sequence[Commit], placed: Sequence[DataFile]) -> Actions:
    processed = tuple(sorted(segment for file in placed for segment in file.segments))
    return replace(ruled.actions(head, winners, placed), processed=processed)


def place(files: Sequence[DataFile], head: Snapshot) -> tuple[DataFile, ...]:
    """Each new segment in a group."""
    groups = plan_groups(head.root.groups, [file.rows for file in files], head.spec.integer("group_rows"))
    return tuple(replace(file, group=group) for file, group in zip(files, groups, strict=True))


def _write_side(log: CommitLog, number: int, attempt: int, files: Sequence[DataFile]) -> SideFile:
    data = encode_section(files, file_to_json)
    path = layout.side_path(number, attempt)
    log.storage.put_if_absent(path, data)
    return SideFile(path=path, size=len(data), crc32=zlib.crc32(data))


def _refusal(rejected: Counter[str], examples: Sequence[object]) -> str:
    reasons = "\n".join(f"  {count_text(number, 'row')}: {reason}" for reason, number in rejected.most_common())
    shown = "\n".join(f"  {example}" for example in examples)
    return (
        f"{count_text(rejected.total(), 'row')} cannot go into the table, so nothing was ingested:\n{reasons}\nfor example:\n{shown}\n"
        "Correct the source, or use on_bad_rows='quarantine' (`opal ingest --quarantine`) to let the good rows in and put these aside."
    )
