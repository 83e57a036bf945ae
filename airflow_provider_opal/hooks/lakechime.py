"""The connection type `lakechime`: where data-change events are kept. Without a connection: in SQLite, in AIRFLOW_HOME."""

import os
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit, urlunsplit

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.sdk.log import mask_secret

from airflow_provider_opal.assets import DEFAULT_LAKECHIME_CONN_ID
from airflow_provider_opal.secrets import redacted

if TYPE_CHECKING:
    from lakechime import LakeChime

_POSTGRES = "postgresql+psycopg2"
_DIALECTS = {"postgres": _POSTGRES, "postgresql": _POSTGRES}
_SERVICES = ("http", "https")
_HINT = "write postgresql://host:5432/database, http://host:8765, https://host or the absolute path of an SQLite file, as /data/lakechime.db"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """What `LakeChime.open` takes. The URL of a database holds its password: never log it."""

    url: str = field(repr=False)
    token: str | None = field(default=None, repr=False)

    @property
    def shown(self) -> str:
        """Without password."""
        parts = urlsplit(self.url)
        login = f"{parts.username}@" if parts.username else ""
        return urlunsplit(parts._replace(netloc=f"{login}{parts.netloc.rpartition('@')[2]}"))


class LakeChimeHook(BaseHook):
    """Access to data-change events: in SQLite, in PostgreSQL, or over the service.

    The connection's host is a URL, the path of an SQLite file, or the host of a PostgreSQL server, whose database is `schema`. Of a service
    the password is the bearer token. If `lakechime_default` does not exist, events are where LAKECHIME_URL says, or else in
    AIRFLOW_HOME/lakechime.db: on one machine that is all that is needed; workers of several machines need a connection.
    """

    conn_name_attr = "lakechime_conn_id"
    default_conn_name = DEFAULT_LAKECHIME_CONN_ID
    conn_type = "lakechime"
    hook_name = "LakeChime"

    def __init__(self, lakechime_conn_id: str = DEFAULT_LAKECHIME_CONN_ID) -> None:
        super().__init__()
        self.lakechime_conn_id = lakechime_conn_id

    @cached_property
    def address(self) -> Address:
        """The connection, read once."""
        try:
            connection = self.get_connection(self.lakechime_conn_id)
        except AirflowNotFoundException as error:
            if self.lakechime_conn_id == DEFAULT_LAKECHIME_CONN_ID:
                return default_address()
            raise AirflowNotFoundException(
                f"there is no LakeChime connection {self.lakechime_conn_id!r}; add it (type lakechime), or name another with "
                f"lakechime_conn_id=. As its host, {_HINT}"
            ) from error
        if connection.conn_type not in (self.conn_type, "", None):
            raise ValueError(
                f"the connection {self.lakechime_conn_id!r} is of type {connection.conn_type!r}, and that of data-change events is of type "
                "'lakechime'; name another with lakechime_conn_id="
            )
        for secret in filter(
            None, (connection.password, quote(connection.password or "", safe=""))
        ):
            mask_secret(secret)
        try:
            return address_of(connection)
        except ValueError as error:
            raise ValueError(f"the connection {self.lakechime_conn_id!r}: {error}") from None

    def get_conn(self) -> "LakeChime":
        """An open client: use it as a context manager, or close it."""
        from lakechime import LakeChime

        return LakeChime.open(self.address.url, token=self.address.token)

    def test_connection(self) -> tuple[bool, str]:
        """Airflow's connection test: opens it, and says what is there."""
        from lakechime import LakeChimeError

        secrets: list[str] = []
        try:
            address = self.address
            secrets = [
                secret
                for secret in (address.url, urlsplit(address.url).password, address.token)
                if secret
            ]
            client = self.get_conn()
            try:
                return True, client.check()
            finally:
                client.close()
        except (
            LakeChimeError,
            AirflowNotFoundException,
            OSError,
            ValueError,
            ModuleNotFoundError,
        ) as error:
            return False, redacted(str(error), secrets)


def default_address() -> Address:
    """Where events are without a connection."""
    from lakechime.location import default_url

    url = default_url()
    return Address(
        url=url, token=os.environ.get("LAKECHIME_TOKEN") if url.startswith(_SERVICES) else None
    )


def address_of(connection: Any) -> Address:
    """The address that a connection describes. ValueError for one that cannot be."""
    host = str(connection.host or "").strip()
    if not host:
        raise ValueError(f"it has no host; {_HINT}")
    if host.startswith("/"):
        return Address(url=f"sqlite:///{host}")
    scheme, separator, rest = host.partition("://")
    if not separator:
        scheme, rest = str(connection.extra_dejson.get("scheme") or "postgresql"), host
    if scheme == "sqlite":
        return Address(url=host if separator else f"sqlite:///{host}")
    if scheme in _SERVICES:
        return Address(
            url=f"{scheme}://{_with_port(rest, connection.port)}", token=connection.password or None
        )
    dialect = _DIALECTS.get(scheme.partition("+")[0])
    if dialect is None:
        raise ValueError(f"the scheme {scheme!r} is unknown; {_HINT}")
    return Address(url=f"{scheme if '+' in scheme else dialect}://{_with_login(rest, connection)}")


def _with_port(rest: str, port: int | None) -> str:
    netloc, slash, path = rest.partition("/")
    bare = netloc.rpartition("@")[2]
    return f"{netloc}{f':{port}' if port and ':' not in bare else ''}{slash}{path}"


def _with_login(rest: str, connection: Any) -> str:
    """Login, port and database of the connection where the URL has none."""
    rest = _with_port(rest, connection.port)
    netloc, _, path = rest.partition("/")
    path = path or str(connection.schema or "")
    if not path:
        raise ValueError(
            "it names no database; write postgresql://host:5432/database, or give the database as schema"
        )
    if "@" not in netloc and connection.login:
        password = f":{quote(connection.password, safe='')}" if connection.password else ""
        netloc = f"{quote(connection.login, safe='')}{password}@{netloc}"
    return f"{netloc}/{path}"
