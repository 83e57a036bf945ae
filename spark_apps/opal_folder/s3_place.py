"""A master in S3, where nothing is renamed: the newest decided run lists its files, and that list is the master."""

import os
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from opal_folder.increments import Increment, is_hidden
from opal_folder.journal import forget_original, newest_decided, read_original, write_original
from opal_folder.place import SIDE, MasterFile, MasterForm, run_path, working_path
from opal_lake.errors import InvalidInputError, NotFoundError, StorageError
from opal_lake.storage import open_storage

if TYPE_CHECKING:
    from opal_lake.storage.s3 import S3Storage

_PAGE = 1000  # objects, as S3 lists them at once


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
        newest = newest_decided(self.side)
        return list(newest.files) if newest is not None else self._original()

    def form(self) -> MasterForm | None:
        newest = newest_decided(self.side)
        return None if newest is None else newest.form

    def _original(self) -> list[MasterFile]:
        listed = open_storage(self.uri, self.options).list("")
        return [
            MasterFile(root=self.uri, path=file.path, size=file.size, modified_us=file.modified_us)
            for file in listed
            if not is_hidden(file.path)
        ]

    def take(self, run: int, increments: Sequence[Increment]) -> None:
        """As copies. `finish` deletes what they are copies of, when the run is decided: so no run can lose what another one merges."""
        for number, increment in enumerate(increments):
            try:
                self.side.copy_from(
                    self._source(increment), increment.path, working_path(run, number, increment)
                )
            except NotFoundError as error:
                raise StorageError(
                    f"{increment.source} is gone since it was listed: try again"
                ) from error
        for increment, there in self._lying(increments):
            if there != (increment.size, increment.modified_us):
                found = "gone" if there is None else f"{there[0]:,} bytes"
                raise InvalidInputError(
                    f"{increment.source} was replaced while it was listed ({increment.size:,} bytes, then {found}): "
                    "put each increment once, under a name of its own"
                )

    def give_back(self, run: int, increments: Sequence[Increment]) -> None:
        """Increments lie where they were until a run is decided, so only copies are deleted."""
        for kind in ("working", "masters"):
            self.side.delete([file.path for file in self.side.list(f"{run_path(kind, run)}/")])

    def check_unchanged(self, run: int, increments: Sequence[Increment]) -> None:
        taken = {file.path for file in self.side.list(f"{run_path('working', run)}/")}
        for number, increment in enumerate(increments):
            if working_path(run, number, increment) not in taken:
                raise StorageError(
                    f"{increment.source} was taken from this run by another one: try again"
                )

    def staging(self, run: int) -> str:
        return self._masters(run)

    def remember(self, run: int, master: Sequence[MasterFile]) -> None:
        if master:
            write_original(self.side, run, master)

    def complete(
        self, run: int, untouched: Sequence[MasterFile], form: MasterForm
    ) -> list[MasterFile]:
        """List the files; the run's outcome keeps the form."""
        root, prefix = f"{self.uri}{SIDE}/{self._masters(run)}", f"{self._masters(run)}/"
        written = [(file.path.removeprefix(prefix), file.size) for file in self.side.list(prefix)]
        new = [
            MasterFile(root=root, path=path, size=size)
            for path, size in written
            if not is_hidden(path)
        ]
        return [*untouched, *new]

    def publish(self, run: int) -> None:
        """Its outcome has done so."""

    def finish(self, run: int, increments: Sequence[Increment]) -> None:
        """Also deletes the copies of runs before: one that was given up on may have gone on a while."""
        copies = [
            file.path
            for file in self.side.list("working/")
            if file.path < f"{run_path('working', run + 1)}/"
        ]
        for working in copies:
            if working.startswith(f"{run_path('working', run)}/"):
                with suppress(NotFoundError):  # who completes the run as well was faster
                    self.side.copy_from(self.side, working, working.replace("working/", "done/", 1))
        merged: dict[str, list[Increment]] = {}
        for increment, there in self._lying(increments):
            if there == (
                increment.size,
                increment.modified_us,
            ):  # what was put there since is another increment
                merged.setdefault(increment.root, []).append(increment)
        for found in merged.values():
            self._source(found[0]).delete([increment.path for increment in found])
        self.side.delete(copies)

    def drop_backups(self, run: int, keep: int, lists: Sequence[Sequence[MasterFile]]) -> None:
        """Files that none of these lists has; the master of before the first run is a backup, too."""
        kept = {_key(file) for files in lists for file in files}
        prefix = f"{_plain(self.uri)}{SIDE}/"
        made = [
            file.path
            for file in self.side.list("masters/")
            if file.path < f"{self._masters(run + 1)}/"
        ]
        self.side.delete([path for path in made if f"{prefix}{path}" not in kept])
        if len(lists) > keep:
            self._drop_original(kept)

    def _drop_original(self, kept: Collection[str]) -> None:
        """Only files that the first run found, and that are still the same: others have been put there since by somebody."""
        if not (
            original := {
                (_key(file), file.size, file.modified_us) for file in read_original(self.side)
            }
        ):
            return
        left = [
            file
            for file in self._original()
            if (_key(file), file.size, file.modified_us) in original
        ]
        open_storage(self.uri, self.options).delete(
            [file.path for file in left if _key(file) not in kept]
        )
        if not any(_key(file) in kept for file in left):
            forget_original(self.side)

    def tidy(self, run: int) -> None:
        """There are no folders."""

    def _masters(self, run: int) -> str:
        return run_path("masters", run)

    def _lying(
        self, increments: Sequence[Increment]
    ) -> Iterator[tuple[Increment, tuple[int, int] | None]]:
        """Each with the size and the time of what is there now."""
        roots: dict[str, list[Increment]] = {}
        for increment in increments:
            roots.setdefault(increment.root, []).append(increment)
        for found in roots.values():
            there = _stamps(self._source(found[0]), [increment.path for increment in found])
            yield from ((increment, there.get(increment.path)) for increment in found)

    def _source(self, increment: Increment) -> "S3Storage":
        storage = open_storage(increment.root, self.options)
        if not hasattr(storage, "copy_from"):
            raise InvalidInputError(
                f"{increment.source} is not in S3, as its master is: copy it there"
            )
        return storage  # type: ignore[return-value]  # checked by its method


def _stamps(storage: "S3Storage", paths: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Of those paths that are there. A page of a listing tells of all that are near each other; what lies between others is passed over."""
    found, rest = dict[str, tuple[int, int]](), sorted(paths)
    while rest:
        start = os.path.commonprefix([rest[0], rest[-1]])  # noqa: RUF071  # as S3 lists: by letters
        after = (
            "" if start == rest[0] else rest[0][:-1]
        )  # some services list nothing after what does not begin as the listing does
        page, end = list(islice(storage.list(start, after), _PAGE)), rest[-1]
        if len(page) == _PAGE:
            end = page[-1].path
        if end < rest[0]:  # a page full of names that come before it
            page, end = list(islice(storage.list(rest[0]), 1)), rest[0]
        found |= {file.path: (file.size, file.modified_us) for file in page}
        rest = rest[bisect_right(rest, end) :]
    return found


def _key(file: MasterFile) -> str:
    """One for each object, whether lists name it by s3:// or by s3a://."""
    return f"{_plain(file.root)}/{file.path}"


def _plain(uri: str) -> str:
    return uri.partition("://")[2]
