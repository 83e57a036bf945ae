"""The audit of a soak: the log, the notes of all processes, and the table."""

from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opal_lake import layout
from opal_lake.log.commit import Commit
from opal_lake.log.lists import ingested_files, rewritten_files
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import Table, table_on
from tests.kit.check import check_table
from tests.soak.model import Ledger, difference
from tests.soak.rows import columns_from
from tests.soak.site import Site
from tests.soak.witness import notes

UPSERTS, REWRITES = ("inline", "ingest", "metagen"), ("compact", "zorder")
_READERS = 8
_WORK = ("data/", layout.SEGMENT_LOGS, layout.KEY_STORE)

Entry = dict[str, Any]


@dataclass(slots=True, kw_only=True)
class Auditor:
    """A follower of the log from its beginning, so that expired commits count."""

    table: Table
    ledger: Ledger = field(init=False)
    named: set[str] = field(default_factory=set)
    rewrites: list[Commit] = field(default_factory=list)
    commits: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.ledger = Ledger(log=self.table.log)

    def follow(self) -> None:
        for commit in self.ledger.follow(self.table.snapshot_at().version):
            is_inline = commit.operation == "ingest" and commit.actions.processed
            self.commits["inline" if is_inline else commit.operation] += 1
            self.named |= set(self._named(commit))
            if commit.actions.rewrite is not None:
                self.rewrites.append(commit)

    def _named(self, commit: Commit) -> Iterator[str]:
        """Files whose bytes somebody may use from this commit on."""
        actions = commit.actions
        yield from (file.path for file in ingested_files(self.table.storage, commit))
        yield from (file.path for file in rewritten_files(self.table.storage, commit).add)
        yield from (log.path for log in actions.add_logs)
        yield from (run.path for run in actions.add_runs)

    def reread(self, table: Table) -> dict[int, str]:
        """Every version that can be read; what is wrong with those that are wrong."""
        root, differences = table.snapshot_at().root, {}
        for version in sorted(
            {*root.savepoints.values(), *range(root.oldest_version, root.version + 1)}
        ):
            rows = columns_from(table.read(version=version))
            differences[version] = difference(rows, self.ledger.model.visible(version))
        return differences


@dataclass(frozen=True, slots=True, kw_only=True)
class Waste:
    """Files that a job wrote and no commit named."""

    role: str
    operation: str
    files: int
    size: int
    beside: str  # the operations of others that committed meanwhile


def journals(site: Site) -> list[Entry]:
    entries = [entry for path in sorted(site.path.glob("journal-*.jsonl")) for entry in notes(path)]
    return [entry for entry in entries if "operation" in entry]


def reads(site: Site) -> list[Entry]:
    entries = [entry for path in sorted(site.path.glob("journal-*.jsonl")) for entry in notes(path)]
    return [entry for entry in entries if "point" in entry]


def lost_races(site: Site) -> int:
    """Return the puts of versions that others put first."""
    return sum(
        not put["done"]
        for path in _put_files(site)
        for put in notes(path)
        if put["path"].startswith(layout.LOG)
    )


def wasted(site: Site, auditor: Auditor, jobs: Iterable[Entry]) -> list[Waste]:
    """Work that was thrown away, job by job."""
    waste = []
    unnamed = {path: _unnamed(path, auditor.named) for path in _put_files(site)}
    for job in jobs:
        puts = [
            put
            for put in unnamed.get(site.puts(job["role"]), [])
            if job["began"] <= put["at"] <= job["ended"]
        ]
        if puts and "conflict" not in job:
            beside = sorted({other["operation"] for other in jobs if _met(job, other)})
            size = sum(put["bytes"] for put in puts)
            entry = Waste(
                role=job["role"],
                operation=job["operation"],
                files=len(puts),
                size=size,
                beside=", ".join(beside),
            )
            waste.append(entry)
    return waste


def overlaps(jobs: Iterable[Entry]) -> Counter[str]:
    """Count the upserts that committed during a rewrite, and the rewrites during an upsert."""
    jobs = [job for job in jobs if job.get("version") is not None]
    upserts = [job for job in jobs if job["operation"] in UPSERTS]
    rewrites = [job for job in jobs if job["operation"] in REWRITES]
    return Counter(
        upserts=sum(_met_any(upsert, rewrites) for upsert in upserts),
        rewrites=sum(_met_any(rewrite, upserts) for rewrite in rewrites),
    )


def _met_any(job: Entry, others: Iterable[Entry]) -> bool:
    return any(_met(job, other) for other in others)


def _met(job: Entry, other: Entry) -> bool:
    """Return whether the other committed while the job was at work."""
    version = other.get("version")
    return (
        other is not job
        and version is not None
        and job["base"] < version
        and job["began"] <= other["ended"]
        and other["began"] <= job["ended"]
    )


def _unnamed(path: Path, named: set[str]) -> list[Entry]:
    return [
        put
        for put in notes(path)
        if put["done"] and put["path"].startswith(_WORK) and put["path"] not in named
    ]


def _put_files(site: Site) -> list[Path]:
    return sorted(site.path.glob("puts-*.jsonl"))


def acknowledged(jobs: Iterable[Entry], ledger: Ledger) -> list[str]:
    """Upserts that reported a version in which they are not."""
    ingests = [job for job in jobs if job["operation"] in ("inline", "ingest") and job.get("token")]
    return [job["token"] for job in ingests if ledger.tokens.get(job["token"]) != job["version"]]


def copied(table: Table) -> Table:
    """Return a copy in memory of a table that no job uses any more.

    Reading it a hundred times then needs no network.
    """
    here = MemoryStorage()
    paths = [stored.path for stored in table.storage.list("")]
    with ThreadPoolExecutor(_READERS) as pool:
        for path, data in zip(paths, pool.map(table.storage.get, paths), strict=True):
            here.put_if_absent(path, data)
    return table_on(here)


def findings(table: Table) -> list[str]:
    return [str(finding) for finding in check_table(table)]
