"""The service behind Airflow's own users: who may read assets may read events, who may create asset events may register them."""

import os

from airflow.api_fastapi.core_api.security import requires_access_asset, requires_access_connection
from fastapi import FastAPI

from lakechime.errors import UnavailableError
from lakechime.location import URL_VARIABLE, default_url
from lakechime.service.access import Access
from lakechime.service.app import create_app
from lakechime.store.sql_store import SqlStore


def mounted_app() -> FastAPI:
    """Every route asks Airflow, health and the OpenAPI document too. Tokens and retention are for who may delete connections."""
    read = requires_access_asset("GET")
    access = Access(read=read, write=requires_access_asset("POST"), admin=requires_access_connection("DELETE"), probe=read)
    return create_app(open_store, access)


def open_store() -> SqlStore:
    """The database of the environment, else of the connection `lakechime_default`, else the embedded one."""
    url = default_url()
    if url.startswith(("http://", "https://")):
        raise UnavailableError(f"{URL_VARIABLE} is {os.environ[URL_VARIABLE]}, a service; for the api-server, name the database")
    return SqlStore.open(url)
