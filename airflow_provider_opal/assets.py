"""Tables as Airflow's assets: `opal://<connection>/<table>`, and `opal://<connection>/<table>/versions` for events that carry versions."""

import re
from urllib.parse import SplitResult

from airflow.sdk import Asset, PartitionedAssetTimetable

DEFAULT_CONN_ID = "opal_default"
SCHEME = "opal"
_PART = re.compile(r"[\w.=-]+\Z", re.ASCII)


def opal_asset(table: str, *, opal_conn_id: str = DEFAULT_CONN_ID, versions: bool = False) -> Asset:
    """The asset of a table: the same object wherever it is named, since an asset is known by its name and by its URI.

    A table's own asset carries partition keys; with `versions=True` it is the one whose events carry version numbers.
    """
    uri = asset_uri(table, opal_conn_id, versions=versions)
    return Asset(name=uri, uri=uri, group="opal")


def told_asset(table: str, consumer: str, *, opal_conn_id: str = DEFAULT_CONN_ID) -> Asset:
    """The asset by which one consumer is told again what it missed."""
    if not _PART.match(consumer):
        raise ValueError(f"consumer {consumer!r} has no asset; use letters, digits, '_', '.', '=' and '-' in its name")
    uri = f"{asset_uri(table, opal_conn_id)}/told/{consumer}"
    return Asset(name=uri, uri=uri, group="opal")


def consumer_schedule(
    table: str, *, consumer: str, by: str = "partition", opal_conn_id: str = DEFAULT_CONN_ID
) -> PartitionedAssetTimetable:
    """The schedule of a consumer's DAG: a run for each partition key, or version, of the table, and for what it is told again.

    `consumer` is the name of its ConsumeOperator, by default `<dag>.<task>`.
    """
    asset = opal_asset(table, opal_conn_id=opal_conn_id, versions=by == "version")
    return PartitionedAssetTimetable(assets=asset | told_asset(table, consumer, opal_conn_id=opal_conn_id))


def asset_uri(table: str, opal_conn_id: str = DEFAULT_CONN_ID, *, versions: bool = False) -> str:
    """Normalised, so that nothing is left for Airflow to change."""
    parts = [part for part in table.replace("://", "/").split("/") if part]
    if not parts or any(not _PART.match(part) for part in parts) or not _PART.match(opal_conn_id):
        allowed = "letters, digits, '_', '.', '=' and '-', with '/' between parts"
        raise ValueError(f"table {table!r} of connection {opal_conn_id!r} has no asset; use {allowed}")
    return f"{SCHEME}://{opal_conn_id}/{'/'.join(parts)}{'/versions' if versions else ''}"


def version_key(version: int) -> str:
    """A version as a partition key: sorted as text it is sorted by number."""
    return f"{version:020d}"


def normalised(uri: SplitResult) -> SplitResult:
    """Airflow's check of an `opal:` URI that somebody wrote by hand."""
    if not uri.netloc or not uri.path.strip("/"):
        raise ValueError("an Opal asset is written opal://<connection>/<table>, as opal://opal_default/shop.orders")
    return uri._replace(path="/" + "/".join(part for part in uri.path.split("/") if part))
