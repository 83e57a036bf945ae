"""The connection type `opal`: where a lake is and how to reach it. Reads tables' state without Spark."""

import socket
from collections.abc import Mapping
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
        """A table's address: `shop.orders` lies in `<root>/shop/orders`; a path or a URI stands for itself."""
        if "://" in table or table.startswith("/"):
            return table
        if not self.root:
            raise ValueError(
                f"table {table!r} is relative, but the connection has no root; set its root, or give the table's whole path"
            )
        if not self.root.startswith("/") and "://" not in self.root:
            raise ValueError(
                f"the connection's root {self.root!r} is neither an absolute path nor a URI; write /data/lake or s3a://bucket/lake"
            )
        return f"{self.root.rstrip('/')}/{table.replace('.', '/')}"

    def holds(self, uri: str) -> bool:
        """Whether this address lies below the root."""
        return bool(self.root) and uri.startswith(f"{self.root.rstrip('/')}/")

    def missing_root(self) -> str | None:
        """Say what is wrong with a root that is not a folder of this machine; None otherwise.

        Only a local root can be looked at: S3 knows no folders, so an absent prefix is an empty one.
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
            f"the lake's root {self.root} does not exist on {host}: correct the root, mount it, or create the folder. "
            'With the extra {"create_root": true} in the connection, the first ingest creates it'
        )

    def options_for(self, uri: str) -> Mapping[str, str]:
        """The storage options for this address; empty for a local path."""
        return options_for(uri, self.options)

    def spark_conf(self) -> dict[str, str]:
        """The Spark settings for the same store; they hold secrets."""
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
        """The connection, read once."""
        try:
            connection = self.get_connection(self.opal_conn_id)
        except AirflowNotFoundException as error:
            raise AirflowNotFoundException(
                f"there is no Opal connection {self.opal_conn_id!r}; add it (type opal, host /data/lake or s3a://bucket/lake), "
                "or name another with opal_conn_id="
            ) from error
        if connection.conn_type not in (self.conn_type, "", None):
            raise ValueError(
                f"the connection {self.opal_conn_id!r} is of type {connection.conn_type!r}, and a lake's is of type 'opal'; "
                "name another with opal_conn_id="
            )
        extra: dict[str, Any] = connection.extra_dejson
        given = {
            "aws_access_key_id": connection.login,
            "aws_secret_access_key": connection.password,
            "aws_session_token": extra.get("session_token"),
            "endpoint_url": extra.get("endpoint_url"),
            "region_name": extra.get("region_name"),
            "path_style": "true" if _is_true(extra.get("path_style")) else None,
        }
        options = {name: str(value) for name, value in given.items() if value}
        return Lake(
            root=connection.host or "",
            options=options,
            spark_conn_id=extra.get("spark_conn_id") or DEFAULT_SPARK_CONN_ID,
            create_root=_is_true(extra.get("create_root")),
        )

    def get_conn(self) -> Lake:
        """Airflow's name for it."""
        return self.lake

    def table(self, table: str) -> "Table":
        """Open a table; NotFoundError when there is none.

        A root that does not exist fails the task finally: whoever took the table for one that is yet
        to be created would create it in the wrong place, or wait for it forever.
        """
        from opal_lake.errors import NotFoundError, StorageError
        from opal_lake.table import Table

        uri = self.lake.uri(table)
        try:
            return Table.open(uri, self.lake.options_for(uri))
        except NotFoundError:
            wrong = self.lake.missing_root() if self.lake.holds(uri) else None
            if wrong is not None:
                raise AirflowFailException(f"connection {self.opal_conn_id!r}: {wrong}") from None
            raise
        except StorageError as error:
            if _lacks_bucket(error):
                raise AirflowFailException(
                    f"connection {self.opal_conn_id!r}, table {uri}: {error}"
                ) from error
            raise

    def exists(self, table: str) -> bool:
        """Whether there is such a table by now."""
        from opal_lake.errors import NotFoundError

        try:
            self.table(table)
        except NotFoundError:
            return False
        return True

    def head(self, table: str) -> int:
        """The newest version's number."""
        return self.table(table).snapshot_at().version

    def versions_after(
        self, table: str, seen: int, most: int | None = None, *, feed: bool = False
    ) -> tuple[int, int] | None:
        """The range (seen, newest] that changed the view, at most `most` such versions; None when there is none. For a `feed` its commits
        have to be there.
        """
        opened = self.table(table)
        head = opened.snapshot_at().version
        if seen > head:
            raise AirflowFailException(
                f"version {seen} of {opened.uri} has been seen, but the newest is {head}: the table was created again, or restored from "
                "a backup. Give the consumer another name (consumer=) to start over"
            )
        oldest = oldest_after(opened, seen, feed=feed)
        new = range(max(seen, oldest) + 1, head + 1)
        changed = (
            version
            for version in (reversed(new) if most is None else new)
            if opened.log.read_commit(version).changes_view
        )
        expired = (
            [oldest] if seen < oldest and opened.snapshot_at(oldest).root.viewed > seen else []
        )
        selected = list(
            islice(chain(changed, expired) if most is None else chain(expired, changed), most or 1)
        )
        return (seen, selected[-1]) if selected else None

    def is_readable(self, table: str, version: int) -> bool:
        """Whether the version is there still."""
        from opal_lake.log.version_window import is_readable

        return is_readable(self.table(table).snapshot_at().root, version)

    def ingests_as_of(self, table: str, key: str, version: int | None) -> tuple[int, int]:
        """The version (by default the newest; the oldest for an expired one), and how many visible ingests of the key it holds."""
        from opal_lake.log.version_window import is_readable
        from opal_lake.read.read import visible_ingests

        opened = self.table(table)
        head = opened.snapshot_at()
        if version is None or version == head.version:
            state = head
        else:
            is_expired = version < head.root.oldest_version and not is_readable(head.root, version)
            state = opened.snapshot_at(head.root.oldest_version if is_expired else version)
        return state.version, len(visible_ingests(state).get(key, ()))

    def keys_published(self, table: str, after: int, until: int) -> list[str]:
        """Return the partition keys of which commits made rows visible, after a version."""
        from opal_lake.ids import segment_part

        opened = self.table(table)
        numbers = {
            segment_part(segment.id)
            for commit in opened.log.commits_after(after, until)
            for segment in commit.actions.processed
        }
        partitions = opened.snapshot_at().partitions
        return sorted(key for key, ingests in partitions.items() if ingests & numbers)

    def settled_version(self, table: str, until: datetime) -> int | None:
        """The last version up to a moment that changed the view."""
        return next(
            (
                commit.version
                for commit in self.table(table).commits()
                if commit.changes_view and _time(commit) <= until
            ),
            None,
        )

    def find_result(self, table: str, operation: str, token: str) -> "JobResult | None":
        """The result of the job with this token, if it committed, even if it failed to report."""
        from opal_lake.engine.results import find_result
        from opal_lake.errors import NotFoundError

        try:
            opened = self.table(table)
        except NotFoundError:
            return None
        return find_result(opened.log, opened.snapshot_at(), operation, token)

    def test_connection(self) -> tuple[bool, str]:
        """Airflow's connection test: whether the root exists and can be listed."""
        from opal_lake.errors import OpalError
        from opal_lake.storage import open_storage

        try:
            if not self.lake.root:
                return (
                    True,
                    "The connection has no root: every table has to be named by its whole path",
                )
            self.lake.uri("any")
            if (wrong := self.lake.missing_root()) is not None:
                return False, wrong
            next(
                iter(open_storage(self.lake.root, self.lake.options_for(self.lake.root)).list("")),
                None,
            )
        except (OpalError, OSError, ValueError) as error:
            return False, str(error)
        return True, f"{self.lake.root} can be listed"


