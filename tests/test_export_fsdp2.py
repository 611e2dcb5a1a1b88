"""The file for FSDP2 in torch itself: one process, wraps of three dtypes, a float32 result."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.nn import functional

from policysearch.export import fsdp2
from policysearch.nn.models import gpt, mlp
from policysearch.policy.policy import uniform_layer
from policysearch.policy.presets import preset

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
MODEL = mlp((8, 8, 8, 4))
DTYPES = {"fc1": "float32", "fc2": "float16", "fc3": "bfloat16"}


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[Any]:
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield torch.distributed.init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x)))))


def file_of(dtypes: dict[str, str]) -> dict[str, Any]:
    layers = {name: uniform_layer(dtype) for name, dtype in dtypes.items()}
    policy = preset("bfloat16", MODEL.layer_names).with_layers(layers)
    space: dict[str, Any] = {"__name__": "file"}
    exec(compile(fsdp2.export(policy, MODEL), "file.py", "exec"), space)
    return space


def by_hand(module: Any, x: Any) -> Any:
    for name, dtype in DTYPES.items():
        low, part = getattr(torch, dtype), getattr(module, name)
        x = functional.linear(x.to(low), part.weight.to(low), part.bias.to(low))
        x = x if name == "fc3" else torch.relu(x)
    return x.float()


def test_every_wrap_computes_in_its_own_dtype(mesh: Any) -> None:
    torch.manual_seed(0)
    module, x = Net(), torch.randn(16, 8) * (1 + 2.0**-12)
    expected = by_hand(module, x)
    expected.square().mean().backward()
    wanted = {name: p.grad.clone() for name, p in module.named_parameters()}
    module.zero_grad(set_to_none=True)
    sharded = file_of(DTYPES)["shard"](module, mesh)
    made = sharded(x)
    assert made.dtype == torch.float32 and torch.equal(made, expected)
    made.square().mean().backward()
    for name, parameter in sharded.named_parameters():
        grad = parameter.grad.full_tensor()
        assert grad.dtype == torch.float32 and torch.equal(grad, wanted[name].float()), name


def test_a_parameter_outside_and_a_missing_wrap_are_named(mesh: Any) -> None:
    shard, module = file_of(DTYPES)["shard"], Net()
    module.more = nn.Linear(4, 4)
    with pytest.raises(ValueError, match=r"\['more\.weight', 'more\.bias'\]; expected the wraps"):
        shard(module, mesh)
    with pytest.raises(ValueError, match=r"module: \['fc1', 'fc2'\]"):
        shard(nn.ModuleDict({"fc3": nn.Linear(8, 4)}), mesh)


def test_a_block_is_one_wrap_and_its_widest_layer_wins() -> None:
    model = gpt((8,), 10, 16, (32, 32), 2)
    policy = preset("bfloat16", model.layer_names)
    wide = policy.with_layers({"block1.norm1": uniform_layer("float32")})
    running = fsdp2.runs(wide, model)
    assert running.layer("block1.fc1").compute == "float32"
    assert running.layer("block2.fc1").compute == "bfloat16"
    lost = [line for line in fsdp2.losses(wide, model) if line.startswith("layer block1.fc1:")]
    assert lost and not [x for x in fsdp2.losses(wide, model) if x.startswith("layer block2")]
    assert {"block1", "block2", "norm", "head"} <= set(fsdp2.wraps_of(model))


def test_the_scale_is_torchs() -> None:
    text = fsdp2.export(preset("torch.autocast.float16", MODEL.layer_names), MODEL)
    space: dict[str, Any] = {"__name__": "file"}
    exec(compile(text, "file.py", "exec"), space)
    assert space["loss_scaler"]("cpu").get_scale() == 2.0**16
    assert file_of(DTYPES)["loss_scaler"]() is None
