"""Links beside a task in Airflow's UI."""

from typing import Any

from airflow.sdk import BaseOperatorLink


class SparkUILink(BaseOperatorLink):
    """Spark's own page of the running job; afterwards its page in the history server, or the task's log."""

    name = "Spark UI"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return where the job can be seen after its end: Airflow asks then, and replaces the link.

        It asks in the task's own process, so nothing has to be read from XCom: where no page was
        ever reported, Airflow would log that as an error.
        """
        return str(operator.history_url or getattr(ti_key, "log_url", ""))
