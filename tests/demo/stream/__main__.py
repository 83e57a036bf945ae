"""The demo of streams: a shop's orders go through a real Kafka and `opal stream` into a table.

    python -m tests.demo.stream [--exit]

The terminal shows the visible orders. All files are in a folder of its own, which is deleted when
the demo ends: by Ctrl-C, or with `--exit` on its own.
"""

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # it is there, and documented

from opal_lake.cli.render import Column, Style, text_table
from opal_lake.definition.sql_schema import arrow_of_sql
from opal_lake.errors import OpalError
from opal_lake.table import Table
from tests.demo.stream.broker import Broker, free_port
from tests.demo.stream.orders import SCHEMA, changes

TOPIC = "orders"
A_SECOND = 200  # changes
SHOWN_S, EXIT_S, LOOK_S = 1.0, 20.0, 0.05
_AGES = 5_000  # the last changes whose age is shown
STATUSES = ("placed", "paid", "shipped", "cancelled")
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(slots=True, kw_only=True)
class Shop:
    """A shop that sends a change every few milliseconds."""

    servers: str
    sent: int = 0
    _over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        producer = Producer({"bootstrap.servers": self.servers, "linger.ms": 5, "log_level": 0})
        for order in changes():
            if self._over.is_set():
                break
            change = {**order, "updated_at": datetime.now(UTC).isoformat(timespec="microseconds")}
            producer.produce(
                TOPIC, json.dumps(change).encode(), key=str(order["order_id"]).encode()
            )
            producer.poll(0)
            self.sent += 1
            time.sleep(1 / A_SECOND)
        producer.flush(10)

    def close(self) -> None:
        self._over.set()


@dataclass(slots=True, kw_only=True)
class Watcher:
    """An observer of the newest version, with the ages of visible changes."""

    table: Table
    ages_s: list[float] = field(default_factory=list)
    version: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)

    def look(self) -> None:
        head = self.table.snapshot_at()
        if head.version == self.version:
            return
        self.version = head.version
        rows = self.table.read(columns=["country", "status", "total", "updated_at"]).to_pylist()
        now = datetime.now(UTC)
        newest = max((row["updated_at"] for row in self.rows), default=None)
        for row in rows:
            if newest is None or row["updated_at"] > newest:
                self.ages_s.append((now - row["updated_at"]).total_seconds())
        self.rows = rows

    def by_country(self) -> list[dict[str, Any]]:
        counts = Counter((row["country"], row["status"]) for row in self.rows)
        revenue = Counter[str]()
        for row in self.rows:
            revenue[row["country"]] += row["total"] if row["status"] in ("paid", "shipped") else 0
        lines = []
        for country in sorted({country for country, _ in counts}):
            line: dict[str, Any] = {"country": country}
            for status in STATUSES:
                line[status] = counts[country, status]
            line["revenue"] = f"{revenue[country]:,.2f}"
            lines.append(line)
        return lines


class Screen:
    """The output of the demo. In a terminal, each page replaces the page before.

    Without a terminal, each page is printed below the page before.
    """

    def __init__(self) -> None:
        self.style = Style.of(sys.stdout)
        self._painted = 0

    def paint(self, lines: Sequence[str]) -> None:
        if self._painted and sys.stdout.isatty():
            print(f"\x1b[{self._painted}A", end="")
        end = "\x1b[K" if sys.stdout.isatty() else ""
        print("\n".join(f"{line}{end}" for line in lines), flush=True)
        self._painted = len(lines)


def page(watcher: Watcher, shop: Shop, style: Style) -> list[str]:
    columns = [Column(key="country", title="country")]
    columns += [Column(key=name, title=name, right=True) for name in (*STATUSES, "revenue")]
    ages = sorted(watcher.ages_s[-_AGES:])
    fresh = "no change is visible yet"
    if ages:
        p50, p95 = ages[len(ages) // 2], ages[int(len(ages) * 0.95)]
        fresh = f"p50 {p50:.2f} s, p95 {p95:.2f} s"
    orders = f"{len(watcher.rows):,} orders visible"
    head = f"version {watcher.version}: {orders}, {shop.sent:,} changes sent"
    return [
        style.strong(head),
        *text_table(columns, watcher.by_country(), style),
        f"freshness, from a change to its visibility: {fresh}",
        "",
    ]


@contextmanager
def running(folder: Path) -> Iterator[tuple[Broker, Table]]:
    """Run a broker with the topic, a table, and `opal stream` between both."""
    broker = Broker(home=folder / "kafka", port=free_port())
    broker.home.mkdir()
    stream = None
    try:
        broker.format()
        broker.start()
        # The client must live as long as its answers
        admin = broker.admin
        topic = NewTopic(TOPIC, num_partitions=2, replication_factor=1)
        admin.create_topics([topic])[TOPIC].result(30)
        table = Table.create(
            str(folder / "orders"),
            arrow_of_sql(SCHEMA),
            keys=["order_id"],
            delta="updated_at",
        )
        words = [
            "stream",
            "run",
            table.uri,
            "--bootstrap-servers",
            broker.servers,
            "--topic",
            TOPIC,
            "--flush-interval",
            "1s",
        ]
        print(f"    opal {' '.join(words)}\n", flush=True)
        stream = subprocess.Popen(
            [sys.executable, "-m", "opal_lake.cli", *words],
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        yield broker, table
        if stream.poll() is not None:
            raise OpalError(f"opal stream has ended with exit code {stream.returncode}")
    finally:
        # A process that ends while it stops others leaves some behind
        for number in ENDS:
            signal.signal(number, signal.SIG_IGN)
        if stream is not None:
            stream.terminate()
            stream.wait(60)
        broker.stop()


def run(folder: Path, *, stays: bool) -> None:
    screen = Screen()
    print(
        screen.style.strong(
            "> Starting Kafka, and a stream from its topic orders into a table, without Spark"
        ),
        flush=True,
    )
    with running(folder) as (broker, table):
        shop, watcher = Shop(servers=broker.servers), Watcher(table=table)
        thread = threading.Thread(target=shop.run, daemon=True)
        thread.start()
        try:
            began_s = painted_s = time.monotonic()
            while stays or time.monotonic() - began_s < EXIT_S:
                watcher.look()
                if time.monotonic() - painted_s >= SHOWN_S:
                    screen.paint(page(watcher, shop, screen.style))
                    painted_s = time.monotonic()
                time.sleep(LOOK_S)
        finally:
            shop.close()
            thread.join(30)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo. Exit code 0 when everything was shown; Ctrl-C is the usual end."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.demo.stream",
        description="A shop's orders through Kafka into a table, live.",
    )
    parser.add_argument(
        "--exit",
        action="store_true",
        help=f"end after {EXIT_S:.0f} s, instead of running until Ctrl-C",
    )
    args = parser.parse_args(argv)
    # SIGINT too: a shell may have started this process with it ignored
    for number in ENDS:
        signal.signal(number, _interrupted)
    folder = Path(tempfile.mkdtemp(prefix="opal-demo-stream-"))
    try:
        run(folder, stays=not args.exit)
    except (OpalError, OSError) as error:
        print(f"the demo failed: {error}\nits files are in {folder}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("ended", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    return 0


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
