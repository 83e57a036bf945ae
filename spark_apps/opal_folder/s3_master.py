"""A master in S3, where nothing is renamed.

The newest decided run lists its files, and that list is the master.
"""

import os
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, cast

from opal_folder.increments import Increment, is_hidden
from opal_folder.journal import forget_original, newest_decided, read_original, write_original
from opal_folder.master_folder import SIDE, MasterFile, MasterForm, run_path, working_path
from opal_lake.errors import InvalidInputError, NotFoundError, StorageError
from opal_lake.storage import open_storage

if TYPE_CHECKING:
    from opal_lake.storage.s3 import S3Storage

_PAGE_OBJECTS = 1000  # in a page of a listing


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Master:
    """The MasterFolder of a prefix in S3. Backups are the files of older lists."""

    uri: str
    options: Mapping[str, str]
    side: "S3Storage"
    page_objects: int = _PAGE_OBJECTS

    @classmethod
    def open(cls, uri: str, options: Mapping[str, str]) -> "S3Master":
        """Open the master at a URI, which need not exist yet."""
        plain = uri.rstrip("/")
        # The storage of an S3 URI is an S3Storage
        side = cast("S3Storage", open_storage(f"{plain}{SIDE}", options))
        return cls(uri=plain, options=options, side=side)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Do nothing: S3 has no lock, and the first outcome of a run counts."""
        yield

    def master_files(self) -> list[MasterFile]:
        newest = newest_decided(self.side)
        if newest is None:
            return self._original()
        return list(newest.files)

    def form(self) -> MasterForm | None:
        newest = newest_decided(self.side)
        return None if newest is None else newest.form

    def _original(self) -> list[MasterFile]:
        listed = open_storage(self.uri, self.options).list("")
        visible = [file for file in listed if not is_hidden(file.path)]
        return [
            MasterFile(root=self.uri, path=file.path, size=file.size, modified_us=file.modified_us)
            for file in visible
        ]

    def take(self, run: int, increments: Sequence[Increment]) -> None:
        """Copy the increments.

        `finish` deletes the originals when the run is decided, so no run can lose what another one
        merges.
        """
        for number, increment in enumerate(increments):
            source = self._source(increment)
            try:
                self.side.copy_from(source, increment.path, working_path(run, number, increment))
            except NotFoundError as error:
                raise StorageError(
                    f"{increment.source} is gone since it was listed: try again"
                ) from error
        for increment, stamp in self._with_stamps(increments):
            if stamp != (increment.size, increment.modified_us):
                now = "gone" if stamp is None else f"{stamp[0]:,} bytes"
                raise InvalidInputError(
                    f"{increment.source} was replaced while it was listed ({increment.size:,} "
                    f"bytes, then {now}): put each increment once, under a name of its own"
                )

    def give_back(self, run: int, increments: Sequence[Increment]) -> None:
        """Delete the copies: the originals stay until a run is decided."""
        for kind in ("working", "masters"):
            self.side.delete([file.path for file in self.side.list(f"{run_path(kind, run)}/")])

    def check_unchanged(self, run: int, increments: Sequence[Increment]) -> None:
        copies = {file.path for file in self.side.list(f"{run_path('working', run)}/")}
        for number, increment in enumerate(increments):
            if working_path(run, number, increment) not in copies:
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
        """List the files; the run's outcome has the form."""
        prefix = f"{self._masters(run)}/"
        root = f"{self.uri}{SIDE}/{self._masters(run)}"
        files = [*untouched]
        for written in self.side.list(prefix):
            path = written.path.removeprefix(prefix)
            if not is_hidden(path):
                files.append(MasterFile(root=root, path=path, size=written.size))
        return files

    def publish(self, run: int) -> None:
        """Do nothing: the run's outcome has published the list."""

    def finish(self, run: int, increments: Sequence[Increment]) -> None:
        """Move the copies of this run to `done`, and delete those of earlier runs.

        An earlier run may still have written copies after another run abandoned it.
        """
        next_run = f"{run_path('working', run + 1)}/"
        this_run = f"{run_path('working', run)}/"
        copies = [file.path for file in self.side.list("working/") if file.path < next_run]
        for working in copies:
            if working.startswith(this_run):
                with suppress(NotFoundError):  # another process completes the run, too
                    self.side.copy_from(self.side, working, working.replace("working/", "done/", 1))
        merged: dict[str, list[Increment]] = {}
        for increment, stamp in self._with_stamps(increments):
            # A file that was replaced since it was listed is another increment
            if stamp == (increment.size, increment.modified_us):
                merged.setdefault(increment.root, []).append(increment)
        for of_root in merged.values():
            self._source(of_root[0]).delete([increment.path for increment in of_root])
        self.side.delete(copies)

    def drop_backups(self, run: int, keep: int, lists: Sequence[Sequence[MasterFile]]) -> None:
        """Delete files that are in none of the lists.

        The master of before the first run is a backup, too.
        """
        listed = {_key(file) for file in chain.from_iterable(lists)}
        prefix = f"{_plain(self.uri)}{SIDE}/"
        next_run = f"{self._masters(run + 1)}/"
        made = [file.path for file in self.side.list("masters/") if file.path < next_run]
        self.side.delete([path for path in made if f"{prefix}{path}" not in listed])
        if len(lists) > keep:
            self._drop_original(listed)

    def _drop_original(self, listed: Collection[str]) -> None:
        """Delete unlisted files that the first run recorded and that are unchanged.

        Other files were put into the folder later, and stay.
        """
        original = {_key_and_stamp(file) for file in read_original(self.side)}
        if not original:
            return
        left = [file for file in self._original() if _key_and_stamp(file) in original]
        unlisted = [file.path for file in left if _key(file) not in listed]
        open_storage(self.uri, self.options).delete(unlisted)
        if len(unlisted) == len(left):
            forget_original(self.side)

    def tidy(self, run: int) -> None:
        """Do nothing: S3 has no folders."""

    def _masters(self, run: int) -> str:
        return run_path("masters", run)

    def _with_stamps(
        self, increments: Sequence[Increment]
    ) -> Iterator[tuple[Increment, tuple[int, int] | None]]:
        """Yield each increment with the size and the time that its file has now."""
        by_root: dict[str, list[Increment]] = {}
        for increment in increments:
            by_root.setdefault(increment.root, []).append(increment)
        for of_root in by_root.values():
            paths = [increment.path for increment in of_root]
            stamps = _stamps(self._source(of_root[0]), paths, self.page_objects)
            for increment in of_root:
                yield increment, stamps.get(increment.path)

    def _source(self, increment: Increment) -> "S3Storage":
        storage = open_storage(increment.root, self.options)
        if not hasattr(storage, "copy_from"):
            raise InvalidInputError(
                f"{increment.source} is not in S3, as its master is: copy it there"
            )
        return storage  # type: ignore[return-value]  # checked by its method


