"""Where the events are, when nobody says it."""

import os
from pathlib import Path

URL_VARIABLE = "LAKECHIME_URL"
EMBEDDED = "lakechime.db"


def embedded_path() -> Path:
    """An SQLite file in AIRFLOW_HOME: on one machine that is all that is needed."""
    return (
        Path(os.path.expandvars(os.environ.get("AIRFLOW_HOME") or "~/airflow"))
        .expanduser()
        .absolute()
        / EMBEDDED
    )


def default_url() -> str:
    """That of the environment, else the embedded one."""
    return os.environ.get(URL_VARIABLE) or f"sqlite:///{embedded_path()}"
