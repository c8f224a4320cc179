"""What a registry publishes on the Hub: the part of `Registry` that pushes folders and experts."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from registry.composition.compose import Composer
from registry.progress import remark
from registry.workspace import PathLike
from store.catalog import PushRecord
from store.ownership import check_owner

if TYPE_CHECKING:
    from registry.composition import Ensemble, Plan
    from registry.hub.target import Outgoing, Pushed, Target


class Publisher(Composer):
    """Pushing to the Hub (errors as in `Registry`)."""

    def push(self, folder: PathLike, target: "Target | str", *, license: str | None = None) -> "Pushed":  # noqa: A002
        """Push a composed folder to the Hub, in one commit, and compare what arrived.

        It must be, byte for byte, what was composed. What the registry knows beside that (scores, where members are on
        the Hub, languages) is added to the card that is pushed.

        Args:
            folder: a composed folder.
            target: where to; a text is `ORG/NAME[@REVISION]`.
            license: under which the whole is published; default what the members' licenses come to.

        Returns:
            the commit, and whether anything was added.

        Raises:
            CheckpointError: `folder` is not what was composed.
            InvalidInputError: the members' licenses come to none for the whole.
            ConflictError: a member was opted out, or the repository holds something else.
            StorageError: the Hub refused, or cannot be reached.
        """
        from registry.composition.reproduce import read_composed
        from registry.hub.push_folder import judge, outgoing
        from registry.hub.upload import check_account
        from registry.io.model_folder import MARKER

        check_owner(self.catalog, self.arrays)
        target = _target(target)
        license_id = None if license is None else _license(license)
        path = Path(folder)
        document, described = read_composed(path)
        check_account(target)
        files = outgoing(self, path, target.repo_id.rpartition("/")[2], license_id)
        digest = str(document["digest"])
        if not self.catalog.has_composition(digest):
            remark(self.progress, f"{path} was not composed in this registry: no receipt of it will name this push")
        names = ", ".join(member.name for member in described.members)
        return self._upload(
            target,
            files,
            digest,
            marker=MARKER,
            judge=judge(digest),
            message=f"Composition {digest[:12]} of {names}"[:200],
            description=f"Pushed by expert-registry.\n\ncomposition {digest}",
        )

    def check_push(
        self,
        plan: "Plan | Ensemble",
        target: "Target | str",
        *,
        license: str | None = None,  # noqa: A002
    ) -> None:
        """Refuse, before it is composed, what could not be pushed (arguments as `push`)."""
        from registry.composition.cards.parts import licenses_of
        from registry.hub.push_folder import check_license as check
        from registry.hub.upload import check_account

        chosen = None if license is None else _license(license)
        used = [member.version for member in (*plan.members, *([plan.base] if plan.base else []))]
        check(licenses_of(plan.members, plan.base).license, chosen, used, ", ".join(plan.names))
        check_account(_target(target))

    def push_expert(self, ref: str, target: "Target | str", *, calibration: bool = False) -> "Pushed":
        """Push a registered expert to the Hub: its whole checkpoint, its statistics, and what identifies it.

        `add_expert(name, "hf://ORG/NAME")` registers it elsewhere without data and without a forward pass, under the
        same content digest; where calibration tokens stay at home, under the one that `expert.json` has.

        Args:
            ref: a version of an expert.
            target: where to; a text is `ORG/NAME[@REVISION]`.
            calibration: push kept calibration tokens too, where they are not the expert's own writing.

        Returns:
            the commit, and whether anything was added.

        Raises:
            ConflictError: the repository holds something else.
            StorageError: the Hub refused, or cannot be reached.
        """
        from registry.calibration.sampling import is_self_sampled
        from registry.checkpoint import manifest as announced
        from registry.hub.push_expert import card, judge, outgoing, write_expert
        from registry.hub.upload import check_account

        check_owner(self.catalog, self.arrays)
        target = _target(target)
        version = self.resolve(ref, kind="expert")
        check_account(target)
        member = self.member(version)
        label = version.statistics[0].calibration_label
        kept = member.calibration is not None and (calibration or is_self_sampled(label))
        if version.content is not None and version.content["license"] is None:
            remark(self.progress, f"{version.ref} has no license: nobody else may use it until one is given")
        self.home.work.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=self.home.work) as temporary:
            folder = Path(temporary) / "expert"
            said = write_expert(member, folder, calibration=calibration, progress=self.progress)
            page = card(member, said, target.repo_id, kept=kept)
            return self._upload(
                target,
                outgoing(folder, page, self.progress),
                version.ref,
                marker=announced.FILE_NAME,
                judge=judge(version.name, said.digest),
                message=f"Expert {version.name}, {said.digest[:12]}",
                description=f"Pushed by expert-registry.\n\nexpert {said.digest}",
            )

    def _upload(self, target: "Target", files: "dict[str, Outgoing]", subject: str, **how: Any) -> "Pushed":
        """Upload, noting the push before it begins and when it is done, so that a receipt names it either way."""
        from registry.hub.hub_errors import endpoint
        from registry.hub.upload import upload

        def note(commit: str | None, revision: str) -> None:
            self.catalog.record_push(subject, PushRecord(target.repo_id, revision, endpoint(), commit))

        pushed = upload(target, files, begun=lambda: note(None, target.branch), progress=self.progress, **how)
        note(pushed.commit, pushed.revision)
        return pushed


def _license(given: str) -> str:
    from registry.composition.cards.licenses import check_spelling
    from registry.names.reference import check_license

    check_spelling(check_license(given))
    return given.lower()


def _target(target: "Target | str") -> "Target":
    from registry.hub.target import Target

    return Target.parse(target) if isinstance(target, str) else target
