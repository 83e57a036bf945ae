"""The errors of this package. Every message states the fact, the values, and the next step."""


class LakeChimeError(Exception):
    """Root of all errors that this package raises on purpose."""


class InvalidEventError(LakeChimeError, ValueError):
    """An invalid event, query or value. The same call would fail again."""


class ChainError(LakeChimeError, ValueError):
    """Events that do not form one chain of snapshots.

    Read the whole table instead, or ask `chain` to report the problems.
    """


class ConflictError(LakeChimeError):
    """A watermark or a position that another process moved.

    The caller reads it again, and decides again.
    """


class NotFoundError(LakeChimeError, KeyError):
    """A name that does not exist."""

    def __str__(self) -> str:
        # KeyError would print the repr of the message
        return str(self.args[0]) if self.args else ""


class ExpiredError(LakeChimeError):
    """Events that were asked for and that retention deleted.

    Read the table itself, or have the events registered again.
    """


class UnavailableError(LakeChimeError):
    """A database or service that is unreachable, full or locked: try again later.

    Changes that were not registered are still in the producer's own log.
    """


class SchemaError(LakeChimeError):
    """Database tables that are older or newer than this client.

    Upgrade the one that the message names.
    """


class AccessError(LakeChimeError):
    """A user or a token that the database or the service refuses."""
