"""Scripts with a Spark session of their own, each in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Mapping

WELL = "all well"  # a script's last words


def run_script(
    script: str, argument: str, most_s: int, more: Mapping[str, str] | None = None
) -> None:
    """Run a script with `more` in its environment, and assert that it reaches its end."""
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        **(more or {}),
    }
    done = subprocess.run(
        [sys.executable, "-c", script, argument],
        capture_output=True,
        text=True,
        timeout=most_s,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert WELL in done.stdout


def run_on_connect(script: str, argument: str) -> None:
    """Run a script that starts a server of Spark Connect."""
    # With SPARK_TESTING the server takes a free port, not the one port that all of them take
    run_script(script, argument, 600, {"SPARK_TESTING": "1"})
