"""The measures of maintenance.

They are the time of rewriting small files, and the reads of range queries of a table in Z-order.

Plain Parquet stands for Spark's own read and write of all rows; in place of a Z-order it is sorted
by the first column. A minor compaction of an Opal table keeps replaced rows, as it keeps history;
the others leave them out of new files and keep the old files until they expire.
"""

from collections import defaultdict
from typing import Any

from tests.bench.peers.boxes import boxes
from tests.bench.peers.figures import Case
from tests.bench.peers.tables import BenchTable, Run, bench_table, say

CLUSTERED = {"2 columns": ("v1", "v2"), "3 columns": ("v1", "v2", "mod_time")}
_UPSERTED = 0.01
_MB = 1e6


def measure_compaction(run: Run) -> None:
    """Measure a compaction of small files with hidden rows; a new table each round."""
    rows, files = run.options.rows, run.options.small_files
    figures: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for number in range(run.options.rounds + 1):
        with bench_table(run, "compaction", rows, files=files) as table:
            table.upsert(max(2, int(rows * _UPSERTED)))
            answers = run.fleet.ask_rewriters(do="compact", target_mb=run.options.compact_mb)
            turn = f"round {number}" if number else "warm-up"
            say(f"compaction, {turn}", answers)
            for name, answer in answers.items() if number else ():
                figures[name].append(answer)
    case = Case(measure="compaction", rows=rows, columns=f"{files} files")
    for name, answers_of in figures.items():
        run.add(
            case,
            name,
            "s",
            [answer["seconds"] for answer in answers_of],
            _rewritten(answers_of[-1]),
        )


def measure_clustering(run: Run) -> None:
    """Measure range queries on a table in Z-order, for each set of columns.

    The figures are the opened files and the seconds.
    """
    rows = run.options.rows
    for label, columns in CLUSTERED.items():
        with bench_table(run, "clustering", rows) as table:
            answers = run.fleet.ask_rewriters(
                do="cluster", columns=columns, target_mb=run.options.cluster_mb
            )
            say(f"Z-order by {', '.join(columns)}", answers)
            for name, answer in answers.items():
                run.add(
                    Case(measure="clustering", rows=rows, columns=label),
                    name,
                    "s",
                    [answer["seconds"]],
                    _rewritten(answer),
                )
            _note_opened(run, table, label)
            _note_queries(run, table, label)


def _note_opened(run: Run, table: BenchTable, label: str) -> None:
    """Shares of the table in percent, over all boxes."""
    asked = [{}, *boxes(CLUSTERED[label], table.rows)]
    for name, answer in run.fleet.ask_rewriters(do="opened", boxes=asked).items():
        for what in ("files", "bytes"):
            whole, *parts = answer[what]
            case = Case(measure="clustering", rows=table.rows, columns=label, view=f"{what} opened")
            run.add(case, name, "%", [100 * sum(parts) / len(parts) / whole])


def _note_queries(run: Run, table: BenchTable, label: str) -> None:
    asked = boxes(CLUSTERED[label], table.rows)
    seconds: dict[str, list[float]] = defaultdict(list)
    for number in range(run.options.rounds + 1):
        answers = run.fleet.ask_rewriters(do="query", boxes=asked)
        if len({tuple(answer["rows"]) for answer in answers.values()}) > 1:
            raise RuntimeError(
                "systems find different rows in the same boxes: "
                f"{ {n: a['rows'] for n, a in answers.items()} }"
            )
        for name, answer in answers.items() if number else ():
            seconds[name].append(answer["seconds"])
    for name, values in seconds.items():
        run.add(
            Case(measure="clustering", rows=table.rows, columns=label, view="queries"),
            name,
            "s",
            values,
        )


def _rewritten(answer: dict[str, Any]) -> dict[str, float]:
    before, after = answer["files"]
    bytes_before, bytes_after = answer["bytes"]
    speed = bytes_before / _MB / answer["seconds"]
    return {
        "files before": before,
        "files": after,
        "MB before": bytes_before / _MB,
        "MB": bytes_after / _MB,
        "MB/s": speed,
    }
