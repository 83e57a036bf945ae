"""Whether a table is what FORMAT.md says: every numbered invariant, on the newest version, without stopping at the first damage.

Files that nothing refers to are no finding: a job that died leaves them. The whole check holds the keys of all rows in memory, some 50
bytes a row; `deep=False` reads no data file, and checks only what the metadata says.
"""

from collections.abc import Callable

from opal_lake.check.chain import Sizes, check_chain, check_claims, check_kept, check_results, kept_root, list_sizes
from opal_lake.check.events import check_complete, check_logs
from opal_lake.check.files import check_sizes, check_totals, read_found
from opal_lake.check.finding import Finding, Findings
from opal_lake.check.keys import check_entries_exist, check_runs, check_store_complete
from opal_lake.check.rows import check_rows
from opal_lake.check.state import KnownEvents, check_state
from opal_lake.commit import Commit
from opal_lake.data_file import decode_file
from opal_lake.errors import FormatError, NotFoundError
from opal_lake.key_store.entries import Entries, concat_entries, no_entries
from opal_lake.metagen import entries_of_rows
from opal_lake.snapshot import Snapshot
from opal_lake.table import Table

__all__ = ["Finding", "check_table"]

AtFile = Callable[[int, int], None]


def check_table(table: Table, *, deep: bool = True, at_file: AtFile = lambda done, total: None) -> list[Finding]:
    """Every broken invariant of the newest version; empty when all is well. `at_file` hears how many data files are read, of how many."""
    findings, storage = Findings(), table.storage
    sizes = list_sizes(storage)
    kept = kept_root(table.log)
    commits = check_chain(table.log, kept, sizes, findings)
    check_kept(kept, sizes, findings)
    if not commits:
        table.snapshot_at()  # says why this is no table
    check_results(storage, commits, sizes, findings)
    check_claims(storage, commits, sizes, findings)
    events = KnownEvents(storage=storage, findings=findings)
    state = check_state(commits, frozenset(kept.savepoints.values() if kept else ()), sizes, events)
    if state is not None and _is_readable(state, findings):
        _check_content(state, commits, sizes, events, at_file if deep else None)
    return [*findings.found]


def _is_readable(state: Snapshot, findings: Findings) -> bool:
    """Whether the long lists are at hand: behind a damaged commit they come from sections, which may be damaged too."""
    try:
        return all(part is not None for part in (state.files, state.segments, state.pending, state.logs, state.runs, state.bases))
    except (FormatError, NotFoundError) as error:
        findings.add("I7", "_opal/checkpoints/", f"the newest version cannot be put together: {error}")
        return False


def _check_content(state: Snapshot, commits: list[Commit], sizes: Sizes, events: KnownEvents, at_file: AtFile | None) -> None:
    findings = events.findings
    check_sizes(state, sizes, findings)
    check_totals(state, commits, findings)
    logged = check_logs(state, events)
    runs = check_runs(state, sizes, findings)
    if at_file is None:
        return
    rows = _processed_rows(state, sizes, findings, at_file)
    if rows is None:
        return  # what a missing row would have meant for the others cannot be told
    if logged is not None:
        check_complete(rows, logged, state, findings)
    check_entries_exist(rows, runs, state.root.floor, findings)
    if len(runs) == len(state.runs):
        check_store_complete(rows, [*runs.values()], state, findings)


def _processed_rows(state: Snapshot, sizes: Sizes, findings: Findings, at_file: AtFile) -> Entries | None:
    """The rows of all processed segments as the rule sees them; None when a file is damaged."""
    parts = [no_entries(len(state.spec.tie_break))]
    whole = True
    for done, file in enumerate(state.files.values()):
        at_file(done, len(state.files))
        entries = None
        data = read_found(state.storage, file, sizes, findings)
        if data is not None:
            with findings.going_on("I10", file.path):
                rows = decode_file(data, state.spec, None, file.path)
                if check_rows(rows, file, state.segments, state.spec, findings):
                    entries = entries_of_rows(rows, state.spec)
        whole &= entries is not None
        if entries is not None and state.pending.isdisjoint(file.segments):
            parts.append(entries)
    at_file(len(state.files), len(state.files))
    return concat_entries(parts) if whole else None
