"""Streams that run in threads, for tests."""

import threading
import time
from collections.abc import Callable

from opal_lake.errors import OpalError
from opal_lake.table import Table
from opal_stream.flush.stream import Stream


def started(stream: Stream) -> tuple[threading.Thread, list[OpalError]]:
    failures: list[OpalError] = []

    def run() -> None:
        try:
            stream.run()
        except OpalError as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, failures


def wait_for(
    condition: Callable[[Table], object], table: Table, expected: object, timeout_s: float = 60
) -> None:
    until = time.monotonic() + timeout_s
    while (actual := condition(table)) != expected:
        assert time.monotonic() < until, actual
        time.sleep(0.05)
