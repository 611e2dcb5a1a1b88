"""Policies and tasks as a command line names them."""

from __future__ import annotations

from pathlib import Path

from policysearch.nn.model import Model
from policysearch.nn.models import MODELS
from policysearch.policy.policy import Policy, with_accumulator
from policysearch.policy.policy_file import read_policy
from policysearch.policy.presets import preset
from policysearch.space.target import named_as_run
from policysearch.study.sections import CostSection
from policysearch.study.specification import StudySpec
from policysearch.train.tasks import Task
from policysearch.values import one_of

PRESET_PREFIX = "preset:"

WITHOUT_STUDY = CostSection("H100-SXM5", "torch.compile")
"""What is modeled where no study says it."""


def policy_from(source: str, model: Model) -> Policy:
    """Return the policy `preset:NAME` for `model`, or the one in the JSON file `source`."""
    if source.startswith(PRESET_PREFIX):
        return preset(source.removeprefix(PRESET_PREFIX), model.layer_names)
    return read_policy(Path(source))


def policy_for(source: str, study: StudySpec) -> Policy:
    """Return `policy_from` for a study: a preset with the accumulator its ladder has there."""
    model = study.task.build_model(study.task.load_dataset())
    policy = policy_from(source, model)
    if source.startswith(PRESET_PREFIX):
        policy = with_accumulator(policy, study.space.accumulators[0])
    return study.parallel.spread(named_as_run(policy, model, study.study.target))


def task_for(model: str) -> Task:
    """Return a small task with the model called `model`, to show policies on."""
    one_of("model", model, MODELS)
    if model == "mlp":
        return Task(model=model, data="digits", widths=(64, 64))
    if model == "gpt":
        return Task(model=model, activation="gelu", data="sums")
    return Task(model=model)
