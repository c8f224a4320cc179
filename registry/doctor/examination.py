"""The loaded model of a folder under examination, and one pass of it over the text of every domain."""

from dataclasses import dataclass
from functools import cached_property

from registry.doctor.domain_texts import DomainTexts, domain_texts, settings_of
from registry.doctor.examined_folder import ExaminedFolder
from registry.evaluation.results import TestSettings
from registry.evaluation.scoring import Model, Tally, open_model, perplexities_of
from registry.io.model_folder import composed_of


@dataclass
class Examination:
    """A folder, and what its forward passes need; each is made once, when a check first asks for it."""

    folder: ExaminedFolder

    @cached_property
    def settings(self) -> TestSettings:
        """The settings of scoring."""
        return settings_of(self.folder)

    @cached_property
    def texts(self) -> DomainTexts:
        """The text of each domain."""
        return domain_texts(self.folder)

    @cached_property
    def model(self) -> Model:
        """The loaded model."""
        return open_model(self.folder.path.name, self.folder.path, self.settings)

    @property
    def uniform(self) -> int:
        """The perplexity of a uniform guess: the size of the vocabulary."""
        return self.folder.embedding_rows or int(self.model.loaded.config.vocab_size)

    @property
    def look_closer(self) -> str:
        """The next step after bad predictions that nothing else explains."""
        if self.folder.composed is None:
            return f"try text of its own domain: reg doctor {self.folder.quoted} --data DOMAIN=FILE"
        data = " ".join(f"--data {name}=FILE" for name in list(self.folder.members)[:2]) or "--data DOMAIN=FILE"
        return f"see which member or method is at fault: reg evaluate {self.folder.quoted} {data} --baselines"

    @property
    def is_decided_by_prompt(self) -> bool:
        """True if the whole prompt weighs the members, so that no token before its end has a probability."""
        config = self.folder.config
        return "routing" in config and config.get("routing_tokens") == 0

    @cached_property
    def experts(self) -> tuple[str, ...]:
        """The names of the experts or members, in their order."""
        names = tuple(composed_of(self.folder.path))
        return names if len(names) == self.model.experts else tuple(map(str, range(self.model.experts)))

    @property
    def scored(self) -> dict[str, float]:
        """Domain → perplexity."""
        return self._pass[0]

    @property
    def routing(self) -> dict[str, dict[str, list[float]]]:
        """Domain → expert → share of the domain's tokens that go to it first, by layer."""
        tally = self._pass[1]
        assert tally is not None
        return tally.routing(self.experts)

    @cached_property
    def _pass(self) -> tuple[dict[str, float], Tally | None]:
        tally = Tally(self.model.layers, self.model.experts) if self.model.experts else None
        found = perplexities_of(self.model, self.texts.windows, self.settings, self.folder.progress, tally=tally)
        self.folder.perplexity.update(found)
        return found, tally
