"""Methods: all that a trunk, a router and an output say of themselves.

A method is a class with one instance, which `found.py` finds by name. Its attributes are its options, what it needs,
the words of lists, forms and model cards, and its sources; its methods are what it does. The command line, recipe files
and their JSON Schema, the form of the web pages, model cards and `reg evaluate --methods` follow from these. Declaring
one loads nothing that takes long: what computes is imported where it is called.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from registry.composition.option import Option, Problem
from registry.io.display import counted

if TYPE_CHECKING:
    from torch import Tensor

    from registry.maths.router.inputs import RouterInputs
    from registry.maths.trunk.combination import Combination

TRAIN_STEPS = 200
"""Steps of training in rows of `reg evaluate --methods` whose routers are trained on kept calibration tokens."""
SEEDS, TRAINED_SEEDS = 5, 3
"""Seeds of a row with randomness by default, and of one whose routers are trained: figures are means."""

OWN, BASE, COUNTS = "own", "base", "counts"
"""Statistics that a router is made from: those of the expert's own forward pass, those of the base model's on the
expert's text, or only how often the expert's text used each token."""

Settings = Mapping[str, Any]
"""Fields of a recipe."""


@dataclass(frozen=True)
class Work:
    """A publication.

    Attributes:
        key: the key of its BibTeX entry.
        authors: as BibTeX has them.
        arxiv: the number of its preprint; empty of a work that is not on arXiv.
        where: where a work that is not on arXiv appeared.
        year: its year; of a preprint that of its number.
    """

    key: str
    authors: str
    title: str
    arxiv: str = ""
    where: str = ""
    year: int = 0

    def bibtex(self) -> str:
        """Return its BibTeX entry."""
        year = f"20{self.arxiv[:2]}" if self.arxiv else str(self.year)
        found = f"eprint = {{{self.arxiv}}},\n  archivePrefix = {{arXiv}}"
        lines = f"author = {{{self.authors}}},\n  title = {{{self.title}}},\n  year = {{{year}}}"
        return f"@misc{{{self.key},\n  {lines},\n  {found if self.arxiv else f'howpublished = {{{self.where}}}'}\n}}"


@dataclass(frozen=True)
class Compared:
    """A row of `reg evaluate --methods`.

    Attributes:
        settings: fields of its recipe, besides the method that has the row; and `train_steps` if the routers are then
            trained.
        seeds: seeds by default of a row with randomness, counted from 0: of its training, else of its recipe; 0 if it
            has none.
        oracle: send every token to the expert of its domain, which no router can know: the trunk's upper bound.
    """

    settings: Settings = field(default_factory=dict)
    seeds: int = 0
    oracle: bool = False

    def runs(self, seeds: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield the settings of each composition that the row needs; `seeds` replaces the default number, if any."""
        if not self.seeds:
            yield dict(self.settings)
            return
        field_name = "train_seed" if "train_steps" in self.settings else "seed"
        for seed in range(self.seeds if seeds is None else seeds):
            yield {**self.settings, field_name: seed}


class Method:
    """Base class of trunks, routers and outputs.

    Attributes:
        name: the value of `--trunk`, `--router` or `--to`: small letters, digits and hyphens.
        options: the options that it has.
        defaults: option that several methods have → its default with this one, where it is another.
        words: what it gives, for lists and pages.
        choice: the same as one of several to choose from, for the form; the words, if empty.
        sentence: what a model card says of it; empty for nothing.
        works: its sources.
        compared: name → row of `reg evaluate --methods`; None for one row of its own name.
    """

    name: ClassVar[str] = ""
    options: ClassVar[tuple[Option, ...]] = ()
    defaults: ClassVar[Settings] = {}
    words: ClassVar[str] = ""
    choice: ClassVar[str] = ""
    sentence: ClassVar[str] = ""
    works: ClassVar[tuple[Work, ...]] = ()
    compared: ClassVar[Mapping[str, Compared] | None] = None

    def problem(self, values: Settings) -> Problem | None:
        """Return what is wrong with a recipe that has this method, or None; `values` are all its fields."""
        return None


