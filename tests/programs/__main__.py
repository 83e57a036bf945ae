"""The command `make stress NAME=programs`; exit status 1 reports a difference from the model."""

import argparse
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed

from tests.programs.run import run_program

SHOWN_STEPS = 30
MAX_FAILURES = 20


def attempt(seed: int) -> tuple[Counter[str], str]:
    """Run a program; return its steps, and the text of a difference from the model."""
    try:
        return run_program(seed), ""
    except Exception as error:  # noqa: BLE001  # the report has it, and other programs go on
        notes = "\n".join(getattr(error, "__notes__", [])).splitlines()
        steps = "\n    ".join(notes[-SHOWN_STEPS:])
        return Counter(), f"seed {seed}: {type(error).__name__}: {error}\n    {steps}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.programs", description=__doc__)
    parser.add_argument("--programs", type=int, default=2000)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--seed",
        type=int,
        default=int(os.environ.get("OPAL_SEED") or time.time()),
        help="of the first program",
    )
    args = parser.parse_args()
    print(f"{args.programs} programs from seed {args.seed}", flush=True)
    steps: Counter[str] = Counter()
    failures = 0
    with ProcessPoolExecutor(args.jobs) as pool:
        seeds = range(args.seed, args.seed + args.programs)
        attempts = [pool.submit(attempt, seed) for seed in seeds]
        for done in as_completed(attempts):
            steps_of_program, failure = done.result()
            steps += steps_of_program
            if failure:
                failures += 1
                print(failure, flush=True)
            if failures == MAX_FAILURES:
                pool.shutdown(cancel_futures=True)
                break
    print(f"{sum(steps.values())} steps: {dict(steps.most_common())}, {failures} failures")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
