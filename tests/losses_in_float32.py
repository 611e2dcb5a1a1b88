"""Losses of torch in float32, of operands in 16 bits: as autocast computes them on a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

WIDE: tuple[str, ...] = ("cross_entropy", "kl_div", "similarity", "_loss", "_with_logits")
WIDE += ("softmax", "exp", "sum", "sigmoid")
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
