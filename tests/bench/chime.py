"""Data-change events on PostgreSQL.

How fast they are registered, and what triggers ask costs with millions of them.

The server is this script's own and syncs to disk. Plans are printed as PostgreSQL explains them, of
statements that the client sent. CPU seconds are those of this script's processes and of the server:
on a busy machine they say more than the clock.
"""

import argparse
import multiprocessing
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psutil
from sqlalchemy import event as hooks

from lakechime import DataChangeEvent, Interest, LakeChime, TableFormat
from lakechime.store.database.engine import Database
from lakechime.store.digests import partition_key, tag_keys
from lakechime.store.sql_store import SqlStore
from lakechime.triggers.partition import PartitionTrigger
from lakechime.triggers.snapshot import SnapshotTrigger
from tests.fixtures_postgres import Postgres, postgres_folder, postgres_server

TABLES, DAYS = 1_000, 365
COMPLETE = {"completeness.daily": "99"}
OPERATION = {"opal.operation": "upsert"}
SETTINGS = ("shared_buffers=512MB", "maintenance_work_mem=512MB", "max_wal_size=4GB")


def registration(
    url: str, server: Postgres, *, processes: int, batch: int, seconds: float
) -> tuple[float, float]:
    """Events a second of all processes together, and milliseconds of CPU an event.

    The producers' and the server's.
    """
    context = multiprocessing.get_context("spawn")
    barrier, counts = context.Barrier(processes + 1), context.Queue()
    given = [
        (url, f"{batch}-{processes}-{number}", (batch, seconds), barrier, counts)
        for number in range(processes)
    ]
    workers = [context.Process(target=_register, args=args) for args in given]
    for worker in workers:
        worker.start()
    barrier.wait()
    before = server_cpu_seconds(server)
    done = [counts.get() for _ in workers]
    used = server_cpu_seconds(server) - before + sum(cpu for _, cpu in done)
    barrier.wait()
    for worker in workers:
        worker.join()
    total = sum(count for count, _ in done)
    return total / seconds, used * 1000 / total


def server_cpu_seconds(server: Postgres) -> float:
    """Return the CPU seconds of everything that the server runs now.

    Connections that were closed are in their parent's children.
    """
    first = psutil.Process(
        int((server.home / "data" / "postmaster.pid").read_text().split("\n")[0])
    )
    own = first.cpu_times()
    return sum(own[:4]) + sum(sum(child.cpu_times()[:2]) for child in first.children())


def _register(url: str, name: str, load: tuple[int, float], barrier: Any, counts: Any) -> None:
    batch, seconds = load
    with LakeChime.open(url) as chime:
        chime.register([_event(f"{name}-first", 1)])
        barrier.wait()
        begun, cpu, done = time.monotonic(), time.process_time(), 0
        while time.monotonic() - begun < seconds:
            chime.register([_event(name, done + number) for number in range(1, batch + 1)])
            done += batch
        counts.put((done, time.process_time() - cpu))
        barrier.wait()


def _event(name: str, number: int) -> DataChangeEvent:
    before = str(number - 1) if number > 1 else None
    given = {
        "snapshot_id": str(number),
        "prev_snapshot_id": before,
        "tags": OPERATION,
        "partition": (day(number),),
    }
    return DataChangeEvent(table=f"made.{name}", table_format=TableFormat.OPAL, **given)


def day(number: int) -> str:
    return f"day-{number % DAYS:03}"


def load(database: Database, first: int, last: int) -> None:
    """Events with first < seq <= last.

    Of a thousand tables in turn, and of a day after the other in each. One in ten is complete.
    """
    operation, complete = tag_keys(OPERATION)[0], tag_keys(COMPLETE)[0]
    with database.engine.begin() as connection:
        connection.exec_driver_sql("SET LOCAL statement_timeout = 0")  # millions in one statement
        connection.exec_driver_sql(
            "CREATE TEMP TABLE days (n bigint, text text, key varchar(22)) ON COMMIT DROP"
        )
        days = [
            (number, f'["{day(number)}"]', partition_key((day(number),))) for number in range(DAYS)
        ]
        connection.exec_driver_sql("INSERT INTO days VALUES (%s, %s, %s)", days)
        connection.exec_driver_sql(
            "INSERT INTO lakechime_tables (id, cluster, name, depth) SELECT 1000000 + n, "
            "'default', 'lake.t' || n, 1 "
            f"FROM generate_series(0, {TABLES - 1}) AS n ON CONFLICT DO NOTHING"
        )
        connection.exec_driver_sql(
            "INSERT INTO lakechime_events (seq, event_ts, table_id, dedup_key, partition, "
            "partition_key, snapshot_id, snapshot_ts, "
            "prev_snapshot_id, table_format, operation_type, tags, gap) "
            f"SELECT s, 1700000000000 + s, 1000000 + s %% {TABLES}, left(md5(s::text), 22), "
            f"days.text, days.key, (s / {TABLES})::text, "
            f"1700000000000 + s, (s / {TABLES} - 1)::text, 'OPAL', 'APPEND', "
            "CASE WHEN s %% 10 = 0 "
            """THEN '{"opal.operation":"upsert","completeness.daily":"99"}' """
            """ELSE '{"opal.operation":"upsert"}' END, """
            f"false FROM generate_series({first + 1}, {last}) AS s JOIN days ON days.n = (s / "
            f"{TABLES}) %% {DAYS}"
        )
        for key, every in ((operation, 1), (complete, 10)):
            connection.exec_driver_sql(
                "INSERT INTO lakechime_event_tags (table_id, tag_key, seq) "
                f"SELECT 1000000 + s %% {TABLES}, '{key}', s FROM generate_series({first + 1}, "
                f"{last}) AS s WHERE s %% {every} = 0"
            )
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("SET statement_timeout = 0")
        connection.exec_driver_sql("VACUUM ANALYZE")


