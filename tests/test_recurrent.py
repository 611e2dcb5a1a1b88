"""Recurrent layers and cells beside torch: values, gradients, and trainings in three formats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from policysearch import InputError
from policysearch.optimizers.optimizer import Optimizer
from policysearch.policy.presets import preset
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.train.step import trace_step
from tests.imported_low_trainings import trained_low_as_torch
from tests.imported_steps import BATCH, assert_as_torch, imported
from tests.imported_trainings import Training

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN"),
]

TIME, WIDTH, HIDDEN, TOKENS = 5, 6, 4, 9
LAYERS: dict[str, Callable[[], Any]] = {
    "gru": lambda: nn.GRU(WIDTH, HIDDEN, batch_first=True),
    "gru both ways": lambda: nn.GRU(
        WIDTH, HIDDEN, num_layers=2, bidirectional=True, batch_first=True
    ),
    "gru without biases": lambda: nn.GRU(WIDTH, HIDDEN, bias=False, batch_first=True),
    "rnn_tanh": lambda: nn.RNN(WIDTH, HIDDEN, num_layers=2, batch_first=True),
    "rnn_relu": lambda: nn.RNN(WIDTH, HIDDEN, nonlinearity="relu", batch_first=True),
    "lstm with a projection": lambda: nn.LSTM(WIDTH, 7, proj_size=HIDDEN, batch_first=True),
    "lstm, projected both ways": lambda: nn.LSTM(
        WIDTH, 7, 2, proj_size=HIDDEN, bidirectional=True, batch_first=True, bias=False
    ),
}
CELLS: dict[str, Callable[[], Any]] = {
    "gru_cell": lambda: nn.GRUCell(WIDTH, HIDDEN),
    "lstm_cell": lambda: nn.LSTMCell(WIDTH, HIDDEN),
    "rnn_tanh_cell": lambda: nn.RNNCell(WIDTH, HIDDEN),
    "rnn_relu_cell": lambda: nn.RNNCell(WIDTH, HIDDEN, nonlinearity="relu", bias=False),
}


class Tagger(nn.Module):
    """Tags tokens, padding being 0, by a recurrent layer."""

    def __init__(self, make: Callable[[], Any]) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(TOKENS, WIDTH, padding_idx=0), make()
        ways = 2 if self.layer.bidirectional else 1
        self.head = nn.Linear(ways * HIDDEN, 3)

    def forward(self, ids: torch.Tensor) -> Any:
        steps, last = self.layer(self.table(ids))
        ends = last[0] if isinstance(last, tuple) else last
        present = (ids != 0).unsqueeze(-1)
        return self.head(steps.masked_fill(~present, 0.0)) + ends.sum((0, 2))[:, None, None]


class Loop(nn.Module):
    """A cell in a loop over the steps."""

    def __init__(self, make: Callable[[], Any]) -> None:
        super().__init__()
        self.table, self.cell, self.head = nn.Embedding(TOKENS, WIDTH), make(), nn.Linear(HIDDEN, 3)

    def forward(self, ids: torch.Tensor) -> Any:
        x, state = self.table(ids), None
        for time in range(x.shape[1]):
            state = self.cell(x[:, time], state)
        return self.head(state[0] if isinstance(state, tuple) else state)


NETS: dict[str, Callable[[], Any]] = {
    **{name: lambda make=make: Tagger(make) for name, make in LAYERS.items()},  # type: ignore[misc]
    **{name: lambda make=make: Loop(make) for name, make in CELLS.items()},  # type: ignore[misc]
}


def tokens(rng: np.random.Generator, batch: int) -> tuple[Any, ...]:
    return (rng.integers(0, TOKENS, (batch, TIME)),)


@pytest.fixture(autouse=True)
def repeatable_torch() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.mark.parametrize("name", NETS)
def test_a_recurrent_net_computes_what_its_module_does(name: str) -> None:
    model: Any = assert_as_torch(NETS[name](), tokens(np.random.default_rng(1), BATCH))
    calls = {call.op.removeprefix("aten.") for call in model.program.calls}
    assert name.partition(" ")[0].removesuffix(",") in calls


@pytest.mark.parametrize("format", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", ["gru both ways", "rnn_tanh", "lstm_cell"])
def test_fifty_steps_are_torchs(name: str, format: str) -> None:
    training = Training(NETS[name], tokens, "momentum", 3e-2)
    assert trained_low_as_torch(training, format) > 0.02


class Packed(nn.Module):
    """Reads sequences of several lengths, packed, sorted or not."""

    def __init__(self, make: Callable[[], Any], ordered: bool, *, counted: bool = False) -> None:
        super().__init__()
        self.table, self.layer, self.ordered = nn.Embedding(TOKENS, WIDTH), make(), ordered
        self.counted = counted
        self.head = nn.Linear((2 if self.layer.bidirectional else 1) * HIDDEN, 3)

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> Any:
        packed = pack_padded_sequence(
            self.table(ids), lengths.cpu(), batch_first=True, enforce_sorted=self.ordered
        )
        steps, last = self.layer(packed)
        if self.counted:
            return self.head(steps.data).mean() + ids.sum(1, keepdim=True)
        ends = last[0] if isinstance(last, tuple) else last
        padded, known = pad_packed_sequence(steps, True, padding_value=0.5, total_length=TIME + 2)
        return self.head(padded.relu() * (ends.sum((0, 2)) * known)[:, None, None])


@pytest.mark.parametrize("name", ["gru both ways", "rnn_relu", "lstm, projected both ways"])
@pytest.mark.parametrize("ordered", [True, False])
def test_packed_sequences_are_padded_ones_that_end(name: str, ordered: bool) -> None:
    lengths = np.array([TIME, 3, 2, 1]) if ordered else np.array([2, TIME, 1, 3])
    (ids,) = tokens(np.random.default_rng(2), len(lengths))
    assert_as_torch(Packed(LAYERS[name], ordered), (ids, lengths))


def test_what_is_packed_is_read_by_layers_alone() -> None:
    module = Packed(LAYERS["gru"], True, counted=True)
    (ids,) = tokens(np.random.default_rng(0), 2)
    with pytest.raises(InputError, match=r"must be Tensor, not Steps") as refusal:
        imported(module, (ids, np.full(2, TIME)))
    assert "\n" not in str(refusal.value)


def test_both_ways_read_one_cast_of_the_input() -> None:
    """So that their gradients are summed in its format, as those of one call of torch are."""
    ids = np.random.default_rng(1).integers(0, TOKENS, (BATCH, TIME))
    module = Packed(LAYERS["gru both ways"], True)
    model = imported(module, (ids, np.full(BATCH, TIME)))
    policy = preset("torch.autocast.bfloat16", model.layer_names)
    graph = apply_policy(trace_step(model, "token_cross_entropy", Optimizer("sgd"), BATCH), policy)
    (of_table,) = (n for n in graph.nodes if n.op.name == "embedding_grad")
    before = [of_table]
    while before[-1].op.name != "add":
        before.append(graph.nodes[before[-1].inputs[0]])
    assert before[-1].format == "bfloat16"


class Cut(nn.Module):
    """Packs sequences of the same lengths in every batch, none as long as its steps."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(WIDTH, HIDDEN, batch_first=True)

    def forward(self, x: torch.Tensor) -> Any:
        packed = pack_padded_sequence(x, torch.full((len(x),), TIME - 1), batch_first=True)
        return pad_packed_sequence(self.layer(packed)[0], batch_first=True)[0][:, -1]


def test_steps_that_no_packed_sequence_has_are_refused() -> None:
    x = np.zeros((BATCH, TIME, WIDTH), np.float32)
    with pytest.raises(
        InputError, match=rf"at most {TIME - 1} of {TIME} steps.*x\[:, :{TIME - 1}\]"
    ):
        imported(Cut(), (x,))
