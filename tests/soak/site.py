"""The site of a soak, as every process of it knows it."""

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.storage import Storage, open_storage
from opal_lake.table import Table, create_on, table_on
from tests.soak.rows import DELETES, SCHEMA
from tests.soak.witness import WitnessStore

_S3A = {
    "spark.jars.packages": "org.apache.hadoop:hadoop-aws:3.4.2",
    "spark.jars.excludes": (
        "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3,"
        "org.wildfly.openssl:wildfly-openssl"
    ),
    "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
    "spark.hadoop.fs.s3a.path.style.access": "true",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A table, its store, and the folder below which all take notes.

    Versions and running jobs are safe for `keep_s` seconds.
    """

    folder: str
    uri: str
    options: Mapping[str, str]
    began: float
    keep_s: int

    @property
    def path(self) -> Path:
        return Path(self.folder)

    @property
    def is_over(self) -> bool:
        return (self.path / "over").exists()

    @property
    def tick(self) -> int:
        return int((time.time() - self.began) * 10)

    def journal(self, role: str) -> Path:
        return self.path / f"journal-{role}.jsonl"

    def puts(self, role: str) -> Path:
        return self.path / f"puts-{role}.jsonl"

    def store(self, role: str) -> Storage:
        return WitnessStore(inner=open_storage(self.uri, self.options), puts=self.puts(role))

    def table(self, role: str) -> Table:
        return table_on(self.store(role))

    def create(self) -> Table:
        properties = {"checkpoint_commits": 8, "key_store_fan_in": 4, "group_rows": 100_000}
        layout = TableLayout(keys=["sku"], delta="at", deletes=DELETES, properties=properties)
        return create_on(self.store("soak"), plan_spec(SCHEMA, layout))

    def spark_settings(self) -> dict[str, str]:
        if not self.options:
            return {}
        names = {
            "endpoint_url": "endpoint",
            "aws_access_key_id": "access.key",
            "aws_secret_access_key": "secret.key",
        }
        return _S3A | {
            f"spark.hadoop.fs.s3a.{hadoop_name}": self.options[name]
            for name, hadoop_name in names.items()
        }

    def save(self) -> Path:
        path = self.path / "site.json"
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")
        return path


def load_site(path: Path) -> Site:
    return Site(**json.loads(path.read_text(encoding="utf-8")))
