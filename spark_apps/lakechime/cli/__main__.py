"""`python -m lakechime.cli`: the command `lakechime` where scripts are not on the path."""

import sys

from lakechime.cli import main

sys.exit(main())
