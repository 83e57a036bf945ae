"""The connection type `opal`: the location of a lake and its access, without Spark."""

import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowFailException, AirflowNotFoundException

from airflow_provider_opal.assets import DEFAULT_CONN_ID
from opal_lake.s3a import spark_settings
from opal_lake.storage import options_for

if TYPE_CHECKING:
    from opal_lake.log.commit import Commit
    from opal_lake.result import JobResult
    from opal_lake.table import Table

DEFAULT_SPARK_CONN_ID = "spark_default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lake:
    """The settings of a connection."""

    root: str
    options: Mapping[str, str]
    spark_conn_id: str
    create_root: bool = False

    def uri(self, table: str) -> str:
        """Return the address of a table, `<root>/shop/orders` for `shop.orders`.

        A path or a URI is returned unchanged.
        """
        if "://" in table or table.startswith("/"):
            return table
        if not self.root:
            raise ValueError(
                f"table {table!r} needs the root of the lake, but the connection has none; "
                "set the connection's host to the root, or give the table's whole path"
            )
        if not self.root.startswith("/") and "://" not in self.root:
            raise ValueError(
                f"the connection's root {self.root!r} is neither an absolute path nor a URI; "
                "write /data/lake or s3a://bucket/lake"
            )
        return f"{self.root.rstrip('/')}/{table.replace('.', '/')}"

    def holds(self, uri: str) -> bool:
        """Return whether this address is below the root."""
        return bool(self.root) and uri.startswith(f"{self.root.rstrip('/')}/")

    def missing_root(self) -> str | None:
        """Return a message if a local root is not a folder on this machine, or None.

        A root on S3 cannot be checked: S3 has no folders.
        """
        from opal_lake.storage.uris import local_root, split_scheme

        if split_scheme(self.root)[0] not in ("", "file"):
            return None
        folder = Path(local_root(self.root))
        if folder.is_dir():
            return None
        host = socket.gethostname()
        if folder.exists():
            return f"the lake's root {self.root} is not a folder on {host}; correct the root"
        if self.create_root:
            return None
        return (
            f"the lake's root {self.root} does not exist on {host}: correct the root, mount it, "
            'or create the folder. With the extra {"create_root": true} in the connection, '
            "the first ingest creates it"
        )

    def options_for(self, uri: str) -> Mapping[str, str]:
        """Return the storage options for this address; none for a local path."""
        return options_for(uri, self.options)

    def spark_conf(self) -> dict[str, str]:
        """Return the Spark settings for the same store; they hold secrets."""
        return spark_settings(self.options)


