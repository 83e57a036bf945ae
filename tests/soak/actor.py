"""A process of a soak, which works until the soak is over, and notes every job."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

from opal_lake.data.z_value import z_fields
from opal_lake.errors import ConflictError
from opal_lake.result import JobResult
from opal_lake.table import Table
from tests.opal_lake.clustering import zorder
from tests.opal_lake.compacting import compact
from tests.soak.reader import Reader
from tests.soak.rows import TICK, Batch, arrow_of, columns_of
from tests.soak.site import Site, load_site
from tests.soak.witness import note

LOOK_BACK = 100 * TICK
_TARGET_BYTES = 64 << 10


@dataclass(slots=True, kw_only=True)
class Actor:
    """A process under its role's name."""

    site: Site
    role: str
    turns: int = 0
    table: Table = field(init=False)

    def __post_init__(self) -> None:
        self.table = self.site.table(self.role)

    def job(self, operation: str, run: Callable[[], JobResult]) -> None:
        """Run and note a job; repeat it after a conflict, and end the soak on an error."""
        while True:
            entry: dict[str, Any] = {
                "role": self.role,
                "operation": operation,
                "base": self.table.snapshot_at().version,
            }
            entry["began"] = time.time()
            try:
                result = run()
                entry |= {
                    "version": result.version,
                    "token": result.token,
                    "counts": dict(result.counts),
                    "notes": list(result.notes),
                }
                return
            except ConflictError as error:
                entry["conflict"] = str(error)
            except Exception as error:
                entry["error"] = f"{type(error).__name__}: {error}"
                raise
            finally:
                note(self.site.journal(self.role), entry | {"ended": time.time()})

    def next_batch(self, writer: int) -> Batch:
        self.turns += 1
        return Batch(writer=writer, turn=self.turns, tick=self.site.tick)

    def until_over(self, turn: Callable[[], None], pause_s: float) -> None:
        """Works half of the time at most, so that a small machine has room for all."""
        while not self.site.is_over:
            began = time.monotonic()
            turn()
            time.sleep(max(pause_s, time.monotonic() - began))


def inline_upserts(actor: Actor) -> None:
    _ingests(actor, 1, "inline", 0.2)


def pending_upserts(actor: Actor) -> None:
    """Ingests whose rows another process makes visible."""
    _ingests(actor, 2, "batch", 0.4)


def _ingests(actor: Actor, writer: int, metadata: str, pause_s: float) -> None:
    def turn() -> None:
        batch = actor.next_batch(writer)
        rows, deleted = arrow_of(columns_of(batch))
        operation = "inline" if metadata == "inline" else "ingest"
        actor.job(
            operation,
            lambda: actor.table.ingest(rows, deleted, token=batch.token, metadata=metadata),
        )

    actor.until_over(turn, pause_s)


def rewrites(actor: Actor) -> None:
    """Run major and minor compactions and Z-orders by turns."""
    fields = z_fields(actor.table.snapshot_at().spec, ["x", "y"])
    minor = {"target_bytes": _TARGET_BYTES}
    major = {"look_back": LOOK_BACK, "target_bytes": _TARGET_BYTES}
    jobs: list[tuple[str, Callable[[], JobResult]]] = [
        ("compact", lambda: compact(actor.table, **minor)),
        ("zorder", lambda: zorder(actor.table, fields, target_bytes=_TARGET_BYTES)),
        ("compact", lambda: compact(actor.table, **minor)),
        ("compact", lambda: compact(actor.table, **major)),
    ]
    in_turn = cycle(jobs)
    actor.until_over(lambda: actor.job(*next(in_turn)), 0.3)


def retentions(actor: Actor) -> None:
    span = f"{actor.site.keep_s}s"
    actor.until_over(
        lambda: actor.job("retain", lambda: actor.table.retain(window=span, grace=span)), 3
    )


def reads(actor: Actor) -> None:
    reader = Reader(site=actor.site, role=actor.role, table=actor.table, read=actor.table.read)
    actor.until_over(reader.turn, 0.1)


def spark_upserts(actor: Actor) -> None:
    from tests.soak.spark_actors import upserts

    upserts(actor)


def spark_maintenance(actor: Actor) -> None:
    from tests.soak.spark_actors import maintenance

    maintenance(actor)


ROLES: dict[str, Callable[[Actor], None]] = {
    "inline": inline_upserts,
    "ingest": pending_upserts,
    "rewrite": rewrites,
    "retain": retentions,
    "reader": reads,
    "spark-upsert": spark_upserts,
    "spark-maintain": spark_maintenance,
}
SPARK_ROLES = ("spark-upsert", "spark-maintain")


def main(role: str, site: Path) -> None:
    ROLES[role](Actor(site=load_site(site), role=role))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
