"""Where a table lives: one protocol, and a store for each kind of place."""

from opal_lake.storage.open import open_storage
from opal_lake.storage.protocol import Storage, StoredObject

__all__ = ["Storage", "StoredObject", "open_storage"]
