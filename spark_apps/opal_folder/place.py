"""What a mutation asks of the place where its master lies: one protocol, for local files and for S3."""

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
    """A file of a master; `root` is the folder that its partitions' folders lie in. `modified_us`: of a file that no run wrote."""

    root: str
    path: str
    size: int
    modified_us: int | None = None

    @property
    def folder(self) -> str:
        """Its partition's, '' without one."""
        return self.path.rpartition("/")[0]

    def values(self) -> dict[str, str | None]:
        return folder_values(self.path)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Any) -> "MasterFile":
        """ValueError if it is none."""
        found = checked.mapped(data)
        return cls(
            root=checked.text(found["root"]),
            path=checked.text(found["path"]),
            size=checked.count(found["size"]),
            modified_us=None
            if found["modified_us"] is None
            else checked.word(found["modified_us"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterForm:
    """How a run wrote a master: what a reader must know that the files do not say.

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
        """Raise ValueError, KeyError or TypeError if the data are not a form."""
        found = checked.mapped(data)
        options = checked.mapped(found["options"])
        return cls(
            format=checked.text(found["format"]),
            schema=checked.mapped(found["schema"]),
            options={checked.text(name): checked.text(value) for name, value in options.items()},
        )


class Place(Protocol):
    """A master with its folder beside it. Every verb may be repeated after a crash."""

    @property
    def uri(self) -> str:
        """The master's."""
        ...

    @property
    def side(self) -> Storage:
        """The folder beside the master."""
        ...

    def lock(self) -> AbstractContextManager[None]:
        """While one run works here, another one fails with ConflictError, where the place can tell."""
        ...

    def master_files(self) -> list[MasterFile]:
        """As they are now."""
        ...

    def form(self) -> MasterForm | None:
        """Return how the last run wrote the master; None if no run has written it."""
        ...

    def take(self, run: int, increments: Sequence[Increment]) -> None:
        """Bring them into the run's working folder."""
        ...

    def give_back(self, run: int, increments: Sequence[Increment]) -> None:
        """Those that were taken are where they came from again, and what was staged is forgotten."""
        ...

    def check_unchanged(self, run: int, increments: Sequence[Increment]) -> None:
        """InvalidInputError names an increment that is not as it was listed."""
        ...

    def staging(self, run: int) -> str:
        """The path, in the folder beside the master, that a new master is written to."""
        ...

    def remember(self, run: int, master: Sequence[MasterFile]) -> None:
        """What the first run found as the master: nothing else of its folder may ever be deleted."""
        ...

    def complete(
        self, run: int, untouched: Sequence[MasterFile], form: MasterForm
    ) -> list[MasterFile]:
        """All files of the new master: what was written, and what stays."""
        ...

    def publish(self, run: int) -> None:
        """Make the completed master the one that readers see; keep the old one as a backup."""
        ...

    def finish(self, run: int, increments: Sequence[Increment]) -> None:
        """The increments are done, and no longer where they came from."""
        ...

    def drop_backups(self, run: int, keep: int, lists: Sequence[Sequence[MasterFile]]) -> None:
        """Delete older masters but for so many. `lists` are those of the newest one and of what is kept."""
        ...

    def tidy(self, run: int) -> None:
        """Remove empty folders of runs before this one, where folders are things of their own."""
        ...


def working_path(run: int, number: int, increment: Increment) -> str:
    """Where an increment lies while it is merged."""
    return f"{run_path('working', run)}/{number:06d}-{increment.name}"


def run_path(kind: str, run: int) -> str:
    return f"{kind}/{run:08d}"
