"""Names have events of one format, also when a table comes back in another."""

from collections.abc import Callable
from itertools import permutations
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyiceberg.catalog import load_catalog

from lakechime import InvalidEventError, LakeChime
from lakechime.producers.delta import DeltaSource
from lakechime.producers.hive import HiveSource
from lakechime.producers.iceberg import IcebergLocation, IcebergSource
from lakechime.producers.opal import OpalSource
from lakechime.producers.outbox import Source, Target, sync
from opal_lake.storage.memory import MemoryStorage
from tests.opal_lake import shop

NAME = "shop.prices"
TARGET = Target(table=NAME)
ROWS = pa.table({"id": [1]})


def opal(_: Path) -> Source:
    return OpalSource(log=shop.create(MemoryStorage()).log, target=TARGET)


def delta(folder: Path) -> Source:
    write_deltalake(str(folder / "delta"), ROWS)
    return DeltaSource(path=str(folder / "delta"), target=TARGET)


def iceberg(folder: Path) -> Source:
    properties = {"type": "sql", "uri": f"sqlite:///{folder}/catalog", "warehouse": str(folder)}
    catalog = load_catalog("test", **properties)
    catalog.create_namespace("shop")
    catalog.create_table(NAME, ROWS.schema).append(ROWS)
    location = IcebergLocation(identifier=NAME, catalog="test", properties=properties)
    return IcebergSource(location=location, target=TARGET)


def hive(folder: Path) -> Source:
    file = folder / "hive/dt=1/a.parquet"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"x")
    return HiveSource(path=str(folder / "hive"), target=TARGET, sleep=lambda _: None)


FORMATS = {"OPAL": opal, "DELTA": delta, "ICEBERG": iceberg, "HIVE": hive}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Source]:
    folder = tmp_path_factory.mktemp("lake")
    makers: dict[str, Callable[[Path], Source]] = FORMATS
    return {name: make(folder) for name, make in makers.items()}


@pytest.mark.parametrize("before, after", [*permutations(FORMATS, 2)])
def test_refusal_of_another_format_s_name_has_a_next_step(
    client: LakeChime, sources: dict[str, Source], before: str, after: str
) -> None:
    sync(client, sources[before])
    registered = client.events().events
    with pytest.raises(InvalidEventError) as refused:
        sync(client, sources[after])
    said = str(refused.value)
    assert f"'{NAME}' of cluster 'default' was the {before} table at " in said
    assert f"is the {after} table at " in said
    assert "register the table under another name, or in another cluster" in said
    assert client.events().events == registered
    state = client.table_state(NAME)
    assert state is not None
    assert isinstance(state.position, dict)
    assert state.position["format"] == before
