"""`python -m opal_lake.cli`: the command `opal` where scripts are not on the path."""

import sys

from opal_lake.cli import main

sys.exit(main())
