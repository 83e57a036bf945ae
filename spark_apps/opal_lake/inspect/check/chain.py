"""The chain of commits, and claims, results and traffic of streams next to it (I1 to I5, I29)."""

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
from opal_lake.storage.verified import read_sealed

Sizes = Mapping[str, int]


def list_sizes(storage: Storage) -> Sizes:
    """Every file but the commits and checkpoints of versions that came while this was listing.

    The log comes first: what a commit refers to was there before it, so that the long listing behind it sees all of that.
    """
    head = max(_versions_in(entry.path for entry in storage.list(layout.LOG)), default=-1)
    sizes = {entry.path: entry.size for entry in storage.list("")}
    later = {version for version in _versions_in(sizes) if version > head}
    return {
        path: size
        for path, size in sizes.items()
        if (layout.commit_version(path) or layout.checkpoint_version(path)) not in later
    }


def _versions_in(paths: Iterable[str]) -> Iterator[int]:
    return (version for path in paths if (version := layout.commit_version(path)) is not None)


def check_chain(
    log: CommitLog, kept: Root | None, sizes: Sizes, findings: Findings
) -> list[Commit]:
    """The commits that can be read, from where the log begins; what retention has yet to delete below is not looked at."""
    versions, roots = [*_versions_in(sizes)], _roots_in(sizes)
    first = (
        (serving_checkpoint(kept, roots) or 0)
        if kept and kept.oldest_version
        else 0
        if kept
        else _first_version(versions, roots)
    )
    commits = []
    for version in range(first, max([*versions, *roots], default=-1) + 1):
        path = layout.commit_path(version)
        if not findings.expect(
            path in sizes,
            "I1",
            path,
            f"{path} is missing in the chain; restore the file from a backup",
        ):
            continue
        with findings.going_on("I1", path):
            commits.append(log.read_commit(version))
    for before, commit in pairwise(commits):
        _check_link(before, commit, findings)
    return commits


def kept_root(log: CommitLog) -> Root | None:
    """The newest root, which says what is to be there; None where it is damaged."""
    try:
        return log.head().root
    except (FormatError, NotFoundError):
        return None


def _first_version(versions: Sequence[int], roots: Sequence[int]) -> int:
    """Where no newest root says it: a log begins with a version that has a checkpoint, or with version 0."""
    first = min(versions, default=0)
    return first if any(root <= first for root in roots) else 0


def _roots_in(sizes: Sizes) -> list[int]:
    return [root for path in sizes if (root := layout.checkpoint_version(path)) is not None]


def check_kept(kept: Root | None, sizes: Sizes, findings: Findings) -> None:
    """What the log does not explain has a checkpoint: savepoints below the oldest version, and, once versions expired, where it begins."""
    roots = {*_roots_in(sizes)}
    if kept and kept.oldest_version and serving_checkpoint(kept, roots) is None:
        findings.add(
            "I22",
            layout.CHECKPOINTS,
            f"none serves the oldest version {kept.oldest_version}; restore it from a backup",
        )
    for name, version in kept.savepoints.items() if kept else ():
        assert kept is not None
        there = version in roots or version >= kept.oldest_version
        message = f"savepoint {name}, version {version}, has none of its own; restore it from a backup, or release the savepoint"
        findings.expect(there, "I22", layout.CHECKPOINTS, message)


def check_clock(log: CommitLog, commits: Sequence[Commit], findings: Findings) -> None:
    """Times in the future are not damage: reads by version return the right rows. Only a store with a time of its own reveals them."""
    if log.storage.now_us() is None:
        return
    try:
        head = log.head()
    except (FormatError, NotFoundError):
        return  # which others tell
    evidence = gather(
        log.storage,
        log.clock,
        head,
        [commit for commit in commits if commit.version <= head.version],
    )
    ahead = find_ahead(evidence, clock_bound_us(head.spec))
    if ahead:
        first = ahead[0]
        recorded, stored = moment_text(first.recorded_us), moment_text(first.latest_us)
        mend = f"times of {count_text(len(ahead), 'version')} from it on are wrong, rows are not; run `opal repair-clock`"
        findings.add(
            "I24",
            layout.commit_path(first.version),
            f"it says {recorded}, and the store had it by {stored}: {mend}",
        )


