"""How Kafka is reached: the settings of librdkafka, and what its errors mean."""

import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaException
from confluent_kafka import KafkaError as Failure
from confluent_kafka.admin import AdminClient

from opal_lake.errors import InvalidInputError
from opal_stream.errors import KafkaError
from opal_stream.kafka.contact import Contact
from opal_stream.kafka.settings import ISOLATION, OWN_SETTINGS

Answer = TypeVar("Answer")
_POLL_S = 0.1  # between two looks whether Kafka can be reached at all
TIMEOUT_S = 30.0
_GROUP = "group.id"


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Bootstrap servers, and settings as librdkafka names them. Secrets come from a file, which no list of processes shows."""

    bootstrap_servers: str
    settings: Mapping[str, str] = field(default_factory=dict)
    _contact: Contact = field(default_factory=Contact, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if own := sorted(self.settings.keys() & OWN_SETTINGS.keys()):
            raise InvalidInputError(
                f"the Kafka setting {own[0]!r} is the stream's own: {OWN_SETTINGS[own[0]]}; leave it out"
            )
        try:
            AdminClient(self.client())
        except KafkaException as error:
            raise InvalidInputError(
                f"librdkafka refuses the settings of Kafka: {text_of(error)}"
            ) from error

    def client(self) -> dict[str, Any]:
        """For an admin client or a producer."""
        return {
            "bootstrap.servers": self.bootstrap_servers,
            "log_level": 0,
            "error_cb": self._contact.note,
            **self.settings,
        }

    def answer(self, admin: AdminClient, future: "Future[Answer]") -> Answer:
        """Return what Kafka answers. What never will be answered is an error at once.

        Raises KafkaException, TimeoutError, or KafkaSettingsError with the setting to correct.
        """
        until_s = time.monotonic() + TIMEOUT_S
        while True:
            try:
                found = future.result(_POLL_S)
            except (KafkaException, TimeoutError) as error:
                admin.poll(0)  # calls back with what went wrong
                self._contact.check(self.bootstrap_servers, self.settings)
                if isinstance(error, KafkaException) or time.monotonic() > until_s:
                    raise
            else:
                self._contact.made()
                return found

    def consumer(self, settings: Mapping[str, str | int | float | bool] | None = None) -> Consumer:
        """Whose partitions are assigned by hand. librdkafka wants a group, under which nothing is ever stored."""
        return Consumer(
            {
                **self.client(),
                _GROUP: "opal-stream",
                "enable.auto.commit": False,
                ISOLATION: "read_committed",
                **(settings or {}),
            }
        )

    def failure(self, error: object) -> KafkaError:
        text, cause = text_of(error), self._contact.last
        why = text if not cause or cause in text else f"{text} ({cause})"
        return KafkaError(
            f"Kafka at {self.bootstrap_servers} does not answer: {why}; try again when it does"
        )


def text_of(error: object) -> str:
    """What Kafka says, without the wrapping."""
    inner = error.args[0] if isinstance(error, KafkaException) and error.args else error
    return inner.str() if isinstance(inner, Failure) else str(inner)


def read_settings(path: str) -> dict[str, str]:
    """A file of name=value lines; # begins a comment."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InvalidInputError(
            f"the file of Kafka settings {path!r} cannot be read: {error.strerror}"
        ) from error
    return parse_settings("\n".join(lines), path)


def parse_settings(text: str, path: str) -> dict[str, str]:
    """Of a file, or of an environment variable."""
    pairs = [
        line.partition("=")
        for line in map(str.strip, text.splitlines())
        if line and not line.startswith("#")
    ]
    if bad := [number for number, (_, equals, _) in enumerate(pairs, start=1) if not equals]:
        raise InvalidInputError(f"{path}: setting {bad[0]} has no value; write name=value")
    return {name.strip(): value.strip() for name, _, value in pairs}
