"""Options of a run: the command line, and the short form."""

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

from tests.bench.peers.catalog import SYSTEMS, USUAL
from tests.bench.peers.fleet import bytes_of
from tests.bench.peers.rows import KEYS

MEASURES = (
    "bootstrap",
    "upsert",
    "scan",
    "growth",
    "bytes",
    "compaction",
    "clustering",
    "feed",
    "get",
    "statements",
    "merge-growth",
    "conflicts",
)
STATEMENT_MEASURES = ("statements", "merge-growth", "conflicts")
RESULTS = Path(__file__).parents[1] / "results"
USUAL_MEASURES = tuple(name for name in MEASURES if name not in ("feed", *STATEMENT_MEASURES))
FEED_SYSTEMS = ("opal-inline", "delta", "delta-cdf", "iceberg-cow", "plain")
STATEMENT_SYSTEMS = ("opal-inline", "opal-local", "delta", "iceberg", "iceberg-cow")
SHORT_SYSTEMS = ("opal-batch", "opal-inline", "delta", "iceberg", "plain")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of one run.

    Shares are of `rows`; a round more than `rounds` is run and not counted.
    """

    systems: tuple[str, ...]
    only: tuple[str, ...]
    rows: int
    rounds: int
    keys: tuple[str, ...]
    shares: tuple[float, ...]
    scan_upserts: tuple[int, ...]
    scan_share: float
    growth_rows: tuple[int, ...]
    growth_batch: int
    bytes_upserts: int
    bytes_share: float
    small_files: int
    compact_mb: int
    cluster_mb: int
    feed_upserts: int
    get_keys: int
    statement_rows: tuple[int, ...]
    merge_rows: tuple[int, ...]
    writers: int
    memory: str
    cores: int
    timeout_s: float
    out: Path
    folder: Path | None
    keep: bool
    check: bool
    name: str
    redraw: Path | None


def parse(arguments: list[str] | None = None) -> Options:
    parser = _parser()
    asked = vars(parser.parse_args(arguments))
    short = asked.pop("short")
    options = Options(**asked)
    if options.only == ("feed",) and options.systems == USUAL:
        options = replace(options, systems=FEED_SYSTEMS)
    if options.systems == USUAL and not {*options.only} - {*STATEMENT_MEASURES}:
        options = replace(options, systems=STATEMENT_SYSTEMS)
    options = _shortened(options) if short else options
    unknown = [
        *(set(options.systems) - set(SYSTEMS)),
        *(set(options.only) - set(MEASURES)),
        *(set(options.keys) - set(KEYS)),
    ]
    if unknown:
        known = (
            f"systems: {', '.join(SYSTEMS)}; measures: {', '.join(MEASURES)}; "
            f"keys: {', '.join(KEYS)}"
        )
        parser.error(f"unknown: {', '.join(unknown)}. There are {known}")
    if options.rounds < 1 or options.rows < 1000:
        parser.error("at least 1 round and 1,000 rows are needed")
    try:
        bytes_of(options.memory)
    except ValueError as error:
        parser.error(str(error))
    return options if options.name else replace(options, name=f"peers-{options.rows}")


def _shortened(asked: Options) -> Options:
    return replace(
        asked,
        systems=asked.systems if asked.systems != USUAL else SHORT_SYSTEMS,
        only=asked.only if asked.only != USUAL_MEASURES else ("upsert", "scan", "compaction"),
        rows=min(asked.rows, 1_000_000),
        rounds=min(asked.rounds, 3),
        keys=("uniform",),
        shares=(0.01, 0.1),
        scan_upserts=(1,),
        scan_share=0.1,
        small_files=40,
        compact_mb=8,
        check=True,
        name=asked.name or "peers-short",
    )


def _parser() -> argparse.ArgumentParser:
    about = "Opal tables next to Delta, Iceberg, Hudi and plain Parquet."
    parser = argparse.ArgumentParser(prog="python -m tests.bench.peers", description=about)
    add = parser.add_argument
    add("--systems", type=_names, default=USUAL, help=", ".join(SYSTEMS))
    add("--only", type=_names, default=USUAL_MEASURES, help=", ".join(MEASURES))
    add("--rows", type=int, default=10_000_000, help="rows of the table (10000000)")
    add("--rounds", type=int, default=5, help="rounds that count (5); one more is run to warm up")
    add(
        "--keys",
        type=_names,
        default=KEYS,
        help="uniform, skewed: which keys the measure 'upsert' updates",
    )
    add(
        "--shares",
        type=_numbers,
        default=(0.0001, 0.01, 0.1),
        help="batches of the measure 'upsert' (0.0001,0.01,0.1)",
    )
    add(
        "--scan-upserts",
        type=_counts,
        default=(1, 10, 50),
        help="after how many upserts the measure 'scan' reads (1,10,50)",
    )
    add("--scan-share", type=float, default=0.005, help="their batches (0.005)")
    add(
        "--growth-rows",
        type=_counts,
        default=(1_000_000, 10_000_000, 50_000_000),
        help="tables of the measure 'growth'",
    )
    add("--growth-batch", type=int, default=100_000, help="rows of its batches (100000)")
    add("--bytes-upserts", type=int, default=10, help="upserts of the measure 'bytes' (10)")
    add("--bytes-share", type=float, default=0.1, help="their batches (0.1)")
    add(
        "--small-files",
        type=int,
        default=200,
        help="files of the table that the measure 'compaction' begins with (200)",
    )
    add("--compact-mb", type=int, default=32, help="files that it aims at (32)")
    add("--cluster-mb", type=int, default=1, help="files that the measure 'clustering' aims at (1)")
    add(
        "--feed-upserts",
        type=int,
        default=20,
        help="upserts of 1%% that the measure 'feed' makes, and reads the changes of (20)",
    )
    add("--get-keys", type=int, default=1000, help="keys that the measure 'get' looks up (1000)")
    add(
        "--statement-rows",
        type=_counts,
        default=(1_000, 100_000),
        help="rows that a statement of the measure 'statements' changes (1000,100000)",
    )
    add(
        "--merge-rows",
        type=_counts,
        default=(100_000, 1_000_000, 10_000_000),
        help="tables of the measure 'merge-growth', into which 1,000 rows are merged",
    )
    add("--writers", type=int, default=8, help="writers of the measure 'conflicts' (8)")
    add("--memory", default="3g", help="driver memory of each system (3g)")
    add("--cores", type=int, default=2, help="local[N] of each system (2)")
    add(
        "--timeout",
        type=float,
        default=3600.0,
        dest="timeout_s",
        help="seconds that one step of one system may take (3600)",
    )
    add(
        "--out",
        type=Path,
        default=RESULTS,
        help=f"where JSON and charts go ({RESULTS.relative_to(Path(__file__).parents[3])})",
    )
    add("--name", default="", help="of the files there (peers-ROWS)")
    add("--folder", type=Path, help="where tables are built (a temporary folder)")
    add(
        "--redraw",
        type=Path,
        metavar="JSON",
        help="measure nothing: ratios, charts and limits of an earlier run, or of one cut short",
    )
    add("--keep", action="store_true", help="leave them there, with the logs of the processes")
    add(
        "--check",
        action="store_true",
        help="exit 1 when a ratio is beyond its limit (see limits.py)",
    )
    add(
        "--short",
        action="store_true",
        help="a few minutes: at most 1 million rows and 3 rounds, fewer systems and cases; "
        "checks limits",
    )
    return parser


def _names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in _names(text))


def _counts(text: str) -> tuple[int, ...]:
    return tuple(sorted(int(part.replace("_", "")) for part in _names(text)))
