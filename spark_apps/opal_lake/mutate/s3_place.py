"""A master in S3, where nothing is renamed: the newest decided run lists its files, and that list is the master."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from opal_lake.errors import InvalidInputError, StorageError
from opal_lake.mutate.increments import Increment, is_hidden
from opal_lake.mutate.journal import decided_runs
from opal_lake.mutate.place import SIDE, MasterFile, run_path, working_path
from opal_lake.storage import open_storage

if TYPE_CHECKING:
    from opal_lake.storage.s3 import S3Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Place:
    """As `Place` says. Backups are the files of older lists."""

    uri: str
    options: Mapping[str, str]
    side: "S3Storage"

    @classmethod
    def open(cls, uri: str, options: Mapping[str, str]) -> "S3Place":
        plain = uri.rstrip("/")
        side: S3Storage = open_storage(f"{plain}{SIDE}", options)  # type: ignore[assignment]  # of an S3 URI it is one
        return cls(uri=plain, options=options, side=side)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """S3 has none: the first outcome of a run counts."""
        yield

    def master_files(self) -> list[MasterFile]:
        newest = next(decided_runs(self.side), None)
        return list(newest.files) if newest is not None else self._original()

    def _original(self) -> list[MasterFile]:
        listed = open_storage(self.uri, self.options).list("")
        return [MasterFile(root=self.uri, path=file.path, size=file.size) for file in listed if not is_hidden(file.path)]

    def take(self, run: int, increments: Sequence[Increment]) -> None:
        for number, increment in enumerate(increments):
            source, target = self._source(increment), working_path(run, number, increment)
            if _size(self.side, target) != increment.size:
                self.side.copy_from(source, increment.path, target)
            listed = next((file for file in source.list(increment.path) if file.path == increment.path), None)
            if listed is not None and (listed.size, listed.modified_us) == (increment.size, increment.modified_us):
                source.delete([increment.path])  # what was put there since is another increment

    def give_back(self, run: int, increments: Sequence[Increment]) -> None:
        for number, increment in enumerate(increments):
            source, taken = self._source(increment), working_path(run, number, increment)
            size = _size(self.side, taken)
            if size is None:
                continue
            there = _size(source, increment.path)
            if there is not None and (there != size or source.get(increment.path) != self.side.get(taken)):
                raise InvalidInputError(
                    f"{self.side.uri}/{taken} cannot go back to {increment.source}, where another object lies by now: "
                    "copy that one to another name, then run it again"
                )
            if there is None:
                source.copy_from(self.side, taken, increment.path)
            self.side.delete([taken])
        self.side.delete([file.path for file in self.side.list(f"{self._masters(run)}/")])

    def check_unchanged(self, run: int, increments: Sequence[Increment]) -> None:
        for number, increment in enumerate(increments):
            size = _size(self.side, working_path(run, number, increment))
            if size is None:
                raise StorageError(f"{increment.source} was taken from this run by another one: try again")
            if size != increment.size:
                raise InvalidInputError(
                    f"{increment.source} was replaced while it was listed ({increment.size:,} bytes, then {size:,}): "
                    "put each increment once, under a name of its own"
                )

    def staging(self, run: int) -> str:
        return self._masters(run)

    def complete(self, run: int, untouched: Sequence[MasterFile]) -> list[MasterFile]:
        root, prefix = f"{self.uri}{SIDE}/{self._masters(run)}", f"{self._masters(run)}/"
        written = [(file.path.removeprefix(prefix), file.size) for file in self.side.list(prefix)]
        new = [MasterFile(root=root, path=path, size=size) for path, size in written if not is_hidden(path)]
        return [*untouched, *new]

    def publish(self, run: int) -> None:
        """Its outcome has done so."""

    def finish(self, run: int, increments: Sequence[Increment]) -> None:
        for number, increment in enumerate(increments):
            working = working_path(run, number, increment)
            if _size(self.side, working) is not None:
                self.side.copy_from(self.side, working, working.replace("working/", "done/", 1))
                self.side.delete([working])

    def drop_backups(self, run: int, keep: int) -> None:
        """Files that neither the newest list nor the `keep` before it have; the master of before the first run is one of them."""
        changed = (outcome for outcome in decided_runs(self.side) if outcome.is_changed)
        kept_lists = [outcome.files for outcome in islice(changed, keep + 1)]
        kept = {(file.root, file.path) for files in kept_lists for file in files}
        prefix = f"{self.uri}{SIDE}/"
        made = [file.path for file in self.side.list("masters/") if file.path < f"{self._masters(run + 1)}/"]
        self.side.delete(
            [path for path in made if (f"{prefix}{path[: len(self._masters(run))]}", path[len(self._masters(run)) + 1 :]) not in kept]
        )
        if len(kept_lists) > keep:
            original = [file.path for file in self._original() if (file.root, file.path) not in kept]
            open_storage(self.uri, self.options).delete(original)

    def _masters(self, run: int) -> str:
        return run_path("masters", run)

    def _source(self, increment: Increment) -> "S3Storage":
        storage = open_storage(increment.root, self.options)
        if not hasattr(storage, "copy_from"):
            raise InvalidInputError(f"{increment.source} is not in S3, as its master is: copy it there")
        return storage  # type: ignore[return-value]  # checked by its method


def _size(storage: "S3Storage", path: str) -> int | None:
    return next((file.size for file in storage.list(path) if file.path == path), None)
