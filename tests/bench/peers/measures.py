"""The measures. Each builds a table in all systems, asks them in turns, and drops it."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace

from tests.bench.peers.figures import UNFILTERED, Case
from tests.bench.peers.maintenance import measure_clustering, measure_compaction
from tests.bench.peers.reads import feed_rounds, measure_feed, measure_get
from tests.bench.peers.statements import (
    measure_conflicts,
    measure_merge_growth,
    measure_statements,
)
from tests.bench.peers.tables import (
    WARM_UP_ROWS,
    BenchTable,
    Run,
    Upserted,
    bench_table,
    medians,
    say,
)
from tests.bench.peers.worker import SCANS

MAX_BOOTSTRAPS = 3
KEY_STORE = "_opal/key_store"


def warm_up(run: Run) -> None:
    """Run a small table first, so that classes are loaded and code is compiled."""
    print("warming up", flush=True)
    with bench_table(run, "warm-up", WARM_UP_ROWS) as table:
        for _ in range(2):
            say("upsert", table.upsert(WARM_UP_ROWS // 20).answers)
        for columns in SCANS:
            run.fleet.ask_all(do="scan", columns=columns, unfiltered=False)


def measure_bootstrap(run: Run) -> None:
    rows = run.options.rows
    seconds: dict[str, list[float]] = defaultdict(list)
    parts: dict[str, list[dict[str, float]]] = defaultdict(list)
    for _ in range(min(run.options.rounds, MAX_BOOTSTRAPS)):
        with bench_table(run, "bootstrap", rows) as table:
            for name, answer in table.bootstrapped.items():
                seconds[name].append(answer["seconds"])
                parts[name].append(answer["parts"])
    for name in run.fleet.children:
        if seconds[name]:
            run.add(
                Case(measure="bootstrap", rows=rows), name, "s", seconds[name], medians(parts[name])
            )


def measure_upsert(run: Run) -> None:
    """Measure upserts, small batches first, on one table that grows by the inserts."""
    rows = run.options.rows
    for keys in run.options.keys:
        with bench_table(run, "upsert", rows, keys) as table:
            for share in run.options.shares:
                batch = max(2, int(rows * share))
                done = _upsert_rounds(run, table, batch)
                _note_upserts(run, Case(measure="upsert", rows=rows, keys=keys, batch=batch), done)


def measure_growth(run: Run) -> None:
    """Measure the same batch into growing tables, and the changes of the last one."""
    for rows in run.options.growth_rows:
        with bench_table(run, "growth", rows) as table:
            case = Case(
                measure="growth", rows=rows, batch=min(run.options.growth_batch, rows // 10)
            )
            _note_upserts(run, case, _upsert_rounds(run, table, case.batch))
            feed_rounds(run, replace(case, view="feed"), commits=1)


def measure_scan(run: Run) -> None:
    """Measure scans before any upsert, and after some."""
    rows = run.options.rows
    batch = max(2, int(rows * run.options.scan_share))
    with bench_table(run, "scan", rows) as table:
        for upserts in (0, *run.options.scan_upserts):
            while table.upserts < upserts:
                done = table.upsert(batch)
                say(f"upsert {table.upserts} of {upserts}", done.answers)
            _scan_rounds(
                run, Case(measure="scan", rows=rows, batch=batch if upserts else 0, upserts=upserts)
            )


def measure_bytes(run: Run) -> None:
    """Measure the bytes on disk for the upserted bytes."""
    rows, count = run.options.rows, run.options.bytes_upserts
    batch = max(2, int(rows * run.options.bytes_share))
    with bench_table(run, "bytes", rows) as table:
        done = []
        for number in range(count):
            done.append(table.upsert(batch))
            say(f"upsert {number + 1} of {count}", done[-1].answers)
        _note_bytes(run, Case(measure="bytes", rows=rows, batch=batch, upserts=count), done)


MEASURE: Mapping[str, Callable[[Run], None]] = {
    "bootstrap": measure_bootstrap,
    "upsert": measure_upsert,
    "scan": measure_scan,
    "growth": measure_growth,
    "bytes": measure_bytes,
    "compaction": measure_compaction,
    "clustering": measure_clustering,
    "feed": measure_feed,
    "get": measure_get,
    "statements": measure_statements,
    "merge-growth": measure_merge_growth,
    "conflicts": measure_conflicts,
}


def _upsert_rounds(run: Run, table: BenchTable, batch: int) -> list[Upserted]:
    """Upsert round by round; return the rounds after the first, which warms up."""
    done = []
    for number in range(run.options.rounds + 1):
        done.append(table.upsert(batch))
        turn = f"round {number}" if number else "warm-up"
        say(f"{batch:,} rows into {table.rows:,}, {table.keys}, {turn}", done[-1].answers)
    run.fleet.rest()
    return done[1:]


def _note_upserts(run: Run, case: Case, done: list[Upserted]) -> None:
    for name in run.fleet.children:
        answers = [upserted.answers[name] for upserted in done if name in upserted.answers]
        if answers:
            run.add(
                case,
                name,
                "s",
                [answer["seconds"] for answer in answers],
                medians([answer["parts"] for answer in answers]),
            )


def _scan_rounds(run: Run, case: Case) -> None:
    seconds: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    views = ("", UNFILTERED) if case.upserts else ("",)
    for number in range(run.options.rounds + 1):
        for name in run.fleet.in_turns():
            for columns, view in ((columns, view) for columns in SCANS for view in views):
                answer = (
                    run.fleet.ask(name, do="scan", columns=columns, unfiltered=bool(view))
                    if name in run.fleet.children
                    else None
                )
                if answer and number:
                    seconds[name, columns, view].append(answer["seconds"])
    for (name, columns, view), values in sorted(seconds.items()):
        if name in run.fleet.children:
            of = Case(
                measure="scan",
                rows=case.rows,
                batch=case.batch,
                upserts=case.upserts,
                columns=columns,
                view=view,
            )
            run.add(of, name, "s", values)


def _note_bytes(run: Run, case: Case, done: list[Upserted]) -> None:
    """Add the bytes written for each byte of a plain append; `parts` by kind of file."""
    plain = sum(upserted.plain_bytes for upserted in done)
    for name in run.fleet.children:
        written = [upserted.written[name] for upserted in done]
        parts: dict[str, float] = defaultdict(float)
        for kinds in written:
            for kind, size in kinds.items():
                parts[kind] += size / plain
        if KEY_STORE in parts:
            parts["key store merges"] = (
                merged_bytes([kinds.get(KEY_STORE, 0) for kinds in written]) / plain
            )
        total = sum(sum(kinds.values()) for kinds in written) / plain
        run.add(
            case,
            name,
            "x",
            [total],
            {kind: round(value, 3) for kind, value in sorted(parts.items())},
        )


def merged_bytes(key_store: list[int]) -> int:
    """Return the bytes that merges wrote into the key store.

    Runs are merged by the job that writes one anyway, so that it is what an upsert wrote there
    beyond the least of these equal ones. It is among the bytes of the key store.
    """
    return sum(key_store) - len(key_store) * min(key_store)
