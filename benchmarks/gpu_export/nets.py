"""Nets of a size that a GPU is used for, with a batch on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from policysearch.nn.chain import Chain
from policysearch.nn.models import gpt, lenet5, mlp, resnet
from policysearch.verify.torch_twin import Twin


@dataclass(frozen=True)
class Sized:
    """A maker of the net, and the examples of a batch."""

    make: Callable[[], Chain]
    batch_size: int

    def batch(self, model: Chain, place: str) -> tuple[Any, Any]:
        """Return inputs and classes, drawn at random, on the device."""
        rng = np.random.default_rng(0)
        shape = (self.batch_size, *model.inputs[0].shape)
        if model.loss == "token_cross_entropy":
            tokens = torch.from_numpy(rng.integers(0, model.classes, shape)).to(place)
            return tokens, tokens.reshape(-1)
        given = torch.from_numpy(rng.standard_normal(shape, np.float32))
        classes = torch.from_numpy(rng.integers(0, model.classes, self.batch_size))
        return given.to(place), classes.to(place)


SMALL: Mapping[str, Sized] = MappingProxyType(
    {
        "lenet5": Sized(lenet5, 16),
        "mlp": Sized(lambda: mlp((64, 128, 10)), 64),
        "gpt": Sized(lambda: gpt((16,), 32, 32, (64,), activation="gelu"), 8),
        "resnet": Sized(lambda: resnet((1, 8, 8), 10, (8, 16)), 32),
    }
)
LARGE: Mapping[str, Sized] = MappingProxyType(
    {
        "lenet5 of batch 64": Sized(lenet5, 64),
        "mlp 4096": Sized(lambda: mlp((4096, 4096, 4096, 4096, 1000)), 8192),
        "resnet 512": Sized(lambda: resnet((3, 32, 32), 10, (64, 128, 256, 512)), 512),
        "gpt 1024": Sized(lambda: gpt((256,), 4096, 1024, (4096, 4096), 16), 32),
    }
)


def torch_net(model: Chain, place: str) -> Any:
    """Return the model as a module on the device, with initial values of its own."""
    net = Twin(model)
    held = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    with torch.no_grad():
        for name, array in model.init(np.random.default_rng(0)).items():
            if isinstance(held[name], torch.nn.UninitializedParameter):
                held[name].materialize(array.shape)
            held[name].copy_(torch.from_numpy(np.array(array)))
    return net.to(place)