class Trunk(Method):
    """A way to combine the members' tensors of one name into one.

    Attributes:
        words: as in "merged by TIES", said of weights.
        needs_base: the base model takes part, so one must be registered.
        needs_members: the members' own tensors take part.
        needs_inputs: so do statistics of each linear map's input, and token counts.
        tiled: tensors without statistics of an input are combined a few rows at a time, whatever a pass gives at once.
        solves_together: `combine_together` is to be called for the maps of one input.
    """

    needs_base: ClassVar[bool] = False
    needs_members: ClassVar[bool] = True
    needs_inputs: ClassVar[bool] = False
    tiled: ClassVar[bool] = False
    solves_together: ClassVar[bool] = False

    @abstractmethod
    def combine(self, tensor: Combination) -> Iterator[Tensor]:
        """Yield the combined tensor in float64 by blocks of its rows, (r, …), in order (ValueError: it cannot be)."""

    def combine_together(self, tensors: Sequence[Combination]) -> Iterator[tuple[int, Tensor]]:
        """Yield the same of several linear maps of one input, to the same bits: each block with its map's number."""
        for number, tensor in enumerate(tensors):
            yield from ((number, rows) for rows in self.combine(tensor))


class Router(Method):
    """A way to make the routers of a mixture.

    Attributes:
        statistics: what it is made from: `OWN`, `BASE`, `COUNTS`, or None for no statistics.
        is_linear: each layer has a gate, a linear map of the stream, which `solve` returns. False for routers that read
            evidence of the text so far.
        is_trained: its rows were trained with the experts, beside the base model.
    """

    statistics: ClassVar[str | None] = OWN
    is_linear: ClassVar[bool] = True
    is_trained: ClassVar[bool] = False

    def solve(self, inputs: RouterInputs) -> Tensor:
        """Return gate.weight of a layer, (E, H) float64, rows by members' names (ValueError: there is no solution)."""
        raise NotImplementedError(f"router {self.name} has no gate of the stream")

    def document(self, recipe: Any, names: Sequence[str]) -> dict[str, Any]:
        """Return its options as `composition.json` holds them, every default spelled out."""
        return written(self.options, recipe, names)


@dataclass(frozen=True)
class Card:
    """The text of one composition's model card; `card.py` adds what all cards say.

    Attributes:
        tags: for the Hub, besides those of all compositions.
        intro: the paragraph below the heading.
        settings: name and value of each setting.
        title: the heading; empty for the members' names.
        columns: column of the table of members, besides index, expert, content digest and license → its cells.
        first_columns: the same of columns that stand before the digest.
        notes: the paragraph below the settings, about `composition.json`.
        limits: lines of the section on limits.
        is_routed: the model has routers, so text is told apart.
        sources: a sentence on each method, with its source.
        works: the works to cite.
    """

    tags: Sequence[str]
    intro: str
    settings: Sequence[tuple[str, str]]
    title: str = ""
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)
    first_columns: Mapping[str, Sequence[str]] = field(default_factory=dict)
    notes: str = ""
    limits: Sequence[str] = ()
    is_routed: bool = True
    sources: Sequence[str] = ()
    works: Sequence[Work] = ()


