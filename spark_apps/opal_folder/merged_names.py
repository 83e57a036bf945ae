"""The names of files that were merged, and of the folders that they came from.

Each name is an object of its own, so that a lookup of a name costs one request.
"""

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from opal_folder.increments import Increment
from opal_lake.s3a import is_s3
from opal_lake.storage import Storage
from opal_lake.storage.uris import local_root

_AT_ONCE = 16


def keep_names(side: Storage, increments: Sequence[Increment]) -> None:
    """Store the names of merged files and of their folders."""
    names: set[str] = set()
    for increment in increments:
        names.update(_names(increment))

    def keep(name: str) -> None:
        side.put_if_absent(_path(name), name.encode())

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        # The results are read so that an error of a thread is raised
        list(pool.map(keep, sorted(names)))


def was_merged(side: Storage, path: str) -> bool:
    """Return whether a file was merged, or a file of a folder, by its whole name."""
    return any(True for _ in side.list(_path(path)))


def _names(increment: Increment) -> Iterator[str]:
    """Yield the names of the folders of a file, from its root on, and its own."""
    name = increment.root.rstrip("/")
    yield name or "/"
    for part in increment.path.split("/"):
        name = f"{name}/{part}"
        yield name


def _path(name: str) -> str:
    """Return the path of a name's object, the same for each way to write the name."""
    if is_s3(name):
        plain = name.partition("://")[2].rstrip("/")
    else:
        plain = local_root(name)
    digest = hashlib.sha256(plain.encode()).hexdigest()
    return f"merged/{digest[:2]}/{digest[2:]}"
