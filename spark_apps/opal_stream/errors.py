"""What stops a stream. Each names topic, partition and offset, and what to do next."""

from opal_lake.errors import ConflictError, InvalidInputError, NotFoundError, StorageError


class StreamError(InvalidInputError):
    """Started again as it is, the stream stops at the same place."""


class BadMessageError(StreamError):
    """A message that no row can be made of, where bad messages are not put aside."""


class NewColumnsError(StreamError):
    """A message has columns that the table lacks, and nobody said that they may be added, or they cannot be."""


class GapError(StreamError):
    """Kafka has deleted messages before the stream read them."""


class TopicChangedError(StreamError):
    """The topic was deleted, and there is another one of its name; or it has lost messages that were read."""

    def __init__(self, message: str, topic: str = "") -> None:
        super().__init__(message)
        self.topic = topic


class UnknownTopicError(NotFoundError):
    """There is no such topic or partition."""

    def __init__(self, message: str, topic: str = "") -> None:
        super().__init__(message)
        self.topic = topic


class TakenOverError(ConflictError):
    """Another process has committed for the same partition."""


class TableReplacedError(NotFoundError):
    """The table is there no more, and another one is in its place. To read into that is for somebody to decide: start again."""


class StoppedError(ConflictError):
    """Somebody stopped a run that was to read an interval, before it had."""


class KafkaError(StorageError):
    """Kafka does not answer, or refuses: try again."""


class KafkaSettingsError(StreamError):
    """Kafka refuses the login or TLS, or its address is unknown: the same settings fail again."""


class RegistryError(StorageError):
    """The schema registry does not answer: try again."""


class ProcessError(StorageError):
    """A process of a stream failed again and again."""
