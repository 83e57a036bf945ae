"""The systems that are compared: what each needs to start.

Imported by every process, also where there is nothing but PySpark.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["opal", "peer", "reference"]

DELTA = "io.delta:delta-spark_4.1_2.13:4.4.0"
ICEBERG = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0"
HUDI = "org.apache.hudi:hudi-spark3.5-bundle_2.12:1.2.0"
HUDI_PYSPARK = "3.5.8"
STAGER = "stager"  # the process that writes the batches for all


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemSpec:
    """One system: its settings beyond those that all share.

    `{folder}` stands for its own folder; `pyspark` names an environment apart.
    """

    name: str
    kind: Kind
    packages: str = ""
    conf: Mapping[str, str] = field(default_factory=dict)
    pyspark: str | None = None
    rewrites: bool = True  # whether `systems` knows how to compact and cluster it
    # The same system again, set up in another way, which only the measures of reads or of
    # statements need
    is_variant: bool = False

    def settings(self, folder: str) -> dict[str, str]:
        settings = {name: value.replace("{folder}", folder) for name, value in self.conf.items()}
        return settings | ({"spark.jars.packages": self.packages} if self.packages else {})


_DELTA_CONF = {
    # 50 by default, which costs small tables seconds
    "spark.databricks.delta.snapshotPartitions": "4",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.properties.defaults.enableDeletionVectors": "true",
}
_ICEBERG_CONF = {
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.lake.type": "hadoop",
    "spark.sql.catalog.lake.warehouse": "{folder}",
}
_SPECS = (
    SystemSpec(name="opal-batch", kind="opal"),
    SystemSpec(name="opal-inline", kind="opal"),
    SystemSpec(
        name="opal-inline-rocksdb", kind="opal", conf={"spark.opal.cache.backend": "rocksdb"}
    ),
    SystemSpec(name="opal-inline-orc", kind="opal"),
    SystemSpec(name="opal-local", kind="opal", is_variant=True, rewrites=False),
    SystemSpec(name="delta", kind="peer", packages=DELTA, conf=_DELTA_CONF),
    SystemSpec(
        name="delta-cdf",
        kind="peer",
        packages=DELTA,
        conf={
            **_DELTA_CONF,
            "spark.databricks.delta.properties.defaults.enableChangeDataFeed": "true",
        },
        is_variant=True,
    ),
    SystemSpec(name="iceberg", kind="peer", packages=ICEBERG, conf=_ICEBERG_CONF),
    SystemSpec(
        name="iceberg-cow", kind="peer", packages=ICEBERG, conf=_ICEBERG_CONF, is_variant=True
    ),
    SystemSpec(
        name="hudi",
        kind="peer",
        packages=HUDI,
        pyspark=HUDI_PYSPARK,
        rewrites=False,
        conf={
            "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
            "spark.kryo.registrator": "org.apache.spark.HoodieSparkKryoRegistrar",
            "spark.sql.extensions": "org.apache.spark.sql.hudi.HoodieSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.hudi.catalog.HoodieCatalog",
        },
    ),
    SystemSpec(name="lumos", kind="reference", rewrites=False),
    SystemSpec(name="plain", kind="reference"),
)
SYSTEMS: Mapping[str, SystemSpec] = {spec.name: spec for spec in _SPECS}


USUAL = tuple(spec.name for spec in _SPECS if not spec.is_variant)


def names_of(kind: Kind) -> list[str]:
    return [spec.name for spec in _SPECS if spec.kind == kind]
