"""Secrets: which settings are secret, and how to mask their values in a text."""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from airflow.sdk.log import mask_secret

from opal_lake.source import has_secret

# Spark's own spark.redaction.regex, and what other stores call theirs
_NAME = r"pass(?:word|wd|phrase)|pwd|secret|token|credential|(?:access|account|private|encryption|api)[._-]?key"
_SECRET_NAME = re.compile(_NAME, re.IGNORECASE)
_SECRET_INSIDE = re.compile(
    rf"(?:{_NAME})[\w.-]*\s*=", re.IGNORECASE
)  # as -Djavax.net.ssl.keyStorePassword=...
_ONLY_NAMED = re.compile(r"[._-](?:env|file|path|provider|class)$", re.IGNORECASE)
_SHORTEST = 5  # as Airflow's own masking: shorter ones would take words out of every line
_NO_SECRETS = {"false"}
MASK = "***"


def is_secret(name: str, value: object) -> bool:
    """Whether a setting is secret, by its name or by the form of its value."""
    return bool(_SECRET_NAME.search(name)) or _is_secret_value(str(value))


def is_secret_name(name: str) -> bool:
    """Whether it names a secret itself, and not its source, as password_env does."""
    return bool(_SECRET_NAME.search(name)) and not _ONLY_NAMED.search(name)


def without_secrets(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings that may be shown, and those that may not."""
    hidden = {name: value for name, value in settings.items() if is_secret(name, value)}
    return {name: value for name, value in settings.items() if name not in hidden}, hidden


def secret_values(settings: Iterable[tuple[str, Any]]) -> tuple[str, ...]:
    """All forms in which secret settings may appear in a line, the longest first."""
    parts = {
        part
        for name, value in settings
        if is_secret(name, value)
        for part in str(value).splitlines()
    }
    parts |= {part.replace("\\", "\\\\") for part in parts}
    return tuple(
        sorted(
            (part for part in parts if len(part) >= _SHORTEST and part.lower() not in _NO_SECRETS),
            key=len,
            reverse=True,
        )
    )


def mask(settings: Iterable[tuple[str, Any]]) -> tuple[str, ...]:
    """Have Airflow mask the secret ones of the settings in whatever it logs; returns them."""
    secrets = secret_values(settings)
    for secret in secrets:
        mask_secret(secret)
    return secrets


def redacted(text: str, secrets: Collection[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, MASK)
    return text


def secret_arguments(arguments: object, name: str = "arguments") -> list[str]:
    """The paths of secrets in a job's arguments: arguments are visible on the command line and in Airflow's UI."""
    if isinstance(arguments, Mapping):
        return [
            secret
            for key, value in arguments.items()
            for secret in _named(f"{name}.{key}", str(key), value)
        ]
    if isinstance(arguments, list | tuple):
        return [secret for value in arguments for secret in secret_arguments(value, name)]
    if (
        isinstance(arguments, str)
        and (arguments.startswith("jdbc:") or "://" in arguments)
        and has_secret(arguments)
    ):
        return [name]
    return []


def _named(path: str, name: str, value: object) -> list[str]:
    if isinstance(value, str) and is_secret_name(name):
        return [path]
    return secret_arguments(value, path)


def _is_secret_value(value: str) -> bool:
    return has_secret(value) or bool(_SECRET_INSIDE.search(value))
