"""Stores of a table's files: one protocol, with a store each for local files, S3 and memory."""

from opal_lake.storage.open import open_storage
from opal_lake.storage.protocol import Storage, StoredObject

__all__ = ["Storage", "StoredObject", "open_storage"]
