"""The command `make stress NAME=crash`; exit status 1 reports a finding."""

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path

from tests.crash.site import STORES, site_in
from tests.crash.spark_bootstrap import crash_bootstraps
from tests.crash.story import Story, StoryEndedError, Tally, processes
from tests.crash.worker import JOBS, Kill
from tests.fixtures_s3 import s3_server

JOBS_A_STORY = 10
SHARES = {"local": 4, "no-links": 3, "s3": 3}


def crash(
    folder: Path,
    crashes: int,
    seed: str,
    stores: Sequence[str],
    operations: Sequence[str] = tuple(JOBS),
) -> Tally:
    """Stories on the stores in turn until so many processes were killed."""
    tally, dice = Tally(), random.Random(seed)
    context = processes()
    with s3_server() if "s3" in stores else nullcontext(dict[str, str]()) as s3_options:
        number = 0
        while sum(tally.kills.values()) < crashes and len(tally.failures) < 20:
            store = dice.choices(stores, [SHARES[name] for name in stores])[0]
            _tell(
                folder,
                (seed, number),
                store,
                s3_options,
                tally=tally,
                context=context,
                operations=operations,
                left=crashes,
            )
            number += 1
    return tally


def crash_at_every_call(folder: Path, operation: str) -> Tally:
    """Kill a kind of job before and after each call to the store, on one table."""
    tally = Tally()
    story = Story(
        site=site_in(folder, "local", operation, {}),
        store="local",
        name=f"{operation} on local",
        dice=random.Random(operation),
        tally=tally,
        context=processes(),
    )
    story.begin()
    at = 1
    # Beyond its last call a job comes through
    while not tally.survived and not tally.failures:
        for after in (False, True):
            story.live_through(operation, Kill(kind="store", at=at, after=after))
        at += 1
    story.end()
    return tally


def _tell(
    folder: Path, name: tuple[str, int], store: str, s3_options: Mapping[str, str], **given: object
) -> None:
    seed, number = name
    tally, left = given["tally"], given.pop("left")
    assert isinstance(tally, Tally)
    assert isinstance(left, int)
    site = site_in(folder, store, f"story-{number}", s3_options)
    jobs = min(JOBS_A_STORY, left - sum(tally.kills.values()))
    story = Story(
        site=site,
        store=store,
        name=f"seed {seed}, story {number} on {store}",
        dice=random.Random(f"{seed}-{number}"),
        **given,
    )
    failures = len(tally.failures)
    with suppress(StoryEndedError):
        story.tell(jobs)
    if len(tally.failures) == failures and site.root is not None:
        shutil.rmtree(site.root)
    for line in tally.failures[failures:]:
        print(f"    {line}", flush=True)


def report(tally: Tally, stores: Sequence[str]) -> str:
    """Kills by operation and store."""
    lines = [f"{'killed':<12}" + "".join(f"{store:>10}" for store in stores)]
    for operation in (*JOBS, "bootstrap"):
        counts = "".join(f"{tally.kills.get((store, operation), 0):>10}" for store in stores)
        lines.append(f"{operation:<12}{counts}")
    total = sum(tally.kills.values())
    return "\n".join(
        [
            *lines,
            (
                f"{total} killed, {tally.survived} were done before, {tally.reruns} reruns, "
                f"{len(tally.failures)} failures"
            ),
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--crashes", type=int, default=200)
    parser.add_argument(
        "--seed",
        default=os.environ.get("OPAL_SEED") or str(int(time.time())),
        help="of all that is drawn",
    )
    parser.add_argument("--stores", default=",".join(STORES))
    parser.add_argument("--operations", default=",".join(JOBS))
    parser.add_argument(
        "--bootstraps",
        type=int,
        help="of them drivers of a bootstrap on Spark (default: every 20th)",
    )
    parser.add_argument(
        "--keep", action="store_true", help="leave the tables of stories that failed"
    )
    args = parser.parse_args()
    stores, operations = args.stores.split(","), args.operations.split(",")
    folder = Path(tempfile.mkdtemp(prefix="opal-crash-")).resolve()
    print(f"{args.crashes} crashes, seed {args.seed}", flush=True)
    bootstraps = args.crashes // 20 if args.bootstraps is None else args.bootstraps
    try:
        tally = crash(folder, args.crashes - bootstraps, args.seed, stores, operations)
        if bootstraps and set(stores) != {"s3"}:
            crash_bootstraps(folder, bootstraps, stores, random.Random(args.seed), tally)
    finally:
        if args.keep:
            print(f"tables are in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    print(report(tally, stores))
    return int(bool(tally.failures))


if __name__ == "__main__":
    sys.exit(main())