class OpalHook(BaseHook):
    """Access to the tables of a lake, without Spark."""

    conn_name_attr = "opal_conn_id"
    default_conn_name = DEFAULT_CONN_ID
    conn_type = "opal"
    hook_name = "Opal lake"

    def __init__(self, opal_conn_id: str = DEFAULT_CONN_ID) -> None:
        super().__init__()
        self.opal_conn_id = opal_conn_id

    @cached_property
    def lake(self) -> Lake:
        """The settings of the connection, which is read once."""
        try:
            connection = self.get_connection(self.opal_conn_id)
        except AirflowNotFoundException as error:
            raise AirflowNotFoundException(
                f"the Opal connection {self.opal_conn_id!r} does not exist; "
                "add it (type opal, host /data/lake or s3a://bucket/lake), "
                "or name another with opal_conn_id="
            ) from error
        if connection.conn_type not in (self.conn_type, "", None):
            raise ValueError(
                f"the connection {self.opal_conn_id!r} is of type {connection.conn_type!r}, "
                "and a lake needs one of type 'opal'; name another with opal_conn_id="
            )
        extra: dict[str, Any] = connection.extra_dejson
        settings = {
            "aws_access_key_id": connection.login,
            "aws_secret_access_key": connection.password,
            "aws_session_token": extra.get("session_token"),
            "endpoint_url": extra.get("endpoint_url"),
            "region_name": extra.get("region_name"),
            "path_style": "true" if _is_true(extra.get("path_style")) else None,
        }
        options = {}
        for name, value in settings.items():
            if value:
                options[name] = str(value)
        return Lake(
            root=connection.host or "",
            options=options,
            spark_conn_id=extra.get("spark_conn_id") or DEFAULT_SPARK_CONN_ID,
            create_root=_is_true(extra.get("create_root")),
        )

    def get_conn(self) -> Lake:
        """Return the lake. Airflow calls this method of every hook."""
        return self.lake

    def table(self, table: str) -> "Table":
        """Open a table, or raise NotFoundError.

        A missing root raises AirflowFailException, which forbids retries. Otherwise a caller would
        create the table in the wrong place, or wait for it forever.
        """
        from opal_lake.errors import NotFoundError, StorageError
        from opal_lake.table import Table

        uri = self.lake.uri(table)
        try:
            return Table.open(uri, self.lake.options_for(uri))
        except NotFoundError:
            problem = None
            if self.lake.holds(uri):
                problem = self.lake.missing_root()
            if problem is not None:
                raise AirflowFailException(f"connection {self.opal_conn_id!r}: {problem}") from None
            raise
        except StorageError as error:
            if _lacks_bucket(error):
                raise AirflowFailException(
                    f"connection {self.opal_conn_id!r}, table {uri}: {error}"
                ) from error
            raise

    def exists(self, table: str) -> bool:
        """Return whether the table exists."""
        from opal_lake.errors import NotFoundError

        try:
            self.table(table)
        except NotFoundError:
            return False
        return True

    def head(self, table: str) -> int:
        """Return the number of the newest version."""
        return self.table(table).snapshot_at().version

    def versions_after(
        self, table: str, seen: int, most: int | None = None, *, feed: bool = False
    ) -> tuple[int, int] | None:
        """Return the next range of versions that changed the view, or None if none is new.

        The range is (seen, last]: it begins after the first number and ends with the second one. At
        most `most` of its versions changed the view. With `feed` none of its commits may have
        expired.
        """
        opened = self.table(table)
        head = opened.snapshot_at().version
        if seen > head:
            raise AirflowFailException(
                f"the consumer has seen version {seen} of {opened.uri}, but the newest is {head}: "
                "the table was created again, or restored from a backup. "
                "Give the consumer another name (consumer=) to start over"
            )
        oldest = oldest_after(opened, seen, feed=feed)
        new = range(max(seen, oldest) + 1, head + 1)
        # The oldest version stands for expired ones that changed the view
        expired = []
        if seen < oldest and opened.snapshot_at(oldest).root.viewed > seen:
            expired = [oldest]
        # Commits are read one by one, and only as far as needed: without a limit from the newest
        if most is None:
            newest = next(_changed(opened, reversed(new)), None)
            selected = expired if newest is None else [newest]
        else:
            selected = list(islice(chain(expired, _changed(opened, new)), most or 1))
        return (seen, selected[-1]) if selected else None

    def is_readable(self, table: str, version: int) -> bool:
        """Return whether a version can still be read."""
        from opal_lake.log.version_window import is_readable

        return is_readable(self.table(table).snapshot_at().root, version)

    def ingests_as_of(self, table: str, key: str, version: int | None) -> tuple[int, int]:
        """Return the version to read, and the number of visible ingests of a key in it.

        The version is the given one, the newest version for None, or the oldest version if the
        given one has expired.
        """
        from opal_lake.log.version_window import is_readable
        from opal_lake.read.read import visible_ingests

        opened = self.table(table)
        head = opened.snapshot_at()
        if version is None or version == head.version:
            state = head
        else:
            oldest = head.root.oldest_version
            is_expired = version < oldest and not is_readable(head.root, version)
            state = opened.snapshot_at(oldest if is_expired else version)
        return state.version, len(visible_ingests(state).get(key, ()))

    def keys_published(self, table: str, after: int, until: int) -> list[str]:
        """Return the partition keys whose rows became visible in (after, until]."""
        from opal_lake.ids import segment_part

        opened = self.table(table)
        numbers = set[int]()
        for commit in opened.log.commits_after(after, until):
            numbers.update(segment_part(segment.id) for segment in commit.actions.processed)
        partitions = opened.snapshot_at().partitions
        return sorted(key for key, ingests in partitions.items() if ingests & numbers)

    def settled_version(self, table: str, until: datetime) -> int | None:
        """Return the last version committed by `until` that changed the view, or None."""
        # The newest come first
        for commit in self.table(table).commits():
            if commit.changes_view and _time(commit) <= until:
                return commit.version
        return None

    def find_result(self, table: str, operation: str, token: str) -> "JobResult | None":
        """Return the result of the job with a token, or None if it has not committed."""
        from opal_lake.engine.results import find_result
        from opal_lake.errors import NotFoundError

        try:
            opened = self.table(table)
        except NotFoundError:
            return None
        return find_result(opened.log, opened.snapshot_at(), operation, token)

    def test_connection(self) -> tuple[bool, str]:
        """Return whether the root exists and can be listed, for Airflow's connection test."""
        from opal_lake.errors import OpalError
        from opal_lake.storage import open_storage

        try:
            root = self.lake.root
            if not root:
                return True, "The connection has no root: name every table by its whole path"
            self.lake.uri("any")  # raises for a relative root
            problem = self.lake.missing_root()
            if problem is not None:
                return False, problem
            paths = open_storage(root, self.lake.options_for(root)).list("")
            next(iter(paths), None)
        except (OpalError, OSError, ValueError) as error:
            return False, str(error)
        return True, f"{root} can be listed"


