"""The plugin that mounts LakeChime into Airflow's api-server, and its macros into templates."""

import logging
from functools import cached_property
from typing import Any

from airflow.sdk.plugins_manager import AirflowPlugin

from airflow_provider_opal.events.macros import decode_events, encode_events, event_variables

log = logging.getLogger(__name__)

URL_PREFIX = "/lakechime"


class LakeChimePlugin(AirflowPlugin):
    """The plugin `lakechime`, with the service at /lakechime and `macros.lakechime`.

    The app is created when the api-server asks for it. Other processes only import this module.
    """

    name = "lakechime"
    macros = [decode_events, encode_events, event_variables]  # noqa: RUF012  as Airflow has it

    @cached_property
    def fastapi_apps(self) -> list[Any]:  # type: ignore[override]  # an attribute would cost all
        """The apps to mount; empty if the app cannot be created."""
        try:
            from airflow_provider_opal.plugins.lakechime_app import mounted_app

            return [{"app": mounted_app(), "url_prefix": URL_PREFIX, "name": "LakeChime"}]
        except ImportError as error:
            log.warning(
                "LakeChime is not served at %s (%s): pip install 'opal-lake[lakechime]'",
                URL_PREFIX,
                error,
            )
        except Exception:
            log.exception("LakeChime is not served at %s", URL_PREFIX)
        return []
