"""The URL of the events where none is configured."""

import os
from pathlib import Path

URL_VARIABLE = "LAKECHIME_URL"
EMBEDDED = "lakechime.db"


def embedded_path() -> Path:
    """Return the path of the SQLite file in AIRFLOW_HOME, enough for one machine."""
    # An empty AIRFLOW_HOME counts as unset
    airflow_home = os.environ.get("AIRFLOW_HOME") or "~/airflow"
    folder = Path(os.path.expandvars(airflow_home)).expanduser().absolute()
    return folder / EMBEDDED


def default_url() -> str:
    """Return the URL that the environment names, or that of the embedded database."""
    return os.environ.get(URL_VARIABLE) or f"sqlite:///{embedded_path()}"
