"""Stores of a table's files: one protocol, with a store each for local files, S3 and memory.

`protocol` is what a table asks of a store. `local`, `s3` and `memory` are the stores, `open` finds the one of a URI. `verified` checks what
is read by size and checksum.
"""

from opal_lake.storage.open import open_storage, options_for
from opal_lake.storage.protocol import Storage, StoredObject

__all__ = ["Storage", "StoredObject", "open_storage", "options_for"]
