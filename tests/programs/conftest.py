"""One local Spark session for the programs through Spark."""

from tests.fixtures_spark import spark

__all__ = ["spark"]
