"""The site of a story, as its processes know it, and its stores."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.key_store.cache.near_runs import CacheSettings
from opal_lake.storage import Storage, open_storage
from opal_lake.table import Table, create_on, table_on
from tests.soak.rows import DELETES, SCHEMA

STORES = ("local", "no-links", "s3")
# Every third version a checkpoint, runs merged immediately, many small segments in small groups:
# crashes meet all of these
PROPERTIES = {"checkpoint_commits": 3, "key_store_fan_in": 2, "segment_rows": 90, "group_rows": 700}


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A table's address, and a folder for what processes keep near."""

    uri: str
    options: Mapping[str, str]
    near: str

    def store(self) -> Storage:
        return open_storage(self.uri, self.options)

    def table(self, storage: Storage | None = None) -> Table:
        return table_on(storage or self.store(), cache=CacheSettings(folder=self.near))

    def create(self) -> Table:
        layout = TableLayout(keys=["sku"], delta="at", deletes=DELETES, properties=PROPERTIES)
        return create_on(self.store(), plan_spec(SCHEMA, layout))

    @property
    def root(self) -> Path | None:
        """The root of a store in a folder."""
        return None if "://" in self.uri else Path(self.uri)


def site_in(folder: Path, store: str, name: str, s3_options: Mapping[str, str]) -> Site:
    near = str(folder / "near" / name)
    if store == "s3":
        return Site(uri=f"s3://lake/crash/{folder.name}/{name}", options=s3_options, near=near)
    options = {"hard_links": "false"} if store == "no-links" else {}
    return Site(uri=str(folder / name), options=options, near=near)
