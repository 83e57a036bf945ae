"""A master in a local folder.

It is swapped with the new master, which has the untouched files as hard links.
"""

import errno
import fcntl
import filecmp
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from opal_folder.exchange import exchange, sync_file, sync_folder, sync_tree
from opal_folder.increments import Increment, is_hidden
from opal_folder.journal import RUNS
from opal_folder.master_folder import (
    PARTIAL,
    SIDE,
    MasterFile,
    MasterForm,
    run_path,
    working_path,
)
from opal_lake.decoding import decoding
from opal_lake.errors import ConflictError, FormatError, InvalidInputError
from opal_lake.storage.local.store import LocalStorage
from opal_lake.storage.uris import local_root

MARKER = "_mutated.json"  # in the master: which run wrote it, and how
_BACKUP = re.compile(r"backup-(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalMaster:
    """The MasterFolder of a local folder."""

    uri: str
    master: Path
    side: LocalStorage

    @classmethod
    def open(cls, uri: str) -> "LocalMaster":
        """Open the master at a URI, which need not exist yet."""
        master = Path(os.path.realpath(local_root(uri)))
        if master.exists() and not master.is_dir():
            raise InvalidInputError(
                f"{uri} is a file; a master is a folder with files in it: put it into a folder of "
                "its own"
            )
        side = LocalStorage.open(f"{master}{SIDE}")
        return cls(uri=uri.rstrip("/"), master=master, side=side)

    @contextmanager
    def lock(self) -> Iterator[None]:
        self.side.root.mkdir(parents=True, exist_ok=True)
        with open(self.side.root / "lock", "ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ConflictError(
                    f"another run is at work on {self.uri}: try again when it is done"
                ) from error
            yield

    def master_files(self) -> list[MasterFile]:
        root = str(self.master)
        listed = LocalStorage.open(root).list("")
        visible = [file for file in listed if not is_hidden(file.path)]
        return [MasterFile(root=root, path=file.path, size=file.size) for file in visible]

    def form(self) -> MasterForm | None:
        path = self.master / MARKER
        try:
            document = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        with decoding(str(path), "a description of a master"):
            return MasterForm.from_dict(json.loads(document))

    def take(self, run: int, increments: Sequence[Increment]) -> None:
        (self.side.root / run_path("working", run)).mkdir(parents=True, exist_ok=True)
        for number, increment in enumerate(increments):
            target = self._working(run, number, increment)
            if not target.exists():
                _move(Path(increment.source.removeprefix("file://")), target)
        sync_folder(self.side.root / run_path("working", run))

    def give_back(self, run: int, increments: Sequence[Increment]) -> None:
        for number, increment in enumerate(increments):
            working = self._working(run, number, increment)
            source = Path(increment.source.removeprefix("file://"))
            if not working.exists():
                continue
            if source.exists():
                if not filecmp.cmp(working, source, shallow=False):
                    raise InvalidInputError(
                        f"{working} cannot go back to {source}, where another file lies now: "
                        f"rename {source}, then run the mutation again"
                    )
                # It was copied from another file system, and the original was not deleted
                working.unlink()
                continue
            source.parent.mkdir(parents=True, exist_ok=True)
            _move(working, source)
        for kind in ("working", "staged"):
            shutil.rmtree(self.side.root / run_path(kind, run), ignore_errors=True)

    def check_unchanged(self, run: int, increments: Sequence[Increment]) -> None:
        for number, increment in enumerate(increments):
            status = self._working(run, number, increment).stat()
            modified_us = status.st_mtime_ns // 1000
            if (status.st_size, modified_us) != (increment.size, increment.modified_us):
                raise InvalidInputError(
                    f"{increment.source} was written to while it was read ({increment.size:,} "
                    f"bytes when it was listed, {status.st_size:,} now): write increments under "
                    "another name, and rename them when they are whole"
                )

    def staging(self, run: int) -> str:
        shutil.rmtree(self.side.root / run_path("staged", run), ignore_errors=True)
        return run_path("staged", run)

    def remember(self, run: int, master: Sequence[MasterFile]) -> None:
        """Do nothing: the folder as a whole becomes a backup."""

    def complete(
        self, run: int, untouched: Sequence[MasterFile], form: MasterForm
    ) -> list[MasterFile]:
        """Link untouched files into the staged folder, or copy them if links are refused."""
        staged = self._staged(run)
        staged.mkdir(parents=True, exist_ok=True)
        for name in PARTIAL:
            _remove(staged / name)
            _remove(staged / f".{name}.crc")
        for file in untouched:
            target = staged / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            _link(self.master / file.path, target)
        if self.master.exists():
            # Whoever may read the old master may read the new one
            shutil.copymode(self.master, staged)
        marker = json.dumps({"run": run, **form.to_dict()}, ensure_ascii=False, indent=2)
        (staged / MARKER).write_text(marker, encoding="utf-8")
        sync_tree(staged)
        return []  # the folder itself is the list

    def publish(self, run: int) -> None:
        """Swap the master and the staged folder.

        After a crash between two steps, the marker in the new master shows how far the swap went.
        """
        staged, backup = self._staged(run), self.side.root / f"backup-{run}"
        if _made_by(self.master) != run:
            if not staged.is_dir():
                raise FormatError(
                    f"{staged}, the new master of {self.uri}, is gone: put the folder back, or "
                    "master and runs/ from a backup"
                )
            if not self.master.exists():
                self.master.parent.mkdir(parents=True, exist_ok=True)
                os.rename(staged, self.master)
            elif not exchange(staged, self.master):
                # Between the two renames readers find no master
                os.rename(self.master, backup)
                os.rename(staged, self.master)
            sync_folder(self.master.parent)
        if staged.exists():
            os.rename(staged, backup)
            sync_folder(self.side.root)

    def finish(self, run: int, increments: Sequence[Increment]) -> None:
        working = self.side.root / run_path("working", run)
        done = self.side.root / run_path("done", run)
        if working.exists():
            done.parent.mkdir(exist_ok=True)
            os.rename(working, done)
        shutil.rmtree(self._staged(run), ignore_errors=True)

    def drop_backups(self, run: int, keep: int, lists: Sequence[Sequence[MasterFile]]) -> None:
        backups: dict[int, Path] = {}
        for entry in self.side.root.iterdir():
            match = _BACKUP.fullmatch(entry.name)
            if match is not None:
                backups[int(match[1])] = entry
        for number in sorted(backups, reverse=True)[keep:]:
            shutil.rmtree(backups[number])

    def tidy(self, run: int) -> None:
        for folder in (self.side.root / RUNS).iterdir():
            if folder.name < f"{run:08d}":
                with suppress(OSError):  # the folder is not empty
                    folder.rmdir()

    def _working(self, run: int, number: int, increment: Increment) -> Path:
        return self.side.root / working_path(run, number, increment)

    def _staged(self, run: int) -> Path:
        return self.side.root / run_path("staged", run)


def _made_by(master: Path) -> int | None:
    """Return the run that wrote a master; None without a sound marker of a run."""
    try:
        return int(json.loads((master / MARKER).read_text(encoding="utf-8"))["run"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _move(source: Path, target: Path) -> None:
    """Move a file, across file systems by a copy.

    The copy gets its name only when it is whole, and is on the disk before the original is deleted.
    """
    try:
        os.rename(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        partial = target.with_name(f".{target.name}.part")
        shutil.copy2(source, partial)
        sync_file(partial)
        os.rename(partial, target)
        sync_folder(target.parent)
        source.unlink()


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.EXDEV, errno.ENOSYS):
            raise
        shutil.copy2(source, target)
