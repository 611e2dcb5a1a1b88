"""Losses of a net's own beside torch: values and gradients, in float32 and of 16-bit logits."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from policysearch.emulator.compile import compile_graph
from policysearch.formats import format_named
from policysearch.graph import FloatArray
from policysearch.importers.rules import FAMILIES
from policysearch.nn.model import Model
from policysearch.optimizers.optimizer import Optimizer
from policysearch.policy.policy import Policy
from policysearch.policy.presets import preset
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.train.feeding import feed_constants, feed_inputs, feed_scalars
from policysearch.train.step import trace_step
from tests.imported_steps import imported, tensors

pytestmark = pytest.mark.torch

BATCH, CLASSES, PLACES = 6, 5, 8
WEIGHT = torch.tensor([0.5, 1.0, 2.0, 0.75, 1.25])
Loss = Callable[[Any, Any, Any], Any]
"""Of logits [batch, classes, places], class numbers [batch, places] and shares like the logits."""


def weights(logits: Any) -> Any:
    """Return the weights of the classes, in the logits' own format."""
    return WEIGHT.to(logits.dtype)


def signs(shares: Any) -> Any:
    """Return 1 or -1, by whether a share is large."""
    return 2.0 * (shares > 0.2).to(shares.dtype) - 1.0


def ctc(h: Any, c: Any, **options: Any) -> Any:
    """Of three labels an example, of which the last ones do not count, in 8 steps or fewer."""
    log_p = h.mT.log_softmax(-1).transpose(0, 1)
    steps, labels = 3 + c[:, 4], c[:, 5] % 4
    return F.ctc_loss(log_p, c[:, :3].clamp(1, 4), steps, labels, **options)


