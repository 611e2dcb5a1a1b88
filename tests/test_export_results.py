"""What a module under an exported policy returns, and where else it can go: files, processes."""

from __future__ import annotations

import dataclasses
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn
from torch.nn import functional

from policysearch.export.torch import losses
from policysearch.importers.torch_export import from_torch
from policysearch.policy.policy import uniform_layer
from policysearch.policy.presets import preset
from tests.nets_of_torch import ViTBlock
from tests.test_export_modules import Net, X, by_hand, load, policy_of, same

pytestmark = pytest.mark.torch
load = load  # the fixture


@dataclasses.dataclass
class Output:
    logits: Tensor
    hidden: tuple[Tensor, ...]
    count: int = 1


class Returning(Net):
    def __init__(self, make: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.make = make

    def forward(self, x: Tensor) -> Any:
        hidden = self.fc1(x)
        return self.make(self.fc2(hidden), hidden)


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda y, h: (y, [h]), lambda made: (made[0], made[1][0])),
        (lambda y, h: {"y": y, "deep": {"h": h}}, lambda made: (made["y"], made["deep"]["h"])),
        (lambda y, h: Output(y, (h,)), lambda made: (made.logits, made.hidden[0])),
        (lambda y, h: torch.return_types.max((y, h)), lambda made: (made.values, made.indices)),
        (lambda y, h: {"y": y, "n": 3, "none": None, "h": h}, lambda made: (made["y"], made["h"])),
    ],
    ids=["tuple", "dict", "dataclass", "named", "others"],
)
def test_results_inside_containers_are_float32(load: Any, make: Any, parts: Any) -> None:
    made = load().apply_policy(Returning(make))(X)
    assert isinstance(made, type(make(X, X)))
    assert [part.dtype for part in parts(made)] == [torch.float32] * 2


def test_a_policy_goes_through_pickle_and_files(load: Any) -> None:
    exported = load()
    module = exported.apply_policy(Net())
    expected = module(X)
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    for other in (pickle.loads(pickle.dumps(module)), torch.load(file, weights_only=False)):
        same(other(X), expected)
        with torch.no_grad():
            other.fc2.bias += 1.0
        assert not torch.equal(other(X), expected)
        assert "forward" not in exported.remove_policy(other).fc1.__dict__
    same(module(X), expected)


def _in_another_process(module: Any, queue: Any) -> None:
    queue.put(module(X).detach().numpy())


def test_a_policy_reaches_a_spawned_process(load: Any) -> None:
    module = load().apply_policy(Net())
    context = torch.multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_in_another_process, args=(module, queue))
    process.start()
    got = queue.get(timeout=120)
    process.join()
    np.testing.assert_array_equal(got, module(X).detach().numpy())


def test_autocast_around_it_changes_nothing(load: Any) -> None:
    module = load(policy_of("float32", "float16")).apply_policy(Net())
    expected = module(X)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        same(module(X), expected)


def test_scores_of_fused_attention_are_said_to_be_wider() -> None:
    model = from_torch(ViTBlock(8, 2), torch.zeros(2, 3, 8), name="block")
    low = preset("torch.autocast.bfloat16", model.layer_names)
    line = "layer : scaled_dot_product_attention keeps its scores in float32 inside; "
    assert any(loss.startswith(line) for loss in losses(low, model))
    assert losses(preset("float32", model.layer_names), model) == ()


def test_calls_after_an_error_are_as_before(load: Any) -> None:
    module = load().apply_policy(Net())
    with pytest.raises(RuntimeError):
        module(torch.zeros(5, 3))
    assert (X @ X.t()).dtype == torch.float32
    same(module(X), by_hand(module))


def test_ops_in_place_change_what_they_are_called_on(load: Any) -> None:
    class InPlace(Net):
        def forward(self, x: Tensor) -> Any:
            hidden = self.fc1(x)
            kept = hidden * 1
            kept.exp_()
            hidden += 1
            return self.fc2(hidden), kept

    module = load().apply_policy(InPlace())
    hidden = functional.linear(X.half(), module.fc1.weight.half(), module.fc1.bias.half())
    got, kept = module(X)
    low = (module.fc2.weight.bfloat16(), module.fc2.bias.bfloat16())
    same(got, functional.linear((hidden + 1).bfloat16(), *low).float())
    same(kept, hidden.float().exp().half().float())


def test_devices_of_a_context_are_left_alone(load: Any) -> None:
    class Making(Net):
        def forward(self, x: Tensor) -> Any:
            return super().forward(x), torch.zeros(2)

    module = load().apply_policy(Making())
    with torch.device("meta"):
        assert module(X)[1].device.type == "meta"


def test_any_name_of_a_submodule_will_do(load: Any) -> None:
    """Quotes, other alphabets; dots are those of nested ones."""
    first, second = "fc\"1'\\n$x", "\u5c42"

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = nn.ModuleDict({first: nn.Linear(8, 8)})
            self.add_module(second, nn.Linear(8, 4))

        def forward(self, x: Tensor) -> Any:
            return getattr(self, second)(torch.relu(self.part[first](x)))

    model = from_torch(Odd, X, name="odd")
    layers = {f"part.{first}": uniform_layer("float16"), second: uniform_layer("bfloat16")}
    policy = preset("torch.autocast.bfloat16", model.layer_names).with_layers(layers)
    module = load(policy, model).apply_policy(Odd())
    seen: list[Any] = []
    for part in (module.part[first], getattr(module, second)):
        part.register_forward_hook(lambda _, __, y: seen.append(y.dtype))
    module(X)
    assert seen == [torch.float16, torch.bfloat16]


def test_a_table_unknown_to_the_policy_is_named_or_stays_float32(load: Any) -> None:
    class Looking(Net):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(8, 8)

        def forward(self, x: Tensor) -> Any:
            return super().forward(x), self.table(torch.arange(8))

    exported, module = load(), Looking()
    with pytest.raises(ValueError, match=r"^module: 'table' with parameters, unknown to the"):
        exported.apply_policy(module)
    got, rows = exported.apply_policy(module, strict=False)(X)
    same(got, by_hand(module))
    same(rows, module.table.weight)