def _check_link(before: Commit, commit: Commit, findings: Findings) -> None:
    path = layout.commit_path(commit.version)
    findings.expect(
        commit.table_id == before.table_id,
        "I2",
        path,
        f"it belongs to table {commit.table_id}, the one before to {before.table_id}; restore the file from a backup",
    )
    repair = commit.actions.corrected_times
    before_us = repair.times_us[-1] if repair and repair.times_us else before.timestamp_us
    findings.expect(
        commit.timestamp_us > before_us,
        "I3",
        path,
        f"its time {commit.timestamp_us} is not after {before_us} of version {before.version}; restore the file from a backup",
    )
    if repair is not None:
        rises = all(time_us < next_us for time_us, next_us in pairwise(repair.times_us))
        ends = repair.first + len(repair.times_us) == commit.version
        findings.expect(
            rises and ends,
            "I3",
            path,
            "the times that it corrects do not rise up to it; restore the file from a backup",
        )
    if commit.version == before.version + 1:
        findings.expect(
            commit.previous_write_id == before.write_id,
            "I2",
            path,
            f"it follows on from write {commit.previous_write_id}, version {before.version} is write {before.write_id}; "
            "restore the file from a backup",
        )
        findings.expect(
            commit.epoch >= before.epoch,
            "I2",
            path,
            f"its epoch {commit.epoch} is below {before.epoch}; restore the file from a backup",
        )


def check_results(storage: Storage, sizes: Sizes, findings: Findings) -> None:
    """Check that results which no commit holds can be read, each at the place of its token."""
    for path in sizes:
        if not path.startswith(layout.RESULTS):
            continue
        try:
            result = result_at(storage, path)
        except FormatError as error:
            findings.add("I4", path, str(error))
            continue
        if result is None:
            continue  # retention has deleted it in the meantime
        own_path = None if result.token is None else layout.result_path(result.token)
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
        findings.expect(
            layout.traffic_moment(path) is not None,
            "I29",
            path,
            "its name holds no time; delete it",
        )
        try:
            document = unseal(read_sealed(storage, path), f"{storage.uri}/{path}")
        except NotFoundError:
            continue  # its writer has deleted it in the meantime
        except FormatError as error:
            findings.add("I29", path, f"{error}; or delete it, streams count again")
            continue
        counted_for = document.get("table_id")
        findings.expect(
            str(counted_for) in table_ids or not commits,
            "I29",
            path,
            f"it is of table {counted_for!r}; delete it, streams count again",
        )


def check_claims(
    storage: Storage, commits: Sequence[Commit], sizes: Sizes, findings: Findings
) -> None:
    """Every number is claimed, once, for this table, and carried by one commit."""
    table_ids = {commit.table_id for commit in commits}
    for path in sizes:
        if path.startswith(layout.CLAIMS):
            with findings.going_on("I5", path):
                findings.expect(
                    layout.claim_number(path) is not None,
                    "I5",
                    path,
                    "its name holds no number; delete it",
                )
                try:
                    table_id = unseal(read_sealed(storage, path), f"{storage.uri}/{path}").get(
                        "table_id"
                    )
                except NotFoundError:
                    continue  # retention has deleted it in the meantime
                findings.expect(
                    str(table_id) in table_ids,
                    "I5",
                    path,
                    f"it is a claim on table {table_id}; delete it",
                )
    used: dict[int, int] = {}
    for commit in commits:
        if commit.number is None:
            continue
        path = layout.commit_path(commit.version)
        claim_path = layout.claim_path(commit.number)
        findings.expect(
            claim_path in sizes,
            "I5",
            claim_path,
            f"it is missing, version {commit.version} used its number; restore the file from a backup",
        )
        earlier = used.setdefault(commit.number, commit.version)
        findings.expect(
            earlier == commit.version,
            "I5",
            path,
            f"its number {commit.number} was used by version {earlier}; restore the file from a backup",
        )
        with findings.going_on("I9", path):
            _check_names(storage, commit, findings)


def _check_names(storage: Storage, commit: Commit, findings: Findings) -> None:
    """The number is in the name of every file of the job, and in every segment of an ingest."""
    path, prefix = layout.commit_path(commit.version), f"{commit.number:010d}-"
    files = ingested_files(storage, commit)
    for named in (
        *(file.path for file in (*files, *rewritten_files(storage, commit).add)),
        *(log.path for log in commit.actions.add_logs),
        *(run.path for run in commit.actions.add_runs),
    ):
        findings.expect(
            named.rsplit("/", 1)[-1].startswith(prefix),
            "I5",
            path,
            f"{named} does not carry its number {commit.number}",
        )
    for file in files:
        strangers = [segment for segment in file.segments if segment_part(segment) != commit.number]
        findings.expect(
            not strangers,
            "I5",
            path,
            f"{file.path} holds segments {strangers}, which are not of number {commit.number}",
        )
