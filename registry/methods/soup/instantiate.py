"""Instantiation of a soup: the dense model of some domain weights, as a composition with coefficients.

Domain weights are given, or are the histogram of documents over the domains (Ablin et al. 2025, algorithm 3): each is
embedded, here by the shared weights, as the mean MLP input of the last layer, and counts for the nearest centroid. Then

    h → α = φ(h) → Θ = S + Σ_j α_j E_j                                               (§2.7, eq. 2)

and Θ is task arithmetic on the base model S: E_j is the difference of expert j and S. The coefficients can be fitted to
text instead, and then no domain weights take part.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from registry.calibration import Corpus
from registry.composition.compose import compose
from registry.composition.document_means import shares_of_text
from registry.composition.passes import pass_context
from registry.composition.plan import Plan
from registry.composition.recipe.recipe import Recipe
from registry.destination.address import destination_of
from registry.errors import ConflictError, InvalidInputError
from registry.io.display import few
from registry.maths.soup_weights import coefficients
from registry.member import Member, load_member
from registry.methods.soup.settings import check_soup
from registry.methods.soup.versions import SOUP_ROUTER, SoupRouter, unpack_router
from registry.names.reference import copy_name, require_list
from registry.names.suggest import suggest
from registry.training import FitSettings, fit_coefficients
from registry.training.coefficients import TASK_ARITHMETIC
from registry.workspace import PathLike, Workspace
from store.catalog import VersionRecord

_FEW = 8
"""Domains up to which a message lists all of them."""


@dataclass(frozen=True)
class Instantiated:
    """The result of an instantiation.

    Attributes:
        plan: the composition.
        domain_weights: domain → share, all together 1; empty where the coefficients were fitted.
        coefficients: expert → α.
    """

    plan: Plan
    domain_weights: dict[str, float]
    coefficients: dict[str, float]


def instantiate(
    workspace: Workspace,
    soup: str,
    out: PathLike,
    *,
    weights: Mapping[str, float] | None = None,
    like: Sequence[PathLike] = (),
    fit: Sequence[PathLike] = (),
    settings: FitSettings | None = None,
    force: bool = False,
) -> Instantiated:
    """Write the dense model of a soup for some domain weights (arguments and errors as `Registry.instantiate`)."""
    like, fit = require_list(like, "like"), require_list(fit, "fit")
    _check_one({"--weights": weights is not None, "--like": bool(like), "--fit": bool(fit)})
    workspace.check_owner()
    destination_of(out).check(replace=force)
    shared, experts = _open(workspace, soup)
    refs, base = [expert.ref for expert in experts], shared.version.ref
    shares: dict[str, float] = {}
    if fit:
        recipe = fit_coefficients(workspace, refs, fit, None, settings, base=base).recipe
    else:
        with workspace.reading(shared.version):
            data = shared.file(SOUP_ROUTER)
        router = unpack_router(data, shared.content["soup"], shared.architecture.hidden_size, base)
        if weights is not None:
            shares = _given(shared, weights)
        else:
            shares = _shares_of(workspace, shared, router, like, settings)
        alpha = coefficients(
            list(shares.values()),
            (torch.from_numpy(router.hidden.copy()), torch.from_numpy(router.hidden_bias.copy())),
            (torch.from_numpy(router.output.copy()), torch.from_numpy(router.output_bias.copy())),
        )
        names = [expert.name for expert in experts]
        recipe = Recipe(to="dense", trunk=TASK_ARITHMETIC, coefficients=dict(zip(names, alpha, strict=True)))
    plan = compose(workspace, refs, out, recipe, base=base, force=force)
    return Instantiated(plan, shares, dict(recipe.coefficients))


def _check_one(given: Mapping[str, bool]) -> None:
    names = [name for name, is_given in given.items() if is_given]
    if not names:
        raise InvalidInputError(
            "nothing says what the model is for: weights of the domains, or text to be like or to be fitted to",
            "give one of --weights A=…,B=…, --like FILE and --fit FILE",
        )
    if len(names) > 1:
        raise InvalidInputError(
            f"{' and '.join(names)} are given, and each of them alone says what the model is for",
            f"drop all but one: {', '.join(names)}",
        )


def _open(workspace: Workspace, ref: str) -> tuple[Member, list[VersionRecord]]:
    """Return the shared weights of a soup, and its experts by number, none of which may be opted out."""
    version = workspace.resolve(ref)
    check_soup(version)
    experts, count = [], (version.content or {})["soup"]["experts"]
    for number in range(1, count + 1):
        name = copy_name(version.name, number, count)
        own = {"soup": version.digest, "number": number}
        versions = [one for one in workspace.catalog.versions(name) if (one.content or {}).get("soup") == own]
        active = [one for one in versions if one.state == "active"]
        if not active:
            raise ConflictError(
                f"{name} of the soup {version.ref} was opted out or is not registered here, and its other experts and "
                "shared weights were trained together with it",
                f"train the soup again without that text: reg train-soup {version.name} --base B --domains FILE …",
            )
        experts.append(active[-1])
    return load_member(workspace, version), experts


def _given(shared: Member, weights: Mapping[str, float]) -> dict[str, float]:
    """Return the share of every domain, or raise InvalidInputError for weights that give none."""
    ref, domains = shared.version.ref, shared.content["soup"]["domains"]
    listed = ", ".join(domains)
    if len(domains) > _FEW:
        listed = f"{few(domains)}, {len(domains):,} in all; reg show {ref} lists them"
    if unknown := [name for name in weights if name not in domains]:
        near = suggest(unknown[0], domains, most=3)
        raise InvalidInputError(f"{unknown[0]!r} is no domain of {ref}{near}", f"its domains are: {listed}")
    for name, weight in weights.items():
        if not 0 <= weight < float("inf"):
            raise InvalidInputError(
                f"the weight of domain {name} is {weight}, it must be finite and 0 or more",
                f"leave it out, or give --weights {name}=1",
            )
    whole = sum(weights.values())
    if not 0 < whole < float("inf"):
        raise InvalidInputError(
            f"the domain weights sum to {whole:g}, and must sum to a finite number above 0",
            f"give one or more of: {listed}",
        )
    return {name: weights.get(name, 0.0) / whole for name in domains}


def _shares_of(
    workspace: Workspace, shared: Member, router: SoupRouter, files: Sequence[PathLike], settings: FitSettings | None
) -> dict[str, float]:
    device = None if settings is None else settings.device
    paths = [Path(file) for file in files]
    Corpus(paths, None)  # refuses what is no file before a weight is read
    centroids = torch.from_numpy(router.centroids.copy()).double()[:, None]  # of the last layer
    with workspace.reading(shared.version), pass_context(workspace, [shared]) as context:
        shares = shares_of_text(shared, paths, centroids, device, context)
    return dict(zip(shared.content["soup"]["domains"], shares.tolist(), strict=True))
