"""A catalog `lake` in a folder, for statements in tests."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import opal_spark
from opal_lake.table import Table
from opal_spark.spark_sql.catalog import SETTING


@dataclass(frozen=True)
class Lake:
    """A session with the catalog, and the folder of it."""

    spark: Any
    root: Path

    def sql(self, text: str, args: Any = None, token: str | None = None) -> list[tuple[Any, ...]]:
        """Run a statement, and return its rows."""
        return [tuple(row) for row in opal_spark.sql(self.spark, text, args, token).collect()]

    def job(self, text: str, args: Any = None, token: str | None = None) -> Any:
        """Run a statement that is a job, and return its one row."""
        [row] = opal_spark.sql(self.spark, text, args, token).collect()
        return row

    def table(self, name: str) -> Table:
        """Open a table in this process."""
        return Table.open(str(self.root / name))


@pytest.fixture
def lake(spark: Any, tmp_path: Path) -> Iterator[Lake]:
    opal_spark.catalog(spark, "lake", root=str(tmp_path / "lake"))
    yield Lake(spark=spark, root=tmp_path / "lake")
    spark.conf.unset(SETTING + "lake")