@contextmanager
def statements(database: Database) -> Iterator[list[tuple[str, Any]]]:
    """Yield the list of the statements that are sent meanwhile."""
    sent: list[tuple[str, Any]] = []

    def keep(
        _connection: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, _many: bool
    ) -> None:
        sent.append((statement, parameters))

    hooks.listen(database.engine, "before_cursor_execute", keep)
    try:
        yield sent
    finally:
        hooks.remove(database.engine, "before_cursor_execute", keep)


def explained(database: Database, ask: Callable[[], object]) -> list[str]:
    """Return the plan of the longest statement of a question."""
    with statements(database) as sent:
        ask()
    statement, parameters = max(sent, key=lambda call: len(call[0]))
    with database.engine.connect() as connection:
        return list(
            connection.exec_driver_sql(
                f"EXPLAIN (ANALYZE, BUFFERS, COSTS OFF) {statement}", parameters
            ).scalars()
        )


def questions(
    chime: LakeChime, events: int, dice: random.Random
) -> dict[str, Callable[[], object]]:
    """Return what triggers ask, of a random table each time."""

    def table() -> str:
        return f"lake.t{dice.randrange(TABLES)}"

    def ask(**given: Any) -> object:
        return chime.find([Interest(tables=(table(),), **given)])

    late = events - 50 * TABLES
    return {
        "partition": lambda: ask(partition=(day(dice.randrange(DAYS)),)),
        "partition, not there": lambda: ask(partition=("day-none",)),
        "partition and tag": lambda: ask(partition=(day(dice.randrange(DAYS)),), tags=COMPLETE),
        "snapshot, new ones": lambda: ask(after=late),
        "snapshot, nothing new": lambda: ask(after=events),
        "snapshot and tag": lambda: ask(after=late, tags=OPERATION),
        "partition trigger, with its events": lambda: PartitionTrigger(
            table=table(), partition=(day(7),)
        ).evaluate(chime, 1 << 60),
        "snapshot trigger, with 50 events": lambda: SnapshotTrigger(tables=(table(),)).evaluate(
            chime, late
        ),
    }


def timed(ask: Callable[[], object], rounds: int) -> list[float]:
    took = []
    for _ in range(rounds):
        begun = time.perf_counter()
        ask()
        took.append((time.perf_counter() - begun) * 1000)
    return sorted(took)


def show(name: str, took: Sequence[float]) -> None:
    print(
        f"  {name:<36}{statistics.median(took):>9.2f}{took[len(took) * 99 // 100]:>9.2f}",
        flush=True,
    )


def bench_queries(url: str, events: int, rounds: int, *, plans: bool) -> None:
    store = SqlStore.open(url)
    with LakeChime(store) as chime:
        asked = questions(chime, chime.head(), random.Random(1))
        print(f"{events:,} events, {rounds} questions each; {'ms':<10}{'p50':>9}{'p99':>9}")
        for name, ask in asked.items():
            timed(ask, 20)
            show(name, timed(ask, rounds))
        interests = [
            Interest(tables=(f"lake.t{number}",), after=chime.head()) for number in range(TABLES)
        ]
        with statements(store.database) as sent:
            chime.find(interests)
        show(
            f"1,000 waiting, {len(sent)} statements",
            timed(lambda: chime.find(interests), max(20, rounds // 20)),
        )
        for name in (
            ("partition", "partition and tag", "snapshot, new ones", "snapshot and tag")
            if plans
            else ()
        ):
            print(
                f"\n{name}:",
                *(f"    {line}" for line in explained(store.database, asked[name])),
                sep="\n",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.chime", description=__doc__)
    parser.add_argument(
        "--events", default="1000000", help="loaded before questions are asked, as 1000000,10000000"
    )
    parser.add_argument("--rounds", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=5)
    args = parser.parse_args()
    programs = postgres_folder()
    if programs is None:
        raise SystemExit("no PostgreSQL server on PATH or in its usual folders; install one")
    with postgres_server(programs, SETTINGS) as server:
        url = server.new_database()
        for processes, batch in ((1, 1), (8, 1), (1, 100), (8, 100)):
            rate, cpu_ms = registration(
                url, server, processes=processes, batch=batch, seconds=args.seconds
            )
            print(
                f"{processes} producers, {batch} events a call: {rate:,.0f} events/s, "
                f"{cpu_ms:.2f} CPU ms an event",
                flush=True,
            )
        url, loaded = server.new_database(), 0
        for events in map(int, args.events.split(",")):
            store = SqlStore.open(url)
            begun = time.monotonic()
            load(store.database, loaded, events)
            print(f"loaded {events - loaded:,} events in {time.monotonic() - begun:.0f} s")
            store.close()
            loaded = events
            bench_queries(url, events, args.rounds, plans=True)


if __name__ == "__main__":
    main()
