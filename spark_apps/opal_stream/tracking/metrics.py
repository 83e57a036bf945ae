"""Metrics in Prometheus' text format, on a port or in a file.

The file is for the textfile collector of the node exporter.
"""

import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from opal_lake.errors import InvalidInputError
from opal_stream.operations.verbs import METRICS_HOST
from opal_stream.tracking.outage import Outage

_TYPE = "text/plain; version=0.0.4; charset=utf-8"
HELP = {
    "opal_stream_records_total": ("counter", "messages that were committed"),
    "opal_stream_bytes_total": ("counter", "bytes of the keys and values of committed messages"),
    "opal_stream_position": ("gauge", "next offset to read, as committed"),
    "opal_stream_end": ("gauge", "next offset that Kafka gives out, as last seen"),
    "opal_stream_lag": ("gauge", "offsets between the position and the end"),
    "opal_stream_stalled_seconds": (
        "gauge",
        "how long the position has not moved while messages can be read",
    ),
    "opal_stream_transaction_seconds": (
        "gauge",
        "how long an open transaction has kept the messages behind the position from being read",
    ),
    "opal_stream_latency_seconds": (
        "gauge",
        "age of the oldest message of the last flush when it was visible",
    ),
    "opal_stream_lost_offsets_total": (
        "counter",
        "offsets that Kafka deleted before they were read",
    ),
    "opal_stream_skipped_offsets_total": (
        "counter",
        "offsets without a message: marks of transactions, compacted or lost messages",
    ),
    "opal_stream_repeated_messages_total": ("counter", "messages that came again"),
    "opal_stream_flushes_total": ("counter", "commits"),
    "opal_stream_bad_messages_total": ("counter", "messages put aside"),
    "opal_stream_commit_seconds": ("gauge", "how long the last commit took"),
    "opal_stream_last_flush_timestamp_seconds": ("gauge", "when the last commit was"),
    "opal_stream_gathered_files": (
        "gauge",
        "files of the stream that no commit holds yet, as last seen",
    ),
    "opal_stream_held_back_seconds": (
        "gauge",
        "for how long nothing has been read because too many files wait for the committer",
    ),
    "opal_stream_stuck_files": (
        "gauge",
        (
            "gathered files that cannot be committed: "
            "damaged ones, and the first behind each missing one"
        ),
    ),
    "opal_stream_topic_changed": (
        "gauge",
        (
            "1 when the stream stopped because the topic is gone, is another one, "
            "or has lost what was read"
        ),
    ),
    "opal_stream_commit_stalled_seconds": (
        "gauge",
        "for how long files have waited since the committer made its last commit",
    ),
    "opal_stream_process_up": (
        "gauge",
        "1 while one of several processes, or their committer, runs; 0 until it starts again",
    ),
    "opal_stream_predicted_load": (
        "gauge",
        "messages a second that the plan expects each of several processes to read",
    ),
    "opal_stream_restarts_total": (
        "counter",
        "how often each of several processes, or the committer, was started again",
    ),
    # Named as the client libraries of Prometheus name them
    "process_cpu_seconds_total": ("counter", "CPU time of the process, user and system"),
    "process_resident_memory_bytes": ("gauge", "memory of the process that is not swapped out"),
}
_MEMORY_PAGES = Path("/proc/self/statm")  # of Linux; elsewhere the memory is not reported
Labels = tuple[tuple[str, str], ...]