def _changed(table: "Table", versions: Iterable[int]) -> Iterator[int]:
    """Yield the versions that changed the view."""
    for version in versions:
        if table.log.read_commit(version).changes_view:
            yield version


def oldest_after(table: "Table", seen: int, *, feed: bool = False) -> int:
    """Return the oldest version; fail if changes after the seen version expired.

    After version 0, the empty table, all rows are new, so nothing is lost. If a savepoint keeps the
    seen version, the new rows can be found by comparison. A feed also needs the commits after the
    seen version.
    """
    from opal_lake.log.version_window import is_readable

    root = table.snapshot_at().root
    oldest = root.oldest_version
    if feed:
        may_be_lost = seen < oldest
    else:
        may_be_lost = 0 < seen < oldest and not is_readable(root, seen)
    if not may_be_lost:
        return oldest
    viewed = table.snapshot_at(oldest).root.viewed
    if viewed <= seen:
        return oldest
    next_step = ": it starts over, with all rows"
    if feed:
        next_step = f" and start={oldest}: it begins with the changes after that version"
    raise AirflowFailException(
        f"the consumer has seen version {seen} of {table.uri}. Version {viewed}, which changed "
        "rows after it, has expired: the changes in between can no longer be read. "
        f"Give the consumer another name (consumer=){next_step}. "
        "Also give the table and its maintenance a longer window than consumers may be paused: "
        f"opal set {table.uri} window=30d"
    )


def _is_true(value: Any) -> bool:
    """Return whether a flag of the connection's extra is on.

    The UI and the command line may store it as text.
    """
    return str(value).lower() in ("true", "1")


def _lacks_bucket(error: Exception) -> bool:
    """Return whether S3 answered that the bucket does not exist."""
    answer = getattr(error.__cause__, "response", None) or {}
    return bool(answer.get("Error", {}).get("Code") == "NoSuchBucket")


def _time(commit: "Commit") -> datetime:
    return datetime.fromtimestamp(commit.timestamp_us / 1e6, UTC)
