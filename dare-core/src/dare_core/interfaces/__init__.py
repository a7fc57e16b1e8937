"""One abstract class per slot: what a plugin implements and what the loops call."""

from dare_core.interfaces.algorithm import Algorithm, Separable
from dare_core.interfaces.cache import KeyValueCache, WindowCache
from dare_core.interfaces.data import DataSource
from dare_core.interfaces.engine import Engine, EngineInputs, Objective, PolicyName, StepReport
from dare_core.interfaces.evaluator import (
    EvaluationContext,
    EvaluationResult,
    Evaluator,
    ItemEvaluator,
    Measure,
    PublishedColumn,
    PublishedRow,
    PublishedTable,
    ScoringEvaluator,
)
from dare_core.interfaces.likelihood import LikelihoodEstimator, PlanContext
from dare_core.interfaces.model import ModelAdapter, TextCodec
from dare_core.interfaces.reward import Reward
from dare_core.interfaces.rollout import LogitMixture, RolloutBackend, RolloutRequest
from dare_core.interfaces.tracker import Tracker

__all__ = [
    "Algorithm",
    "DataSource",
    "Engine",
    "EngineInputs",
    "EvaluationContext",
    "EvaluationResult",
    "Evaluator",
    "ItemEvaluator",
    "KeyValueCache",
    "LikelihoodEstimator",
    "LogitMixture",
    "Measure",
    "ModelAdapter",
    "Objective",
    "PlanContext",
    "PolicyName",
    "PublishedColumn",
    "PublishedRow",
    "PublishedTable",
    "Reward",
    "RolloutBackend",
    "RolloutRequest",
    "ScoringEvaluator",
    "Separable",
    "StepReport",
    "TextCodec",
    "Tracker",
    "WindowCache",
]
