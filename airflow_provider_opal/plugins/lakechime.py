"""Mounts the service of data-change events into Airflow's api-server, at /lakechime; and its macros into templates."""

import logging
from functools import cached_property
from typing import Any

from airflow.sdk.plugins_manager import AirflowPlugin

from airflow_provider_opal.events.macros import decode_events, encode_events, event_variables

log = logging.getLogger(__name__)

URL_PREFIX = "/lakechime"


class LakeChimePlugin(AirflowPlugin):
    """The app is made when the api-server asks for it: every other process of Airflow only reads this module."""

    name = "lakechime"
    macros = [decode_events, encode_events, event_variables]  # noqa: RUF012  as Airflow has it: {{ macros.lakechime.encode_events(...) }}

    @cached_property
    def fastapi_apps(self) -> list[Any]:  # type: ignore[override]  # a list of the class would be made in every process
        """Empty where the app cannot be made: the api-server goes on without it."""
        try:
            from airflow_provider_opal.plugins.lakechime_app import mounted_app

            return [{"app": mounted_app(), "url_prefix": URL_PREFIX, "name": "LakeChime"}]
        except ImportError as error:
            log.warning(
                "LakeChime is not served at %s: %s; pip install 'opal-lake[lakechime]'",
                URL_PREFIX,
                error,
            )
        except Exception:
            log.exception("LakeChime is not served at %s", URL_PREFIX)
        return []
