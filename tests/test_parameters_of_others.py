"""Modules that hold parameters and compute nothing: others read these, or nobody does."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.nn import functional as F

from policysearch.export.torch import export
from policysearch.optimizers.optimizer import Optimizer
from policysearch.policy.policy import Policy
from policysearch.policy.presets import preset
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.train.step import trace_step
from tests.imported_steps import BATCH, LOSS, assert_as_torch, imported

pytestmark = pytest.mark.torch


class Attending(nn.Module):
    """`attend.out_proj` is a module whose weight `attend` multiplies by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head, self.unused = nn.Linear(8, 4), nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.attend(x, x, x, need_weights=False)[0].mean(1))


class Tied(nn.Module):
    """The first module that holds the weight computes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.held, self.fc = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
        self.fc.weight = self.held.weight

    def forward(self, x: torch.Tensor) -> Any:
        return self.fc(torch.tanh(F.linear(x[:, 0], self.held.weight)))


def batch() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((BATCH, 6, 8)).astype(np.float32)


def test_a_parameter_is_of_the_layer_that_reads_it() -> None:
    torch.manual_seed(0)
    model = imported(Attending(), (batch(),))
    owners = {spec.name: spec.owners for spec in model.parameters()}
    assert owners["attend.out_proj.weight"] == owners["attend.in_proj_weight"] == ("attend",)
    assert owners["unused.weight"] == ("unused",) and "unused" not in model.layer_names
    tied = imported(Tied(), (batch(),))
    assert [spec.owners for spec in tied.parameters()] == [("fc",)]


@pytest.mark.parametrize("net", [Attending, Tied])
def test_they_are_stored_as_a_policy_without_masters_says(net: Any) -> None:
    torch.manual_seed(0)
    module = net()
    model = assert_as_torch(module, (batch(),))
    policy = preset("apex.O3", model.layer_names)
    stored = stored_formats(model, policy)
    assert all(stored[name] == "float16" for name in stored if not name.startswith("unused"))
    file: dict[str, Any] = {"__name__": "exported"}
    exec(export(policy, model), file)
    exported = file["apply_policy"](copy.deepcopy(module), strict=net is Tied)
    assert {name: f"torch.{stored[name]}" for name in stored} == {
        name: str(parameter.dtype) for name, parameter in exported.named_parameters()
    }


def stored_formats(model: Any, policy: Policy) -> dict[str, str]:
    graph = apply_policy(trace_step(model, LOSS, Optimizer("momentum"), BATCH), policy)
    held = {node.name: node.format for node in graph.nodes if node.op.name == "parameter"}
    unread = {spec.name: "float32" for spec in model.parameters() if spec.name not in held}
    return held | unread