def _stamps(
    storage: "S3Storage", paths: Sequence[str], page_objects: int
) -> dict[str, tuple[int, int]]:
    """Return the size and time of existing files, and perhaps of others near them.

    A page of a listing has all files that are near each other; those in between are passed over.
    """
    stamps: dict[str, tuple[int, int]] = {}
    pending = sorted(paths)
    while pending:
        first, last = pending[0], pending[-1]
        start = os.path.commonprefix([first, last])  # noqa: RUF071  # as S3 lists: by letters
        # Some services list nothing after a name that does not begin as the listing does
        after = "" if start == first else first[:-1]
        page = list(islice(storage.list(start, after), page_objects))
        end = last
        if len(page) == page_objects:
            end = page[-1].path
        if end < first:
            # The page is full of names that come before the first one
            page = list(islice(storage.list(first), 1))
            end = first
        for file in page:
            stamps[file.path] = (file.size, file.modified_us)
        pending = pending[bisect_right(pending, end) :]
    return stamps


def _key(file: MasterFile) -> str:
    """Return a name of an object that is the same whether lists have s3:// or s3a://."""
    return f"{_plain(file.root)}/{file.path}"


def _key_and_stamp(file: MasterFile) -> tuple[str, int, int | None]:
    return _key(file), file.size, file.modified_us


def _plain(uri: str) -> str:
    return uri.partition("://")[2]
