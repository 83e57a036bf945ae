"""Metrics of all processes of a stream on one page: each writes a file of its own, and here they are put together, by process."""

import re
import shutil
import tempfile
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from opal_stream.operations.verbs import METRICS_HOST
from opal_stream.tracking.metrics import HELP, MetricsFile, described, serve

_SAMPLE = re.compile(r"(?P<name>\w+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
Own = Mapping[str, Mapping[int | str, float]]  # values by metric and process


class FleetMetrics:
    """Written to `path` when they are gathered, served on `port` as they are. Without either there are none."""

    def __init__(
        self, *, path: str | None = None, port: int | None = None, host: str = METRICS_HOST
    ) -> None:
        self._page = MetricsFile(path)
        self._folder = (
            Path(tempfile.mkdtemp(prefix="opal-stream-metrics-"))
            if path or port is not None
            else None
        )
        self._own: dict[str, dict[str, float]] = {}
        self._there: set[str] = set()
        self._server = serve(self.text, host, port) if port is not None else None

    @property
    def port(self) -> int | None:
        return self._server.server_address[1] if self._server is not None else None

    def words(self, process: int | str) -> list[str]:
        """What a process has to be told. What its predecessor wrote does not count any more."""
        if self._folder is None:
            return []
        self._file(process).unlink(missing_ok=True)
        return [f"--metrics-file={self._file(process)}"]

    def gather(self, own: Own, there: Collection[int | str]) -> None:
        """What the supervisor itself knows, and whose metrics count: those of processes that are `there`, or are to be started again."""
        self._own = {
            name: {str(process): value for process, value in values.items()}
            for name, values in own.items()
        }
        self._there = {str(process) for process in there}
        self._page.write(self.text)

    def text(self) -> str:
        lines: dict[str, list[str]] = {
            name: [f'{name}{{process="{n}"}} {v:.15g}' for n, v in own.items()]
            for name, own in self._own.items()
        }
        files = sorted(self._folder.glob("*.prom")) if self._folder is not None else ()
        for file in (file for file in files if file.stem in self._there):
            with suppress(OSError):  # its process is being started again
                for sample in map(_SAMPLE.fullmatch, file.read_text(encoding="utf-8").splitlines()):
                    if sample is not None:
                        more = f",{sample['labels']}" if sample["labels"] else ""
                        line = f'{sample["name"]}{{process="{file.stem}"{more}}} {sample["value"]}'
                        lines.setdefault(sample["name"], []).append(line)
        return described({name: lines[name] for name in HELP if lines.get(name)})

    def close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _file(self, process: int | str) -> Path:
        assert self._folder is not None
        return self._folder / f"{process}.prom"
