"""What a net calls its arguments, parameters and buffers meets nothing of the trainer's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from policysearch import InputError
from policysearch.importers.tracer import FILLED
from policysearch.ops import source
from tests.imported_steps import assert_as_torch, imported

pytestmark = pytest.mark.torch

TRAINERS = (source.LOSS_SCALE, source.INVERSE_SCALE, source.LEARNING_RATE, source.STEP_NUMBER)
NAMES = [name.removeprefix(".") for name in (*TRAINERS, source.TARGETS, *FILLED.values())]
NAMES += ["logits", "loss", "finite", "labels", "weight"]


def net_of(name: str, *, argument: bool, parameter: bool) -> Any:
    """Return a net whose second argument, or a parameter, a buffer and a module, is called so."""
    second = name if argument else "other"
    own = f"self.{name} = torch.nn.Parameter(torch.ones(8))" if parameter else ""
    factor = f"self.{name}" if parameter else "1.0"
    space: dict[str, Any] = {"torch": torch}
    exec(
        f"""
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(8, 8), torch.nn.Linear(8, 5)
        self.norm = torch.nn.LayerNorm(8, elementwise_affine=False)
        self.drop = torch.nn.Dropout(0.0)
        {own}

    def forward(self, x, {second}):
        return self.b(self.norm(self.a(x)).tanh() * {factor} + 0.5 * {second})
""",
        space,
    )
    return space["Net"]()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("argument", "parameter"), [(True, False), (False, True), (True, True)])
def test_any_name_trains_as_torch_does(name: str, argument: bool, parameter: bool) -> None:
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    inputs = tuple(rng.standard_normal((2, 4, 8)).astype(np.float32))
    model = assert_as_torch(net_of(name, argument=argument, parameter=parameter), inputs)
    names = [item.name for item in model.inputs]
    assert len(names) == len(set(names)) == 2


class Masked(torch.nn.Module):
    """Has a buffer that is called as an argument is."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(8, 5)
        self.register_buffer("mask", torch.linspace(-1.0, 1.0, 8))

    def forward(self, x: Any, mask: Any) -> Any:
        return self.fc(x * self.mask + mask)


def test_a_buffer_and_an_argument_of_one_name_are_two_values() -> None:
    rng = np.random.default_rng(0)
    inputs = tuple(rng.standard_normal((2, 4, 8)).astype(np.float32))
    assert_as_torch(Masked(), inputs)


def test_labels_are_found_where_a_parameter_is_called_so() -> None:
    class Own(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.targets = torch.nn.Parameter(torch.ones(8))
            self.fc = torch.nn.Linear(8, 5)

        def forward(self, x: Any, targets: Any) -> Any:
            logits = self.fc(x * self.targets)
            return torch.nn.functional.cross_entropy(logits, targets), logits

    inputs = (np.ones((4, 8), np.float32), np.arange(4))
    model = imported(Own(), inputs, loss="own", labels="targets")
    assert model.labels == model.inputs[1].name != "targets"
    with pytest.raises(InputError, match="labels: 'target'; expected one of x, targets"):
        imported(Own(), inputs, loss="own", labels="target")


def test_torch_has_no_name_that_the_trainers_begin_with() -> None:
    module = torch.nn.Module()
    for register, value in (
        (module.register_parameter, torch.nn.Parameter(torch.ones(1))),
        (module.register_buffer, torch.ones(1)),
        (module.add_module, torch.nn.Module()),
    ):
        for name in ("", ".step"):
            with pytest.raises(KeyError):
                register(name, value)
    assert all(name.startswith(".") for name in TRAINERS)
