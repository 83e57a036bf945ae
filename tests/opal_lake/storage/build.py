"""Runs of writers that are killed or paused, in processes of their own."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]


def outcomes(what: str, folder: Path, hard_links: str) -> list[dict[str, Any]]:
    """Run a function of `killed_writers` in a process; return its lines of JSON."""
    command = [
        sys.executable,
        "-m",
        "tests.opal_lake.storage.killed_writers",
        what,
        str(folder),
        hard_links,
    ]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]
