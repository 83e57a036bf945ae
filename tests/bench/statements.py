"""Statements next to Delta and Iceberg: updates, deletes, merges, and many writers.

`make bench NAME=statements` runs the measures of the comparison that are about statements. All
options are those of `make bench NAME=peers`.
"""

import sys

from tests.bench.peers.__main__ import main
from tests.bench.peers.options import STATEMENT_MEASURES

if __name__ == "__main__":
    sys.exit(main(["--only", ",".join(STATEMENT_MEASURES), "--name", "statements", *sys.argv[1:]]))
