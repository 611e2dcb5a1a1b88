"""One training step, or one forward pass, of a model as a float32 graph."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from policysearch.graph import Builder, Graph, Op, Shape, backward
from policysearch.nn.models import Model, emit_parameters
from policysearch.ops import loss as loss_ops
from policysearch.ops.catalogue import FORWARD_OPS, OPS
from policysearch.ops.elementwise import add
from policysearch.ops.source import data
from policysearch.ops.update import all_finite, clip, global_norm, scale_loss, unscale
from policysearch.train.optimizers import Optimizer, emit_states, emit_update
from policysearch.values import one_of

LOSSES: Mapping[str, Op] = MappingProxyType(
    {name: op for name, op in OPS.items() if name in FORWARD_OPS and op in vars(loss_ops).values()}
)
"""The ops that end a forward pass, by name: those of `ops/loss.py`."""
SCALARS = ("loss_scale", "inverse_scale", "learning_rate", "step")


def _data(b: Builder, name: str, shape: Shape) -> int:
    return b.emit(data, attrs={"shape": shape}, name=name, role="input")


def _batch(b: Builder, model: Model, batch_size: int) -> tuple[int, int]:
    images = _data(b, "images", (batch_size, *model.input_shape))
    return images, _data(b, "targets", (batch_size, model.classes))


def trace_forward(model: Model, batch_size: int) -> Graph:
    """Return the forward pass alone: sources "images" and the parameters, output "logits"."""
    b = Builder()
    images = _data(b, "images", (batch_size, *model.input_shape))
    params = emit_parameters(b, model.parameters())
    return b.graph({"logits": model.trace(b, images, params)})


def trace_step(
    model: Model,
    loss: str,
    optimizer: Optimizer,
    batch_size: int,
    clip_norm: float | None = None,
) -> Graph:
    """Return the whole training step in float32: forward, loss, backward, unscale, check, update.

    Sources: data "images" [batch, ...], "targets" [batch, classes] and the scalars "loss_scale",
    "inverse_scale", "learning_rate", "step" (counted from 1); one parameter per array of the
    model and its optimizer state. Outputs: "loss", "scaled_loss", "logits", "finite" (1.0 or
    0.0) and the unscaled gradients "grad:<parameter>". `clip_norm` scales the gradients down to
    that global norm, after the finite check. InputError for an unknown loss.
    """
    one_of("loss", loss, LOSSES)
    b = Builder()
    images, targets = _batch(b, model, batch_size)
    scalars = {name: _data(b, name, ()) for name in SCALARS}
    params = emit_parameters(b, model.parameters())
    states = {name: emit_states(b, optimizer, node) for name, node in params.items()}
    logits = model.trace(b, images, params)
    with b.scope(layer="loss", role="fprop"):
        root = b.emit(LOSSES[loss], logits, targets)
        scaled = b.emit(scale_loss, root, scalars["loss_scale"])
    # d(scaled loss)/d(loss) is the scale itself, so backward starts from that source.
    found = backward(b, root, scalars["loss_scale"], list(params.values()), add)
    grads = _unscaled(b, params, found, scalars["inverse_scale"])
    with b.scope(role="update"):
        finite = b.emit(all_finite, *grads.values())
    outputs = {"loss": root, "scaled_loss": scaled, "logits": logits, "finite": finite}
    outputs |= {f"grad:{name}": grad for name, grad in grads.items()}
    if clip_norm is not None:
        grads = _clipped(b, grads, clip_norm)
    fed = scalars["learning_rate"], scalars["step"]
    updates: list[tuple[int, int]] = []
    for name, node in params.items():
        with b.scope(role="update", layer=b.nodes[node].layer):
            updates += emit_update(b, optimizer, node, states[name], grads[name], *fed)
    return b.graph(outputs, updates)


def _unscaled(
    b: Builder, params: Mapping[str, int], found: Mapping[int, int], inverse_scale: int
) -> dict[str, int]:
    grads = {}
    for name, node in params.items():
        with b.scope(role="update", layer=b.nodes[node].layer):
            grads[name] = b.emit(unscale, found[node], inverse_scale)
    return grads


def _clipped(b: Builder, grads: Mapping[str, int], clip_norm: float) -> dict[str, int]:
    clipped = {}
    with b.scope(role="update"):
        norm = b.emit(global_norm, *grads.values())
        for name, grad in grads.items():
            layer = b.nodes[grad].layer
            clipped[name] = b.emit(clip, grad, norm, attrs={"limit": clip_norm}, layer=layer)
    return clipped
