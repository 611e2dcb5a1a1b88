"""The file for torchao: exactly the linears it names, by torchao itself, once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("torchao")

import torch
from torch import nn

from policysearch.export import torchao
from policysearch.nn.models import mlp
from policysearch.policy.policy import Policy, uniform_layer
from policysearch.policy.presets import preset
from policysearch.policy.scaling import Scaling
from tests.test_export_modules import load

pytestmark = [pytest.mark.torchao, pytest.mark.filterwarnings("ignore")]
load = load  # the fixture
MODEL = mlp((64, 32, 48, 10))


def policy_of(*low: str, recipe: Any = "current") -> Policy:
    base = preset("bfloat16", MODEL.layer_names)
    made = base.with_layers(dict.fromkeys(low, uniform_layer("float8_e4m3fn")))
    return replace(made, scaling=Scaling(recipe))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(64, 32), nn.Linear(32, 48), nn.Linear(48, 10)

    def forward(self, x: Any) -> Any:
        return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x)))))


def exported(policy: Policy) -> Any:
    space: dict[str, Any] = {"__name__": "file"}
    exec(compile(torchao.export(policy, MODEL), "file.py", "exec"), space)
    return space


@pytest.mark.parametrize("recipe", ["current", "rowwise"])
def test_the_named_linears_are_converted_and_no_others(recipe: str) -> None:
    file = exported(policy_of("fc2", recipe=recipe))
    module = file["convert"](Net(), emulate=True)
    assert [type(x).__name__ for x in module.children()] == ["Linear", "Float8Linear", "Linear"]
    granularity = str(module.fc2.config.cast_config_input.scaling_granularity)
    assert ("AXISWISE" in granularity) == (recipe == "rowwise")
    module(torch.randn(16, 64)).sum().backward()
    assert module.fc2.weight.grad.abs().max() > 0
    assert file["SKIPPED"] == ["fc1", "fc3"]
    with pytest.raises(ValueError, match="expected each a torch"):
        file["convert"](module)


def test_sizes_that_a_gpu_refuses_stay_wide_and_are_said() -> None:
    policy = policy_of("fc1", "fc3")
    assert torchao.runs(policy, MODEL).layer("fc3").compute == "bfloat16"
    assert any(line.startswith("layer fc3: runs with") for line in torchao.losses(policy, MODEL))
    with pytest.raises(ValueError, match="multiples of 16"):
        exported(policy_of("fc1"))["is_low"](nn.Linear(60, 10), "fc1")


def test_a_missing_linear_is_named(load: Callable[..., Any]) -> None:
    file = exported(policy_of("fc1"))
    with pytest.raises(ValueError, match=r"\['fc1'\]"):
        file["convert"](nn.Sequential(nn.Linear(64, 32)))
