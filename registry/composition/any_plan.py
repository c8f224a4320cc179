"""The plan of any composition: of a mixture or a dense model, of an ensemble, or of a SIMoE."""

from registry.composition.ensemble.plan import Ensemble
from registry.composition.interpolated.simoe_plan import SimoePlan
from registry.composition.plan import Plan

AnyPlan = Plan | Ensemble | SimoePlan
