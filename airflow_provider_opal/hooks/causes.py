"""Causes of a failed spark-submit, each with its remedy.

spark-submit's own last lines do not name these causes, so a task's error ends with them.
`opal_lake.exit_codes` has the exit codes of the apps.
"""

import re
import signal
import socket

_NO_MASTER = re.compile(r"All masters are unresponsive|Failed to connect to master")
_NO_MEMORY = re.compile(
    r"java\.lang\.OutOfMemoryError|Cannot allocate memory|insufficient memory for the Java Runtime"
)
_NO_WORKERS = re.compile(
    r"Initial job has not accepted any resources|Application has been removed"
    r"|Exceeded maximum.*executor"
)

# The versions that `opal_spark.engine.java` looks for; this package may not import it
_JAVA = "Java 17 to 24"
_GET_JAVA = "pip install 'airflow-provider-opal[java]'"
_GET_SPARK = "pip install airflow-provider-opal"


def cause_in(line: str, master: str, conn_id: str) -> str | None:
    """Return the cause that a line of Spark's log names, or None.

    Call this for each line as it is logged: the buffer of the last lines may lose it later.
    """
    if _NO_MASTER.search(line):
        return (
            f"no Spark master answers at {master}: "
            f"start it, or correct the host of the Spark connection {conn_id!r}"
        )
    if _NO_MEMORY.search(line):
        return (
            "Spark ran out of memory: give it more (driver_memory='4g', executor_memory='4g'), "
            "or let fewer tasks run at once on the worker"
        )
    if _NO_WORKERS.search(line):
        return (
            f"the cluster of {master} gave no executor: "
            "check that it has workers with free cores and memory"
        )
    return None


# Lines of spark-submit that report a missing part of the worker's Spark, each with the remedy. In
# these cases nothing was submitted
_LACKS = (
    (
        re.compile(r"^JAVA_HOME is not set"),
        f"the Airflow worker {{host}} has no Java, and Spark needs {_JAVA}: {_GET_JAVA}",
    ),
    (
        re.compile(r"/bin/java: (No such file or directory|not found|cannot execute)"),
        (
            "JAVA_HOME of the Airflow worker {host} does not lead to a Java: "
            f"correct JAVA_HOME, or unset it and {_GET_JAVA}"
        ),
    ),
    (
        re.compile(r"UnsupportedClassVersionError: org/apache/spark/"),
        (
            "the Java of the Airflow worker {host} is too old for Spark: "
            f"set JAVA_HOME to {_JAVA}, or {_GET_JAVA}"
        ),
    ),
    (
        re.compile(
            r"^ModuleNotFoundError: No module named '(pyspark|pandas)'"
            r"|^Could not find valid SPARK_HOME|^Failed to find Spark jars directory"
        ),
        f"Spark is not complete on the Airflow worker {{host}}: {_GET_SPARK}",
    ),
)


def lack_in(line: str) -> str | None:
    """Return what this machine lacks according to a line of spark-submit, or None.

    A retry on this machine would fail again.
    """
    for pattern, text in _LACKS:
        if pattern.search(line):
            return text.format(host=socket.gethostname())
    return None


def cause_of_end(status: int | None) -> str | None:
    """Return the cause that an exit status names, or None.

    A status is negative for a signal, or 128 plus the signal's number from a shell.
    """
    if status is None:
        return None
    number = -status if status < 0 else status - 128
    host = socket.gethostname()
    if number == signal.SIGKILL:
        return (
            f"the driver on {host} was killed by SIGKILL, as the kernel does when memory runs out "
            "(see `dmesg`): give the worker more memory, let fewer tasks run at once on it, "
            "or lower driver_memory"
        )
    if number == signal.SIGTERM:
        return (
            f"the driver on {host} was ended by SIGTERM: "
            "the worker was restarted, or somebody killed the process. "
            "Clear the task to run it again"
        )
    return None


def cause_of_start(failure: Exception | None) -> str | None:
    """Return why spark-submit could not be started, or None."""
    if isinstance(failure, FileNotFoundError):
        return (
            f"{failure.filename or 'spark-submit'} is not on the PATH of the Airflow worker on "
            f"{socket.gethostname()}: install Spark there ({_GET_SPARK}), "
            "or put its bin folder on the PATH"
        )
    if isinstance(failure, PermissionError):
        return (
            f"the Airflow worker may not run {failure.filename or 'spark-submit'}: "
            "make it executable"
        )
    return None
