"""Losses of a net's own beside torch: values and gradients, by reduction, weight and axis."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.nn import functional as F

from policysearch import InputError
from policysearch.emulator.compile import compile_graph
from policysearch.graph import FloatArray
from policysearch.optimizers.optimizer import Optimizer
from policysearch.train.feeding import feed_constants, feed_inputs, feed_scalars
from policysearch.train.step import trace_step
from tests.imported_steps import imported, tensors

pytestmark = pytest.mark.torch

BATCH, CLASSES, PLACES = 6, 5, 4
WEIGHT = torch.tensor([0.5, 1.0, 2.0, 0.7, 1.3])
Loss = Callable[[Any, Any, Any], Any]
"""Of logits [batch, classes, places], class numbers [batch, places] and shares like the logits."""


def weights(logits: Any) -> Any:
    """Return the weights of the classes, in the logits' own format."""
    return WEIGHT.to(logits.dtype)


LOSSES: dict[str, Loss] = {
    "cross entropy of planes": lambda h, c, p: F.cross_entropy(h, c),
    "weighted": lambda h, c, p: F.cross_entropy(h, c, weights(h)),
    "weighted sum": lambda h, c, p: F.cross_entropy(h, c, weights(h), reduction="sum"),
    "weighted none": lambda h, c, p: (
        F.cross_entropy(h, c, weights(h), reduction="none") ** 2
    ).mean(),
    "ignored": lambda h, c, p: F.cross_entropy(h, c, ignore_index=2),
    "ignored and weighted": lambda h, c, p: F.cross_entropy(h, c, weights(h), ignore_index=2),
    "smoothed": lambda h, c, p: F.cross_entropy(h, c, label_smoothing=0.2),
    "smoothed and weighted": lambda h, c, p: F.cross_entropy(h, c, weights(h), label_smoothing=0.2),
    "smoothed sum": lambda h, c, p: F.cross_entropy(h, c, reduction="sum", label_smoothing=0.2),
    "of rows": lambda h, c, p: F.cross_entropy(h[:, :, 0], c[:, 0], weights(h)),
    "of shares": lambda h, c, p: F.cross_entropy(h, p),
    "of shares, weighted": lambda h, c, p: F.cross_entropy(h, p, weights(h), label_smoothing=0.1),
    "of shares, sum": lambda h, c, p: F.cross_entropy(h, p, reduction="sum"),
    "nll_loss": lambda h, c, p: F.nll_loss(h, c, weights(h)),
    "nll_loss of rows": lambda h, c, p: F.nll_loss(h[:, :, 1], c[:, 1], reduction="sum"),
    "mse_loss": lambda h, c, p: F.mse_loss(h, p, reduction="sum"),
    "mse_loss of both": lambda h, c, p: F.mse_loss(h[:, 0], h[:, 1]),
    "mse_loss of each": lambda h, c, p: (F.mse_loss(h, p, reduction="none") * p).sum(),
    "l1_loss": lambda h, c, p: F.l1_loss(h, p),
    "l1_loss of both": lambda h, c, p: F.l1_loss(h[:, 0], h[:, 1], reduction="sum"),
    "smooth_l1_loss": lambda h, c, p: F.smooth_l1_loss(h, p, beta=0.4),
    "smooth_l1_loss without a bend": lambda h, c, p: F.smooth_l1_loss(h, p, beta=0.0),
    "huber_loss": lambda h, c, p: F.huber_loss(h, p, delta=0.4),
    "huber_loss of both": lambda h, c, p: F.huber_loss(h[:, 0], h[:, 1]),
    "binary_cross_entropy": lambda h, c, p: F.binary_cross_entropy(h.sigmoid(), p),
    "binary_cross_entropy, weighted": lambda h, c, p: F.binary_cross_entropy(
        h.sigmoid(), p, p + 0.5, reduction="sum"
    ),
    "with logits": lambda h, c, p: F.binary_cross_entropy_with_logits(h, p),
    "with logits and weights": lambda h, c, p: F.binary_cross_entropy_with_logits(
        h, p, p + 0.5, pos_weight=weights(h)[:, None]
    ),
    "kl_div": lambda h, c, p: F.kl_div(0.1 * h, p, reduction="batchmean"),
    "kl_div of logarithms": lambda h, c, p: F.kl_div(0.1 * h, p, reduction="sum", log_target=True),
    "soft_margin_loss": lambda h, c, p: F.soft_margin_loss(h, 2.0 * p - 1.0),
}


class Net(nn.Module):
    """Returns a loss of its own, of logits [batch, classes, places]."""

    def __init__(self, loss: Loss) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.loss, self.fc = loss, nn.Linear(8, CLASSES * PLACES)

    def forward(self, x: Any, classes: Any, shares: Any) -> Any:
        logits = 2.0 * self.fc(x).reshape(len(x), CLASSES, PLACES)
        return self.loss(logits, classes, shares), logits


def batch() -> tuple[Any, ...]:
    rng = np.random.default_rng(0)
    shares = rng.dirichlet(np.ones(CLASSES), (BATCH, PLACES)).astype(np.float32)
    classes = rng.integers(0, CLASSES, (BATCH, PLACES))
    return rng.standard_normal((BATCH, 8)).astype(np.float32), classes, shares.swapaxes(1, 2).copy()


def emulated(module: Net, inputs: tuple[Any, ...]) -> tuple[float, dict[str, FloatArray]]:
    model = imported(module, inputs, loss="own")
    step = compile_graph(trace_step(model, "", Optimizer("sgd"), BATCH))
    for name, value in model.init(np.random.default_rng(0)).items():
        step.arrays[name][...] = value
    feed_constants(step, model)
    feed_inputs(step, model, inputs, inputs[0])
    feed_scalars(step, 1.0)
    step.forward_backward()
    names = [name for name, _ in step.graph.outputs if name.startswith("grad:")]
    grads = {name.removeprefix("grad:"): step.value(name).copy() for name in names}
    return float(step.value("loss")), grads


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_and_its_gradients_are_torchs(name: str) -> None:
    torch.set_num_threads(1)
    module, inputs = Net(LOSSES[name]), batch()
    loss, grads = emulated(module, inputs)
    exact = copy.deepcopy(module).double()
    floats = [x.double() if x.is_floating_point() else x for x in tensors(inputs)]
    expected, _ = exact(*floats)
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=2e-6, abs=1e-7)
    for key, parameter in exact.named_parameters():
        largest = float(parameter.grad.abs().max())
        assert largest > 1e-4, key
        assert np.abs(grads[key] - parameter.grad.numpy()).max() <= 3e-6 * largest, key


def test_trained_targets_are_refused_where_torch_has_no_gradient_for_them() -> None:
    module = Net(lambda h, c, p: F.binary_cross_entropy(p, h.sigmoid()))
    with pytest.raises(InputError, match="targets that depend on parameters; detach them"):
        imported(module, batch(), loss="own")
