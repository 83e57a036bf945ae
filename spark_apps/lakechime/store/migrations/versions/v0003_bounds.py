"""How far each table expired, what producers have seen of a table, and which batch moved a position."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import VARCHAR

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

# Of a table all goes but the newest, and in order: what went lies before the first event that is left.
_FILL = """
UPDATE lakechime_tables SET expired_seq = COALESCE((
    SELECT CASE WHEN m.value < first.seq THEN m.value ELSE first.seq - 1 END
    FROM lakechime_meta AS m, (SELECT MIN(e.seq) AS seq FROM lakechime_events AS e WHERE e.table_id = lakechime_tables.id) AS first
    WHERE m.name = 'expired_seq'), 0)
"""


def upgrade() -> None:
    number = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    op.add_column(
        "lakechime_tables", sa.Column("expired_seq", number, nullable=False, server_default="0")
    )
    op.add_column("lakechime_positions", sa.Column("batch", sa.String(22)))
    op.create_table(
        "lakechime_seen",
        sa.Column("cluster", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column(
            "item_key",
            sa.String(22).with_variant(VARCHAR(22, collation="C"), "postgresql"),
            primary_key=True,
        ),
        sa.Column("item", sa.Text, nullable=False),
        sa.Column("value", sa.Text, nullable=False),
    )
    op.execute(_FILL)


def downgrade() -> None:
    op.drop_table("lakechime_seen")
    for table, column in (("lakechime_positions", "batch"), ("lakechime_tables", "expired_seq")):
        with op.batch_alter_table(table) as batch:
            batch.drop_column(column)
