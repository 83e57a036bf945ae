"""Fixtures that tests of several rooms share."""

from tests.fixtures_postgres import postgres
from tests.fixtures_s3 import moto_server, s3_options

__all__ = ["moto_server", "postgres", "s3_options"]