def oldest_after(table: "Table", seen: int, *, feed: bool = False) -> int:
    """The oldest version. Fails if changes after the seen version have expired; after version 0, the empty table, all rows are new.

    A savepoint keeps the rows of its version, and with them what is new since; a feed needs the commits in between, too.
    """
    from opal_lake.log.version_window import is_readable

    root = table.snapshot_at().root
    oldest = root.oldest_version
    is_lost = seen < oldest if feed else 0 < seen < oldest and not is_readable(root, seen)
    if is_lost and (viewed := table.snapshot_at(oldest).root.viewed) > seen:
        start = (
            f"start={oldest}: it begins with the changes after that version"
            if feed
            else "it starts over, with all rows"
        )
        raise AirflowFailException(
            f"version {seen} of {table.uri} has been seen, and {viewed}, which changed rows after it, has expired: the changes in "
            f"between can no longer be read. Give the consumer another name (consumer=){' and ' if feed else ': '}{start}. Also give "
            f"the table and its maintenance a longer window than consumers may be paused: opal set {table.uri} window=30d"
        )
    return oldest


def _is_true(given: Any) -> bool:
    """Whether a switch of the connection's extra is on; the UI and the command line may store text."""
    return str(given).lower() in ("true", "1")


def _lacks_bucket(error: Exception) -> bool:
    """Whether S3 answered that the bucket does not exist."""
    answer = getattr(error.__cause__, "response", None) or {}
    return bool(answer.get("Error", {}).get("Code") == "NoSuchBucket")


def _time(commit: "Commit") -> datetime:
    return datetime.fromtimestamp(commit.timestamp_us / 1e6, UTC)
