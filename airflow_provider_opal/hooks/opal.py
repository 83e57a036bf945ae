"""The connection type `opal`: where a lake is and how to reach it. Reads tables' state without Spark."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowFailException, AirflowNotFoundException

from airflow_provider_opal.assets import DEFAULT_CONN_ID
from opal_lake.ids import segment_part

if TYPE_CHECKING:
    from opal_lake.commit import Commit
    from opal_lake.job import JobResult
    from opal_lake.table import Table

DEFAULT_SPARK_CONN_ID = "spark_default"
# The store's names of what the connection holds, and Hadoop's; the secret ones never leave by argv, templates or logs
_S3A = {
    "aws_access_key_id": "fs.s3a.access.key",
    "aws_secret_access_key": "fs.s3a.secret.key",
    "aws_session_token": "fs.s3a.session.token",
    "endpoint_url": "fs.s3a.endpoint",
    "region_name": "fs.s3a.endpoint.region",
    "path_style": "fs.s3a.path.style.access",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lake:
    """What a connection says."""

    root: str
    options: Mapping[str, str]
    spark_conn_id: str

    def uri(self, table: str) -> str:
        """A table's address: `shop.orders` lies in `<root>/shop/orders`; a path or a URI stands for itself."""
        if "://" in table or table.startswith("/"):
            return table
        if not self.root:
            raise ValueError(f"table {table!r} is relative, but the connection has no root; set its root, or give the table's whole path")
        if not self.root.startswith("/") and "://" not in self.root:
            raise ValueError(
                f"the connection's root {self.root!r} is neither an absolute path nor a URI; write /data/lake or s3a://bucket/lake"
            )
        return f"{self.root.rstrip('/')}/{table.replace('.', '/')}"

    def options_for(self, uri: str) -> Mapping[str, str]:
        """What the store of this address has to know; a path of this machine needs nothing."""
        return self.options if uri.startswith(("s3://", "s3a://")) else {}

    def spark_conf(self) -> dict[str, str]:
        """The same store for Spark; holds secrets."""
        if not self.options:
            return {}
        conf = {f"spark.hadoop.{_S3A[name]}": value for name, value in self.options.items()}
        if self.options.get("endpoint_url", "").startswith("http://"):
            conf["spark.hadoop.fs.s3a.connection.ssl.enabled"] = "false"
        return conf


class OpalHook(BaseHook):
    """Tables of a lake, from the scheduler's side of the fence."""

    conn_name_attr = "opal_conn_id"
    default_conn_name = DEFAULT_CONN_ID
    conn_type = "opal"
    hook_name = "Opal lake"

    def __init__(self, opal_conn_id: str = DEFAULT_CONN_ID) -> None:
        super().__init__()
        self.opal_conn_id = opal_conn_id

    @cached_property
    def lake(self) -> Lake:
        """The connection, read once."""
        try:
            found = self.get_connection(self.opal_conn_id)
        except AirflowNotFoundException as error:
            raise AirflowNotFoundException(
                f"there is no Opal connection {self.opal_conn_id!r}; add it (type opal, host /data/lake or s3a://bucket/lake), "
                "or name another with opal_conn_id="
            ) from error
        extra: dict[str, Any] = found.extra_dejson
        given = {
            "aws_access_key_id": found.login,
            "aws_secret_access_key": found.password,
            "aws_session_token": extra.get("session_token"),
            "endpoint_url": extra.get("endpoint_url"),
            "region_name": extra.get("region_name"),
            "path_style": "true" if str(extra.get("path_style", "")).lower() in ("true", "1") else None,
        }
        options = {name: str(value) for name, value in given.items() if value}
        return Lake(root=found.host or "", options=options, spark_conn_id=extra.get("spark_conn_id") or DEFAULT_SPARK_CONN_ID)

    def get_conn(self) -> Lake:
        """Airflow's name for it."""
        return self.lake

    def table(self, table: str) -> "Table":
        """An open table. NotFoundError when there is none."""
        from opal_lake.table import Table

        uri = self.lake.uri(table)
        return Table.open(uri, self.lake.options_for(uri))

    def head(self, table: str) -> int:
        """The newest version's number."""
        return self.table(table).snapshot_at().version

    def versions_after(self, table: str, seen: int, most: int | None = None) -> tuple[int, int] | None:
        """(seen, newest that changed what can be read], None when there is none; at most so many of those that did."""
        found = self.table(table)
        head = found.snapshot_at().version
        if seen > head:
            raise AirflowFailException(
                f"version {seen} of {found.uri} was seen, and the newest is {head}: the table was made anew, or restored from a backup. "
                "Give the consumer another name (consumer=) to begin anew"
            )
        new = range(max(seen, self._oldest_after(found, seen)) + 1, head + 1)
        changed = (version for version in (reversed(new) if most is None else new) if found.log.read_commit(version).changes_view)
        taken = list(islice(changed, most or 1))
        return (seen, taken[-1]) if taken else None

    @staticmethod
    def _oldest_after(found: "Table", seen: int) -> int:
        """The oldest version, if nothing that changed what can be read has expired unseen."""
        oldest = found.snapshot_at().root.oldest_version
        if seen < oldest and (viewed := found.snapshot_at(oldest).root.viewed) > seen:
            raise AirflowFailException(
                f"version {seen} of {found.uri} was seen, and {viewed}, which changed what can be read, has expired: what came between "
                "cannot be told any more. Give the consumer another name (consumer=) to begin anew, and the table a longer window"
            )
        return oldest

    def settled_partitions(self, table: str, since: datetime, until: datetime) -> dict[str, int]:
        """Of each partition key whose rows became visible in a span of time the last version that brought some."""
        found = self.table(table)
        keys = {number: key for key, numbers in found.snapshot_at().partitions.items() for number in numbers}
        settled: dict[str, int] = {}
        for commit in found.history():
            if _time(commit) < since:
                break
            if _time(commit) <= until:
                for key in {keys[number] for number in map(segment_part, commit.actions.processed) if number in keys}:
                    settled.setdefault(key, commit.version)
        return settled

    def settled_version(self, table: str, until: datetime) -> int | None:
        """The last version up to a moment that changed what can be read."""
        return next((one.version for one in self.table(table).history() if one.changes_view and _time(one) <= until), None)

    def find_result(self, table: str, operation: str, token: str) -> "JobResult | None":
        """What a job with this token did, if it did it; also when nobody heard of it."""
        from opal_lake.errors import NotFoundError
        from opal_lake.results import WITHOUT_COMMIT, read_result

        try:
            found = self.table(table)
        except NotFoundError:
            return None
        if operation in WITHOUT_COMMIT:
            return read_result(found.storage, token)
        return found.log.earlier_result(found.snapshot_at(), operation, token)

    def test_connection(self) -> tuple[bool, str]:
        """The button of Airflow's form: whether the root can be listed."""
        from opal_lake.errors import OpalError
        from opal_lake.storage import open_storage

        try:
            if not self.lake.root:
                return True, "The connection has no root: every table has to be named by its whole path"
            self.lake.uri("any")
            next(iter(open_storage(self.lake.root, self.lake.options_for(self.lake.root)).list("")), None)
        except (OpalError, OSError, ValueError) as error:
            return False, str(error)
        return True, f"{self.lake.root} can be listed"


def _time(commit: "Commit") -> datetime:
    return datetime.fromtimestamp(commit.timestamp_us / 1e6, UTC)
