"""What an exported torch file has besides where the study says which attention runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from policysearch.importers.torch_model import ATTENTION, TorchModel
from policysearch.nn.model import WRITTEN, Attention, Model
from policysearch.policy.policy import Policy

KERNELS: Mapping[Attention, tuple[str, ...]] = MappingProxyType(
    {"math": ("MATH",), "flash": ("FLASH_ATTENTION", "MATH")}
)
"""By what a study says, what may run: the names of torch's backends, the first that can."""

TEXT = '''\

import torch.nn.attention

# What runs scaled_dot_product_attention: the first of these that can.
KERNELS = [getattr(torch.nn.attention.SDPBackend, name) for name in $kernels]


class _Layer(_Layer):
    """Calls attention with these kernels."""

    def call(self, function, args, kwargs):
        if function is not torch.nn.functional.scaled_dot_product_attention:
            return super().call(function, args, kwargs)
        with torch.nn.attention.sdpa_kernel(KERNELS):
            return super().call(function, args, kwargs)
'''


def text(attention: Attention) -> str:
    """Return the end of the file, "" where calls of attention run as torch likes."""
    return TEXT if attention in KERNELS else ""


def kernels(attention: Attention) -> tuple[str, ...]:
    """Return the names of torch's backends of this attention."""
    return KERNELS.get(attention, ())


def attention_losses(policy: Policy, model: Model) -> Iterator[str]:
    """One call of torch is two products and a softmax here, unless the study says its kernel."""
    if not isinstance(model, TorchModel) or "matmul" not in policy.low_precision_ops:
        return
    call = ATTENTION.removeprefix("aten.")
    for layer in dict.fromkeys(c.path for c in model.program.calls if c.op == ATTENTION):
        if policy.layer(layer).output != "float32" and model.attention == WRITTEN:
            line = f"layer {layer}: {call} keeps its scores in float32 inside"
            yield f"{line}; two products and a softmax, written out, do not"
