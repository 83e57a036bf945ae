"""When tables expired, which partitions did, what was put aside, and which step moved a watermark."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import VARCHAR

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

# When the last expired event was registered is not known any more: at the latest when the first event after it was.
_FILL = """
UPDATE lakechime_tables SET expired_ts = (
    SELECT MIN(e.event_ts) FROM lakechime_events AS e
    WHERE e.table_id = lakechime_tables.id AND e.seq > lakechime_tables.expired_seq)
WHERE expired_seq > 0
"""


def upgrade() -> None:
    number = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    digest = sa.String(22).with_variant(VARCHAR(22, collation="C"), "postgresql")
    op.add_column("lakechime_tables", sa.Column("expired_ts", number))
    op.add_column("lakechime_watermarks", sa.Column("step", sa.String(22)))
    op.create_table(
        "lakechime_expired_partitions",
        sa.Column("table_id", number, primary_key=True, autoincrement=False),
        sa.Column("partition_key", digest, primary_key=True),
        sa.Column("expired_seq", number, nullable=False),
    )
    op.create_table(
        "lakechime_put_aside",
        sa.Column("id", number, primary_key=True),
        sa.Column("inbox_id", number, nullable=False),
        sa.Column("put_aside_ts", number, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("inbox_row", sa.Text, nullable=False),
    )
    op.execute(_FILL)


def downgrade() -> None:
    op.drop_table("lakechime_put_aside")
    op.drop_table("lakechime_expired_partitions")
    for table, column in (("lakechime_watermarks", "step"), ("lakechime_tables", "expired_ts")):
        with op.batch_alter_table(table) as batch:
            batch.drop_column(column)
