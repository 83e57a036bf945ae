"""Errors that stop a stream.

Each names topic, partition and offset, and the next step.
"""

from opal_lake.errors import ConflictError, InvalidInputError, NotFoundError, StorageError


class StreamError(InvalidInputError):
    """An error that comes again when the stream is restarted as it is."""


class BadMessageError(StreamError):
    """A message that no row can be made of, where bad messages are not put aside."""


class NewColumnsError(StreamError):
    """A message with columns that the table lacks and does not get.

    The options do not allow to add them, or they cannot be added.
    """


class GapError(StreamError):
    """Messages that Kafka deleted before the stream read them."""


class TopicChangedError(StreamError):
    """A topic that was deleted and created again, or has lost messages that were read."""

    def __init__(self, message: str, topic: str = "") -> None:
        super().__init__(message)
        self.topic = topic


class UnknownTopicError(NotFoundError):
    """A topic or a partition that Kafka does not have."""

    def __init__(self, message: str, topic: str = "") -> None:
        super().__init__(message)
        self.topic = topic


class TakenOverError(ConflictError):
    """A partition for which another process has committed."""


class TableReplacedError(NotFoundError):
    """A table that was dropped, with another one at its URI.

    Reading into the new one is somebody's decision: the stream must be started again.
    """


class StoppedError(ConflictError):
    """A run of an interval that was stopped before it had read all of it."""


class KafkaError(StorageError):
    """A Kafka that does not answer, or refuses: a retry may help."""


class KafkaSettingsError(StreamError):
    """A refused login or TLS, or an unknown address: the same settings fail again."""


class RegistryError(StorageError):
    """A schema registry that does not answer: a retry may help."""


class ProcessError(StorageError):
    """A process of a stream that failed again and again."""