LOSSES: dict[str, Loss] = {
    "cross_entropy_loss": lambda h, c, p: F.cross_entropy(h, c),
    "nll_loss": lambda h, c, p: F.nll_loss(h, c, weights(h)),
    "nll_loss of rows": lambda h, c, p: F.nll_loss(h[:, :, 1], c[:, 1], reduction="sum"),
    "nll_loss of pictures": lambda h, c, p: F.nll_loss(
        h.reshape(len(h), CLASSES, 2, 4), c.reshape(len(h), 2, 4), ignore_index=1
    ),
    "mse_loss": lambda h, c, p: F.mse_loss(h, p, reduction="sum"),
    "mse_loss of both": lambda h, c, p: F.mse_loss(h[:, 0], h[:, 1]),
    "mse_loss of each": lambda h, c, p: (F.mse_loss(h, p, reduction="none") * p).sum(),
    "l1_loss": lambda h, c, p: F.l1_loss(h, p),
    "l1_loss of both": lambda h, c, p: F.l1_loss(h[:, 0], h[:, 1], reduction="sum"),
    "smooth_l1_loss": lambda h, c, p: F.smooth_l1_loss(h, p, beta=0.4),
    "smooth_l1_loss of both": lambda h, c, p: F.smooth_l1_loss(h[:, 0], h[:, 1]),
    "smooth_l1_loss without a bend": lambda h, c, p: F.smooth_l1_loss(h, p, beta=0.0),
    "huber_loss": lambda h, c, p: F.huber_loss(h, p, delta=0.4),
    "huber_loss of both": lambda h, c, p: F.huber_loss(h[:, 0], h[:, 1]),
    "binary_cross_entropy": lambda h, c, p: F.binary_cross_entropy(h.sigmoid(), p),
    "binary_cross_entropy, weighted": lambda h, c, p: F.binary_cross_entropy(
        h.sigmoid(), p, p + 0.5, reduction="sum"
    ),
    "binary_cross_entropy of both": lambda h, c, p: F.binary_cross_entropy(
        h[:, 0].sigmoid(), h[:, 1].sigmoid()
    ),
    "binary_cross_entropy_with_logits": lambda h, c, p: F.binary_cross_entropy_with_logits(h, p),
    "binary_cross_entropy_with_logits of both": lambda h, c, p: F.binary_cross_entropy_with_logits(
        h[:, 0], h[:, 1]
    ),
    "binary_cross_entropy_with_logits, weighted": lambda h, c, p: (
        F.binary_cross_entropy_with_logits(h, p, p + 0.5, pos_weight=weights(h)[:, None])
    ),
    "kl_div": lambda h, c, p: F.kl_div(0.1 * h, p, reduction="batchmean"),
    "kl_div of logarithms": lambda h, c, p: F.kl_div(0.1 * h, p, reduction="sum", log_target=True),
    "kl_div of both": lambda h, c, p: F.kl_div(h[:, 0], h[:, 1].sigmoid(), reduction="sum"),
    "kl_div of both logarithms": lambda h, c, p: F.kl_div(
        h[:, 0], h[:, 1], reduction="sum", log_target=True
    ),
    "soft_margin_loss": lambda h, c, p: F.soft_margin_loss(h, signs(p)),
    "poisson_nll_loss": lambda h, c, p: F.poisson_nll_loss(h, p),
    "poisson_nll_loss in full": lambda h, c, p: F.poisson_nll_loss(
        h.exp(), 4.0 * p, log_input=False, full=True, reduction="sum"
    ),
    "hinge_embedding_loss": lambda h, c, p: F.hinge_embedding_loss(h, signs(p), margin=0.5),
    "margin_ranking_loss": lambda h, c, p: F.margin_ranking_loss(
        h[:, 0], h[:, 1], signs(p)[:, 0], margin=0.25
    ),
    "cosine_embedding_loss": lambda h, c, p: F.cosine_embedding_loss(
        h[:, 0], h[:, 1], signs(p)[:, 0, 0], margin=0.25
    ),
    "cosine_similarity": lambda h, c, p: F.cosine_similarity(h, p).sum(),
    "cosine_similarity of rows": lambda h, c, p: F.cosine_similarity(h, h[:, :1], dim=2).mean(),
    "triplet_margin_loss": lambda h, c, p: F.triplet_margin_loss(
        h[:, 0], h[:, 1], h[:, 2], margin=2.0
    ),
    "triplet_margin_loss, swapped": lambda h, c, p: F.triplet_margin_loss(
        h[:, 0], p[:, 1], h[:, 2], margin=4.0, p=3.0, swap=True, reduction="sum"
    ),
    "multi_margin_loss": lambda h, c, p: F.multi_margin_loss(
        h[:, :, 0], c[:, 0], p=2, margin=0.7, weight=weights(h)
    ),
    "multi_margin_loss of each": lambda h, c, p: (
        F.multi_margin_loss(h[:, :, 0], c[:, 0], reduction="none") * p[:, 0, 0]
    ).sum(),
    "multilabel_margin_loss": lambda h, c, p: F.multilabel_margin_loss(
        h[:, :, 0], c[:, :CLASSES] - 3 * (c[:, :CLASSES] == 2).long(), reduction="sum"
    ),
    "ctc_loss": lambda h, c, p: ctc(h, c),
    "ctc_loss of what is too short": lambda h, c, p: ctc(
        h, torch.ones_like(c), blank=2, zero_infinity=True, reduction="sum"
    ),
    "ctc_loss of what is no softmax": lambda h, c, p: F.ctc_loss(
        h.permute(2, 0, 1), c[:, :2].clamp(1, 4), 6 + c[:, 4] % 2, 1 + c[:, 5] % 2
    ),
    "ctc_loss of each": lambda h, c, p: (ctc(h, c, reduction="none") * p[:, 0, 0]).sum(),
}
WIDE: tuple[str, ...] = ("cross_entropy", "kl_div", "similarity", "_loss", "_with_logits")
WIDE += ("log_softmax", "exp", "sum", "sigmoid")
"""How names of functions end that compute in float32; torch has a sigmoid of float16 in steps."""


