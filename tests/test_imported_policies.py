"""What a policy moves in an imported net, and what it does not: masks, the user's own casts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import itertools
from dataclasses import replace

import torch
from torch import nn
from torch.nn import functional

from policysearch.emulator.compile import compile_graph
from policysearch.graph import Graph, Node
from policysearch.importers.program import Ref
from policysearch.nn.model import DROPPED, Model
from policysearch.policy.presets import preset
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.rounding.rounder import fast_ways
from policysearch.train.feeding import feed_constants
from policysearch.train.step import trace_forward
from policysearch.train.tasks import Task
from policysearch.train.trainer import Trainer
from tests.imported_steps import LOSS, evaluated, imported
from tests.nets_of_torch import LlamaBlock, tokens

pytestmark = pytest.mark.torch

SHARE, BATCH = 0.3, 16
PRESETS = ("float32", "bfloat16", "apex.O3", "mindspore.O2", "te.current")


class Dropping(nn.Module):
    """Drops values and whole rows of values, in place and as a function."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(20, 64), nn.Linear(64, 64)
        self.drop1, self.drop2 = nn.Dropout(SHARE), nn.Dropout(0.5, inplace=True)
        self.head = nn.Linear(64, 4)

    def forward(self, x: torch.Tensor) -> Any:
        x = self.drop1(torch.relu(self.fc1(x)))
        return self.head(self.drop2(torch.tanh(self.fc2(x))))


def trainer_of(model: Model, name: str, seed: int = 0, fast: Any = None) -> Trainer:
    task = Task(model=model, loss=LOSS, batch_size=BATCH, steps=4, tail_steps=2)
    trainer = Trainer(model, task, preset(name, model.layer_names), seed, fast)
    trainer.load(model.init(np.random.default_rng(0)))
    return trainer


def masks_of(trainer: Trainer) -> list[list[Any]]:
    """Take four steps; return the masks of each."""
    found = []
    for step in range(4):
        rng = np.random.default_rng(step)
        inputs = rng.standard_normal((BATCH, 20)).astype(np.float32)
        trainer.step((inputs,), rng.integers(0, 4, BATCH))
        ran = trainer._compiled[step == 0, True]
        fed = [n for n in ran.graph.nodes if DROPPED in n.attributes and n.op.kind == "source"]
        found.append([ran.arrays[node.name].copy() for node in fed])
    return found


@pytest.fixture(scope="module")
def dropping() -> Model:
    torch.manual_seed(0)
    return imported(Dropping(), (np.zeros((2, 20), np.float32),))


def test_masks_are_the_same_whatever_the_policy_and_the_emulator(dropping: Model) -> None:
    expected = masks_of(trainer_of(dropping, "float32"))
    assert [len(masks) for masks in expected] == [2, 2, 2, 2]
    others = [trainer_of(dropping, name) for name in PRESETS[1:]]
    others += [trainer_of(dropping, "bfloat16", fast=way) for way in fast_ways()]
    for trainer in others:
        np.testing.assert_array_equal(masks_of(trainer), expected)
    assert not np.array_equal(masks_of(trainer_of(dropping, "float32", seed=1)), expected)


def test_masks_are_new_in_every_step_and_drop_their_share(dropping: Model) -> None:
    steps = masks_of(trainer_of(dropping, "float32"))
    for place, share in enumerate((SHARE, 0.5)):
        drawn = [masks[place] for masks in steps]
        assert all(not np.array_equal(a, b) for a, b in itertools.pairwise(drawn))
        values = np.unique(drawn)
        np.testing.assert_allclose(values, [0.0, 1.0 / (1.0 - share)], rtol=1e-6)
        count = np.size(drawn)
        deviation = (share * (1.0 - share) / count) ** 0.5
        assert abs(np.mean(np.equal(drawn, 0.0)) - share) < 4.0 * deviation
    assert not np.array_equal(steps[0][0], steps[0][1])


