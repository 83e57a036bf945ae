"""What a stream reads, and into which table, as a trigger keeps it: without secrets, which are read where the process is started."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from airflow_provider_opal.hooks.kafka import kafka_access
from airflow_provider_opal.hooks.opal import OpalHook
from airflow_provider_opal.secrets import mask
from opal_lake.errors import InvalidInputError
from opal_stream.rules import FORMATS
from opal_stream.supervise.process import WATCHED_S

POLICIES = {
    "on_bad_message": ("fail", "quarantine"),
    "on_new_columns": ("fail", "add", "ignore", "quarantine"),
    "on_gap": ("fail", "continue"),
    "on_new_topic": ("fail", "continue"),
    "start": ("earliest", "latest"),
    "format": tuple(FORMATS),
    "time_unit": ("s", "ms", "us", "ns"),
    "commit": ("direct", "gathered"),
}
_KEYS = {
    "aws_access_key_id": "AWS_ACCESS_KEY_ID",
    "aws_secret_access_key": "AWS_SECRET_ACCESS_KEY",
    "aws_session_token": "AWS_SESSION_TOKEN",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamJob:
    """`options` are those of `opal stream`, by name; None says nothing."""

    table: str
    topics: Sequence[str]
    opal_conn_id: str
    kafka_conn_id: str | None
    bootstrap_servers: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(**data)

    def command(self) -> tuple[list[str], dict[str, str]]:
        """The command line, and the environment beside it, which holds the secrets. Reads connections."""
        lake, kafka = (
            OpalHook(self.opal_conn_id).lake,
            kafka_access(self.kafka_conn_id, self.bootstrap_servers),
        )
        uri = lake.uri(self.table)
        store = lake.options_for(uri)
        keys = {_KEYS[name]: value for name, value in store.items() if name in _KEYS}
        mask(keys.items())
        words = [
            sys.executable,
            "-m",
            "opal_lake.cli",
            "stream",
            uri,
            "--json",
            "--watched",
            f"{WATCHED_S}s",
        ]
        words += ["--bootstrap-servers", kafka.bootstrap_servers]
        for topic in self.topics:
            words += ["--topic", topic]
        for name, value in store.items():
            words += [] if name in _KEYS else ["--option", f"{name}={value}"]
        words += _flag("column", self.columns)
        known = (
            kafka.registry if FORMATS[self.options.get("format") or "json"].is_registered else None
        )  # others need none
        for name, value in {"registry": None, **self.options}.items():
            words += _flag(name, value or (known if name == "registry" else None))
        return words, {**os.environ, **keys, **kafka.environment()}


def checked(name: str, value: Any) -> Any:
    """One of the choices that there are; others are looked at by the stream itself."""
    if value is not None and name in POLICIES and value not in POLICIES[name]:
        raise InvalidInputError(
            f"{name}={value!r} is unknown; use one of {', '.join(POLICIES[name])}"
        )
    return value


def _flag(name: str, value: Any) -> list[str]:
    flag = f"--{name.replace('_', '-')}"
    if value in (None, False, [], (), {}):
        return []
    if isinstance(value, Mapping):
        return [word for member, text in value.items() for word in (flag, f"{member}={text}")]
    if value is True:
        return [flag]
    return [flag, ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)]
