"""Errors, named by what the caller does about them.

Every message states the fact, the values, and the next step.
"""


class LakeChimeError(Exception):
    """Root of all errors that this package raises on purpose."""


class InvalidEventError(LakeChimeError, ValueError):
    """An event, a query or a value does not fit; trying again unchanged fails again."""


class ChainError(LakeChimeError, ValueError):
    """Events do not form one chain of snapshots: read the whole table instead, or ask for the report of what is wrong."""


class ConflictError(LakeChimeError):
    """Somebody else moved the watermark or the position: read it again and decide anew."""


class NotFoundError(LakeChimeError, KeyError):
    """The named thing is not there."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""  # KeyError would print the repr


class ExpiredError(LakeChimeError):
    """Retention deleted the events that are asked for: read the table itself, or have them registered again."""


class UnavailableError(LakeChimeError):
    """The database or the service is away, full or locked: try again later. What was not registered is still in the producer's outbox."""


class SchemaError(LakeChimeError):
    """The tables in the database are older or newer than this client: upgrade the one that the message names."""


class AccessError(LakeChimeError):
    """The database or the service refuses this user or token."""
