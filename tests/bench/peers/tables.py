"""The table that all systems have at a time.

The same beginning, the same upserts, and in the end the same content.
"""

import contextlib
import shutil
import statistics
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.bench.peers.figures import Case, Figure, Results
from tests.bench.peers.fleet import Answers, Fleet
from tests.bench.peers.options import Options
from tests.bench.peers.rows import Batch

_DISK_BYTES_A_ROW = 80  # of a system: data twice over, key store or index
_SPILL_BYTES_A_ROW = 200  # a MERGE shuffles the whole table, and one works at a time
WARM_UP_ROWS = 20_000

Written = dict[str, int]


@dataclass(kw_only=True)
class Run:
    """The options, processes and results that measures work with."""

    options: Options
    fleet: Fleet
    results: Results
    tables: int = 0

    def add(
        self,
        case: Case,
        system: str,
        unit: str,
        values: list[float],
        parts: dict[str, float] | None = None,
    ) -> None:
        self.results.add(
            Figure(
                case=case,
                system=system,
                unit=unit,
                values=[round(value, 4) for value in values],
                parts=parts or {},
            )
        )


@dataclass(kw_only=True)
class Upserted:
    """One upsert in all systems.

    Their answers, what each wrote, and what the batch weighs as plain Parquet.
    """

    answers: Answers
    written: dict[str, Written]
    plain_bytes: int


@dataclass(kw_only=True)
class BenchTable:
    """One table in every system."""

    run: Run
    name: str
    rows: int
    keys: str
    files: int = 0
    folders: dict[str, Path] = field(default_factory=dict)
    bootstrapped: Answers = field(default_factory=dict)
    upserts: int = 0
    inserted: int = 0
    appended: int = 0
    is_counted: bool = True  # whether the number of rows is known

    def bootstrap(self) -> None:
        with self._staged(
            Batch(base=self.rows, count=self.rows, seed=0, keys=self.keys, inserted=0)
        ) as (path, _):
            self.bootstrapped = self.run.fleet.ask_all(
                do="bootstrap", table=self.name, path=str(path), files=self.files
            )
        say(f"bootstrap of {self.rows:,} rows", self.bootstrapped)
        self.folders = {name: Path(answer["folder"]) for name, answer in self.bootstrapped.items()}
        self.run.fleet.rest()

    def upsert(self, count: int) -> Upserted:
        self.upserts += 1
        batch = Batch(
            base=self.rows, count=count, seed=self.upserts, keys=self.keys, inserted=self.inserted
        )
        answers, written = {}, {}
        fleet = self.run.fleet
        with self._staged(batch) as (path, plain_bytes):
            for name in fleet.in_turns():
                before = sizes(self.folders[name])
                answer = fleet.ask(name, do="upsert", path=str(path))
                if answer is not None:
                    answers[name], written[name] = answer, growth(before, sizes(self.folders[name]))
        self.inserted += batch.new_keys
        self.appended += count
        return Upserted(answers=answers, written=written, plain_bytes=plain_bytes)

    def check(self, measure: str) -> None:
        """All systems hold the same rows; `plain` holds every row that it ever got."""
        fingerprints = {
            name: answer["fingerprint"]
            for name, answer in self.run.fleet.ask_all(do="fingerprint").items()
        }
        plain = fingerprints.pop("plain", None)
        counts = all(
            fingerprint[0] == self.rows + self.inserted for fingerprint in fingerprints.values()
        )
        counts = counts or not self.is_counted
        agree = counts and len({tuple(fingerprint) for fingerprint in fingerprints.values()}) <= 1
        agree = agree and (plain is None or plain[0] == self.rows + self.appended)
        verdict = (
            "all agree" if agree else f"THEY DIFFER, expected {self.rows + self.inserted:,} rows"
        )
        print(
            f"check of {measure} after {self.upserts} upserts of {self.rows:,} rows, {self.keys}: "
            f"{verdict}",
            flush=True,
        )
        for name, fingerprint in fingerprints.items() if not agree else ():
            print(
                f"    {name:<20} rows {fingerprint[0]:,}, sum(v2) {fingerprint[1]:,}, checksum "
                f"{fingerprint[2]:,}",
                flush=True,
            )
        about: dict[str, Any] = {
            "measure": measure,
            "rows": self.rows,
            "keys": self.keys,
            "upserts": self.upserts,
        }
        self.run.results.checks.append(
            about | {"agree": agree, "fingerprints": fingerprints, "plain": plain}
        )
        self.run.results.save()

    def drop(self) -> None:
        self.run.fleet.ask_all(do="drop")
        for folder in self.folders.values():
            shutil.rmtree(folder, ignore_errors=True)

    @contextlib.contextmanager
    def staged_keys(self, first: int, count: int) -> Iterator[Path]:
        """Yield the path of a file of keys, for the length of a block."""
        path = self.run.fleet.folder / "staged" / f"{self.name}-keys-{first}"
        try:
            self.run.fleet.stage_keys(self.rows, first, count, path)
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    @contextlib.contextmanager
    def staged_batch(self, batch: Batch) -> Iterator[Path]:
        """Yield the path of the rows of a batch, for the length of a block."""
        with self._staged(batch) as (path, _):
            yield path

    @contextlib.contextmanager
    def _staged(self, batch: Batch) -> Iterator[tuple[Path, int]]:
        path = self.run.fleet.folder / "staged" / f"{self.name}-{batch.seed}"
        try:
            yield path, self.run.fleet.stage(asdict(batch), path)
        finally:
            shutil.rmtree(path, ignore_errors=True)


