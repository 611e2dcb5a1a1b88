"""Row numbers, classes and masks are read as they are fed, whatever the policy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from policysearch.emulator.compile import Step, compile_graph
from policysearch.nn.attention import Embedding
from policysearch.nn.chain import Chain
from policysearch.nn.layers import Linear
from policysearch.nn.model import Model, emit_data
from policysearch.ops.builder import Builder
from policysearch.ops.source import INVERSE_SCALE, LOSS_SCALE, STEP_NUMBER, WHOLE
from policysearch.policy.presets import preset
from policysearch.train.feeding import feed_constants, feed_inputs
from policysearch.train.tasks import Task

PRESETS = ("float32", "bfloat16", "apex.O3", "mindspore.O3", "mindspore.O2.graph", "te.current")
ROWS, BATCH = 5000, 4
NUMBERS = np.array([[2049, 257, 4097], [3001, 515, 4999], [1, 2051, 261], [4095, 1027, 263]])
"""None is a value of float8, few are of float16, and none of bfloat16."""


def test_what_is_fed_is_whole_where_that_is_said_alone() -> None:
    b = Builder()
    nodes = [emit_data(b, "x", (3,)), emit_data(b, "i", (3,), whole=True)]
    graph = b.graph({"x": nodes[0], "i": nodes[1]})
    assert [graph.nodes[i].attributes.get(WHOLE, False) for i in nodes] == [False, True]


def step_of(model: Model, name: str, inputs: tuple[Any, ...], labels: Any) -> Step:
    """Return a step under a preset, forward and backward done."""
    loss = "" if model.loss else "token_cross_entropy"
    task = Task(model=model, loss=loss, steps=4, tail_steps=2, batch_size=BATCH)
    step = compile_graph(task.tracing(model, BATCH).step_graph(preset(name, model.layer_names)))
    initial = model.init(np.random.default_rng(0))
    scalars: dict[str, Any] = {LOSS_SCALE: 1, INVERSE_SCALE: 1, STEP_NUMBER: 1}
    for key, value in {**initial, **scalars}.items():
        if key in step.arrays:
            step.arrays[key][...] = value
    feed_constants(step, model)
    feed_inputs(step, model, inputs, labels)
    step.forward_backward()
    return step


def rows_of(step: Step, name: str) -> set[int]:
    """Return which rows of a table have a gradient."""
    grad = step.value(f"grad:{name}")
    return set(np.flatnonzero(np.abs(grad).reshape(len(grad), -1).max(1)))


@pytest.mark.parametrize("name", PRESETS)
def test_the_built_in_embedding_looks_the_rows_up_that_are_fed(name: str) -> None:
    layers = (Embedding("table", ROWS, 4), Linear("fc", 4, 3))
    model = Chain("net", layers, (3,), 3, whole=True, rows_per_example=3)
    labels = np.zeros((BATCH, 3), np.int64)
    step = step_of(model, name, (NUMBERS,), labels)
    assert rows_of(step, "table.weight") == set(NUMBERS.ravel())


@pytest.fixture(scope="module")
def nets() -> dict[str, Model]:
    torch = pytest.importorskip("torch")
    import policysearch as ps

    class Fields(torch.nn.Module):  # type: ignore[name-defined]
        """Each column has a table of its own, the second is looked up after a sum of numbers."""

        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = torch.nn.Embedding(ROWS, 4), torch.nn.Embedding(2 * ROWS, 4)
            self.place = torch.nn.Embedding(ROWS, 4)
            self.register_buffer("offset", torch.tensor([ROWS - 1, 3]))
            self.fc = torch.nn.Linear(4, 3)

        def forward(self, ids: Any) -> Any:
            one, two = self.one(ids[:, 0]), self.two(ids[:, 1:] + self.offset).sum(1)
            place = self.place(torch.arange(2049, 2052)).sum(0)
            return self.fc(torch.tanh(one + two + place))

    class Language(torch.nn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = torch.nn.Embedding(ROWS, 4), torch.nn.Linear(4, ROWS)

        def forward(self, ids: Any, labels: Any) -> Any:
            logits = self.head(torch.tanh(self.table(ids)))
            flat = logits.view(-1, ROWS)
            return torch.nn.functional.cross_entropy(flat, labels.reshape(-1)), logits

    torch.manual_seed(0)
    ids = torch.zeros(2, 3, dtype=torch.long)
    return {
        "fields": ps.from_torch(Fields(), ids),
        "language": ps.from_torch(Language(), (ids, ids), loss="own", labels="labels"),
    }


@pytest.mark.torch
@pytest.mark.parametrize("name", PRESETS)
def test_an_imported_net_looks_up_what_it_computes_of_whole_numbers(
    nets: dict[str, Model], name: str
) -> None:
    step = step_of(nets["fields"], name, (NUMBERS,), np.zeros(BATCH, np.int64))
    assert rows_of(step, "one.weight") == set(NUMBERS[:, 0])
    assert rows_of(step, "two.weight") == set((NUMBERS[:, 1:] + [ROWS - 1, 3]).ravel())
    assert rows_of(step, "place.weight") == {2049, 2050, 2051}


@pytest.mark.torch
@pytest.mark.parametrize("name", PRESETS)
def test_classes_of_a_loss_of_ones_own_are_those_that_are_fed(
    nets: dict[str, Model], name: str
) -> None:
    labels = NUMBERS[::-1].copy()
    step = step_of(nets["language"], name, (NUMBERS,), labels)
    pushed = set(np.flatnonzero(step.value("grad:head.bias") < 0))
    assert pushed == set(labels.ravel())


@pytest.mark.torch
def test_whole_numbers_and_single_ones_do_not_widen_what_they_multiply() -> None:
    """As in torch: a bfloat16 tensor times an int64 one, or one without axes, is bfloat16."""
    torch = pytest.importorskip("torch")
    import policysearch as ps

    class Pooled(torch.nn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.scale = torch.nn.Linear(4, 3), torch.nn.Parameter(torch.tensor(0.3))

        def forward(self, x: Any, kept: Any) -> Any:
            return (self.scale * (self.fc(x) * kept[:, :, None])).sum(1)

    model = ps.from_torch(Pooled(), (torch.zeros(2, 3, 4), torch.ones(2, 3, dtype=torch.long)))
    task = Task(model=model, loss="token_cross_entropy")
    policy = preset("torch.autocast.bfloat16", model.layer_names)
    graph = task.tracing(model, 2).step_graph(policy)
    products = [n for n in graph.nodes if n.op.name == "multiply" and n.role == "fprop"]
    kept = torch.ones(2, 3, dtype=torch.long)
    low = kept.to(torch.bfloat16)
    expected = [(low * kept).dtype, (torch.tensor(0.3) * low).dtype]
    assert [f"torch.{product.format}" for product in products] == [str(x) for x in expected]
