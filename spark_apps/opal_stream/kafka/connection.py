"""How Kafka is reached: the settings of librdkafka, and what its errors mean."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Consumer, KafkaException
from confluent_kafka import KafkaError as Failure
from confluent_kafka.admin import AdminClient

from opal_lake.errors import InvalidInputError
from opal_stream.errors import KafkaError

TIMEOUT_S = 30.0
_GROUP = "group.id"
OWN_SETTINGS = (
    "enable.auto.commit",
    "enable.auto.offset.store",
    "auto.offset.reset",
    "enable.partition.eof",
    _GROUP,
    "bootstrap.servers",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Bootstrap servers, and settings as librdkafka names them. Secrets come from a file, which no list of processes shows."""

    bootstrap_servers: str
    settings: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if own := sorted(set(self.settings) & set(OWN_SETTINGS)):
            raise InvalidInputError(
                f"the Kafka setting {own[0]!r} is the stream's own; leave it out"
            )
        try:
            AdminClient(self.client())
        except KafkaException as error:
            raise InvalidInputError(
                f"librdkafka refuses the settings of Kafka: {text_of(error)}"
            ) from error

    def client(self) -> dict[str, str | int | float | bool]:
        """For an admin client or a producer."""
        return {"bootstrap.servers": self.bootstrap_servers, "log_level": 0, **self.settings}

    def consumer(self, settings: Mapping[str, str | int | float | bool] | None = None) -> Consumer:
        """Whose partitions are assigned by hand. librdkafka wants a group, under which nothing is ever stored."""
        return Consumer(
            {
                **self.client(),
                _GROUP: "opal-stream",
                "enable.auto.commit": False,
                **(settings or {}),
            }
        )

    def failure(self, error: object) -> KafkaError:
        return KafkaError(
            f"Kafka at {self.bootstrap_servers} does not answer: {text_of(error)}; try again when it does"
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
