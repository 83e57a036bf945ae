"""Links of a task in Airflow's UI."""

from typing import Any

from airflow.sdk import BaseOperatorLink


class SparkUILink(BaseOperatorLink):
    """The link to a job's page: in Spark's own UI while the job runs.

    After the job it leads to the job's page in the history server, or to the task's log.
    """

    name = "Spark UI"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the URL of a job that has ended.

        Airflow calls this at the end of the task, and replaces the link of the running job. The
        call is in the task's own process, so the operator knows the URL. Airflow would log a
        missing value in XCom as an error.
        """
        return str(operator.history_url or getattr(ti_key, "log_url", ""))
