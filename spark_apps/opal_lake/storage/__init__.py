"""Stores of a table's files: one protocol, and stores for local files, S3 and memory.

`protocol` is what a table needs of a store. `local`, `s3` and `memory` are the stores, `open` opens
the one of a URI. `verified` reads files and verifies their sizes and checksums.
"""

from opal_lake.storage.open import open_storage, options_for
from opal_lake.storage.protocol import Storage, StoredObject

__all__ = ["Storage", "StoredObject", "open_storage", "options_for"]
