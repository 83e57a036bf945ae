"""Errors that stop a stream.

Each message names the topic, the partition, the offset and the next step.
"""

from opal_lake.errors import ConflictError, InvalidInputError, NotFoundError, StorageError


class StreamError(InvalidInputError):
    """An error that would come again if the stream were restarted without a change."""


class BadMessageError(StreamError):
    """A message that cannot become a row, and is not put aside."""


class NewColumnsError(StreamError):
    """A message with columns that the table lacks.

    The options do not allow adding the columns, or the table cannot get them.
    """


class GapError(StreamError):
    """Messages that Kafka deleted before the stream read them."""


class TopicChangedError(StreamError):
    """A topic that was created again, or that lost messages after they were read."""

    def __init__(self, message: str, topic: str = "") -> None:
        super().__init__(message)
        self.topic = topic


class UnknownTopicError(NotFoundError):
    """A topic or a partition that Kafka does not have."""

    def __init__(self, message: str, topic: str = "") -> None:
        super().__init__(message)
        self.topic = topic


class TakenOverError(ConflictError):
    """A partition that another process has committed for meanwhile."""


class TableReplacedError(NotFoundError):
    """A table that was dropped, and whose URI now belongs to another table.

    Whether to read into the new table is a person's decision: the stream must be started again.
    """


class StoppedError(ConflictError):
    """A run of an interval that was stopped before it had read the whole interval."""


class KafkaError(StorageError):
    """A Kafka that does not answer, or refuses: a retry may help."""


class KafkaSettingsError(StreamError):
    """A refused login or TLS, or an unknown address: the same settings fail again."""


class RegistryError(StorageError):
    """A schema registry that does not answer: a retry may help."""


class ProcessError(StorageError):
    """A process of a stream that failed again and again."""
