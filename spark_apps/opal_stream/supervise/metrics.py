"""The metrics of all processes of a stream on one page.

Each process writes a file of its own. The page has the metrics of all files, with a label that
names the process.
"""

import re
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from opal_stream.operations.verbs import METRICS_HOST
from opal_stream.tracking.metrics import MetricsFile, described, serve

_SAMPLE = re.compile(r"(?P<name>\w+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
Own = Mapping[str, Mapping[int | str, float]]  # values by metric and process


class FleetMetrics:
    """The page of metrics, written to `path` when gathered, and served on `port`.

    Without either, processes write no metrics.
    """

    def __init__(
        self, *, path: str | None = None, port: int | None = None, host: str = METRICS_HOST
    ) -> None:
        self._page = MetricsFile(path)
        self._folder: Path | None = None
        if path or port is not None:
            self._folder = Path(tempfile.mkdtemp(prefix="opal-stream-metrics-"))
        self._own: dict[str, dict[str, float]] = {}
        self._counted: set[str] = set()
        self._server = None if port is None else serve(self.text, host, port)

    @property
    def port(self) -> int | None:
        if self._server is None:
            return None
        return self._server.server_address[1]

    def flags(self, process: int | str) -> list[str]:
        """Return the flags of a process that write its metrics.

        The file of its predecessor is deleted: it does not count any more.
        """
        if self._folder is None:
            return []
        self._file(process).unlink(missing_ok=True)
        return [f"--metrics-file={self._file(process)}"]

    def gather(self, own: Own, counted: Collection[int | str]) -> None:
        """Write the page with the supervisor's own values.

        `counted` are the processes whose metrics count: those that run, or will be restarted.
        """
        by_name = {}
        for name, values in own.items():
            by_name[name] = {str(process): value for process, value in values.items()}
        # In one step: the server's thread reads it meanwhile
        self._own = by_name
        self._counted = {str(process) for process in counted}
        self._page.write(self.text)

    def text(self) -> str:
        """Return the page."""
        lines: dict[str, list[str]] = {}
        for name, own in self._own.items():
            for process, value in own.items():
                line = f'{name}{{process="{process}"}} {value:.15g}'
                lines.setdefault(name, []).append(line)
        for process, sample in self._samples():
            labels = f'process="{process}"'
            if sample["labels"]:
                labels += f",{sample['labels']}"
            line = f"{sample['name']}{{{labels}}} {sample['value']}"
            lines.setdefault(sample["name"], []).append(line)
        return described(lines)

    def _samples(self) -> Iterator[tuple[str, re.Match[str]]]:
        """Yield the values that processes have written, with the name of the process."""
        if self._folder is None:
            return
        for file in sorted(self._folder.glob("*.prom")):
            if file.stem not in self._counted:
                continue
            text = ""
            with suppress(OSError):  # its process is being started again
                text = file.read_text(encoding="utf-8")
            for line in text.splitlines():
                sample = _SAMPLE.fullmatch(line)
                if sample is not None:
                    yield file.stem, sample

    def close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _file(self, process: int | str) -> Path:
        assert self._folder is not None
        return self._folder / f"{process}.prom"
