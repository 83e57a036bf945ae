"""Arguments that only a run knows: Jinja templates, and what other tasks return.

They are checked when the task runs, all other arguments when the DAG file is parsed.
"""

import re
from typing import Any

_TEMPLATE = re.compile(r"\{[{%]")


def is_templated(value: Any) -> bool:
    """Return whether the value is known only in a DAG run.

    Such a value is a text with a template in it, an XComArg, or the argument of a mapped group.
    """
    if isinstance(value, str):
        return bool(_TEMPLATE.search(value))
    # Airflow's own values of a run have this method, whichever class they are of
    return callable(getattr(value, "iter_references", None))