class Target(Method):
    """An output as recipes know it: its options, words and checks. `Output` in `plan.py` adds how it is made.

    Attributes:
        words: with an article: "a sparse mixture".
        called: in short: "sparse mixture".
        kind: in lists of compositions: "mixture".
        noun: in sentences on one: "merged model"; the kind, if empty.
        clause: in the help of `--to`, after its name.
        needs_code: the folder carries its modelling file, and loads with trust_remote_code=True.
        takes_any_family: members may be of families whose layers are not known here.
        note: in the form, after what it is called.
        removed: key of earlier recipes → a value that is still read, and the one that asked for what was removed.
        copies: fields of a composition whose members are copies of the base model; None where there is none.
        is_combined: members are combined tensor by tensor; else they stay whole in the folder.
        is_fitted: its coefficients can be fitted to text.
        has_projectors: it has projectors; a training changes these and the router, or all weights, and no other part.
        reference: fields of the rows of `reg evaluate --methods` that compare trunks.
        is_routed: tokens go to members, so that text is told apart, and routing can be measured.
        is_previewed: `preview` predicts the routing.
        has_domains: each member stands for the domain of its name.
        one_layer: where the weights of its members count as the routing of one layer, what does: "An ensemble"; empty
            where the layers route.
    """

    called: ClassVar[str] = ""
    kind: ClassVar[str] = ""
    noun: ClassVar[str] = ""
    clause: ClassVar[str] = ""
    needs_code: ClassVar[bool] = False
    takes_any_family: ClassVar[bool] = False
    note: ClassVar[str] = ""
    removed: ClassVar[Mapping[str, tuple[Any, Any]]] = {}
    copies: ClassVar[Settings | None] = None
    is_combined: ClassVar[bool] = False
    is_fitted: ClassVar[bool] = False
    has_projectors: ClassVar[bool] = False
    reference: ClassVar[Settings] = {}
    is_routed: ClassVar[bool] = True
    is_previewed: ClassVar[bool] = False
    has_domains: ClassVar[bool] = True
    one_layer: ClassVar[str] = ""

    @property
    def has_oracle(self) -> bool:
        """True if every token of a domain can be sent to the domain's expert, to score perfect routing."""
        return self.is_combined and self.is_routed

    # The recipe.

    def needs_base(self, values: Settings) -> bool:
        """Tell whether the base model takes part, by the fields that were given."""
        return False

    def label(self, recipe: Any) -> str:
        """Return what messages call it."""
        return f"output {self.name!r}"

    def unwanted(self, values: Settings) -> Problem | None:
        """Return why nobody wants what these fields make, or None; programs may make it all the same."""
        return None

    def problem_of_copies(self, count: int, values: Settings) -> Problem | None:
        """Return the problem with so many copies of the base model as members, or None."""
        return Problem(
            ("to",),
            f"copies of one base model are the experts of a mixture, and --to {self.name} makes none: it would be that "
            "model",
            "drop --to, or --from-base",
        )

    def problem_of_members(self, recipe: Any, names: Sequence[str]) -> Problem | None:
        """Return what is wrong with a recipe for members of these names, or None; numbers by member are checked."""
        if recipe.top_k is None or recipe.top_k <= len(names):
            return None
        most = f"from 1 to {len(names)}, the number of members" if len(names) > 1 else "1, as there is one member"
        return Problem(
            ("top_k",),
            f"top-k is {recipe.top_k}, it must be {most}",
            f"give --top-k {len(names)} or less, or name more --experts",
        )

    def top_k(self, recipe: Any, count: int) -> int | None:
        """Return how many of so many members a token goes to; None where they have no such number."""
        return None

    def document(self, recipe: Any, names: Sequence[str]) -> dict[str, Any]:
        """Return a recipe as `composition.json` holds it, every default spelled out."""
        return {"to": self.name, **written(self.options, recipe, names)}

    def fields_of_document(self, document: Mapping[str, Any], host: str) -> dict[str, Any]:
        """Return the fields of a recipe's checked document; `host` is the `model_type` of the composition."""
        return dict(document)

    def without_removed(self, composition: Mapping[str, Any], removed: Settings) -> dict[str, Any]:
        """Return the recipe of a composition's document of earlier releases without what was `removed` of it."""
        return {**composition["recipe"], **{key: self.removed[key][0] for key in removed}}

    def without(self, recipe: Any, names: Sequence[str]) -> Any:
        """Return the recipe of the members `names` alone, where others have left."""
        return recipe.of_members(names)

    # Words.

    def separating(self, recipe: Settings, top_k: int | None, count: int) -> tuple[str, Sequence[str]] | None:
        """Return what helps where routing does not separate two of `count` members, and its option; None for nothing.

        `recipe` is that of the composition's document, as text, and `top_k` its experts per token.
        """
        return None

    def sentences(self, document: Mapping[str, Any]) -> list[str]:
        """Return how a composition was made, each step as a few words; `document` is that of the composition."""
        return [f"{self.words[0].upper()}{self.words[1:]} of {counted(len(document['members']), 'expert')}"]


def written(options: Sequence[Option], recipe: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return options as documents hold them, every default spelled out but those of later options."""
    values = {one.name: one.written(getattr(recipe, one.name), names) for one in options if one.stands_for is None}
    later = {one.name: one.written(recipe.default(one.name), names) for one in options if one.is_later}
    return {name: value for name, value in values.items() if name not in later or value != later[name]}
