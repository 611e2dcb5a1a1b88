"""A rule over more than 60 layers is the table it stands for: policy, price and training."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np

from policysearch.objective.objective import Objective
from policysearch.policy.policy import from_data, to_data
from policysearch.policy.presets import preset
from policysearch.rewrite.format_rules import FormatRule, LayerMatch
from policysearch.space.model_space import make_space
from policysearch.space.section import SpaceSection
from policysearch.train.tasks import Task
from policysearch.train.training import train

TASK = Task(
    model="transformer",
    widths=(8, *(16,) * 5),
    data="digits",
    optimizer="adamw",
    learning_rate=3e-3,
    batch_size=16,
    steps=3,
    tail_steps=2,
)
RULES = (
    FormatRule("all", formats=("float16",)),
    FormatRule("norms", LayerMatch(op=("layer_norm",)), formats=("float32",)),
    FormatRule("attention", LayerMatch(layer=r"block\d\.attention\.[qk]"), formats=("bfloat16",)),
)
HALF, BRAIN, WIDE = (
    {key: name for key in ("compute", "output", "grad", "wgrad")}
    for name in ("float16", "bfloat16", "float32")
)


def formats_of(layer: str) -> dict[str, str]:
    """Return what a table written by hand has for a layer."""
    last = layer.rpartition(".")[2]
    if last.startswith("norm"):
        return WIDE
    return BRAIN if last in ("q", "k") else HALF


def test_a_rule_over_60_layers_is_the_table_it_stands_for() -> None:
    dataset = TASK.load_dataset()
    model = TASK.build_model(dataset)
    names = model.layer_names
    assert len(names) > 60
    base = preset("float32", names)
    table = to_data(base) | {"layers": {name: formats_of(name) for name in names}}
    written = from_data(json.loads(json.dumps(table)))
    ruled = make_space(SpaceSection(("float32",), base="float32"), model, RULES).policy({})
    assert written != base and replace(ruled, name=written.name) == written
    assert ruled.digest == written.digest
    objective = Objective(TASK, "H100-SXM5", "torch.compile", TASK.batch_size)
    assert objective.price(ruled) == objective.price(written) != objective.price(base)
    losses = [train(TASK, policy, 0, dataset=dataset).losses for policy in (ruled, written, base)]
    np.testing.assert_array_equal(losses[0], losses[1])
    assert (losses[0] != losses[2]).any()
