"""The tables, as the newest migration leaves them.

`lakechime_inbox` has the events that producers committed and that have no seq yet.
`lakechime_events` has the events with a seq. Watermarks pass events in the order of `seq`. Every
query of a trigger is answered from an index alone: by table, by table and partition, or by table
and tag. Partitions and tags are found by digests, because PostgreSQL limits the size of an index
entry, and the value of a tag may be longer.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.dialects.postgresql import VARCHAR

REVISION = "v0001"  # of the newest migration
VERSION_TABLE = "lakechime_alembic_version"
DIGEST_CHARS = 22

metadata = MetaData()


def number() -> BigInteger:
    """Return the type of 64-bit numbers."""
    # SQLite generates ids only for columns of the type INTEGER
    return BigInteger().with_variant(Integer, "sqlite")


def digest() -> String:
    """Return the type of digests, which compare by bytes under every locale."""
    return String(DIGEST_CHARS).with_variant(VARCHAR(DIGEST_CHARS, collation="C"), "postgresql")


meta = Table(
    "lakechime_meta",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("value", number(), nullable=False),
)

tables = Table(
    "lakechime_tables",
    metadata,
    Column("id", number(), primary_key=True),
    Column("cluster", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("depth", Integer),
    # The greatest seq of the table's expired events
    Column("expired_seq", number(), nullable=False, server_default="0"),
    # The time when that event was registered; null until an event expires
    Column("expired_ts", number()),
    UniqueConstraint("cluster", "name", name="lakechime_tables_by_name"),
)

# Partitions whose events expired: without this record a wait for one of them would never end
expired_partitions = Table(
    "lakechime_expired_partitions",
    metadata,
    Column("table_id", number(), primary_key=True, autoincrement=False),
    Column("partition_key", digest(), primary_key=True),
    Column("expired_seq", number(), nullable=False),
)

positions = Table(
    "lakechime_positions",
    metadata,
    Column("cluster", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("position", Text, nullable=False),
    # The digest of the registration that moved the position, which identifies a repeat
    Column("batch", String(DIGEST_CHARS)),
)

# Values that a producer stores by item, such as by partition: a position alone would grow with its
# table
seen = Table(
    "lakechime_seen",
    metadata,
    Column("cluster", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("item_key", digest(), primary_key=True),
    Column("item", Text, nullable=False),
    Column("value", Text, nullable=False),
)

inbox = Table(
    "lakechime_inbox",
    metadata,
    Column("id", number(), primary_key=True),
    Column("cluster", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("dedup_key", digest(), nullable=False),
    Column("partition", Text),
    Column("partition_key", digest()),
    Column("depth", Integer),
    Column("snapshot_id", Text),
    Column("snapshot_ts", number()),
    Column("prev_snapshot_id", Text),
    Column("table_format", String(16), nullable=False),
    Column("operation_type", String(16), nullable=False),
    Column("tags", Text, nullable=False),
    Column("tag_keys", Text, nullable=False),
)

# Rows of the inbox that are not events, or that the tables refuse. In the inbox they would block
# the rows behind them.
put_aside = Table(
    "lakechime_put_aside",
    metadata,
    Column("id", number(), primary_key=True),
    Column("inbox_id", number(), nullable=False),
    Column("put_aside_ts", number(), nullable=False),
    Column("reason", Text, nullable=False),
    Column("inbox_row", Text, nullable=False),  # as JSON
)

events = Table(
    "lakechime_events",
    metadata,
    Column("seq", number(), primary_key=True, autoincrement=False),
    Column("event_ts", number(), nullable=False),
    Column("table_id", number(), nullable=False),
    Column("dedup_key", digest(), nullable=False),
    Column("partition", Text),
    Column("partition_key", digest()),
    Column("snapshot_id", Text),
    Column("snapshot_ts", number()),
    Column("prev_snapshot_id", Text),
    Column("table_format", String(16), nullable=False),
    Column("operation_type", String(16), nullable=False),
    Column("tags", Text, nullable=False),
    Column("gap", Boolean, nullable=False),
    Column("inbox_id", number()),
)
Index("lakechime_events_by_dedup_key", events.c.dedup_key, unique=True)
Index("lakechime_events_by_time", events.c.event_ts, events.c.seq)
Index("lakechime_events_by_table", events.c.table_id, events.c.seq)
Index("lakechime_events_by_partition", events.c.table_id, events.c.partition_key, events.c.seq)
Index("lakechime_events_by_snapshot", events.c.table_id, events.c.snapshot_id, events.c.gap)

event_tags = Table(
    "lakechime_event_tags",
    metadata,
    Column("table_id", number(), primary_key=True, autoincrement=False),
    Column("tag_key", digest(), primary_key=True),
    Column("seq", number(), primary_key=True, autoincrement=False),
)

watermarks = Table(
    "lakechime_watermarks",
    metadata,
    Column("consumer", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    # Null if the watermark is deleted. The row stays, so that its revisions never begin again.
    Column("value", Text),
    Column("revision", number(), nullable=False),
    Column("updated_ts", number(), nullable=False),
    # The step of the last change, which identifies a repeat
    Column("step", String(DIGEST_CHARS)),
)

tokens = Table(
    "lakechime_tokens",
    metadata,
    Column("name", Text, primary_key=True),
    Column("sha256", String(64), nullable=False, unique=True),
    Column("role", String(16), nullable=False),
    Column("created", number(), nullable=False),
    Column("revoked", number()),
    Column("last_used", number()),
)

# Columns that the inbox and the events have in common, and that are copied unchanged
CARRIED = (
    "dedup_key",
    "partition",
    "partition_key",
    "snapshot_id",
    "snapshot_ts",
    "prev_snapshot_id",
    "table_format",
    "operation_type",
    "tags",
)
