"""Eight nets of torch, imported: names, values, gradients and trainings beside the module."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

from policysearch.rounding.rounder import fast_ways

pytest.importorskip("torch")

import torch

from tests import imported_steps, nets_of_torch
from tests.imported_trainings import Training, trained_as_torch

pytestmark = pytest.mark.torch
NETS = nets_of_torch.NETS


@pytest.fixture(autouse=True)
def repeatable_torch() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


def module_and_inputs(name: str, batch: int = imported_steps.BATCH) -> tuple[Any, Any]:
    make, inputs = NETS[name]
    return imported_steps.shaken(make()), inputs(np.random.default_rng(1), batch)


@pytest.mark.parametrize("name", NETS)
def test_a_net_computes_what_its_module_does(name: str) -> None:
    module, inputs = module_and_inputs(name)
    model = imported_steps.assert_as_torch(module, inputs)
    weighted = {n.rpartition(".")[0] for n, p in module.named_parameters() if p.ndim > 1}
    assert weighted <= set(model.layer_names)


@pytest.mark.parametrize("name", NETS)
def test_a_batch_of_another_size_and_one_of_one_are_evaluated(name: str) -> None:
    module, inputs = module_and_inputs(name)
    model = imported_steps.imported(module, inputs)
    for batch in (1, 7):
        given = NETS[name][1](np.random.default_rng(batch), batch)
        with torch.no_grad():
            expected = module.eval()(*imported_steps.tensors(given)).numpy()
        got = imported_steps.evaluated(model, given)
        imported_steps.assert_close(got, expected, 1e-5, f"batch {batch}")


def test_a_tied_head_is_one_parameter_of_two_layers() -> None:
    module, inputs = module_and_inputs("nanogpt")
    specs = {spec.name: spec for spec in imported_steps.imported(module, inputs).parameters()}
    assert specs["wte.weight"].owners == ("wte", "lm_head") and "lm_head.weight" not in specs


@pytest.mark.parametrize("name", ["mobilenet_v2", "unet", "llama", "lstm"])
def test_every_way_gives_the_same_bits(name: str) -> None:
    module, inputs = module_and_inputs(name)
    model = imported_steps.imported(module, inputs)
    with torch.no_grad():
        logits = module(*imported_steps.tensors(inputs))
    labels = imported_steps.labels_for(logits, np.random.default_rng(0))
    reference = imported_steps.emulated(model, inputs, labels, "off")
    for way in fast_ways():
        found = imported_steps.emulated(model, inputs, labels, way)
        np.testing.assert_array_equal(found.logits, reference.logits)
        assert found.grads.keys() == reference.grads.keys()
        for key, grad in reference.grads.items():
            np.testing.assert_array_equal(found.grads[key], grad, err_msg=key)


class Counting(torch.nn.Module):
    """One batch norm for two layers, whose statistics move twice; what no result needs is moved."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = torch.nn.Linear(8, 6), torch.nn.Linear(6, 6)
        self.norm, self.head = torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 5)
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: Any) -> Any:
        self.steps += 1
        return self.head(self.norm(self.two(torch.tanh(self.norm(self.one(x))))))


def test_the_statistics_of_a_norm_that_is_called_twice_move_twice() -> None:
    def inputs(rng: Any, batch: int) -> Any:
        return (rng.standard_normal((batch, 8)).astype(np.float32),)

    trained_as_torch(Training(Counting, inputs, "momentum", 1e-2))


def test_an_import_leaves_the_buffers_of_the_module_as_they_are() -> None:
    module = imported_steps.shaken(Counting())
    before = {name: value.clone() for name, value in module.named_buffers()}
    imported_steps.imported(module, (np.zeros((2, 8), np.float32),))
    for name, value in module.named_buffers():
        assert torch.equal(value, before[name]), name


# At higher rates a net of ReLUs is chaos: torch's own losses move by 1e-2 where its initial values
# move by 1e-7 (resnet18 with momentum: by 2e-1 at 1e-3, 3e-2 at 3e-4). Each of these moves the
# outputs of the net by more than ten times the tolerance.
ROWS = [
    ("resnet18", "momentum", 3e-5),
    ("mobilenet_v2", "momentum", 1e-3),
    ("mobilenet_v2", "adamw", 1e-4),
    ("unet", "momentum", 3e-4),
    *((name, "momentum", 1e-2) for name in ("vit", "nanogpt", "bert", "llama", "lstm")),
    *((name, "adamw", 1e-3) for name in ("nanogpt", "llama", "lstm")),
]


@pytest.mark.parametrize(("name", "optimizer", "rate"), ROWS)
def test_fifty_steps_are_torchs(name: str, optimizer: Any, rate: float) -> None:
    trained_as_torch(Training(*NETS[name], optimizer, rate))


@pytest.mark.parametrize(("name", "optimizer", "rate"), ROWS[:3])
def test_statistics_move_in_skipped_steps_as_torchs(name: str, optimizer: Any, rate: float) -> None:
    trained_as_torch(Training(*NETS[name], optimizer, rate, skipped=(7, 20)))


class Normed(torch.nn.Module):
    """A layer whose weights torch's first `weight_norm` computes, and a cast behind it."""

    def __init__(self) -> None:
        super().__init__()
        with pytest.warns(FutureWarning, match="weight_norm"):
            self.layer = torch.nn.utils.weight_norm(torch.nn.Linear(6, 4))
        self.out = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.layer(x).to(x.dtype).tanh())


def test_a_module_that_ran_before_and_holds_what_it_computed_goes_in() -> None:
    module, inputs = imported_steps.shaken(Normed()), np.ones((4, 6), np.float32)
    module(*imported_steps.tensors((inputs,)))
    assert not module.layer.weight.is_leaf  # torch copies no such tensor
    imported_steps.assert_as_torch(module, (inputs,))


class Frozen(OrderedDict[str, int]):
    """As the configuration of diffusers' nets: what is in it stays."""

    def update(self, *_: Any, **__: Any) -> None:
        raise AssertionError("a frozen dict")

    clear = update


class Kept(torch.nn.Module):
    """Keeps its configuration, and a list of what its last forward pass computed."""

    def __init__(self) -> None:
        super().__init__()
        self._configuration = Frozen(width=4)
        self.heads = [torch.zeros(1)]
        self.layer, self.out = torch.nn.Linear(6, 4), torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.heads[0] = self.layer(x).to(x.dtype).tanh()
        return self.out(self.heads[0])


def test_a_module_with_a_frozen_configuration_and_a_list_of_results_goes_in() -> None:
    module, inputs = imported_steps.shaken(Kept()), np.ones((4, 6), np.float32)
    module(*imported_steps.tensors((inputs,)))
    assert not module.heads[0].is_leaf
    imported_steps.assert_as_torch(module, (inputs,))
    assert module._configuration == Frozen(width=4)
