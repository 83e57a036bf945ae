"""The registration of every commit of an Opal table, where LAKECHIME_URL is set.

It works for the commits of jobs, commands and notebooks alike. An unreachable database never fails
a commit, and delays it by a few seconds at most. Then a warning is logged, and for a minute no
commit registers. The next commit after that, or `lakechime sync`, registers the missing ones.
"""

import logging
import os
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lakechime.client import LakeChime
from lakechime.event import DEFAULT_CLUSTER

if TYPE_CHECKING:
    from opal_lake.log.commit_log import CommitLog
    from opal_lake.log.snapshot import Snapshot

URL, TOKEN, CLUSTER, TABLE = (
    "LAKECHIME_URL",
    "LAKECHIME_TOKEN",
    "LAKECHIME_CLUSTER",
    "LAKECHIME_TABLE",
)
WAIT_SECONDS = 5.0
PAUSE_SECONDS = 60.0

logger = logging.getLogger("lakechime")


def after_commit(log: "CommitLog", head: "Snapshot") -> None:
    """Register a commit; this is an `opal.after_commit` entry point."""
    url = os.environ.get(URL)
    if url:
        _registrar_of(url, os.environ.get(TOKEN)).register(log, head)


@dataclass(slots=True)
class Registrar:
    """A registrar for one URL, which pauses for a while after a failure."""

    url: str = field(repr=False)
    token: str | None = field(default=None, repr=False)
    wait_seconds: float = WAIT_SECONDS
    pause_seconds: float = PAUSE_SECONDS
    paused_until: float = 0.0
    client: LakeChime | None = None

    def register(self, log: "CommitLog", head: "Snapshot") -> None:
        """Register a commit; give up after `wait_seconds`."""
        if time.monotonic() < self.paused_until:
            return
        if not self.url.startswith("http"):
            # Imported now, so that the wait below is for the database alone
            import lakechime.store.migrate
            import lakechime.store.sql_store  # noqa: F401  # imported for its effect
        # In a thread, because a database driver may wait for longer than `wait_seconds`
        failures: list[Exception] = []
        worker = threading.Thread(
            target=self._try, args=(log, head, failures), name="lakechime", daemon=True
        )
        worker.start()
        worker.join(self.wait_seconds)
        if worker.is_alive():
            failures = [TimeoutError(f"no answer within {self.wait_seconds:g} s")]
        if failures:
            self.paused_until = time.monotonic() + self.pause_seconds
            logger.warning(
                "version %d of %s is committed, but not registered with LakeChime (%s); "
                "a later commit registers it, or run `lakechime sync %s`",
                head.version,
                log.storage.uri,
                failures[0],
                log.storage.uri,
            )

    def _try(self, log: "CommitLog", head: "Snapshot", failures: list[Exception]) -> None:
        from lakechime.producers.opal import OpalSource, event_table
        from lakechime.producers.outbox import Target, sync

        try:
            if self.client is None:
                self.client = LakeChime.open(self.url, token=self.token)
            target = Target(
                table=os.environ.get(TABLE) or event_table(head),
                cluster=os.environ.get(CLUSTER) or DEFAULT_CLUSTER,
            )
            sync(self.client, OpalSource(log=log, target=target, head=head))
        except Exception as error:  # noqa: BLE001  # the waiting thread reports it
            failures.append(error)


_registrars: dict[tuple[int, str, str | None], Registrar] = {}
_lock = threading.Lock()


def _registrar_of(url: str, token: str | None) -> Registrar:
    """Return the registrar of this process: a forked one opens its own connections."""
    with _lock:
        return _registrars.setdefault(
            (os.getpid(), url, token), Registrar(url=url, token=token, wait_seconds=WAIT_SECONDS)
        )
