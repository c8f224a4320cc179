"""The catalog: experts, versions, aliases, tags, statistics, compositions, evaluations, events in any SQL database."""

from store.catalog.catalog import Catalog
from store.catalog.records import (
    ArrayLink,
    CompositionRecord,
    EvaluationRecord,
    EventRecord,
    NewVersion,
    StatisticsRecord,
    VersionRecord,
)

__all__ = [
    "ArrayLink",
    "Catalog",
    "CompositionRecord",
    "EvaluationRecord",
    "EventRecord",
    "NewVersion",
    "StatisticsRecord",
    "VersionRecord",
]
