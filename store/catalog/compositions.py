"""The catalog's compositions, their pushes and their evaluations."""

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from store.catalog.array_links import add_arrays, made_from
from store.catalog.integrity import composition_seal, evaluation_group, evaluation_seal
from store.catalog.records import ArrayLink, CompositionRecord, EvaluationRecord, PushRecord, VersionRecord
from store.catalog.tables import (
    Composition,
    CompositionArray,
    CompositionMember,
    Evaluation,
    Event,
    Expert,
    Version,
    bytewise,
)
from store.catalog.transactions import Transactions, log, now, read_document
from store.digest import canonical_json


class Compositions(Transactions):
    """The part of the catalog that records compositions: members, folders, pushes and evaluations."""

    def record_composition(
        self,
        digest: str,
        document: dict[str, Any],
        members: Sequence[VersionRecord],
        out: str,
        arrays: Sequence[ArrayLink] = (),
    ) -> None:
        """Record that `digest` is being composed from `members` to the folder `out`; repeating it adds no composition.

        The digest covers `document`. `arrays` are the tensors that a training changed, which are complete on disk
        (ConflictError: a member was withdrawn in the meantime).
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
            add_arrays(session, arrays)
            for link in arrays:
                session.merge(CompositionArray(composition_digest=digest, name=link.name, digest=link.digest))
            session.flush()
            rows = dict([composition_seal(session, digest)])
            log(session, "compose", digest, members=[member.ref for member in members], out=out, rows=rows)

    def compositions(self, containing: Sequence[VersionRecord] | None = None) -> list[CompositionRecord]:
        """Return compositions, oldest first; all of them, or those made from any version in `containing`."""
        query = select(Composition).order_by(bytewise(Composition.created_at), bytewise(Composition.digest))
        if containing is not None:
            query = query.where(Composition.digest.in_(made_from(containing)))
        links = (
            select(CompositionMember.composition_digest, Expert.name, Version.number)
            .join(Version, Version.id == CompositionMember.version_id)
            .join(Expert, Expert.id == Version.expert_id)
            .order_by(bytewise(Expert.name), Version.number)
        )
        writes = select(Event.subject, Event.details).where(Event.action == "compose").order_by(Event.id)
        with self._reading() as session:
            members: dict[str, list[str]] = {}
            for digest, name, number in session.execute(links):
                members.setdefault(digest, []).append(f"{name}@{number}")
            folders: dict[str, dict[str, None]] = {}
            latest: dict[str, tuple[str, ...]] = {}
            for digest, details in session.execute(writes):
                event = read_document(details, "the log")
                folders.setdefault(digest, {})[str(event.get("out"))] = None
                latest[digest] = tuple(map(str, event.get("members") or ()))
            return [
                CompositionRecord(
                    row.digest,
                    read_document(row.document, f"composition {row.digest}"),
                    row.created_at,
                    tuple(members.get(row.digest, ())),
                    tuple(folders.get(row.digest, ())),
                    latest.get(row.digest, ()),
                )
                for row in session.scalars(query)
            ]

    def record_push(self, subject: str, push: PushRecord) -> None:
        """Log the start or, with its commit, the end of a push of a composition (digest) or a version (`math@1`)."""
        with self._writing() as session:
            log(session, "push", subject, **vars(push))

    def pushes(self, subjects: Collection[str]) -> list[PushRecord]:
        """Return the pushes of compositions (digests) and versions (`math@1`), each once; with a commit if it ended."""
        query = select(Event.subject, Event.details).where(Event.action == "push").order_by(Event.id)
        commits_at: dict[tuple[str, str, str], dict[str | None, None]] = {}
        with self._reading() as session:
            for subject, details in session.execute(query):
                if subject in subjects:
                    document = read_document(details, f"a push of {subject}")
                    push = PushRecord(**{key: value for key, value in document.items() if key != "actor"})
                    commits_at.setdefault((push.repo, push.revision, push.endpoint), {})[push.commit] = None
        return [
            PushRecord(*target, commit)
            for target, commits in commits_at.items()
            for commit in commits
            if commit is not None or len(commits) == 1
        ]

    def has_composition(self, digest: str) -> bool:
        """Return True if a composition was made here."""
        return self.composition_document(digest) is not None

    def composition_document(self, digest: str) -> dict[str, Any] | None:
        """Return the document of the composition with a digest; None if it was not made here."""
        with self._reading() as session:
            row = session.get(Composition, digest)
            return None if row is None else dict(read_document(row.document, f"composition {digest}"))

    def record_evaluation(self, composition: str, asked: str, document: dict[str, Any]) -> None:
        """Store an evaluation of a composition that was made here; an earlier one of the same `asked` is replaced.

        `asked` is the digest of data and settings. The document has data, settings, and scores or, under `extraction`,
        the figures of an audit.
        """
        with self._writing() as session:
            session.merge(
                Evaluation(
                    composition_digest=composition, asked=asked, evaluated_at=now(), document=canonical_json(document)
                )
            )
            session.flush()
            rows = dict([evaluation_seal(session, composition, asked)])
            log(session, "evaluate", composition, asked=asked, rows=rows)

    @staticmethod
    def _delete_evaluations(session: Session, versions: Sequence[VersionRecord]) -> list[str]:
        """Delete evaluations of compositions made from `versions` or compared with one of them; return their groups.

        A version of the same content that stays keeps the evaluations that compare with it.
        """
        ids = [version.id for version in versions]
        affected = set(session.scalars(made_from(versions)))
        digests = {version.digest for version in versions}
        alike = select(Version.digest).where(Version.digest.in_(digests), Version.id.not_in(ids))
        digests -= set(session.scalars(alike.where(Version.state != "purged")))
        groups = []
        for row in session.scalars(select(Evaluation)).all():
            document = read_document(row.document, "an evaluation")
            measured_against = {*(document.get("experts") or {}).values(), *(document.get("bases") or {}).values()}
            if row.composition_digest in affected or digests & measured_against:
                groups.append(evaluation_group(row.composition_digest, row.asked))
                session.delete(row)
        return groups

    def evaluations(self, composition: str | None = None) -> list[EvaluationRecord]:
        """Return the evaluations by scores of the composition with a digest, or of all, latest first."""
        return [record for record in self._figures(composition) if "extraction" not in record.document]

    def audits(self, composition: str) -> list[EvaluationRecord]:
        """Return the audits of extraction of the composition with a digest, latest first."""
        return [record for record in self._figures(composition) if "extraction" in record.document]

    def _figures(self, composition: str | None) -> list[EvaluationRecord]:
        query = select(Evaluation).order_by(bytewise(Evaluation.evaluated_at).desc(), bytewise(Evaluation.asked))
        if composition is not None:
            query = query.where(Evaluation.composition_digest == composition)
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
