"""Notes of each process, in files that all may read later: its puts and the ends of its jobs."""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opal_lake.storage.forwarding import ForwardingStore
from opal_lake.storage.protocol import Storage


def note(path: Path, entry: dict[str, Any]) -> None:
    """Whole lines: one append stays together, even if other processes append too."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, (json.dumps(entry) + "\n").encode())
    finally:
        os.close(descriptor)


def notes(path: Path) -> list[dict[str, Any]]:
    return (
        [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        if path.exists()
        else []
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WitnessStore(ForwardingStore):
    """A store that writes down every object that it was given.

    Also in Spark's tasks, as long as they run on this machine.
    """

    inner: Storage
    puts: Path

    def put_if_absent(self, path: str, data: bytes | memoryview) -> bool:
        done = self.inner.put_if_absent(path, data)
        note(self.puts, {"path": path, "bytes": len(data), "done": done, "at": time.time()})
        return done
