"""The default callback for a DAG run that misses its deadline."""

import logging
from typing import Any

log = logging.getLogger(__name__)


async def log_missed(*, dag_id: str, after: str, **_: Any) -> None:
    """Log the missed deadline as an error of the triggerer."""
    log.error("a DAG run of %s did not finish within %s after it was queued", dag_id, after)
