"""The chain of commits, and claims, results and traffic of streams (I1 to I5, I22, I24, I29)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from opal_lake import layout
from opal_lake.clock import moment_text
from opal_lake.engine.results import DELETE_RESULT, result_at
from opal_lake.errors import FormatError, NotFoundError, count_text
from opal_lake.ids import segment_part
from opal_lake.inspect.check.finding import Findings
from opal_lake.log.commit import Commit, unseal
from opal_lake.log.commit_log import CommitLog
from opal_lake.log.lists import ingested_files, rewritten_files
from opal_lake.log.snapshot import Root
from opal_lake.log.store_clock import clock_bound_us
from opal_lake.log.version_window import serving_checkpoint
from opal_lake.maintenance.clock_repair import find_ahead, gather
from opal_lake.storage.protocol import Storage
from opal_lake.storage.verified import FileRef, read_sealed

Sizes = Mapping[str, int]  # bytes by path
_RESTORE = "restore the file from a backup"


def list_sizes(storage: Storage) -> Sizes:
    """Return the sizes of all files, without commits that came during the listing.

    Their checkpoints are left out, too. The log is listed first: files that a commit refers to
    existed before it, so that the long listing after it sees all of them.
    """
    head = max(_versions_in(entry.path for entry in storage.list(layout.LOG)), default=-1)
    sizes = {entry.path: entry.size for entry in storage.list("")}
    later = {version for version in _versions_in(sizes) if version > head}
    for path in [*sizes]:
        if (layout.commit_version(path) or layout.checkpoint_version(path)) in later:
            del sizes[path]
    return sizes


def _versions_in(paths: Iterable[str]) -> Iterator[int]:
    for path in paths:
        version = layout.commit_version(path)
        if version is not None:
            yield version


def check_chain(
    log: CommitLog, newest: Root | None, sizes: Sizes, findings: Findings
) -> list[Commit]:
    """Return the commits that can be read, and check that each follows the one before.

    `newest` is the newest root. Commits below the start of the log are not checked: a retention has
    yet to delete them.
    """
    versions = [*_versions_in(sizes)]
    roots = _roots_in(sizes)
    if newest is None:
        first = _first_version(versions, roots)
    elif newest.oldest_version:
        # None if it is missing: `check_kept` reports that
        checkpoint = serving_checkpoint(newest, roots)
        first = checkpoint or 0
    else:
        first = 0
    last = max([*versions, *roots], default=-1)
    commits: list[Commit] = []
    for version in range(first, last + 1):
        path = layout.commit_path(version)
        message = f"{path} is missing in the chain; {_RESTORE}"
        exists = findings.expect(path in sizes, "I1", path, message)
        if not exists:
            continue
        # A damaged commit is reported, and the later ones are still read
        with findings.going_on("I1", path):
            commits.append(log.read_commit(version))
    for before, commit in pairwise(commits):
        _check_link(before, commit, findings)
    return commits


def newest_root(log: CommitLog) -> Root | None:
    """Return the newest root, which shows what must exist; None if it is damaged."""
    try:
        return log.head().root
    except (FormatError, NotFoundError):
        return None


def _first_version(versions: Sequence[int], roots: Sequence[int]) -> int:
    """Return the version that a log should begin with, if its newest root is unknown.

    Its first commit may have expired predecessors only if a checkpoint stands for them. Otherwise
    it should begin with version 0, and commits are missing.
    """
    first = min(versions, default=0)
    has_checkpoint = any(root <= first for root in roots)
    return first if has_checkpoint else 0


def _roots_in(sizes: Sizes) -> list[int]:
    versions = (layout.checkpoint_version(path) for path in sizes)
    return [version for version in versions if version is not None]


def check_kept(newest: Root | None, sizes: Sizes, findings: Findings) -> None:
    """Check that versions which the log does not explain have a checkpoint.

    These are savepoints below the oldest version, and the start of a log whose first versions have
    expired.
    """
    if newest is None:
        return
    roots = {*_roots_in(sizes)}
    oldest = newest.oldest_version
    if oldest and serving_checkpoint(newest, roots) is None:
        message = f"none serves the oldest version {oldest}; restore it from a backup"
        findings.add("I22", layout.CHECKPOINTS, message)
    for name, version in newest.savepoints.items():
        message = (
            f"savepoint {name}, version {version}, has none of its own; restore it from a backup, "
            "or release the savepoint"
        )
        is_readable = version in roots or version >= oldest
        findings.expect(is_readable, "I22", layout.CHECKPOINTS, message)


def check_clock(log: CommitLog, commits: Sequence[Commit], findings: Findings) -> None:
    """Check that no commit time is in the future.

    That is not damage: reads by version return the right rows. Only a store with a time of its own
    reveals it.
    """
    if log.storage.now_us() is None:
        return
    try:
        head = log.head()
    except (FormatError, NotFoundError):
        return  # reported as damage of the chain
    up_to_head = [commit for commit in commits if commit.version <= head.version]
    evidence = gather(log.storage, log.clock, head, up_to_head)
    ahead = find_ahead(evidence, clock_bound_us(head.spec))
    if ahead:
        first = ahead[0]
        message = (
            f"it says {moment_text(first.recorded_us)}, and the store had it by "
            f"{moment_text(first.latest_us)}: times of {count_text(len(ahead), 'version')} from it "
            "on are wrong, rows are not; run `opal repair-clock`"
        )
        findings.add("I24", layout.commit_path(first.version), message)


def _check_link(before: Commit, commit: Commit, findings: Findings) -> None:
    path = layout.commit_path(commit.version)
    message = (
        f"it belongs to table {commit.table_id}, the one before to {before.table_id}; {_RESTORE}"
    )
    findings.expect(commit.table_id == before.table_id, "I2", path, message)
    repair = commit.actions.corrected_times
    before_us = before.timestamp_us
    if repair and repair.times_us:
        before_us = repair.times_us[-1]
    message = (
        f"its time {commit.timestamp_us} is not after {before_us} of version {before.version}; "
        f"{_RESTORE}"
    )
    findings.expect(commit.timestamp_us > before_us, "I3", path, message)
    if repair is not None:
        rises = all(time_us < next_us for time_us, next_us in pairwise(repair.times_us))
        ends_here = repair.first + len(repair.times_us) == commit.version
        message = f"the times that it corrects do not rise up to it; {_RESTORE}"
        findings.expect(rises and ends_here, "I3", path, message)
    if commit.version != before.version + 1:
        return  # the missing commit is reported
    message = (
        f"it follows on from write {commit.previous_write_id}, version {before.version} is write "
        f"{before.write_id}; {_RESTORE}"
    )
    findings.expect(commit.previous_write_id == before.write_id, "I2", path, message)
    message = f"its epoch {commit.epoch} is below {before.epoch}; {_RESTORE}"
    findings.expect(commit.epoch >= before.epoch, "I2", path, message)


def check_results(storage: Storage, sizes: Sizes, findings: Findings) -> None:
    """Check that stored results can be read, each under the name of its token."""
    for path in sizes:
        if not path.startswith(layout.RESULTS):
            continue
        try:
            result = result_at(storage, path)
        except FormatError as error:
            findings.add("I4", path, str(error))
            continue
        if result is None:
            continue  # a retention has deleted it meanwhile
        own_path = None
        if result.token is not None:
            own_path = layout.result_path(result.token)
        message = f"it is the result of token {result.token!r}; {DELETE_RESULT}"
        findings.expect(own_path == path, "I4", path, message)


def check_traffic(
    storage: Storage, commits: Sequence[Commit], sizes: Sizes, findings: Findings
) -> None:
    """Check that what streams counted is sealed and of this table."""
    table_ids = {commit.table_id for commit in commits}
    for path in sizes:
        if not path.startswith(layout.TRAFFIC):
            continue
        has_time = layout.traffic_moment(path) is not None
        findings.expect(has_time, "I29", path, "its name holds no time; delete it")
        try:
            document = unseal(read_sealed(storage, path), f"{storage.uri}/{path}")
        except NotFoundError:
            continue  # its writer has deleted it meanwhile
        except FormatError as error:
            findings.add("I29", path, f"{error}; or delete it, streams count again")
            continue
        counted_for = document.get("table_id")
        is_own = str(counted_for) in table_ids or not commits
        message = f"it is of table {counted_for!r}; delete it, streams count again"
        findings.expect(is_own, "I29", path, message)


def check_claims(
    storage: Storage, commits: Sequence[Commit], sizes: Sizes, findings: Findings
) -> None:
    """Check that every number is claimed for this table, and used by one commit."""
    table_ids = {commit.table_id for commit in commits}
    for path in sizes:
        if path.startswith(layout.CLAIMS):
            with findings.going_on("I5", path):
                _check_claim(storage, path, table_ids, findings)
    version_by_number: dict[int, int] = {}
    for commit in commits:
        number = commit.number
        if number is None:
            continue
        path = layout.commit_path(commit.version)
        claim_path = layout.claim_path(number)
        message = f"it is missing, version {commit.version} used its number; {_RESTORE}"
        findings.expect(claim_path in sizes, "I5", claim_path, message)
        earlier = version_by_number.setdefault(number, commit.version)
        message = f"its number {number} was used by version {earlier}; {_RESTORE}"
        findings.expect(earlier == commit.version, "I5", path, message)
        with findings.going_on("I9", path):
            _check_names(storage, commit, findings)


def _check_claim(storage: Storage, path: str, table_ids: set[str], findings: Findings) -> None:
    has_number = layout.claim_number(path) is not None
    findings.expect(has_number, "I5", path, "its name holds no number; delete it")
    try:
        claim = unseal(read_sealed(storage, path), f"{storage.uri}/{path}")
    except NotFoundError:
        return  # a retention has deleted it meanwhile
    table_id = claim.get("table_id")
    message = f"it is a claim on table {table_id}; delete it"
    findings.expect(str(table_id) in table_ids, "I5", path, message)


def _check_names(storage: Storage, commit: Commit, findings: Findings) -> None:
    """Check that a job's number is in the names of its files and segments."""
    path = layout.commit_path(commit.version)
    prefix = f"{commit.number:010d}-"
    files = ingested_files(storage, commit)
    own_files: tuple[FileRef, ...] = (
        *files,
        *rewritten_files(storage, commit).add,
        *commit.actions.add_logs,
        *commit.actions.add_runs,
    )
    for own in own_files:
        is_named = own.path.rsplit("/", 1)[-1].startswith(prefix)
        message = f"{own.path} does not carry its number {commit.number}"
        findings.expect(is_named, "I5", path, message)
    for file in files:
        strangers = [segment for segment in file.segments if segment_part(segment) != commit.number]
        message = f"{file.path} holds segments {strangers}, which are not of number {commit.number}"
        findings.expect(not strangers, "I5", path, message)
