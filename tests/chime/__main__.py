"""Producers and consumers of data-change events: `make stress NAME=chime ARGS=--help`.

The exit status is 1 when anything is wrong.
"""

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.chime.site import Site
from tests.chime.story import Story, Verdict
from tests.fixtures_postgres import Postgres, postgres_folder, postgres_server

SHARES = {"postgres": 1.0, "sqlite": 0.1}


def tell(
    site: Site,
    seed: str,
    *,
    processes: tuple[int, int],
    pause_seconds: float,
    restart: Callable[[], None] | None = None,
) -> Verdict:
    """Plan a story of `processes`: so many producers and consumers."""
    producers, consumers = processes
    given = {
        "dice": random.Random(seed),
        "pause_seconds": pause_seconds,
        "deadline_seconds": 120 + site.events / 50,
        "restart": restart,
    }
    return Story(site=site, producers=producers, consumers=consumers, **given).tell()


def crash_of(server: Postgres) -> Callable[[], None]:
    """Return a function that ends a server as a power cut would, and starts it again."""

    def restart() -> None:
        server.stop("immediate")
        time.sleep(1)
        server.start()

    return restart


def report(store: str, verdict: Verdict) -> str:
    kills = ", ".join(f"{count} {kind}s" for kind, count in verdict.kills.items())
    rate = verdict.events / verdict.seconds if verdict.seconds else 0
    return (
        f"{store}: {verdict.events:,} events in {verdict.seconds:.0f} s ({rate:,.0f}/s), "
        f"killed {kills}, {verdict.restarts} crashes of the server, "
        f"{verdict.expired:,} events expired, {verdict.repeated:,} events seen again, "
        f"{len(verdict.failures)} failures"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chime", description=__doc__)
    parser.add_argument(
        "--events", type=int, default=100_000, help="on PostgreSQL; a tenth of them on SQLite"
    )
    parser.add_argument("--producers", type=int, default=8)
    parser.add_argument("--consumers", type=int, default=4)
    parser.add_argument("--stores", default="postgres,sqlite")
    parser.add_argument(
        "--pause", type=float, default=0.7, help="seconds between two kills, on average"
    )
    parser.add_argument(
        "--seed",
        default=os.environ.get("OPAL_SEED") or str(int(time.time())),
        help="of all that is drawn",
    )
    args = parser.parse_args()
    print(
        f"{args.events:,} events, {args.producers} producers, {args.consumers} consumers, "
        f"seed {args.seed}",
        flush=True,
    )
    failures = 0
    for store in args.stores.split(","):
        folder = Path(tempfile.mkdtemp(prefix="opal-chime-")).resolve()
        try:
            verdict = _tell_on(store, folder, args)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        print(
            report(store, verdict),
            *(f"    {line}" for line in verdict.failures),
            sep="\n",
            flush=True,
        )
        failures += len(verdict.failures)
    return int(bool(failures))


def _tell_on(store: str, folder: Path, args: argparse.Namespace) -> Verdict:
    tables = max(
        1, args.producers * 3 // 4
    )  # a quarter of the producers write what another writes too
    snapshots = max(1, int(args.events * SHARES[store]) // tables)
    processes = (args.producers, args.consumers)
    if store == "sqlite":
        site = Site(
            url=f"sqlite:///{folder}/lakechime.db",
            folder=folder,
            tables=tables,
            snapshots=snapshots,
        )
        return tell(site, args.seed, processes=processes, pause_seconds=args.pause)
    programs = postgres_folder()
    if programs is None:
        raise SystemExit(
            "no PostgreSQL server on PATH or in its usual folders; "
            "install one, or give --stores sqlite"
        )
    with postgres_server(programs) as server:
        site = Site(url=server.new_database(), folder=folder, tables=tables, snapshots=snapshots)
        return tell(
            site,
            args.seed,
            processes=processes,
            pause_seconds=args.pause,
            restart=crash_of(server),
        )


if __name__ == "__main__":
    sys.exit(main())