class Autocast(TorchFunctionMode):
    """Gives functions of WIDE their operands in float32, as autocast on CUDA does."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        def wide(x: Any) -> Any:
            low = isinstance(x, torch.Tensor) and x.dtype in (torch.float16, torch.bfloat16)
            return x.float() if low else x

        if function.__name__.endswith(WIDE):
            args = tuple(map(wide, args))
            kwargs = {key: wide(value) for key, value in (kwargs or {}).items()}
        return function(*args, **(kwargs or {}))


class Net(nn.Module):
    """Returns a loss of its own, of logits [batch, classes, places] that are rows of a table."""

    def __init__(self, loss: Loss) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.loss, self.rows = loss, nn.Embedding(BATCH, CLASSES * PLACES)

    def forward(self, ids: Any, classes: Any, shares: Any) -> Any:
        logits = self.rows(ids).reshape(len(ids), CLASSES, PLACES)
        return self.loss(logits, classes, shares), logits


def batch() -> tuple[Any, ...]:
    rng = np.random.default_rng(0)
    shares = rng.dirichlet(np.ones(CLASSES), (BATCH, PLACES)).astype(np.float32)
    classes = rng.integers(0, CLASSES, (BATCH, PLACES))
    return rng.permutation(BATCH), classes, shares.swapaxes(1, 2).copy()


def policy(model: Model, low: str) -> Policy:
    """Return float32, or autocast to `low` with a table read in it and sigmoids in float32."""
    if low == "float32":
        return preset(low, model.layer_names)
    row = preset(f"torch.autocast.{low}", model.layer_names)
    promoted = tuple(op for op in row.promote_ops if op not in ("embedding", "sigmoid"))
    return replace(
        row,
        low_precision_ops=(*row.low_precision_ops, "embedding"),
        fp32_ops=(*row.fp32_ops, "sigmoid"),
        promote_ops=promoted,
    )


def emulated(model: Model, inputs: tuple[Any, ...], low: str) -> tuple[float, FloatArray]:
    """Return the loss and the gradient of the table."""
    graph = trace_step(model, "", Optimizer("sgd"), BATCH)
    step = compile_graph(apply_policy(graph, policy(model, low)))
    for name, value in model.init(np.random.default_rng(0)).items():
        step.arrays[name][...] = value
    feed_constants(step, model)
    feed_inputs(step, model, inputs, inputs[0])
    feed_scalars(step, 1.0)
    step.forward_backward()
    return float(step.value("loss")), step.value("grad:rows.weight").copy()


def of_torch(module: Net, inputs: tuple[Any, ...], low: str) -> tuple[float, FloatArray]:
    """Return both in float64 or, of logits in another format, as autocast has them."""
    exact = copy.deepcopy(module).to(getattr(torch, "float64" if low == "float32" else low))
    wide = torch.float64 if low == "float32" else torch.float32
    with Autocast():
        loss, logits = exact(*(x.to(wide) if x.is_floating_point() else x for x in tensors(inputs)))
    assert low == "float32" or (loss.dtype == torch.float32 and logits.dtype == getattr(torch, low))
    loss.backward()
    return float(loss.detach()), exact.rows.weight.grad.double().numpy()


def assert_as_torch(loss: Loss) -> None:
    torch.set_num_threads(1)
    module, inputs = Net(loss), batch()
    model = imported(module, inputs, loss="own")
    for low in ("float32", "bfloat16", "float16"):
        got, expected = emulated(model, inputs, low), of_torch(module, inputs, low)
        assert got[0] == pytest.approx(expected[0], rel=2e-6, abs=1e-7), low
        largest, step = np.abs(expected[1]).max(), format_named(low).epsilon
        assert largest > 1e-4
        error = np.abs(got[1] - expected[1]) - step * np.abs(expected[1])
        assert error.max() <= 3e-6 * largest, low


def test_every_rule_of_a_loss_has_a_case() -> None:
    rules = {name for file in FAMILIES if file.endswith("losses") for name in FAMILIES[file]}
    rules = rules - {"nll_loss2d", "nll_loss_nd"} | {"cosine_similarity"}
    assert rules == {re.split("[ ,]", name)[0] for name in LOSSES}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_and_its_gradients_are_torchs(name: str) -> None:
    assert_as_torch(LOSSES[name])


@pytest.mark.parametrize("seed", range(16))
def test_cross_entropies_of_all_options_are_torchs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape, soft, weighted = seed % 3, bool(seed % 2), bool(rng.integers(2))
    options: dict[str, Any] = {
        "reduction": ("mean", "sum", "none")[int(rng.integers(3))],
        "label_smoothing": float(rng.choice([0.0, 0.2])),
        "ignore_index": -100 if soft else int(rng.choice([-100, 2])),
    }

    def loss(h: Any, c: Any, p: Any) -> Any:
        sizes = ((), (PLACES,), (2, PLACES // 2))[shape]
        logits = (h[:, :, 0] if shape == 0 else h).reshape(len(h), CLASSES, *sizes)
        target, along = (p, (CLASSES,)) if soft else (c, ())
        target = (target[..., 0] if shape == 0 else target).reshape(len(h), *along, *sizes)
        weight = weights(h) if weighted else None
        losses = F.cross_entropy(logits, target, weight, **options)
        return losses if options["reduction"] != "none" else (losses * losses).sum()

    assert_as_torch(loss)
