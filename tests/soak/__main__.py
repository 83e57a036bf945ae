"""The command `make stress NAME=soak`; exit status 1 reports a finding."""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from tests.fixtures_s3 import BUCKET, s3_server
from tests.soak.actor import ROLES, SPARK_ROLES
from tests.soak.audit import Auditor
from tests.soak.site import Site
from tests.soak.verdict import Outcome, judge_peer, judge_soak, table_of

ROOT = Path(__file__).parents[2]
STORES = ("local", "s3")
_STOP_S = 120
_LOOK_S = 0.5
_START_S = 300  # the first start downloads jars

Actors = dict[str, subprocess.Popen[bytes]]


def main() -> int:
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = Path(tempfile.mkdtemp(prefix="opal-soak-", dir=options.folder)).resolve()
    outcomes = []
    try:
        for store in options.stores:
            print(
                f"soak on {store}: {options.minutes:g} minutes, {len(ROLES)} processes", flush=True
            )
            with s3_server() if store == "s3" else nullcontext(dict[str, str]()) as store_options:
                outcomes.append(_soak(folder / store, store_options, options.minutes * 60))
        for peer in options.peers:
            print(f"soak of {peer}: {options.minutes:g} minutes", flush=True)
            outcomes.append(_peer(peer, folder / peer, options.minutes * 60))
    finally:
        if options.keep:
            print(f"tables, journals and logs are in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    print(table_of(outcomes), flush=True)
    broken = [f"{outcome.name}: {line}" for outcome in outcomes for line in outcome.broken]
    print("\n".join(broken) or "passed")
    return int(bool(broken))


def _soak(folder: Path, options: Mapping[str, str], seconds: float) -> Outcome:
    folder.mkdir(parents=True)
    uri = f"s3a://{BUCKET}/soak" if options else str(folder / "table")
    site = Site(
        folder=str(folder),
        uri=uri,
        options=options,
        began=time.time(),
        keep_s=int(max(60, min(180, seconds / 3))),
    )
    site.create()
    auditor = Auditor(table=site.table("audit"))
    dead = []
    with _actors() as actors:
        # Before the others take the processors, and one by one: two cannot download jars together
        for role in SPARK_ROLES:
            _start(actors, site, [role])
            dead += _watch(
                actors,
                auditor,
                _START_S if not dead else 0,
                lambda role=role: _are_at_work(site, [role]),
            )
        _start(actors, site, [role for role in ROLES if role not in SPARK_ROLES])
        dead += _watch(actors, auditor, seconds if not dead else 0, lambda: False)
        (folder / "over").touch()
        dead += _watch(
            actors,
            auditor,
            _STOP_S,
            lambda: all(actor.poll() is not None for actor in actors.values()),
        )
        dead += [f"{role} did not end" for role, actor in actors.items() if actor.poll() is None]
    dead = [
        f"{line}: {_last_words(folder / f'{line.split()[0]}.log')}" for line in dict.fromkeys(dead)
    ]
    auditor.table.metagen()
    auditor.follow()
    return judge_soak(site, auditor, dead)


def _peer(system: str, folder: Path, seconds: float) -> Outcome:
    folder.mkdir(parents=True)
    with _actors() as actors:
        actors[system] = _process(
            folder / f"{system}.log", ["tests.soak.peer", system, str(folder), str(seconds)]
        )
        ended = actors[system].wait()
    if ended:
        outcome = Outcome(name=system)
        outcome.require(False, f"ended with {ended}: {_last_words(folder / f'{system}.log')}")
        return outcome
    return judge_peer(
        system.title(), json.loads((folder / "told.json").read_text(encoding="utf-8"))
    )


@contextmanager
def _actors() -> Iterator[Actors]:
    """None is left behind."""
    actors: Actors = {}
    try:
        yield actors
    finally:
        for actor in actors.values():
            if actor.poll() is None:
                actor.kill()
                actor.wait()


def _start(actors: Actors, site: Site, roles: Iterable[str]) -> None:
    for role in roles:
        actors[role] = _process(
            site.path / f"{role}.log", ["tests.soak.actor", role, str(site.save())]
        )


def _process(log: Path, module: Sequence[str]) -> subprocess.Popen[bytes]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "spark_apps")])
    environment = os.environ | {
        "PYTHONPATH": path,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", *module],
            cwd=log.parent,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def _watch(
    actors: Actors, auditor: Auditor, seconds: float, is_early: Callable[[], bool]
) -> Iterator[str]:
    """Watch until the time is over, `is_early` returns True, or a process failed."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and not is_early():
        time.sleep(_LOOK_S)
        auditor.follow()
        if any(actor.poll() for actor in actors.values()):
            break
    yield from (
        f"{role} ended with {actor.poll()}" for role, actor in actors.items() if actor.poll()
    )


def _are_at_work(site: Site, roles: Iterable[str]) -> bool:
    return all(site.journal(role).exists() for role in roles)


def _last_words(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return lines[-1][:500] if lines else "without a word"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak",
        description="Upserts, rewrites and readers at once on one table.",
    )
    add = parser.add_argument
    add("--minutes", type=float, default=20, help="of each store (20)")
    add("--stores", type=_names, default=STORES, help="local, s3")
    add("--peers", type=_names, default=(), help="delta, iceberg: their conflicts beside ours")
    add("--folder", type=Path, help="where tables are (a temporary folder)")
    add("--keep", action="store_true", help="leave tables, journals and logs there")
    return parser.parse_args()


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


if __name__ == "__main__":
    sys.exit(main())
