"""The catalog: experts, versions, aliases, tags, statistics, compositions, evaluations, events in a SQL database."""

from store.catalog.catalog import Catalog
from store.catalog.records import (
    ArrayLink,
    Chain,
    CompositionRecord,
    EvaluationRecord,
    EventRecord,
    NewVersion,
    PushRecord,
    StatisticsRecord,
    TagCount,
    VersionRecord,
)

__all__ = [
    "ArrayLink",
    "Catalog",
    "Chain",
    "CompositionRecord",
    "EvaluationRecord",
    "EventRecord",
    "NewVersion",
    "PushRecord",
    "StatisticsRecord",
    "TagCount",
    "VersionRecord",
]
