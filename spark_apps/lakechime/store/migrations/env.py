"""The script that Alembic runs, on the given connection, in its open transaction."""

from alembic import context

from lakechime.store.schema import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    render_as_batch=True,
    transactional_ddl=False,
)
context.run_migrations()
