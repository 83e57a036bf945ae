"""Causes of a failed spark-submit that its last lines do not name: each with its remedy, for the last line of a task's error.

Exit codes of the apps themselves: `opal_lake.exit_codes`.
"""

import re
import signal
import socket

_NO_MASTER = re.compile(r"All masters are unresponsive|Failed to connect to master")
_NO_MEMORY = re.compile(
    r"java\.lang\.OutOfMemoryError|Cannot allocate memory|insufficient memory for the Java Runtime"
)
_NO_WORKERS = re.compile(
    r"Initial job has not accepted any resources|Application has been removed|Exceeded maximum.*executor"
)

_JAVA = (
    "Java 17 to 24"  # `opal_spark.engine.java` looks for it; this package does not import that one
)
_GET_JAVA = "pip install 'airflow-provider-opal[java]'"
_GET_SPARK = "pip install airflow-provider-opal"


def cause_in(line: str, master: str, conn_id: str) -> str | None:
    """The cause that a line of Spark's log names. The line may be gone from the buffer when the job ends."""
    if _NO_MASTER.search(line):
        return f"no Spark master answers at {master}: start it, or correct the host of the Spark connection {conn_id!r}"
    if _NO_MEMORY.search(line):
        return "Spark ran out of memory: give it more (driver_memory='4g', executor_memory='4g'), or let fewer tasks run at once on the worker"
    if _NO_WORKERS.search(line):
        return f"the cluster of {master} gave no executor: check that it has workers with free cores and memory"
    return None


# What a worker lacks for any job: each with the text of the mend. Nothing was submitted yet.
_LACKS = (
    (
        re.compile(r"^JAVA_HOME is not set"),
        f"there is no Java on the Airflow worker {{host}}, and Spark needs {_JAVA}: {_GET_JAVA}",
    ),
    (
        re.compile(r"/bin/java: (No such file or directory|not found|cannot execute)"),
        f"JAVA_HOME of the Airflow worker {{host}} leads to no Java: correct it, or remove it and {_GET_JAVA}",
    ),
    (
        re.compile(r"UnsupportedClassVersionError: org/apache/spark/"),
        f"the Java of the Airflow worker {{host}} is too old for Spark: set JAVA_HOME to {_JAVA}, or {_GET_JAVA}",
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
    """What a line of spark-submit says that this machine lacks; a retry on it fails in the same way."""
    for pattern, text in _LACKS:
        if pattern.search(line):
            return text.format(host=socket.gethostname())
    return None


def cause_of_end(status: int | None) -> str | None:
    """The cause that an exit status names: negative for a signal, or 128 plus its number from a shell."""
    number = -status if status is not None and status < 0 else (status or 0) - 128
    if number == signal.SIGKILL:
        return (
            f"the driver on {socket.gethostname()} was killed by SIGKILL, as the kernel does when memory runs out (see `dmesg`): give "
            "the worker more memory, let fewer tasks run at once on it, or lower driver_memory"
        )
    if number == signal.SIGTERM:
        return f"the driver on {socket.gethostname()} was ended by SIGTERM: the worker was restarted, or somebody killed the process"
    return None


def cause_of_start(failure: Exception | None) -> str | None:
    """That spark-submit is not there."""
    if isinstance(failure, FileNotFoundError):
        return (
            f"{failure.filename or 'spark-submit'} is not on the PATH of the Airflow worker on {socket.gethostname()}: install Spark there "
            f"({_GET_SPARK}), or put its bin folder on the PATH"
        )
    if isinstance(failure, PermissionError):
        return f"{failure.filename or 'spark-submit'} may not be run by the Airflow worker: make it executable"
    return None
