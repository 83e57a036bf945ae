"""The settings of Kafka that a stream sets itself."""

_POSITIONS = "the table keeps the positions, and no group does"
_BEGIN = "the stream begins where the table stands, or by its argument start"
ISOLATION = "isolation.level"
# By setting: why the stream sets it. A user's value is refused: to ignore it would mislead
OWN_SETTINGS = {
    "auto.commit.enable": _POSITIONS,
    "auto.commit.interval.ms": _POSITIONS,
    "auto.offset.reset": _BEGIN,
    "bootstrap.servers": "it is bootstrap_servers",
    "enable.auto.commit": _POSITIONS,
    "enable.auto.offset.store": _POSITIONS,
    "enable.partition.eof": "the stream has to see where partitions end",
    "group.id": _POSITIONS,
    "group.instance.id": _POSITIONS,
    ISOLATION: "messages of aborted transactions are never read",
    "max.poll.interval.ms": "a commit may wait for a store",
    "metadata.broker.list": "it is bootstrap_servers",
}
