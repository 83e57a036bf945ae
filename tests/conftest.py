"""Fixtures that tests of several rooms share."""

import os

from tests.fixtures_postgres import postgres
from tests.fixtures_s3 import moto_server, s3_options

__all__ = ["moto_server", "postgres", "s3_options"]

os.environ.pop("COLUMNS", None)  # of somebody's terminal: what a test looks for would be cut off