class LeftOutError(Exception):
    """The machine is too small for a measure."""


@contextlib.contextmanager
def bench_table(
    run: Run, measure: str, rows: int, keys: str = "uniform", *, files: int = 0
) -> Iterator[BenchTable]:
    """Yield a table; check and drop it at the end of the block.

    `files` > 0 gives it so many files.
    """
    needed_bytes = rows * (len(run.fleet.children) * _DISK_BYTES_A_ROW + _SPILL_BYTES_A_ROW)
    free = shutil.disk_usage(run.fleet.folder).free
    if free < needed_bytes:
        raise LeftOutError(
            f"{measure} of {rows:,} rows may take {needed_bytes >> 30} GiB of disk, {free >> 30} "
            "GiB are free"
        )
    run.tables += 1
    table = BenchTable(run=run, name=f"t{run.tables}", rows=rows, keys=keys, files=files)
    run.fleet.forget_memory()
    try:
        table.bootstrap()
        yield table
        table.check(measure)
        if measure != "warm-up":
            note_memory(run, Case(measure="memory", rows=rows, keys=keys, view=measure))
    except Exception:
        table.drop()
        raise
    table.drop()  # not after Ctrl-C: whoever works then would not listen, and the whole folder goes


def note_memory(run: Run, case: Case) -> None:
    """Add the greatest memory of each system's processes since the table was created."""
    for name, child in run.fleet.children.items():
        run.add(
            case, name, "MB", [child.memory.resident / 1e6], {"private": child.memory.private / 1e6}
        )


def say(what: str, answers: Answers) -> None:
    seconds = "  ".join(
        f"{name} {answer['seconds']:.2f}" for name, answer in sorted(answers.items())
    )
    print(f"  {what}: {seconds}", flush=True)


def medians(values: list[dict[str, float]]) -> dict[str, float]:
    """Return the median of each part."""
    by_part: dict[str, list[float]] = defaultdict(list)
    for parts in values:
        for name, value in parts.items():
            by_part[name].append(value)
    return {name: round(statistics.median(parts), 4) for name, parts in by_part.items()}


def sizes(folder: Path) -> Written:
    """Return the bytes of a folder, without Hadoop's checksum files of a local disk.

    No other store has them.
    """
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".crc")
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}


def growth(before: Written, after: Written) -> Written:
    """Bytes by kind of file: new files, and what old ones grew by.

    A file that came and went in between is not seen.
    """
    written: Written = defaultdict(int)
    for path, size in after.items():
        written[kind_of_file(path)] += max(0, size - before.get(path, 0))
    return {kind: size for kind, size in written.items() if size}


def kind_of_file(path: str) -> str:
    """_opal/key_store/0001.run -> _opal/key_store; part-1.parquet -> parquet."""
    first, *rest = path.split("/")
    if not rest:
        return first.rpartition(".")[2]
    return f"{first}/{rest[0]}" if first in ("_opal", ".hoodie") and len(rest) > 1 else first
