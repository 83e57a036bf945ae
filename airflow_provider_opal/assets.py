"""Tables as Airflow's assets: `opal://<connection>/<table>`, and `opal://<connection>/<table>/versions` for events that carry versions.

Tables that others write, of which LakeChime tells: `lakechime://<cluster>/<table>`, and `.../snapshots` for events that carry snapshots.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import SplitResult

from airflow.sdk import Asset, PartitionedAssetTimetable

from airflow_provider_opal.templated import is_templated

DEFAULT_CONN_ID = "opal_default"
DEFAULT_LAKECHIME_CONN_ID = "lakechime_default"
DEFAULT_CLUSTER = "default"
SCHEME, FOREIGN_SCHEME = "opal", "lakechime"
_PART = re.compile(r"[\w.=-]+\Z", re.ASCII)


def opal_asset(table: str, *, opal_conn_id: str = DEFAULT_CONN_ID, versions: bool = False) -> Asset:
    """The asset of a table: the same object wherever it is named, since an asset is known by its name and by its URI.

    A table's own asset carries partition keys; with `versions=True` it is the one whose events carry version numbers.
    """
    uri = asset_uri(table, opal_conn_id, versions=versions)
    return Asset(name=uri, uri=uri, group="opal")


def known_assets(given: Mapping[str, Any]) -> list[Asset]:
    """That of an operator's `table` and `opal_conn_id`, unless a run has to fill them in."""
    table, opal_conn_id = given.get("table"), given.get("opal_conn_id", DEFAULT_CONN_ID)
    is_open = table is None or is_templated(table) or is_templated(opal_conn_id)
    return [] if is_open else [opal_asset(str(table), opal_conn_id=opal_conn_id)]


def distinct(assets: Sequence[Any]) -> list[Any]:
    """Each asset once: a mapped task gets its own ones a second time."""
    return [asset for position, asset in enumerate(assets) if asset not in assets[:position]]


def redelivery_asset(table: str, consumer: str, *, opal_conn_id: str = DEFAULT_CONN_ID) -> Asset:
    """The asset whose events are emitted again for one consumer that missed them."""
    if not _PART.match(consumer):
        raise ValueError(
            f"consumer {consumer!r} cannot be named in an asset's URI; use letters, digits, '_', '.', '=' and '-' in its name"
        )
    uri = f"{asset_uri(table, opal_conn_id)}/told/{consumer}"
    return Asset(name=uri, uri=uri, group="opal")


def consumer_schedule(
    table: str, *, consumer: str, by: str = "partition", opal_conn_id: str = DEFAULT_CONN_ID
) -> PartitionedAssetTimetable:
    """The schedule of a consumer's DAG: a run for each partition key, or version, of the table, and for each event that is emitted again.

    `consumer` is the name of its ConsumeOperator, by default `<dag>.<task>`.
    """
    asset = opal_asset(table, opal_conn_id=opal_conn_id, versions=by == "version")
    return PartitionedAssetTimetable(
        assets=asset | redelivery_asset(table, consumer, opal_conn_id=opal_conn_id)
    )


def asset_uri(table: str, opal_conn_id: str = DEFAULT_CONN_ID, *, versions: bool = False) -> str:
    """Already normalised, so that Airflow does not change it."""
    if is_templated(table) or is_templated(opal_conn_id):
        raise ValueError(
            f"table {table!r} of connection {opal_conn_id!r} is a template, but its asset must be known before a run: write the table's "
            "name here. Operators and sensors accept templates, because they look up the asset when they run"
        )
    return f"{SCHEME}://{opal_conn_id}/{_path(table, 'connection', opal_conn_id)}{'/versions' if versions else ''}"


def lakechime_asset(
    table: str, *, cluster: str = DEFAULT_CLUSTER, snapshots: bool = False
) -> Asset:
    """The asset by whose events a relay tells of a table's data-change events: the same object wherever it is named.

    Its events carry the values of the partition that changed, joined by '/'. With `snapshots=True` it is the one whose events carry ids of
    snapshots; a table without partitions has only that one.
    """
    if is_templated(table) or is_templated(cluster):
        raise ValueError(
            f"table {table!r} of cluster {cluster!r} is a template, but its asset must be known before a run: write the name"
        )
    uri = f"{FOREIGN_SCHEME}://{cluster}/{_path(table, 'cluster', cluster)}{'/snapshots' if snapshots else ''}"
    return Asset(name=uri, uri=uri, group=FOREIGN_SCHEME)


def cluster_of(opal_conn_id: str) -> str:
    """The cluster of a lake's tables in LakeChime: of the default connection it is `default`, of any other one the connection's id."""
    return DEFAULT_CLUSTER if opal_conn_id == DEFAULT_CONN_ID else opal_conn_id


def _path(table: str, kind: str, owner: str) -> str:
    """A table's name as the path of a URI."""
    parts = [part for part in table.replace("://", "/").split("/") if part]
    if not parts or any(not _PART.match(part) for part in parts) or not _PART.match(owner):
        allowed = "letters, digits, '_', '.', '=' and '-', with '/' between parts"
        raise ValueError(
            f"table {table!r} of {kind} {owner!r} cannot be named in an asset's URI; use {allowed}"
        )
    return "/".join(parts)


def version_key(version: int) -> str:
    """A version as a partition key: sorted as text it is sorted by number."""
    return f"{version:020d}"


def normalised(uri: SplitResult) -> SplitResult:
    """Airflow's check of an `opal:` or `lakechime:` URI that was written by hand."""
    if not uri.netloc or not uri.path.strip("/"):
        raise ValueError(
            "an Opal asset is written opal://<connection>/<table>, as opal://opal_default/shop.orders, and one of LakeChime "
            "lakechime://<cluster>/<table>"
        )
    return uri._replace(path="/" + "/".join(part for part in uri.path.split("/") if part))
