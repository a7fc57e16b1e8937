"""The data that flows between components. Frozen, typed, torch only under type checking.

Axes: B rows, L positions, N views, G group size, V vocabulary, S snapshots.
"""

from dare_core.types.batch import Advantages, Edits, PairRows, Rollout, Rows, Snapshots, Trace
from dare_core.types.decoding import DecodingSettings, EosRule, Schedule, SelectionRule
from dare_core.types.estimate import BatchInputs, Estimate, LossInputs, LossOutput, Metric, Progress, ValueInputs
from dare_core.types.events import CheckpointSaved, RunFinished, RunStarted, StepFinished
from dare_core.types.examples import Demonstration, Message, Pair, Prompt, Verdict, VerdictStatus
from dare_core.types.model import AttentionLayout, ModelFacts
from dare_core.types.seeding import Address
from dare_core.types.steps import DenoisingStep, Watch
from dare_core.types.tree import TreeShape
from dare_core.types.views import Scores, Views

__all__ = [
    "Address",
    "Advantages",
    "AttentionLayout",
    "BatchInputs",
    "CheckpointSaved",
    "DecodingSettings",
    "Demonstration",
    "DenoisingStep",
    "Edits",
    "EosRule",
    "Estimate",
    "LossInputs",
    "LossOutput",
    "Message",
    "Metric",
    "ModelFacts",
    "Pair",
    "PairRows",
    "Progress",
    "Prompt",
    "Rollout",
    "Rows",
    "RunFinished",
    "RunStarted",
    "Schedule",
    "Scores",
    "SelectionRule",
    "Snapshots",
    "StepFinished",
    "Trace",
    "TreeShape",
    "ValueInputs",
    "Verdict",
    "VerdictStatus",
    "Views",
    "Watch",
]
