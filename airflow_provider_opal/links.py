"""Links beside a task in Airflow's UI."""

from typing import Any

from airflow.sdk import BaseOperatorLink


class SparkUILink(BaseOperatorLink):
    """Spark's own page of the running job; the page ends with the job."""

    name = "Spark UI"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """The URL that the job reported while it ran. Airflow asks again at the end, and replaces the link with the answer."""
        from airflow.sdk.execution_time.xcom import XCom

        return str(XCom.get_value(ti_key=ti_key, key=self.xcom_key) or "")
