"""Run by Alembic. The connection, the version table's name and the models come from `store.catalog.schema`."""

from alembic import context

attributes = context.config.attributes
context.configure(
    connection=attributes["connection"],
    version_table=attributes["version_table"],
    target_metadata=attributes["metadata"],
    render_as_batch=True,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
