"""All tables: events and their inbox, watermarks, producers' states, tokens of the service."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import VARCHAR

revision = "v0001"
down_revision = None
branch_labels = None
depends_on = None


def _number() -> sa.BigInteger:
    return sa.BigInteger().with_variant(sa.Integer, "sqlite")


def _digest() -> sa.String:
    return sa.String(22).with_variant(VARCHAR(22, collation="C"), "postgresql")


def _carried() -> list[sa.Column[str] | sa.Column[int]]:
    return [
        sa.Column("dedup_key", _digest(), nullable=False),
        sa.Column("partition", sa.Text),
        sa.Column("partition_key", _digest()),
        sa.Column("snapshot_id", sa.Text),
        sa.Column("snapshot_ts", _number()),
        sa.Column("prev_snapshot_id", sa.Text),
        sa.Column("table_format", sa.String(16), nullable=False),
        sa.Column("operation_type", sa.String(16), nullable=False),
        sa.Column("tags", sa.Text, nullable=False),
    ]


def upgrade() -> None:
    meta = op.create_table(
        "lakechime_meta",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("value", _number(), nullable=False),
    )
    op.bulk_insert(
        meta, [{"name": "time_horizon", "value": 0}, {"name": "expired_seq", "value": 0}]
    )
    op.create_table(
        "lakechime_tables",
        sa.Column("id", _number(), primary_key=True),
        sa.Column("cluster", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("depth", sa.Integer),
        sa.Column("expired_seq", _number(), nullable=False, server_default="0"),
        sa.Column("expired_ts", _number()),
        sa.UniqueConstraint("cluster", "name", name="lakechime_tables_by_name"),
    )
    op.create_table(
        "lakechime_expired_partitions",
        sa.Column("table_id", _number(), primary_key=True, autoincrement=False),
        sa.Column("partition_key", _digest(), primary_key=True),
        sa.Column("expired_seq", _number(), nullable=False),
    )
    _make_producers()
    _make_events()
    op.create_table(
        "lakechime_watermarks",
        sa.Column("consumer", sa.Text, primary_key=True),
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("value", sa.Text),
        sa.Column("revision", _number(), nullable=False),
        sa.Column("updated_ts", _number(), nullable=False),
        sa.Column("step", sa.String(22)),
    )
    op.create_table(
        "lakechime_tokens",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("sha256", sa.String(64), nullable=False, unique=True),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("created", _number(), nullable=False),
        sa.Column("revoked", _number()),
        sa.Column("last_used", _number()),
    )


def _make_producers() -> None:
    op.create_table(
        "lakechime_positions",
        sa.Column("cluster", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("position", sa.Text, nullable=False),
        sa.Column("batch", sa.String(22)),
    )
    op.create_table(
        "lakechime_seen",
        sa.Column("cluster", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("item_key", _digest(), primary_key=True),
        sa.Column("item", sa.Text, nullable=False),
        sa.Column("value", sa.Text, nullable=False),
    )


def _make_events() -> None:
    op.create_table(
        "lakechime_inbox",
        sa.Column("id", _number(), primary_key=True),
        sa.Column("cluster", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("depth", sa.Integer),
        sa.Column("tag_keys", sa.Text, nullable=False),
        *_carried(),
    )
    op.create_table(
        "lakechime_put_aside",
        sa.Column("id", _number(), primary_key=True),
        sa.Column("inbox_id", _number(), nullable=False),
        sa.Column("put_aside_ts", _number(), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("inbox_row", sa.Text, nullable=False),
    )
    op.create_table(
        "lakechime_events",
        sa.Column("seq", _number(), primary_key=True, autoincrement=False),
        sa.Column("event_ts", _number(), nullable=False),
        sa.Column("table_id", _number(), nullable=False),
        *_carried(),
        sa.Column("gap", sa.Boolean, nullable=False),
        sa.Column("inbox_id", _number()),
    )
    op.create_index("lakechime_events_by_dedup_key", "lakechime_events", ["dedup_key"], unique=True)
    op.create_index("lakechime_events_by_time", "lakechime_events", ["event_ts", "seq"])
    op.create_index("lakechime_events_by_table", "lakechime_events", ["table_id", "seq"])
    op.create_index(
        "lakechime_events_by_partition", "lakechime_events", ["table_id", "partition_key", "seq"]
    )
    op.create_index(
        "lakechime_events_by_snapshot", "lakechime_events", ["table_id", "snapshot_id", "gap"]
    )
    op.create_table(
        "lakechime_event_tags",
        sa.Column("table_id", _number(), primary_key=True, autoincrement=False),
        sa.Column("tag_key", _digest(), primary_key=True),
        sa.Column("seq", _number(), primary_key=True, autoincrement=False),
    )


def downgrade() -> None:
    for name in (
        "tokens",
        "watermarks",
        "event_tags",
        "events",
        "put_aside",
        "inbox",
        "seen",
        "positions",
        "expired_partitions",
        "tables",
        "meta",
    ):
        op.drop_table(f"lakechime_{name}")
