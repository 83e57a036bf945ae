"""How a worker reaches runs."""

from typing import Protocol

from opal_lake.key_store.run import OpenRun
from opal_lake.segment import RunFile


class RunCache(Protocol):
    """Opens runs, keeping near what is used often. Keyed by content: a run never changes."""

    def open(self, run: RunFile) -> OpenRun:
        """Ready for probing. Raises FormatError naming the run when its bytes are not what was written."""
        ...
