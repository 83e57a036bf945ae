"""Links of a task in Airflow's UI."""

from typing import Any

from airflow.sdk import BaseOperatorLink


class SparkUILink(BaseOperatorLink):
    """The link to a job: Spark's own UI while the job runs.

    Afterwards it leads to the job's page in the history server, or to the task's log.
    """

    name = "Spark UI"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the URL of a job that has ended.

        Airflow asks at the end of the task, and replaces the link of the running job. It asks in
        the task's own process, so nothing has to be read from XCom: if no page was ever reported,
        Airflow would log that as an error.
        """
        return str(operator.history_url or getattr(ti_key, "log_url", ""))
