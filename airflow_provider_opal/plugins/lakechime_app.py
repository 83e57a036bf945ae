"""The service behind Airflow's own users: who may read assets may read events, who may create asset events may register them."""

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
    """Every route asks Airflow, health and the OpenAPI document too. Tokens and retention are for who may delete connections."""
    read = requires_access_asset("GET")
    access = Access(
        read=read,
        write=requires_access_asset("POST"),
        admin=requires_access_connection("DELETE"),
        probe=read,
    )
    return create_app(open_store, access)


def open_store() -> SqlStore:
    """The database of LAKECHIME_URL, else of the connection `lakechime_default`, else the embedded one.

    Workers reach this very service by that connection: then the api-server's own environment names the database.
    """
    url = os.environ.get(URL_VARIABLE) or _connected()
    if url.startswith(("http://", "https://")):
        raise UnavailableError(
            f"LakeChime in the api-server needs a database, and {url} is a service; set {URL_VARIABLE} to the database in its environment"
        )
    return SqlStore.open(url)


def _connected() -> str:
    try:
        return LakeChimeHook().address.url
    except ValueError as error:
        raise UnavailableError(str(error)) from error
