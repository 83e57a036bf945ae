"""The measures of reads that few formats have.

What the last commits changed, and rows by their keys.

For the feed, `plain` reads the batches themselves, which is the least that there is to read; it
holds no row as it was before.
"""

from collections import defaultdict

from tests.bench.peers.figures import Case
from tests.bench.peers.rows import STRIDE
from tests.bench.peers.tables import Run, bench_table, say

_SHARE = 0.01
_ODD = 7919


def measure_feed(run: Run) -> None:
    """Upserts, then what the last one and what all of them changed.

    Every change, and the net ones.
    """
    rows, upserts = run.options.rows, run.options.feed_upserts
    batch = max(2, int(rows * _SHARE))
    with bench_table(run, "feed", rows) as table:
        writes: dict[str, list[float]] = defaultdict(list)
        for number in range(upserts):
            answers = table.upsert(batch).answers
            say(f"upsert {number + 1} of {upserts}", answers)
            for name, answer in answers.items() if number else ():
                writes[name].append(answer["seconds"])
        for name, values in writes.items():
            run.add(Case(measure="feed", rows=rows, batch=batch, view="write"), name, "s", values)
        for commits in dict.fromkeys((1, upserts)):
            for net in (False, True):
                view = "net" if net else ""
                feed_rounds(
                    run,
                    Case(
                        measure="feed",
                        rows=rows,
                        batch=batch,
                        columns=f"of {commits} commits",
                        view=view,
                    ),
                    commits,
                    net=net,
                )


def feed_rounds(run: Run, case: Case, commits: int, *, net: bool = False) -> None:
    """Read the changes of the last commits from the systems that report them.

    Their rows and sums have to agree.
    """
    seconds: dict[str, list[float]] = defaultdict(list)
    for number in range(run.options.rounds + 1):
        answers = {
            name: answer
            for name, answer in run.fleet.ask_all(do="feed", commits=commits, net=net).items()
            if answer
        }
        measured = {
            name: (answer["rows"], answer["sum"])
            for name, answer in answers.items()
            if name != "plain"
        }
        if len({*measured.values()}) > 1:
            raise RuntimeError(f"systems report different changes of {commits} commits: {measured}")
        for name, answer in answers.items() if number else ():
            seconds[name].append(answer["seconds"])
    for name, values in seconds.items():
        run.add(case, name, "s", values)


def measure_get(run: Run) -> None:
    """Rows by keys that lie all over the table; every round others."""
    rows, count = run.options.rows, run.options.get_keys
    with bench_table(run, "get", rows) as table:
        table.upsert(max(2, int(rows * _SHARE)))
        seconds: dict[str, list[float]] = defaultdict(list)
        for number in range(run.options.rounds + 1):
            keys = [
                f"user-{2 * ((number * count + position) * _ODD * STRIDE % rows):012d}"
                for position in range(count)
            ]
            answers = run.fleet.ask_all(do="get", keys=keys)
            measured = {
                name: (answer["rows"], answer["sum"])
                for name, answer in answers.items()
                if name != "plain"
            }
            if len({*measured.values()}) > 1:
                raise RuntimeError(f"systems find different rows of the same keys: {measured}")
            for name, answer in answers.items() if number else ():
                seconds[name].append(answer["seconds"])
        for name, values in seconds.items():
            run.add(Case(measure="get", rows=rows, columns=f"{count:,} keys"), name, "s", values)
