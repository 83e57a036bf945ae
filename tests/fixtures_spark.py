"""A Spark whose workers run in processes of their own."""

from pathlib import Path

import pyspark


def spark_home(folder: Path) -> Path:
    """PySpark's, as links: workers of a cluster write into it."""
    home = folder / "spark"
    if not home.exists():
        home.mkdir()
        for entry in Path(pyspark.__file__).parent.iterdir():
            (home / entry.name).symlink_to(entry)
    return home