class Metrics:
    """The metrics of one process, by name and labels.

    They are written to `path` after each flush, and served on `port` while the process lives.
    """

    def __init__(
        self, *, path: str | None = None, port: int | None = None, host: str = METRICS_HOST
    ) -> None:
        self._values: dict[tuple[str, Labels], float] = {}
        # By partition: the last position, and since when it has stood there
        self._stuck_s: dict[Labels, tuple[float, float]] = {}
        # Partitions at whose position an open transaction begins
        self._in_transaction: set[Labels] = set()
        self._lock = threading.Lock()
        self._file = MetricsFile(path)
        self._server = None if port is None else serve(self.text, host, port)

    @property
    def port(self) -> int | None:
        if self._server is None:
            return None
        return self._server.server_address[1]

    def flushed(self, events: Sequence[Mapping[str, Any]], took_s: float, bad: int) -> None:
        with self._lock:
            for event in events:
                labels = _labels(event["topic"], event["partition"])
                self._add("opal_stream_records_total", event["records"], labels)
                self._add("opal_stream_bytes_total", event["bytes"], labels)
                self._add("opal_stream_skipped_offsets_total", event["skipped"], labels)
                self._add("opal_stream_repeated_messages_total", event["repeated"], labels)
                self._values["opal_stream_position", labels] = event["high"]
                if event["latency_ms"] is not None:
                    self._values["opal_stream_latency_seconds", labels] = event["latency_ms"] / 1000
            self._add("opal_stream_flushes_total", 1)
            self._add("opal_stream_bad_messages_total", bad)
            self._values["opal_stream_commit_seconds", ()] = round(took_s, 4)
            self._values["opal_stream_last_flush_timestamp_seconds", ()] = round(time.time(), 3)
        self._write()

    def lost(self, offsets: int, topic: str, partition: int) -> None:
        with self._lock:
            self._add("opal_stream_lost_offsets_total", offsets, _labels(topic, partition))
        self._write()

    def seen(
        self,
        ends: Mapping[tuple[str, int], tuple[int, int]],
        in_transaction: Collection[tuple[str, int]] = (),
    ) -> None:
        """Set position and end by topic and partition, and where a transaction is open."""
        now_s = time.monotonic()
        with self._lock:
            for (topic, partition), (position, end) in ends.items():
                labels = _labels(topic, partition)
                lag = max(0, end - position)
                self._values["opal_stream_position", labels] = position
                self._values["opal_stream_end", labels] = end
                self._values["opal_stream_lag", labels] = lag
                before, since_s = self._stuck_s.get(labels, (None, now_s))
                is_stuck = lag > 0 and before == position
                self._stuck_s[labels] = (position, since_s if is_stuck else now_s)
                self._in_transaction.discard(labels)
                if (topic, partition) in in_transaction:
                    self._in_transaction.add(labels)
        self._write()

    def gathered(self, files: int, held_back_s: float) -> None:
        """Set the backlog of gathered files; the next `seen` writes it."""
        with self._lock:
            self._values["opal_stream_gathered_files", ()] = files
            self._values["opal_stream_held_back_seconds", ()] = round(held_back_s, 1)

    def stuck(self, files: int) -> None:
        """Set the number of stuck files, and write it if it has changed."""
        with self._lock:
            has_changed = self._values.get(("opal_stream_stuck_files", ())) != files
            self._values["opal_stream_stuck_files", ()] = files
        if has_changed:
            self._write()

    def topic_changed(self, topic: str) -> None:
        """Set that a topic has changed: the last metrics of a stream."""
        with self._lock:
            self._values["opal_stream_topic_changed", (("topic", topic),)] = 1
        self._write()

    def text(self) -> str:
        """Return all metrics, grouped by name.

        Stalls are measured now, so that they also grow while the stream waits.
        """
        now_s = time.monotonic()
        with self._lock:
            values = {**self._values, **_of_process()}
            for labels, (_, since_s) in self._stuck_s.items():
                in_transaction = labels in self._in_transaction
                has_lag = values["opal_stream_lag", labels] > 0
                lasts_s = round(now_s - since_s, 1) if has_lag else 0.0
                stalled_s, transaction_s = lasts_s, 0.0
                if in_transaction:
                    stalled_s, transaction_s = 0.0, lasts_s
                values["opal_stream_stalled_seconds", labels] = stalled_s
                values["opal_stream_transaction_seconds", labels] = transaction_s
        lines: dict[str, list[str]] = {}
        for (name, labels), value in sorted(values.items()):
            lines.setdefault(name, []).append(f"{name}{_shown(labels)} {value:.15g}")
        return described(lines)

    def close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def _add(self, name: str, value: float, labels: Labels = ()) -> None:
        self._values[name, labels] = self._values.get((name, labels), 0) + value

    def _write(self) -> None:
        self._file.write(self.text)


def _of_process() -> dict[tuple[str, Labels], float]:
    """Return the CPU seconds and the resident memory of this process."""
    values: dict[tuple[str, Labels], float] = {
        ("process_cpu_seconds_total", ()): round(time.process_time(), 2)
    }
    with suppress(OSError):
        resident_pages = int(_MEMORY_PAGES.read_text(encoding="ascii").split()[1])
        values["process_resident_memory_bytes", ()] = resident_pages * os.sysconf("SC_PAGE_SIZE")
    return values


def described(lines: Mapping[str, Sequence[str]]) -> str:
    """Return a page of lines by name, each name with its help, in the order of `HELP`."""
    page: list[str] = []
    for name, (kind, meaning) in HELP.items():
        if name in lines:
            page += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}", *lines[name]]
    return "\n".join([*page, ""])


class MetricsFile:
    """A file of metrics; without a path nothing is written."""

    def __init__(self, path: str | None) -> None:
        self._path = Path(path) if path else None
        self._outage = Outage(f"metrics in {path}")

    def write(self, text: Callable[[], str]) -> None:
        """Write the file as a whole or not at all: a collector may read at any moment."""
        if self._path is None:
            return
        part = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        with self._outage.tolerated():
            self._path.parent.mkdir(parents=True, exist_ok=True)
            try:
                part.write_text(text(), encoding="utf-8")
                part.replace(self._path)
            except OSError:
                part.unlink(missing_ok=True)
                raise


def _labels(topic: str, partition: int) -> Labels:
    return (("topic", topic), ("partition", str(partition)))


def _shown(labels: Labels) -> str:
    if not labels:
        return ""
    pairs = ",".join(f'{name}="{value}"' for name, value in labels)
    return f"{{{pairs}}}"


class _Server(ThreadingHTTPServer):
    """An HTTP server at an address of IPv4 or IPv6."""

    daemon_threads = True

    def __init__(self, host: str, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), handler)


def serve(text: Callable[[], str], host: str, port: int) -> ThreadingHTTPServer:
    """Serve a page at one address, in a thread; raise InvalidInputError if that fails."""

    class Handler(BaseHTTPRequestHandler):
        """A handler that answers every path with the metrics."""

        def do_GET(self) -> None:
            body = text().encode()
            self.send_response(200)
            self.send_header("Content-Type", _TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing: a scrape comes every few seconds."""

    try:
        server = _Server(host, port, Handler)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidInputError(
            f"metrics cannot be served at {host}:{port}: {reason}; give another metrics_port, "
            "such as 0 for any free port, or another metrics_host"
        ) from error
    threading.Thread(target=server.serve_forever, name="opal-stream-metrics", daemon=True).start()
    return server
