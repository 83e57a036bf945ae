"""The provider's description of itself for Airflow (entry point `apache_airflow_provider`)."""

from typing import Any

NAME = "Opal"
_OPERATORS = (
    "operators.spark",
    "operators.ingest",
    "operators.metagen",
    "operators.consume",
    "operators.reconcile",
    "operators.compaction",
    "operators.zorder",
    "operators.restore",
    "operators.schema_change",
    "operators.sql",
    "operators.retention",
    "operators.maintenance",
    "operators.data_change_event",
    "operators.folders.bulk_mutation",
    "operators.lakechime.relay",
    "operators.lakechime.acknowledge",
    "operators.streaming.ingest",
    "templates.approval",
)


def get_provider_info() -> dict[str, Any]:
    """Return what fits both of Airflow's schemas, the lax and the strict one."""
    # Without "integrations": the strict schema would ask for the address of a site with docs
    return {
        "package-name": "airflow-provider-opal",
        "name": NAME,
        "description": (
            "A mutable data lake run by Airflow: "
            "upserts, deletes and time travel on immutable files, with Spark.\n"
        ),
        "state": "ready",
        "source-date-epoch": 1763683200,
        "versions": ["0.1.0"],
        "operators": [_modules(*_OPERATORS)],
        "sensors": [_modules("sensors.snapshot", "sensors.partition", "sensors.lag")],
        "hooks": [_modules("hooks.opal", "hooks.lakechime")],
        "triggers": [
            _modules("triggers.snapshot", "triggers.events", "triggers.watcher", "triggers.stream")
        ],
        "extra-links": ["airflow_provider_opal.links.SparkUILink"],
        "asset-uris": [
            {"schemes": ["opal", "lakechime"], "handler": "airflow_provider_opal.assets.normalised"}
        ],
        "connection-types": [
            {
                "connection-type": "opal",
                "hook-class-name": "airflow_provider_opal.hooks.opal.OpalHook",
                "hook-name": "Opal lake",
                "ui-field-behaviour": {
                    "hidden-fields": ["port", "schema"],
                    "relabeling": {"host": "Root", "login": "Access key", "password": "Secret key"},
                    "placeholders": {"host": "s3a://bucket/lake or /data/lake"},
                },
                "conn-fields": _FIELDS,
            },
            {
                "connection-type": "lakechime",
                "hook-class-name": "airflow_provider_opal.hooks.lakechime.LakeChimeHook",
                "hook-name": "LakeChime",
                "ui-field-behaviour": {
                    "hidden-fields": [],
                    "relabeling": {
                        "host": "URL, host or file",
                        "schema": "Database",
                        "password": "Password or token",
                    },
                    "placeholders": {
                        "host": (
                            "postgresql://host:5432/lakechime, http://host:8765 "
                            "or /data/lakechime.db"
                        )
                    },
                },
                "conn-fields": _LAKECHIME_FIELDS,
            },
        ],
    }


def _modules(*names: str) -> dict[str, Any]:
    return {
        "integration-name": NAME,
        "python-modules": [f"airflow_provider_opal.{name}" for name in names],
    }


def _text(label: str, description: str, **more: Any) -> dict[str, Any]:
    return {
        "label": label,
        "description": description,
        "schema": {"type": ["string", "null"], **more},
    }


_FIELDS = {
    "spark_conn_id": _text(
        "Spark connection",
        "The connection that runs this lake's jobs, unless an operator names another.",
        default="spark_default",
    ),
    "endpoint_url": _text("S3 endpoint", "The address of a store that is not Amazon's."),
    "region_name": _text("S3 region", "The region of the bucket."),
    "session_token": _text("S3 session token", "The token of temporary keys.", format="password"),
    "path_style": {
        "label": "Path-style addresses",
        "description": "Needed by most stores that are not Amazon's.",
        "schema": {"type": ["boolean", "null"], "default": False},
    },
    "create_root": {
        "label": "Create the root",
        "description": (
            "Let the first ingest create the root folder. Otherwise a missing root is an error."
        ),
        "schema": {"type": ["boolean", "null"], "default": False},
    },
}

_LAKECHIME_FIELDS = {
    "scheme": _text(
        "Scheme",
        "The scheme of a host that is not a URL: postgresql, http, https or sqlite.",
        default="postgresql",
    ),
}
