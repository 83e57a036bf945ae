"""The connection to Kafka: the settings of librdkafka, and what its errors mean."""

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
_POLL_S = 0.1  # between two checks of whether Kafka can be reached
TIMEOUT_S = 30.0
_GROUP = "group.id"


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """The bootstrap servers, and settings by their names in librdkafka.

    Secrets can come from a file, so that no list of processes shows them.
    """

    bootstrap_servers: str
    settings: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = TIMEOUT_S  # for an answer about topics
    _contact: Contact = field(default_factory=Contact, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if reserved := sorted(self.settings.keys() & OWN_SETTINGS.keys()):
            name = reserved[0]
            raise InvalidInputError(
                f"the Kafka setting {name!r} is the stream's own: {OWN_SETTINGS[name]}; leave the "
                "setting out"
            )
        try:
            # A client checks its settings when it is made: mistakes are reported at once
            AdminClient(self.client())
        except KafkaException as error:
            raise InvalidInputError(
                f"librdkafka refuses the settings of Kafka: {text_of(error)}; correct them "
                "(--kafka NAME=VALUE, or the file of --kafka-settings)"
            ) from error

    def client(self) -> dict[str, Any]:
        """Return the settings of an admin client or a producer."""
        return {
            "bootstrap.servers": self.bootstrap_servers,
            "log_level": 0,
            "error_cb": self._contact.note_error,
            **self.settings,
        }

    def answer(self, admin: AdminClient, future: "Future[Answer]") -> Answer:
        """Wait for Kafka's answer and return it.

        Raises KafkaException, TimeoutError, or immediately KafkaSettingsError with the setting to
        correct, if a retry would not help.
        """
        until_s = time.monotonic() + self.timeout_s
        while True:
            try:
                answer = future.result(_POLL_S)
            except (KafkaException, TimeoutError) as error:
                admin.poll(0)  # calls `error_cb` with the errors so far
                self._contact.raise_if_final(self.bootstrap_servers, self.settings)
                if isinstance(error, KafkaException) or time.monotonic() > until_s:
                    raise
            else:
                self._contact.note_answer()
                return answer

    def consumer(self, settings: Mapping[str, str | int | float | bool] | None = None) -> Consumer:
        """Return a consumer whose partitions the stream assigns itself.

        librdkafka demands the name of a group. Kafka stores nothing for it.
        """
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
        """Return the error of a Kafka that does not answer, with the last known cause."""
        reason, cause = text_of(error), self._contact.last
        if cause and cause not in reason:
            reason = f"{reason} ({cause})"
        return KafkaError(
            f"Kafka at {self.bootstrap_servers} does not answer: {reason}; try again when it does"
        )


def text_of(error: object) -> str:
    """Return Kafka's own message, without the exception around it."""
    inner = error.args[0] if isinstance(error, KafkaException) and error.args else error
    if isinstance(inner, Failure):
        return inner.str()
    return str(inner)


def read_settings(path: str) -> dict[str, str]:
    """Read a file of name=value lines; # begins a comment."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InvalidInputError(
            f"the file of Kafka settings {path!r} cannot be read: {error.strerror}; correct "
            "kafka_settings"
        ) from error
    return parse_settings("\n".join(lines), path)


def parse_settings(text: str, path: str) -> dict[str, str]:
    """Return the settings in a text; `path` names its file or variable."""
    stripped = [line.strip() for line in text.splitlines()]
    lines = [line for line in stripped if line and not line.startswith("#")]
    settings: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        name, equals, value = line.partition("=")
        if not equals:
            # The line itself may hold a secret: only its number is shown
            raise InvalidInputError(f"{path}: setting {number} has no value; write name=value")
        settings[name.strip()] = value.strip()
    return settings
