"""The plan of any composition: of a mixture or a dense model, of an ensemble, or of a SIMoE."""

from registry.composition.plan import Plan
from registry.methods.ensemble.plan import Ensemble
from registry.methods.simoe.plan import SimoePlan

AnyPlan = Plan | Ensemble | SimoePlan
