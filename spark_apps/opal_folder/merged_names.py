"""The names of files that were merged, and of the folders that they came from. Each is an object of its own, so that to look for one costs
one request however many there are.
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
    names = sorted({name for increment in increments for name in _names(increment)})
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for _ in pool.map(lambda name: side.put_if_absent(_path(name), name.encode()), names):
            pass


def was_merged(side: Storage, path: str) -> bool:
    """A file by its whole name, or a folder of which files were merged."""
    return any(True for _ in side.list(_path(path)))


def _names(increment: Increment) -> Iterator[str]:
    parts = increment.path.split("/")
    return (
        "/".join([increment.root.rstrip("/"), *parts[:number]]) or "/"
        for number in range(len(parts) + 1)
    )


def _path(name: str) -> str:
    """Of a name however it is written."""
    plain = name.partition("://")[2].rstrip("/") if is_s3(name) else local_root(name)
    digest = hashlib.sha256(plain.encode()).hexdigest()
    return f"merged/{digest[:2]}/{digest[2:]}"
