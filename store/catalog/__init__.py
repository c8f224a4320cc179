"""The catalog: experts, versions, aliases, tags, statistics, compositions and events in any SQL database."""

from store.catalog.catalog import Catalog
from store.catalog.records import (
    ArrayLink,
    CompositionRecord,
    EventRecord,
    NewVersion,
    StatisticsRecord,
    VersionRecord,
)

__all__ = [
    "ArrayLink",
    "Catalog",
    "CompositionRecord",
    "EventRecord",
    "NewVersion",
    "StatisticsRecord",
    "VersionRecord",
]
