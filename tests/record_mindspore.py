"""Records trainings of MindSpore in both of its modes; needs MindSpore and numpy alone.

`python tests/record_mindspore.py graph FILE` writes what `tests/test_casting_modes.py` replays:

- `<policy>/loss` [50]: losses of LeNet-5 (tests/data/oracle/README.md says which), static loss
  scale 1024, for each of POLICIES, and `<policy>/bits/<layer>` [16, outputs]: bit patterns of what
  the dense layers give for the first 16 images of the first batch, where they are float16.
- `<cell>/<parent>/<child>/...`: one step of a cell, each of CELLS, that computes with what a cell
  inside it gives, for all formats of the two: `output`, its `type`, and the gradients of the
  weights of `stem` and `gate`, float32 layers before it, and of `child`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn, ops

ORACLE = Path(__file__).parent / "data" / "oracle"
DIGITS = Path(__file__).parents[1] / "policysearch" / "data" / "digits.npz"
STEPS, SCALE, PROBED = 50, 1024.0, 16
POLICIES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "float16": ("float16", {}),
    "float32 fc3": ("float16", {"fc3": "float32"}),
    "float16 dense": ("float32", {"fc1": "float16", "fc2": "float16", "fc3": "float16"}),
}
"""The format of the whole net, and those of layers that have another."""


class LeNet5(nn.Cell):
    def __init__(self, initial: Mapping[str, Any]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, pad_mode="valid", has_bias=True)
        self.conv2 = nn.Conv2d(6, 16, 5, pad_mode="valid", has_bias=True)
        self.fc1, self.fc2, self.fc3 = nn.Dense(400, 120), nn.Dense(120, 84), nn.Dense(84, 10)
        self.relu, self.pool, self.flatten = nn.ReLU(), nn.MaxPool2d(2, 2), nn.Flatten()
        for parameter in self.trainable_params():
            parameter.set_data(ms.Tensor(initial[parameter.name]))

    def construct(self, images: Any) -> Any:
        x = self.pool(self.relu(self.conv1(images)))
        x = self.flatten(self.pool(self.relu(self.conv2(x))))
        y1 = self.fc1(x)
        y2 = self.fc2(self.relu(y1))
        return y1, y2, self.fc3(self.relu(y2))


class Loss(nn.Cell):
    def __init__(self, net: LeNet5) -> None:
        super().__init__()
        self.net = net
        self.loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")

    def construct(self, images: Any, labels: Any) -> Any:
        return self.loss(ops.cast(self.net(images)[2], ms.float32), labels)


class Block(nn.Cell):
    """With y = child(x): act(y) y + x, of which a child rectifies one y."""

    def __init__(self, weight: Any) -> None:
        super().__init__()
        self.child, self.act = nn.Dense(*weight.shape, has_bias=False), nn.ReLU()
        self.child.weight.set_data(ms.Tensor(weight))

    def construct(self, x: Any, z: Any) -> Any:
        y = self.child(x)
        return self.act(y) * y + x


class Gated(Block):
    """child(x) z, where each is read once."""

    def construct(self, x: Any, z: Any) -> Any:
        return self.child(x) * z


CELLS = {"block": Block, "gated": Gated}


class Net(nn.Cell):
    """A block behind two layers; no format is set for the three together."""

    def __init__(self, cell: type[Block], weights: Any) -> None:
        super().__init__()
        shape = weights[0].shape
        self.stem, self.gate = nn.Dense(*shape, has_bias=False), nn.Dense(*shape, has_bias=False)
        self.block = cell(weights[1])
        self.stem.weight.set_data(ms.Tensor(weights[0]))
        self.gate.weight.set_data(ms.Tensor(weights[2]))

    def construct(self, x: Any) -> Any:
        return self.block(self.stem(x), self.gate(x))


class Weighted(nn.Cell):
    """The sum of all outputs in float32, each times a number."""

    def __init__(self, net: Net, factors: Any) -> None:
        super().__init__()
        self.net, self.factors = net, ms.Tensor(factors)

    def construct(self, x: Any) -> Any:
        return (ops.cast(self.net(x), ms.float32) * self.factors).sum()


def dtype(name: str) -> Any:
    return getattr(ms, name)


def trainings() -> dict[str, Any]:
    """Return the losses and first outputs of every policy."""
    common = np.load(ORACLE / "common.npz")
    digits = np.load(DIGITS)
    large = np.kron(digits["images"].astype(np.float32) / 16, np.ones((1, 4, 4), np.float32))
    images = ((large - np.float32(0.3053)) / np.float32(0.3760))[:, np.newaxis]
    labels = digits["labels"].astype(np.int32)
    initial = {k.removeprefix("init/"): v for k, v in common.items() if k.startswith("init/")}
    arrays: dict[str, Any] = {}
    for policy, (whole, others) in POLICIES.items():
        net = LeNet5(initial).to_float(dtype(whole))
        for layer, format in others.items():
            getattr(net, layer).to_float(dtype(format))
        first = net(ms.Tensor(images[common["batches"][0]]))
        for layer, given in zip(("fc1", "fc2", "fc3"), first, strict=True):
            if given.dtype == ms.float16:
                arrays[f"{policy}/bits/{layer}"] = given.asnumpy()[:PROBED].view(np.uint16)
        optimizer = nn.Momentum(
            net.trainable_params(), float(common["lr"]), float(common["momentum"]), loss_scale=SCALE
        )
        step = nn.TrainOneStepCell(Loss(net), optimizer, sens=SCALE).set_train()
        losses = [
            float(step(ms.Tensor(images[rows]), ms.Tensor(labels[rows])).asnumpy())
            for rows in common["batches"][:STEPS]
        ]
        arrays[f"{policy}/loss"] = np.array(losses)
        print(f"{policy}: {losses[0]:.6f} to {losses[-1]:.6f}", flush=True)
    return arrays


def blocks() -> dict[str, Any]:
    """Return one step of `Block` in every pair of formats."""
    rng = np.random.default_rng(0)
    x, factors = rng.standard_normal((2, 6, 8)).astype(np.float32)
    factors = factors.astype(np.float16).astype(np.float32)
    weights = rng.standard_normal((3, 8, 8)).astype(np.float32)
    arrays: dict[str, Any] = {"x": x, "factors": factors, "weights": weights}
    formats = ("float16", "float32")
    for cell, parent, child in [(k, p, c) for k in CELLS for p in formats for c in formats]:
        net = Net(CELLS[cell], weights)
        net.block.to_float(dtype(parent))
        net.block.child.to_float(dtype(child))
        given = net(ms.Tensor(x))
        step = ops.grad(Weighted(net, factors), None, net.trainable_params())
        where = f"{cell}/{parent}/{child}"
        arrays[f"{where}/type"] = np.array(str(given.dtype).lower())
        arrays[f"{where}/output"] = given.asnumpy().astype(np.float32)
        names = [parameter.name.split(".")[-2] for parameter in net.trainable_params()]
        for layer, gradient in zip(names, step(ms.Tensor(x)), strict=True):
            arrays[f"{where}/{layer}"] = gradient.asnumpy().astype(np.float32)
        print(f"{where}: {given.dtype}", flush=True)
    return arrays


def main(mode: str, file: str) -> None:
    """Record everything in `mode`, "graph" or "pynative", into `file`."""
    modes = {"graph": ms.GRAPH_MODE, "pynative": ms.PYNATIVE_MODE}
    ms.set_context(mode=modes[mode], device_target="CPU")
    with Path(file).open("wb") as out:
        np.savez_compressed(out, **blocks(), **trainings())


if __name__ == "__main__":
    main(*sys.argv[1:])