def test_nothing_is_dropped_in_evaluation() -> None:
    torch.manual_seed(0)
    module = Dropping()
    inputs = np.random.default_rng(0).standard_normal((5, 20)).astype(np.float32)
    model = imported(module, (inputs,))
    with torch.no_grad():
        expected = module.eval()(torch.from_numpy(inputs)).numpy()
    np.testing.assert_allclose(evaluated(model, (inputs,)), expected, rtol=1e-5, atol=1e-6)


def graph_of(model: Model, name: str) -> Graph:
    task = Task(model=model, loss=LOSS)
    return task.tracing(model, 2).step_graph(preset(name, model.layer_names))


def pinned(graph: Graph) -> list[Node]:
    return [n for n in graph.nodes if n.op.name == "pinned_cast" and n.role == "fprop"]


def test_no_policy_moves_the_float32_of_an_rms_norm_and_its_result_follows() -> None:
    torch.manual_seed(0)
    model = imported(LlamaBlock(), tokens(np.random.default_rng(0), 2))
    norms = ("input_norm", "post_norm", "norm")
    for name in PRESETS:
        graph = graph_of(model, name)
        casts = pinned(graph)
        assert [node.layer for node in casts] == list(norms)
        assert {node.format for node in casts} == {"float32"}
        inside = [n for n in graph.nodes if n.layer in norms and n.op.name == "rsqrt"]
        assert len(inside) == 3
        if name in ("float32", "te.current"):  # the others list the op itself as low precision
            assert {node.format for node in inside} == {"float32"}
    operands = {}
    for name in ("float32", "bfloat16", "apex.O3"):
        graph = graph_of(model, name)
        readers = [n for n in graph.nodes if n.layer == "gate_proj" and n.role == "fprop"]
        (product,) = [n for n in readers if n.op.kind == "gemm"]
        operands[name] = {graph.nodes[i].format for i in product.inputs}
    expected = {"float32": {"float32"}, "bfloat16": {"bfloat16"}, "apex.O3": {"float16"}}
    assert operands == expected


def test_the_cast_back_of_an_rms_norm_follows_its_input() -> None:
    """The weight multiplies in the format of what came in, as in the module cast to bfloat16."""
    torch.manual_seed(0)
    model = imported(LlamaBlock(), tokens(np.random.default_rng(0), 2))
    casts = [call for call in model.program.calls if call.op == "aten.to"]  # type: ignore[attr-defined]
    given = [argument for call in casts for argument in call.arguments[1:]]
    followed = [argument for argument in given if isinstance(argument, Ref)]
    assert given.count("float32") == 3 and len(followed) >= 3


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_an_rms_norm_squares_in_float32_under_autocast(name: str) -> None:
    """Squares of values from 256 on are more than float16 holds; torch's function is in float32."""
    torch.manual_seed(0)
    dtype = getattr(torch, name)
    net = nn.Sequential(nn.Linear(20, 32), nn.RMSNorm(32), nn.Linear(32, 16))
    with torch.no_grad():
        net[0].weight *= 1e3
        net[1].weight += 0.5 * torch.randn(32)
    x = np.random.default_rng(0).standard_normal((BATCH, 20)).astype(np.float32)
    model = imported(net, (x,))
    policy = preset(f"torch.autocast.{name}", model.layer_names)
    step = compile_graph(apply_policy(trace_forward(model, BATCH), policy))
    for key, value in {**model.init(np.random.default_rng(0)), model.inputs[0].name: x}.items():
        step.arrays[key][...] = value
    feed_constants(step, model)
    step.forward_backward()
    with torch.no_grad(), torch.autocast("cpu", dtype):
        hidden = net[0](torch.from_numpy(x))
        expected = net[2](functional.rms_norm(hidden.float(), (32,), net[1].weight)).float().numpy()
    assert hidden.abs().max() > 256 and np.abs(expected).max() > 0
    assert (step.value("logits") == expected).mean() > 0.97


