"""Secrets: which settings are secret, and how to mask their values in a text."""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from airflow.sdk.log import mask_secret

from opal_lake.source import has_secret

# Spark's own spark.redaction.regex, and the names that other stores use
_NAME = (
    r"pass(?:word|wd|phrase)|pwd|secret|token|credential|"
    r"(?:access|account|private|encryption|api)[._-]?key"
)
_SECRET_NAME = re.compile(_NAME, re.IGNORECASE)
# A secret within another option, such as -Djavax.net.ssl.keyStorePassword=...
_SECRET_INSIDE = re.compile(rf"(?:{_NAME})[\w.-]*\s*=", re.IGNORECASE)
_ONLY_NAMED = re.compile(r"[._-](?:env|file|path|provider|class)$", re.IGNORECASE)
# Airflow's own masking has the same limit: a shorter secret would mask words in every line
_MIN_MASKED_CHARACTERS = 5
# Values of settings with a secret's name that are not secrets
_NO_SECRETS = {"false"}
MASK = "***"


def is_secret(name: str, value: object) -> bool:
    """Return whether a setting is secret, by its name or by the form of its value."""
    return bool(_SECRET_NAME.search(name)) or _is_secret_value(str(value))


def is_secret_name(name: str) -> bool:
    """Return whether a setting with this name holds a secret.

    A name such as `password_env` only says where a secret is.
    """
    return bool(_SECRET_NAME.search(name)) and not _ONLY_NAMED.search(name)


def without_secrets(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return two mappings: the settings that may be shown, and the secret ones."""
    shown, hidden = {}, {}
    for name, value in settings.items():
        if is_secret(name, value):
            hidden[name] = value
        else:
            shown[name] = value
    return shown, hidden


def secret_values(settings: Iterable[tuple[str, Any]]) -> tuple[str, ...]:
    """Return all forms in which secret settings may appear in a line.

    The longest come first: a form that is a part of a longer one must not be masked before it.
    """
    lines = set[str]()
    for name, value in settings:
        if is_secret(name, value):
            lines.update(str(value).splitlines())
    forms = lines | {line.replace("\\", "\\\\") for line in lines}
    masked = [form for form in forms if _is_masked(form)]
    return tuple(sorted(masked, key=len, reverse=True))


def _is_masked(form: str) -> bool:
    return len(form) >= _MIN_MASKED_CHARACTERS and form.lower() not in _NO_SECRETS


def mask(settings: Iterable[tuple[str, Any]]) -> tuple[str, ...]:
    """Have Airflow mask the secret settings in its logs, and return their values."""
    secrets = secret_values(settings)
    for secret in secrets:
        mask_secret(secret)
    return secrets


def redacted(text: str, secrets: Collection[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, MASK)
    return text


def secret_arguments(arguments: object, name: str = "arguments") -> list[str]:
    """Return the paths of secrets in a job's arguments.

    Arguments are visible on the command line and in Airflow's UI.
    """
    secrets = list[str]()
    if isinstance(arguments, Mapping):
        for key, value in arguments.items():
            path = f"{name}.{key}"
            if isinstance(value, str) and is_secret_name(str(key)):
                secrets.append(path)
            else:
                secrets += secret_arguments(value, path)
    elif isinstance(arguments, list | tuple):
        for value in arguments:
            secrets += secret_arguments(value, name)
    elif isinstance(arguments, str):
        is_url = arguments.startswith("jdbc:") or "://" in arguments
        if is_url and has_secret(arguments):
            secrets.append(name)
    return secrets


def _is_secret_value(value: str) -> bool:
    return has_secret(value) or bool(_SECRET_INSIDE.search(value))
