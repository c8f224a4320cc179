"""The catalog's compositions, and what evaluations found of them."""

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from store.catalog.records import CompositionRecord, EvaluationRecord, PushRecord, VersionRecord
from store.catalog.row_digests import composition_seal, evaluation_group, evaluation_seal
from store.catalog.tables import Composition, CompositionMember, Evaluation, Event, Expert, Version
from store.catalog.transactions import Transactions, log, now, read_document
from store.digest import canonical_json


class Compositions(Transactions):
    """The part of the catalog that tells which compositions were made, of what, where to, and how good they are."""

    def record_composition(
        self, digest: str, document: dict[str, Any], members: Sequence[VersionRecord], out: str
    ) -> None:
        """Record that `digest` is being made from `members`; made again, it stays one composition.

        Raises:
            ConflictError: a member was withdrawn meanwhile.
        """
        with self._writing() as session:
            for member in members:
                self._active(session, member)
            if session.get(Composition, digest) is None:
                session.add(Composition(digest=digest, document=canonical_json(document), created_at=now()))
                session.flush()
            for member in members:
                if session.get(CompositionMember, (digest, member.id)) is None:
                    session.add(CompositionMember(composition_digest=digest, version_id=member.id))
            session.flush()
            rows = {f"composition {digest}": composition_seal(session, digest)}
            log(session, "compose", digest, members=[member.ref for member in members], out=out, rows=rows)

    def compositions(self, containing: Sequence[VersionRecord] | None = None) -> list[CompositionRecord]:
        """Return the compositions made, oldest first, narrowed to those made from any of some versions."""
        query = select(Composition).order_by(Composition.created_at, Composition.digest)
        if containing is not None:
            made_from = select(CompositionMember.composition_digest).where(
                CompositionMember.version_id.in_([version.id for version in containing])
            )
            query = query.where(Composition.digest.in_(made_from))
        links = (
            select(CompositionMember.composition_digest, Expert.name, Version.number)
            .join(Version, Version.id == CompositionMember.version_id)
            .join(Expert, Expert.id == Version.expert_id)
            .order_by(Expert.name, Version.number)
        )
        writings = select(Event.subject, Event.details).where(Event.action == "compose").order_by(Event.id)
        with self._reading() as session:
            members: dict[str, list[str]] = {}
            for digest, name, number in session.execute(links):
                members.setdefault(digest, []).append(f"{name}@{number}")
            folders: dict[str, dict[str, None]] = {}
            for digest, details in session.execute(writings):
                told = read_document(details, "the log")
                folders.setdefault(digest, {})[str(told.get("out"))] = None
            return [
                CompositionRecord(
                    row.digest,
                    read_document(row.document, f"composition {row.digest}"),
                    row.created_at,
                    tuple(members.get(row.digest, ())),
                    tuple(folders.get(row.digest, ())),
                )
                for row in session.scalars(query)
            ]

    def record_push(self, subject: str, push: PushRecord) -> None:
        """Log that a composition (by its digest) or a version (`math@1`) is being pushed, or was, with its commit."""
        with self._writing() as session:
            log(session, "push", subject, **vars(push))

    def pushes(self, subjects: Collection[str]) -> list[PushRecord]:
        """Return where compositions (digests) and versions (`math@1`) were pushed to, each place once, oldest first.

        A push that was begun, and of which no end is known, has no commit.
        """
        query = select(Event.subject, Event.details).where(Event.action == "push").order_by(Event.id)
        found: dict[tuple[str, str, str], dict[str | None, None]] = {}
        with self._reading() as session:
            for subject, details in session.execute(query):
                if subject in subjects:
                    push = PushRecord(**read_document(details, f"a push of {subject}"))
                    found.setdefault((push.repo, push.revision, push.endpoint), {})[push.commit] = None
        return [
            PushRecord(*place, commit)
            for place, commits in found.items()
            for commit in commits
            if commit is not None or len(commits) == 1
        ]

    def has_composition(self, digest: str) -> bool:
        """Tell whether a composition was made here."""
        with self._reading() as session:
            return session.get(Composition, digest) is not None

    def record_evaluation(self, composition: str, asked: str, document: dict[str, Any]) -> None:
        """Store what an evaluation found of a composition that was made here.

        Args:
            composition: its digest.
            asked: the digest of data and settings; an earlier evaluation with the same one is replaced.
            document: data, settings and figures.
        """
        with self._writing() as session:
            session.merge(
                Evaluation(
                    composition_digest=composition, asked=asked, evaluated_at=now(), document=canonical_json(document)
                )
            )
            session.flush()
            rows = {evaluation_group(composition, asked): evaluation_seal(session, composition, asked)}
            log(session, "evaluate", composition, asked=asked, rows=rows)

    @staticmethod
    def _forget_evaluations(session: Session, versions: Sequence[VersionRecord]) -> list[str]:
        """Delete what was measured of compositions made from `versions`, or against one of them; return their seals."""
        made_from = select(CompositionMember.composition_digest).where(
            CompositionMember.version_id.in_([version.id for version in versions])
        )
        concerned = set(session.scalars(made_from))
        digests = {version.digest for version in versions}
        gone = []
        for row in session.scalars(select(Evaluation)).all():
            measured_against = set((read_document(row.document, "an evaluation").get("experts") or {}).values())
            if row.composition_digest in concerned or digests & measured_against:
                gone.append(evaluation_group(row.composition_digest, row.asked))
                session.delete(row)
        return gone

    def evaluations(self, composition: str) -> list[EvaluationRecord]:
        """Return what evaluations found of the composition with a digest, the latest first."""
        query = (
            select(Evaluation)
            .where(Evaluation.composition_digest == composition)
            .order_by(Evaluation.evaluated_at.desc(), Evaluation.asked)
        )
        with self._reading() as session:
            return [
                EvaluationRecord(
                    row.composition_digest,
                    row.asked,
                    row.evaluated_at,
                    read_document(row.document, f"an evaluation of {row.composition_digest}"),
                )
                for row in session.scalars(query)
            ]
