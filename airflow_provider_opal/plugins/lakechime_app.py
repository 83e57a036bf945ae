"""The service behind Airflow's own users.

Who may read assets may read events, and who may create asset events may register them.
"""

import os

from airflow.api_fastapi.core_api.security import requires_access_asset, requires_access_connection
from fastapi import FastAPI

from airflow_provider_opal.hooks.lakechime import LakeChimeHook
from lakechime.errors import UnavailableError
from lakechime.location import URL_VARIABLE
from lakechime.service.access import Access
from lakechime.service.app import create_app
from lakechime.store.sql_store import SqlStore


def mounted_app() -> FastAPI:
    """Return the app; Airflow's permissions guard all of its routes.

    Users who may delete connections may manage tokens and expire events.
    """
    read = requires_access_asset("GET")
    access = Access(
        read=read,
        write=requires_access_asset("POST"),
        admin=requires_access_connection("DELETE"),
        probe=read,
    )
    return create_app(open_store, access)


def open_store() -> SqlStore:
    """Open the database of LAKECHIME_URL, of `lakechime_default`, or the embedded one.

    If workers reach this service through that connection, LAKECHIME_URL has to name the database in
    the api-server's environment.
    """
    url = os.environ.get(URL_VARIABLE) or _connected()
    if url.startswith(("http://", "https://")):
        raise UnavailableError(
            f"LakeChime in the api-server needs a database, but {url} is a service; "
            f"set {URL_VARIABLE} to the database's URL in the api-server's environment"
        )
    return SqlStore.open(url)


def _connected() -> str:
    try:
        return LakeChimeHook().address.url
    except ValueError as error:
        raise UnavailableError(str(error)) from error
