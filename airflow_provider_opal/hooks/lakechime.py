"""The connection type `lakechime`: the store of data-change events.

Without a connection it is an SQLite file in AIRFLOW_HOME.
"""

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
_HINT = (
    "write postgresql://host:5432/database, http://host:8765, https://host "
    "or the absolute path of an SQLite file, such as /data/lakechime.db"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """The arguments of `LakeChime.open`. A URL may have a password: never log it."""

    url: str = field(repr=False)
    token: str | None = field(default=None, repr=False)

    @property
    def shown(self) -> str:
        """The URL without its password."""
        parts = urlsplit(self.url)
        login = f"{parts.username}@" if parts.username else ""
        host = parts.netloc.rpartition("@")[2]
        return urlunsplit(parts._replace(netloc=f"{login}{host}"))


class LakeChimeHook(BaseHook):
    """Access to data-change events: in SQLite, in PostgreSQL, or through the service.

    The connection's host is a URL, the path of an SQLite file, or the host of a PostgreSQL server
    whose database is the connection's schema. The password of a service is its bearer token. If
    `lakechime_default` does not exist, the variable LAKECHIME_URL names the store. Without this
    variable the store is AIRFLOW_HOME/lakechime.db, which is enough for one machine. Workers on
    several machines need a connection.
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
        """The address of the connection, which is read once."""
        try:
            connection = self.get_connection(self.lakechime_conn_id)
        except AirflowNotFoundException as error:
            if self.lakechime_conn_id == DEFAULT_LAKECHIME_CONN_ID:
                return default_address()
            raise AirflowNotFoundException(
                f"the LakeChime connection {self.lakechime_conn_id!r} does not exist; "
                "add it (type lakechime), or name another with lakechime_conn_id=. "
                f"For its host, {_HINT}"
            ) from error
        if connection.conn_type not in (self.conn_type, "", None):
            raise ValueError(
                f"the connection {self.lakechime_conn_id!r} is of type {connection.conn_type!r}, "
                "and data-change events need one of type 'lakechime'; "
                "name another with lakechime_conn_id="
            )
        if connection.password:
            mask_secret(connection.password)
            # A URL of a database contains the password in this form
            mask_secret(quote(connection.password, safe=""))
        try:
            return address_of(connection)
        except ValueError as error:
            raise ValueError(f"the connection {self.lakechime_conn_id!r} {error}") from None

    def get_conn(self) -> "LakeChime":
        """Return an open client: use it as a context manager, or close it."""
        from lakechime import LakeChime

        return LakeChime.open(self.address.url, token=self.address.token)

    def test_connection(self) -> tuple[bool, str]:
        """Open the connection for Airflow's test, and return a line about the store."""
        from lakechime import LakeChimeError

        secrets: list[str] = []
        try:
            address = self.address
            texts = (address.url, urlsplit(address.url).password, address.token)
            secrets = [text for text in texts if text]
            with self.get_conn() as client:
                return True, client.check()
        except (
            LakeChimeError,
            AirflowNotFoundException,
            OSError,
            ValueError,
            ModuleNotFoundError,
        ) as error:
            return False, redacted(str(error), secrets)


def default_address() -> Address:
    """Return the address of the events if no connection exists."""
    from lakechime.location import default_url

    url = default_url()
    is_service = url.startswith(_SERVICES)
    token = os.environ.get("LAKECHIME_TOKEN") if is_service else None
    return Address(url=url, token=token)


def address_of(connection: Any) -> Address:
    """Return the address that a connection describes.

    Raises ValueError; its message goes on after the connection's name.
    """
    host = str(connection.host or "").strip()
    if not host:
        raise ValueError(f"has no host; {_HINT}")
    if host.startswith("/"):
        return Address(url=f"sqlite:///{host}")
    scheme, separator, rest = host.partition("://")
    if not separator:
        scheme, rest = str(connection.extra_dejson.get("scheme") or "postgresql"), host
    if scheme == "sqlite":
        return Address(url=host if separator else f"sqlite:///{host}")
    if scheme in _SERVICES:
        url = f"{scheme}://{_with_port(rest, connection.port)}"
        return Address(url=url, token=connection.password or None)
    dialect = _DIALECTS.get(scheme.partition("+")[0])
    if dialect is None:
        raise ValueError(f"has the unknown scheme {scheme!r}; {_HINT}")
    # A scheme such as postgresql+asyncpg names its driver
    driver = scheme if "+" in scheme else dialect
    return Address(url=f"{driver}://{_with_login(rest, connection)}")


def _with_port(rest: str, port: int | None) -> str:
    """Return the part of a URL after its scheme, with a port if it has none."""
    netloc, slash, path = rest.partition("/")
    host = netloc.rpartition("@")[2]
    if port and ":" not in host:
        netloc = f"{netloc}:{port}"
    return f"{netloc}{slash}{path}"


def _with_login(rest: str, connection: Any) -> str:
    """Return the part of a URL after its scheme, completed from a connection.

    The connection may add login, port and database.
    """
    rest = _with_port(rest, connection.port)
    netloc, _, path = rest.partition("/")
    path = path or str(connection.schema or "")
    if not path:
        raise ValueError(
            "names no database; "
            "write postgresql://host:5432/database, or give the database as its schema"
        )
    if "@" not in netloc and connection.login:
        login = quote(connection.login, safe="")
        if connection.password:
            password = quote(connection.password, safe="")
            login = f"{login}:{password}"
        netloc = f"{login}@{netloc}"
    return f"{netloc}/{path}"
