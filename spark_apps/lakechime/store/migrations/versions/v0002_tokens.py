"""Tokens of the service's users."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    number = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    op.create_table(
        "lakechime_tokens",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("sha256", sa.String(64), nullable=False, unique=True),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("created", number, nullable=False),
        sa.Column("revoked", number),
        sa.Column("last_used", number),
    )


def downgrade() -> None:
    op.drop_table("lakechime_tokens")
