"""The Python of each system.

It is our own, or a virtual environment with another PySpark, made once and kept in the user's
cache.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.bench.peers.catalog import SystemSpec

ROOT = Path(__file__).parents[3]
_NOT_INHERITED = ("SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS")


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "opal-bench"


def python_of(spec: SystemSpec | None) -> Path:
    """Return the interpreter for a system.

    The first time it may take a minute, and 400 MB of download. Raises OSError when it can't be
    made.
    """
    if spec is None or spec.pyspark is None:
        return Path(sys.executable)
    # setuptools: PySpark 3.5 imports distutils, which Python 3.12 has no more
    return environment_of(f"pyspark-{spec.pyspark}", (f"pyspark=={spec.pyspark}", "setuptools<81"))


def environment_of(name: str, packages: Sequence[str]) -> Path:
    """Return the interpreter of a virtual environment with these packages."""
    folder = cache_folder() / f"{name}-python-{sys.version_info.major}.{sys.version_info.minor}"
    made = folder / ".made"
    if not made.exists():
        print(f"making an environment with {' '.join(packages)} in {folder}", flush=True)
        _run([sys.executable, "-m", "venv", "--clear", str(folder)])
        _run([str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *packages])
        made.touch()
    return folder / "bin" / "python"


def environment_for(python: Path, folder: Path) -> dict[str, str]:
    """Return the environment of a worker.

    Temporary files, and caches kept among them, go below its own folder.
    """
    temporary = folder / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    inherited = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    path = os.pathsep.join(filter(None, (str(ROOT), inherited.get("PYTHONPATH"))))
    own = {
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": str(python),
        "TMPDIR": str(temporary),
        "PYTHONPATH": path,
    }
    return inherited | own


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        output = (done.stderr or done.stdout).strip().splitlines()
        reason = output[-1] if output else "without output"
        raise OSError(f"{' '.join(command[:4])} ... failed: {reason}")
