"""The job of a stream, which a trigger can store.

It has no secrets: the machine that starts the process reads them from the connections.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from airflow_provider_opal.hooks.kafka import kafka_access
from airflow_provider_opal.hooks.opal import OpalHook
from airflow_provider_opal.secrets import mask
from opal_stream.operations.reading import needs_registry
from opal_stream.operations.verbs import Run
from opal_stream.supervise.process import WATCHED_S

# Options of the store that are secret, and the environment variable of each
_KEYS = {
    "aws_access_key_id": "AWS_ACCESS_KEY_ID",
    "aws_secret_access_key": "AWS_SECRET_ACCESS_KEY",
    "aws_session_token": "AWS_SESSION_TOKEN",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamJob:
    """A stream into a table. `arguments` are those of `opal stream run`, by name."""

    table: str
    opal_conn_id: str
    kafka_conn_id: str | None
    arguments: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(**data)

    def command(self) -> tuple[list[str], dict[str, str]]:
        """Return the command line, and the environment of the process with the secrets.

        This reads the connections.
        """
        from opal_lake.cli.flags import flag_words  # DAG files need no command line

        given = {name: value for name, value in self.arguments.items() if value is not None}
        lake = OpalHook(self.opal_conn_id).lake
        kafka = kafka_access(self.kafka_conn_id, given.get("bootstrap_servers"))
        uri = lake.uri(self.table)
        store = lake.options_for(uri)
        keys = {}
        for name, value in store.items():
            if name in _KEYS:
                keys[_KEYS[name]] = value
        mask(keys.items())
        given["bootstrap_servers"] = kafka.bootstrap_servers
        is_registered = needs_registry(given.get("format", "json"), given.get("key_format"))
        if is_registered and kafka.registry and not given.get("registry"):
            given["registry"] = kafka.registry
        words = [sys.executable, "-m", "opal_lake.cli", "stream", "run", uri]
        words += ["--json", "--watched", f"{WATCHED_S}s"]
        for name, value in store.items():
            if name not in _KEYS:
                words.append(f"--option={name}={value}")
        words += flag_words(Run, vars(Run.of(given)))
        return words, {**os.environ, **keys, **kafka.environment()}
