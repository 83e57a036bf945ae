"""One local Spark session for all tests of this room."""

from tests.fixtures_spark import spark

__all__ = ["spark"]
