"""The protocol of a master's folder, for local files and for S3."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from opal_folder.increments import Increment, folder_values
from opal_lake import checked
from opal_lake.storage import Storage

SIDE = ".mutate"
PARTIAL = ("_SUCCESS", "_temporary")


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterFile:
    """A file of a master.

    `root` is the folder that its partitions' folders lie in. `modified_us` is recorded for a file
    that no run has written.
    """

    root: str
    path: str
    size: int
    modified_us: int | None = None

    @property
    def folder(self) -> str:
        """The folder of its partition, '' without one."""
        return self.path.rpartition("/")[0]

    def values(self) -> dict[str, str | None]:
        """Return the values of its partition's columns."""
        return folder_values(self.path)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Any) -> "MasterFile":
        """Return a file of its JSON; raise ValueError for other data."""
        parts = checked.mapped(data)
        modified_us = parts["modified_us"]
        return cls(
            root=checked.text(parts["root"]),
            path=checked.text(parts["path"]),
            size=checked.count(parts["size"]),
            modified_us=None if modified_us is None else checked.word(modified_us),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterForm:
    """The form in which a run wrote a master, as far as its files do not show it.

    `options` are those of Spark's CSV reader, by their names in small letters; empty for other
    formats. `schema` is the JSON of Spark's schema, folders included.
    """

    format: str
    schema: Mapping[str, Any]
    options: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Any) -> "MasterForm":
        """Return a form of its JSON.

        Raises ValueError, KeyError or TypeError for other data.
        """
        parts = checked.mapped(data)
        options = checked.mapped(parts["options"])
        return cls(
            format=checked.text(parts["format"]),
            schema=checked.mapped(parts["schema"]),
            options={checked.text(name): checked.text(value) for name, value in options.items()},
        )


class MasterFolder(Protocol):
    """A master with its side folder. Every method may be repeated after a crash."""

    @property
    def uri(self) -> str:
        """The URI of the master."""
        ...

    @property
    def side(self) -> Storage:
        """The folder next to the master."""
        ...

    def lock(self) -> AbstractContextManager[None]:
        """Raise ConflictError while another run is at work here, if the store can lock."""
        ...

    def master_files(self) -> list[MasterFile]:
        """Return the files of the master as they are now."""
        ...

    def form(self) -> MasterForm | None:
        """Return how the last run wrote the master; None if no run has written it."""
        ...

    def take(self, run: int, increments: Sequence[Increment]) -> None:
        """Bring the increments into the run's working folder."""
        ...

    def give_back(self, run: int, increments: Sequence[Increment]) -> None:
        """Bring the increments back to where they came from, and delete the staged files."""
        ...

    def check_unchanged(self, run: int, increments: Sequence[Increment]) -> None:
        """Raise InvalidInputError for an increment that is not as it was listed."""
        ...

    def staging(self, run: int) -> str:
        """Return the path in the side folder that a new master is written to."""
        ...

    def remember(self, run: int, master: Sequence[MasterFile]) -> None:
        """Record the master before the first run: no other file of its folder is deleted."""
        ...

    def complete(
        self, run: int, untouched: Sequence[MasterFile], form: MasterForm
    ) -> list[MasterFile]:
        """Return all files of the new master."""
        ...

    def publish(self, run: int) -> None:
        """Make the completed master the one that readers see; the old one is a backup."""
        ...

    def finish(self, run: int, increments: Sequence[Increment]) -> None:
        """Mark the increments as done: they are no longer where they came from."""
        ...

    def drop_backups(self, run: int, keep: int, lists: Sequence[Sequence[MasterFile]]) -> None:
        """Delete older masters, except `keep` of them.

        `lists` are the files of the newest master and of those that stay.
        """
        ...

    def tidy(self, run: int) -> None:
        """Remove empty folders of runs before this one, if the store has folders."""
        ...


def working_path(run: int, number: int, increment: Increment) -> str:
    """Return the path of an increment while it is merged."""
    return f"{run_path('working', run)}/{number:06d}-{increment.name}"


def run_path(kind: str, run: int) -> str:
    """Return the path of a run's folder of a kind, such as `working`."""
    return f"{kind}/{run:08d}"