class Filled(nn.Module):
    """A recurrent step whose first state is zeros or ones like a value that a policy has low."""

    def __init__(self, fill: Any) -> None:
        super().__init__()
        self.fc, self.fill = nn.Linear(4, 4), fill

    def forward(self, x: torch.Tensor) -> Any:
        y = self.fc(x)
        return torch.sigmoid(y) * y + torch.tanh(y) * self.fill(y)


@pytest.mark.parametrize("fill", [torch.zeros_like, torch.ones_like])
def test_what_is_filled_like_a_value_has_its_format_as_under_autocast(fill: Any) -> None:
    torch.manual_seed(0)
    module, x = Filled(fill), torch.linspace(-2.0, 2.0, 20).reshape(5, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = module(x)
    assert expected.dtype == torch.bfloat16
    model = imported(module, (x.numpy(),))
    policy = preset("torch.autocast.bfloat16", model.layer_names)
    graph = apply_policy(trace_forward(model, 5), policy)
    sums = [node for node in graph.nodes if node.op.name == "add"]
    assert [node.format for node in sums] == ["bfloat16"]


class Turned(nn.Module):
    """A linear over tokens [batch, width, time] that are turned, side by side in memory or not."""

    def __init__(self, copied: bool) -> None:
        super().__init__()
        self.fc, self.copied = nn.Linear(12, 40), copied

    def forward(self, x: torch.Tensor) -> Any:
        turned = x.transpose(1, 2)
        return self.fc(turned.contiguous() if self.copied else turned)


@pytest.mark.parametrize("copied", [False, True])
def test_a_bias_is_added_before_or_after_the_rounding_as_in_torch(copied: bool) -> None:
    """One bit in three differs between the two."""
    net, rng = Turned(copied), np.random.default_rng(0)
    x = rng.standard_normal((BATCH, 12, 10)).astype(np.float32)
    model = imported(net, (x,))
    graph = apply_policy(trace_forward(model, BATCH), preset("bfloat16", model.layer_names))
    step = compile_graph(graph)
    for name, value in model.init(rng).items():
        step.arrays[name][...] = value
    step.arrays[model.inputs[0].name][...] = x
    step.forward_backward()
    with torch.no_grad():
        expected = net.bfloat16()(torch.from_numpy(x).bfloat16()).float().numpy()
    assert np.mean(step.value("logits").reshape(expected.shape) != expected) < 0.01


class Made(nn.Module):
    """A linear over tokens by a bias that is a column: of a parameter, or of what is computed."""

    def __init__(self, computed: bool) -> None:
        super().__init__()
        self.fc, self.computed = nn.Linear(12, 12), computed
        self.columns = nn.Parameter(torch.randn(40, 12))

    def forward(self, x: torch.Tensor) -> Any:
        columns = self.fc(self.columns) if self.computed else self.columns
        return nn.functional.linear(x, self.columns, columns[:, 0])


def unlike_torch(net: nn.Module, x: Any, rng: np.random.Generator) -> float:
    """Return the share of the net's values under bfloat16 autocast that torch's are not."""
    model = imported(net, (x,))
    policy = preset("torch.autocast.bfloat16", model.layer_names)
    step = compile_graph(apply_policy(trace_forward(model, BATCH), policy))
    for name, value in model.init(rng).items():
        step.arrays[name][...] = value
    step.arrays[model.inputs[0].name][...] = x
    step.forward_backward()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        expected = net(torch.from_numpy(x)).float().numpy()
    return float(np.mean(step.value("logits").reshape(expected.shape) != expected))


@pytest.mark.parametrize("computed", [False, True])
def test_a_bias_whose_values_do_not_lie_side_by_side_is_added_apart(computed: bool) -> None:
    """Unless a cast copies it."""
    net, rng = Made(computed), np.random.default_rng(0)
    x = rng.standard_normal((BATCH, 10, 12)).astype(np.float32)
    assert unlike_torch(net, x, rng) < 0.01


class Parts(nn.Module):
    """Linears over parts of tensors: of an input, which a cast copies, or of a product."""

    def __init__(self, of_product: bool) -> None:
        super().__init__()
        self.first = nn.Linear(24, 24) if of_product else nn.Identity()
        self.fc = nn.Linear(12, 40)

    def forward(self, x: torch.Tensor) -> Any:
        return self.fc(self.first(x)[..., :12])


@pytest.mark.parametrize("of_product", [False, True])
def test_a_cast_copies_a_part_so_that_its_bias_is_added_at_once(of_product: bool) -> None:
    net, rng = Parts(of_product), np.random.default_rng(0)
    x = rng.standard_normal((BATCH, 10, 24)).astype(np.float32)
    assert unlike_torch(net, x, rng) < 0.01


class Hidden(nn.Module):
    """Shares of scores of which a whole row is hidden by the smallest number of their format."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> Any:
        scores = self.fc(x)
        return scores.masked_fill(x[:, :1] < 9.0, torch.finfo(scores.dtype).min).softmax(-1)


def test_the_smallest_number_of_a_format_stays_a_number_in_bfloat16() -> None:
    net, rng = Hidden(), np.random.default_rng(0)
    x = rng.standard_normal((BATCH, 6)).astype(np.float32)
    model = imported(net, (x,))
    policy = preset("torch.autocast.bfloat16", model.layer_names)
    step = compile_graph(apply_policy(trace_forward(model, BATCH), policy))
    for name, value in model.init(rng).items():
        step.arrays[name][...] = value
    step.arrays[model.inputs[0].name][...] = x
    step.forward_backward()
    np.testing.assert_allclose(step.value("logits"), 1.0 / 6.0, rtol=1e-2)


@pytest.mark.parametrize("inner", ["float32", "format"])
def test_what_is_inside_an_rms_norm_is_rounded_where_the_policy_says_so(inner: Any) -> None:
    """Against its formula in numpy's float16; with float32 inside, against torch's function."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((BATCH, 12)).astype(np.float16)
    net = nn.RMSNorm(12, 1e-3, elementwise_affine=False)
    model = imported(nn.Sequential(nn.Identity(), net), (x.astype(np.float32),))
    policy = replace(preset("apex.O3", model.layer_names), norm_inner=inner)
    step = compile_graph(apply_policy(trace_forward(model, BATCH), policy))
    feed_constants(step, model)
    step.arrays[model.inputs[0].name][...] = x
    step.forward_backward()
    if inner == "format":
        mean = (x * x).astype(np.float32).mean(1, keepdims=True).astype(np.float16)
        root = (mean + np.float16(1e-3)).astype(np.float32)
        expected = x * (1 / np.sqrt(root)).astype(np.float16)
    else:
        expected = net(torch.from_numpy(x)).numpy()
    assert (step.value("logits") == expected).mean() > 0.99


@pytest.mark.parametrize("shape", [(BATCH, 6, 5), (BATCH, 6, 4, 4)])
def test_a_group_norm_rounds_once_as_torchs(shape: tuple[int, ...]) -> None:
    net, rng = nn.GroupNorm(3, 6), np.random.default_rng(0)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter += torch.from_numpy(rng.standard_normal(6).astype(np.float32))
    x = rng.standard_normal(shape).astype(np.float16).astype(np.float32)
    model = imported(nn.Sequential(nn.Identity(), net), (x,))
    policy = preset("apex.O3", model.layer_names)
    step = compile_graph(apply_policy(trace_forward(model, BATCH), policy))
    for name, value in {**model.init(rng), model.inputs[0].name: x}.items():
        step.arrays[name][...] = value.astype(np.float16)
    step.forward_backward()
    expected = net.half()(torch.from_numpy(x).half()).detach().numpy()
    assert (step.value("logits").reshape(shape) == expected).mean() > 0.99
