"""The exported file under torch.compile: gradients, one graph, losses."""

from __future__ import annotations

import copy
import traceback
from typing import Any

import torch
from torch.nn import functional

from benchmarks.exported.cases import DRAW, exported
from benchmarks.exported.drawn import drawn
from benchmarks.exported.nets import SMALL, torch_net

STEPS = 10


def compiled(net: str, index: int, place: str) -> dict[str, Any]:
    """Return how far compiling moves gradients and losses, with random policy `index`."""
    try:
        return {"net": net, "policy": index} | _compared(net, index, place)
    except Exception as error:  # one net must not end the others
        told = f"{type(error).__name__}: {error}"[:600]
        return {"net": net, "error": told, "trace": traceback.format_exc()[-1500:]}


def _compared(name: str, index: int, place: str) -> dict[str, Any]:
    sized = SMALL[name]
    model = sized.make()
    policy = drawn(model.layer_names, index, DRAW)
    file = exported(policy, model)
    inputs, targets = sized.batch(model, place)
    module = file.apply_policy(torch_net(model, place), device_type=place)
    shares = file.check(module, inputs, targets)
    epsilon = max(torch.finfo(getattr(torch, row[0])).eps for row in file.LAYERS.values())
    judged = {key: share for key, (share, bare) in shares.items() if bare <= 1e-5}
    torch._dynamo.reset()
    other = copy.deepcopy(module)
    run = torch.compile(other, fullgraph=True)
    eager = _losses(module, module, file.make_grad_scaler(place), inputs, targets)
    moved = _losses(run, other, file.make_grad_scaler(place), inputs, targets)
    return {
        "gradients": len(shares),
        "right_without_policy": len(judged),
        "largest_share": max(judged.values(), default=0.0),
        "allowed_share": 4 * epsilon,
        "beyond": {key: share for key, share in judged.items() if not share <= 4 * epsilon},
        "bare_worst": max(bare for _, bare in shares.values()),
        "eager_losses": [eager[0], eager[-1]],
        "compiled_losses_apart": max(abs(a - b) for a, b in zip(eager, moved, strict=True)),
    }


def _losses(run: Any, module: Any, scaler: Any, inputs: Any, targets: Any) -> list[float]:
    optimizer = torch.optim.SGD(module.parameters(), 0.01, momentum=0.9)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = functional.cross_entropy(run(inputs), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses
