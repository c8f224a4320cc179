"""The history of the catalog's schema (Alembic), installed as `store.migrations`."""
