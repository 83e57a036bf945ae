"""Tables as assets of Airflow.

An Opal table is `opal://<connection>/<table>`, and `opal://<connection>/<table>/versions` for
events that carry versions. A table that others write, and whose changes LakeChime reports, is
`lakechime://<cluster>/<table>`, and `.../snapshots` for events that carry snapshots.
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
# Characters that Airflow and browsers leave as they are in a URI
_PART = re.compile(r"[\w.=-]+\Z", re.ASCII)


def opal_asset(table: str, *, opal_conn_id: str = DEFAULT_CONN_ID, versions: bool = False) -> Asset:
    """Return the asset of a table.

    Airflow knows an asset by its name and its URI, so each call returns an equal asset. Events of
    a table's asset carry partition keys. Events of its asset with `versions=True` carry version
    numbers.
    """
    uri = asset_uri(table, opal_conn_id, versions=versions)
    return Asset(name=uri, uri=uri, group="opal")


def known_assets(given: Mapping[str, Any]) -> list[Asset]:
    """Return the asset of an operator's `table` and `opal_conn_id`.

    The list is empty if one of the two arguments is a template.
    """
    table, opal_conn_id = given.get("table"), given.get("opal_conn_id", DEFAULT_CONN_ID)
    if table is None or is_templated(table) or is_templated(opal_conn_id):
        return []
    return [opal_asset(str(table), opal_conn_id=opal_conn_id)]


def distinct(assets: Sequence[Any]) -> list[Any]:
    """Return the assets without repeats.

    A mapped operator adds its assets to its arguments, and each of its tasks adds them again.
    """
    return [asset for position, asset in enumerate(assets) if asset not in assets[:position]]


def redelivery_asset(table: str, consumer: str, *, opal_conn_id: str = DEFAULT_CONN_ID) -> Asset:
    """Return the asset whose events are emitted again for one consumer."""
    if not _PART.match(consumer):
        raise ValueError(
            f"consumer {consumer!r} cannot be named in an asset's URI; "
            "use letters, digits, '_', '.', '=' and '-' in its name"
        )
    # DAGs and stored events name this URI, so the word in it stays
    uri = f"{asset_uri(table, opal_conn_id)}/told/{consumer}"
    return Asset(name=uri, uri=uri, group="opal")


def consumer_schedule(
    table: str, *, consumer: str, by: str = "partition", opal_conn_id: str = DEFAULT_CONN_ID
) -> PartitionedAssetTimetable:
    """Return the schedule of a consumer's DAG.

    It starts a DAG run for each partition key, or version, of the table, and for each event that
    is emitted again. `consumer` is the name of the DAG's ConsumeOperator, by default
    `<dag>.<task>`.
    """
    asset = opal_asset(table, opal_conn_id=opal_conn_id, versions=by == "version")
    return PartitionedAssetTimetable(
        assets=asset | redelivery_asset(table, consumer, opal_conn_id=opal_conn_id)
    )


def asset_uri(table: str, opal_conn_id: str = DEFAULT_CONN_ID, *, versions: bool = False) -> str:
    """Return the normalised URI of a table's asset, which Airflow does not change."""
    if is_templated(table) or is_templated(opal_conn_id):
        raise ValueError(
            f"table {table!r} of connection {opal_conn_id!r} is a template, but its asset must be "
            "known before a run: write the table's name here. Operators and sensors accept "
            "templates, because they look up the asset when they run"
        )
    uri = f"{SCHEME}://{opal_conn_id}/{_path(table, 'connection', opal_conn_id)}"
    return f"{uri}/versions" if versions else uri


def lakechime_asset(
    table: str, *, cluster: str = DEFAULT_CLUSTER, snapshots: bool = False
) -> Asset:
    """Return the asset of the data-change events that a relay reports of a table.

    Its events carry the values of the partition that changed, joined by '/'. Events of the asset
    with `snapshots=True` carry ids of snapshots. A table without partitions has events of the
    second asset only. Each call with the same arguments returns an equal asset.
    """
    if is_templated(table) or is_templated(cluster):
        raise ValueError(
            f"table {table!r} of cluster {cluster!r} is a template, "
            "but its asset must be known before a run: write the names themselves"
        )
    uri = f"{FOREIGN_SCHEME}://{cluster}/{_path(table, 'cluster', cluster)}"
    if snapshots:
        uri += "/snapshots"
    return Asset(name=uri, uri=uri, group=FOREIGN_SCHEME)


def cluster_of(opal_conn_id: str) -> str:
    """Return the cluster under which LakeChime knows the tables of a connection."""
    return DEFAULT_CLUSTER if opal_conn_id == DEFAULT_CONN_ID else opal_conn_id


def _path(table: str, kind: str, owner: str) -> str:
    """Return a table's name as the path of a URI."""
    parts = [part for part in table.replace("://", "/").split("/") if part]
    is_valid = bool(parts) and all(_PART.match(part) for part in [*parts, owner])
    if not is_valid:
        allowed = "letters, digits, '_', '.', '=' and '-', with '/' between parts"
        raise ValueError(
            f"table {table!r} of {kind} {owner!r} cannot be named in an asset's URI; use {allowed}"
        )
    return "/".join(parts)


def version_key(version: int) -> str:
    """Return a version as a partition key that sorts as text in the order of versions."""
    # 20 digits hold every number of 64 bits
    return f"{version:020d}"


def normalised(uri: SplitResult) -> SplitResult:
    """Normalise a handwritten `opal:` or `lakechime:` URI, as Airflow asks for it."""
    parts = [part for part in uri.path.split("/") if part]
    if not uri.netloc or not parts:
        raise ValueError(
            "an Opal asset is written opal://<connection>/<table>, for example "
            "opal://opal_default/shop.orders. An asset of LakeChime is written "
            "lakechime://<cluster>/<table>"
        )
    return uri._replace(path="/" + "/".join(parts))
