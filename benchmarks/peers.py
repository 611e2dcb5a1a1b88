"""Other emulators as rounding functions, so that all round the same tensors at the same places."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from policysearch.formats import Format

Round = Callable[[Any], Any]
"""Returns a rounded copy of a torch tensor (or of a numpy array, for the numpy peers)."""

MODULES = {
    "torch": ("torch",),
    "qtorch": ("torch", "qtorch", "ninja"),
    "pychop": ("pychop",),
    "pychop torch": ("torch", "pychop"),
    "gfloat": ("gfloat",),
    "ml_dtypes": ("ml_dtypes",),
}
NUMPY_PEERS = ("pychop", "gfloat", "ml_dtypes")
_GFLOAT = {
    "float16": "format_info_binary16",
    "bfloat16": "format_info_bfloat16",
    "float8_e4m3fn": "format_info_ocp_e4m3",
    "float8_e5m2": "format_info_ocp_e5m2",
    "float6_e2m3fn": "format_info_ocp_e2m3",
    "float6_e3m2fn": "format_info_ocp_e3m2",
    "float4_e2m1fn": "format_info_ocp_e2m1",
}


def missing(peer: str) -> str:
    """Return what `peer` lacks on this machine ("" if nothing)."""
    lacks = [name for name in MODULES[peer] if importlib.util.find_spec(name) is None]
    return ", ".join(lacks)


def rounding(peer: str, fmt: Format, mode: str = "nearest_even") -> Round | None:
    """Return the function of `peer` that rounds onto `fmt`; None where it has none.

    Numpy peers take and return float32 arrays, the others torch tensors.
    """
    if missing(peer) or fmt.name == "float32":
        return None
    stochastic = mode == "stochastic"
    if peer == "qtorch":
        return _qtorch(fmt, "stochastic" if stochastic else "nearest")
    if peer == "pychop":
        return _pychop(fmt, "numpy", stochastic)
    if peer == "pychop torch":
        return _pychop(fmt, "torch", stochastic)
    if stochastic:
        return None
    return {"torch": _torch, "gfloat": _gfloat, "ml_dtypes": _ml_dtypes}[peer](fmt)


def _torch(fmt: Format) -> Round | None:
    import torch

    dtype = getattr(torch, fmt.name, None)
    if dtype is None or fmt.bits < 8:
        return None
    return lambda x: x.to(dtype).to(torch.float32)


def _ml_dtypes(fmt: Format) -> Round | None:
    import ml_dtypes

    dtype = np.float16 if fmt.name == "float16" else getattr(ml_dtypes, fmt.name, None)
    return None if dtype is None else (lambda x: x.astype(dtype).astype(np.float32))


def _qtorch(fmt: Format, mode: str) -> Round:
    # It compiles itself at import, with the ninja beside this interpreter.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    from qtorch.quant import float_quantize

    exponent, mantissa = fmt.exponent_bits, fmt.mantissa_bits
    return lambda x: float_quantize(x, exponent, mantissa, mode)


def _pychop(fmt: Format, backend: str, stochastic: bool) -> Round:
    module: Any = importlib.import_module(
        "pychop.np.lightchop" if backend == "numpy" else "pychop.tch.lightchop"
    )
    chop = module.LightChop_(fmt.exponent_bits, fmt.mantissa_bits, rmode=5 if stochastic else 1)

    def rounded(x: Any) -> Any:
        with np.errstate(all="ignore"):
            return chop(x)

    return rounded


def _gfloat(fmt: Format) -> Round | None:
    import gfloat
    from gfloat import formats

    if fmt.name not in _GFLOAT:
        return None
    info = getattr(formats, _GFLOAT[fmt.name])
    return lambda x: gfloat.round_ndarray(info, x).astype(np.float32)
