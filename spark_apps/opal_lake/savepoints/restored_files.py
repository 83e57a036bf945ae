"""The check before a restore commits: the restored files must still be as they were written."""

import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain

from opal_lake import layout
from opal_lake.data.segment import DataFile
from opal_lake.errors import ExpiredError, FormatError, NotFoundError, count_text
from opal_lake.log.commit_log import CommitLog
from opal_lake.log.snapshot import Snapshot
from opal_lake.storage.protocol import READERS, Storage
from opal_lake.storage.verified import FileRef, missing_error

MAX_NAMED = 5  # damaged files that an error names; it counts the other ones
MAX_OPENED = 32  # files whose ends are read; if there are more, a listing gives their sizes
MAX_TRIED = 20  # versions that are tried, to name one that can be restored instead

_FOLDERS = (layout.DATA, layout.SEGMENT_LOGS, layout.KEY_STORE, layout.BITMAPS)


def verify_restored_files(
    log: CommitLog, head: Snapshot, state: Snapshot, verified: set[str]
) -> None:
    """Raise FormatError if a file that the head lacks is missing or damaged.

    Adds the paths of whole files to `verified`; files with these paths are not checked again.
    """
    damages = _damages(head, state, verified)
    if not damages:
        return
    shown = "; ".join(damages[:MAX_NAMED])
    if len(damages) > MAX_NAMED:
        unnamed = len(damages) - MAX_NAMED
        shown += f"; and {count_text(unnamed, 'more file')}"
    raise FormatError(
        f"{log.storage.uri}: version {state.version} cannot be restored: {shown}. "
        f"Restore the files from a backup{_alternative(log, head, state, verified)}"
    )


def _damages(head: Snapshot, state: Snapshot, verified: set[str]) -> list[str]:
    """Describe each damaged file that the state has and the head lacks."""
    current = {file.path for file in _referenced(head)}
    known = current | verified
    returning = [file for file in _referenced(state) if file.path not in known]
    if not returning:
        return []
    if len(returning) > MAX_OPENED:
        return _damages_by_listing(head.storage, returning, verified)
    with ThreadPoolExecutor(min(READERS, len(returning))) as readers:
        results = [*readers.map(partial(_damage, head.storage), returning)]
    damages: list[str] = []
    for file, damage in zip(returning, results, strict=True):
        if damage is None:
            verified.add(file.path)
        else:
            damages.append(damage)
    return damages


def _damages_by_listing(
    storage: Storage, returning: Sequence[FileRef], verified: set[str]
) -> list[str]:
    """Describe files that are missing or of another size, by listings.

    That takes few requests: a store lists 1,000 files per request.
    """
    paths = [file.path for file in returning]
    sizes: dict[str, int] = {}
    for folder in _FOLDERS:
        if any(path.startswith(folder) for path in paths):
            sizes |= {entry.path: entry.size for entry in storage.list(folder)}
    damages = []
    for file in returning:
        size = sizes.get(file.path)
        if size == file.size:
            verified.add(file.path)
        elif size is None:
            damages.append(_missing(storage, file))
        else:
            damages.append(_wrong_size(file))
    return damages


def _missing(storage: Storage, file: FileRef) -> str:
    """Describe a missing file; raise ExpiredError if a retention deleted it meanwhile."""
    error = missing_error(storage, file.path)
    if isinstance(error, ExpiredError):
        # An expired file is not damage
        raise error from None
    return f"{file.path} is missing"


def _wrong_size(file: FileRef) -> str:
    return f"{file.path} does not have the {file.size:,} bytes that were written"


def _referenced(state: Snapshot) -> Iterator[FileRef]:
    return chain(state.files.values(), state.logs.values(), state.runs.values(), state.bases)


def _damage(storage: Storage, file: FileRef) -> str | None:
    """Describe the damage of a file's end; None for a whole file. Takes one request."""
    if isinstance(file, DataFile):
        tail_bytes = file.footer_bytes
    else:
        tail_bytes = min(1, file.size)
    try:
        # Asks for a byte more than was written, which only a file that is too long has
        tail = storage.get(file.path, file.size - tail_bytes, tail_bytes + 1)
    except NotFoundError:
        return _missing(storage, file)
    if len(tail) != tail_bytes:
        return _wrong_size(file)
    if isinstance(file, DataFile) and zlib.crc32(tail) != file.footer_crc32:
        return f"the footer of {file.path} has another checksum than was written"
    return None


def _alternative(log: CommitLog, head: Snapshot, state: Snapshot, verified: set[str]) -> str:
    """Return the end of an error text: it names the nearest whole version, if any."""
    root = head.root
    near = range(
        max(root.oldest_version, state.version - MAX_TRIED),
        min(head.version, state.version + MAX_TRIED + 1),
    )
    candidates = {*near, *root.savepoints.values()} - {state.version, head.version}
    nearest = sorted(candidates, key=lambda version: (abs(version - state.version), version))
    tried = nearest[:MAX_TRIED]
    for version in tried:
        try:
            is_whole = not _damages(head, log.at(version, head), verified)
        except (FormatError, NotFoundError):
            continue
        if is_whole:
            return f", or restore version {version}, whose files are whole"
    return f"; none of the {count_text(len(tried), 'version')} tried is whole"
