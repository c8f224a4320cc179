"""An empty catalog in memory, which stands in for one that the first write will create."""

import uuid

from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

from store.catalog.tables import Base, Identity


def empty_catalog() -> Engine:
    """Return an engine whose one database has the tables of a catalog, and no rows but an id."""
    engine = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add(Identity(id=uuid.uuid4().hex))
    return engine
