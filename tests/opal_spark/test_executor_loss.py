"""Workers and executors die within a task, or dawdle until Spark runs it twice.

The table is the same.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from opal_spark.engine.java import ensure_java
from tests.fixtures_spark import spark_home

ROOT = Path(__file__).parents[2]
CLUSTER = "local-cluster[2,1,1024]"


@pytest.mark.slow
@pytest.mark.parametrize(
    "metadata, master, loss, at",
    [
        *[("inline", "local[2,4]", "worker", at) for at in (1, 4, 7)],
        ("batch", "local[2,4]", "worker", 5),
        ("inline", CLUSTER, "executor", 3),
        ("batch", CLUSTER, "executor", 4),
        ("inline", CLUSTER, "slow", 1),
    ],
)
def test_a_loss_in_a_task_changes_nothing(
    tmp_path: Path, metadata: str, master: str, loss: str, at: int
) -> None:
    ensure_java()
    words = [
        sys.executable,
        "-m",
        "tests.opal_spark.lossy",
        master,
        str(tmp_path / "lake"),
        metadata,
        loss,
        str(at),
    ]
    environment = {
        **os.environ,
        "SPARK_HOME": str(spark_home(tmp_path)),
        "PYSPARK_PYTHON": sys.executable,
    }
    done = subprocess.run(
        words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "sound after" in done.stdout
