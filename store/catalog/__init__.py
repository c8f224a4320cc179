"""The catalog: experts, versions, aliases, tags, statistics, compositions, evaluations, events in a SQL database."""

from store.catalog.catalog import Catalog as Catalog
from store.catalog.records import ArrayLink as ArrayLink
from store.catalog.records import Chain as Chain
from store.catalog.records import CompositionRecord as CompositionRecord
from store.catalog.records import EvaluationRecord as EvaluationRecord
from store.catalog.records import EventRecord as EventRecord
from store.catalog.records import NewVersion as NewVersion
from store.catalog.records import PushRecord as PushRecord
from store.catalog.records import StatisticsRecord as StatisticsRecord
from store.catalog.records import TagCount as TagCount
from store.catalog.records import VersionRecord as VersionRecord
