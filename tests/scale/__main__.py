"""The command `make stress NAME=scale`; exit status 1 reports a finding."""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from tests.scale.measure import Outcome
from tests.scale.tables import many_commits, many_partitions, many_rows

PARTS = {"commits": many_commits, "partitions": many_partitions, "rows": many_rows}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.scale", description=__doc__)
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)} (default: all)"
    )
    parser.add_argument("--commits", type=int, default=3_000)
    parser.add_argument("--partitions", type=int, default=5_000)
    parser.add_argument("--rows", type=int, default=50_000_000)
    parser.add_argument("--keep", action="store_true", help="leave the tables")
    args = parser.parse_args()
    if unknown := set(args.parts) - PARTS.keys():
        parser.error(f"there is no part {', '.join(unknown)}; known are {', '.join(PARTS)}")
    folder = Path(tempfile.mkdtemp(prefix="opal-scale-")).resolve()
    broken: list[str] = []
    try:
        for part in args.parts or PARTS:
            outcome = Outcome(name=f"{getattr(args, part):,} {part}")
            PARTS[part](folder / part, getattr(args, part), outcome)
            broken += [f"{outcome.name}: {line}" for line in outcome.broken]
    finally:
        if args.keep:
            print(f"tables are in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    print("\n".join(broken) or "passed")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
