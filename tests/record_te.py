"""Runs Transformer Engine's references of its recipes: `python -m tests.record_te CHECKOUT`.

Of its quantizer factories it prints what every product reads, beside the table of
`docs/lab/presets.md`; of each case of `tests.quantised` how many values and scales the scaling pass
has otherwise. It writes the digests of the references' to `tests/data/oracle/te_quantised.json`.
All are plain Python and torch in a checkout of NVIDIA/TransformerEngine. Nothing of it is
installed: what they import besides is stubbed, and printed.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.abc
import importlib.machinery
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from policysearch.graph import FloatArray
from tests.quantised import CASES, FILE, Case, digests
from tests.test_operands import READ

CUSTOM = "transformer_engine.pytorch.custom_recipes"
REAL = {
    f"{CUSTOM}.{name}": f"transformer_engine/pytorch/custom_recipes/{name}.py"
    for name in (
        *("gemm", "reference_utils", "reference_current_scaling", "reference_nvfp4"),
        *("quantizer_factories", "quantizer_factory_zoo"),
    )
} | {
    "references.quantize_scale_calc": "tests/pytorch/references/quantize_scale_calc.py",
    "references.blockwise_quantizer_reference": (
        "tests/pytorch/references/blockwise_quantizer_reference.py"
    ),
    "test_mxfp8_2d_quantize": "tests/pytorch/test_mxfp8_2d_quantize.py",
    "transformer_engine.common.recipe": "transformer_engine/common/recipe/__init__.py",
    "transformer_engine.pytorch.quantization": "transformer_engine/pytorch/quantization.py",
}
"""The modules that are run as they are, and where a checkout has them."""

STUBBED = ("transformer_engine", "transformer_engine_torch", "references", "pydantic")

LARGEST = float(np.finfo(np.float32).max)


class _Quantizer:
    """What the references ask of the class that they derive from."""

    def __init__(self, *, rowwise: bool, columnwise: bool) -> None:
        self.rowwise_usage, self.columnwise_usage = rowwise, columnwise


class _Names(type):
    """Of a stubbed class: its attributes are their names, as those of an enumeration are told."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("_"):
            raise AttributeError(name)
        return name


class _Made(metaclass=_Names):
    """A stubbed object: what it was made with."""

    def __init__(self, **given: Any) -> None:
        self.given = given


class _Stub(ModuleType):
    """A module: its names are submodules, empty classes, or what is called on import."""

    def __getattr__(self, name: str) -> Any:
        known: dict[str, Any] = {
            "Quantizer": _Quantizer,
            "jit_fuser": lambda function: function,
            "dataclass": dataclass,
            "is_mxfp8_available": lambda **_: (False, "there is no device"),
        }
        if name not in known and not name[0].isupper():
            raise AttributeError(name)
        return known.get(name, _Names(name, (_Made,), {}))


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules of `REAL` in a checkout and stubs everything else of it."""

    def __init__(self, checkout: Path) -> None:
        self.checkout = checkout
        self.stubbed: list[str] = []

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name in REAL:
            return importlib.util.spec_from_file_location(name, self.checkout / REAL[name])
        if name.split(".")[0] in STUBBED:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> ModuleType:
        self.stubbed.append(spec.name)
        return _Stub(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def _numbers(tensor: Any) -> FloatArray:
    return np.ascontiguousarray(tensor.float().numpy())


def _given(case: Case) -> Any:
    tensor = torch.from_numpy(case.given())
    return tensor.bfloat16() if case.source_format == "bfloat16" else tensor


def _current(case: Case) -> dict[str, FloatArray]:
    kind = importlib.import_module(f"{CUSTOM}.reference_current_scaling").CurrentScalingQuantizerRef
    made = kind(
        getattr(torch, case.format), columnwise=False, pow_2_scales=case.scaling.power_of_two
    ).quantize(_given(case))
    return {"values": _numbers(made.data), "scales": _numbers(made.scale.reshape(()))}


def _blocks(case: Case) -> dict[str, FloatArray]:
    name = "references.blockwise_quantizer_reference"
    made = (
        importlib.import_module(name)
        .BlockwiseQuantizerReference()
        .quantize(
            _given(case),
            getattr(torch, case.format),
            pow_2_scales=case.scaling.power_of_two,
            quant_tile_shape=(128, 128) if case.weight else (1, 128),
            munge_scale_shapes=False,
        )
    )
    return {"values": _numbers(made.data), "scales": _numbers(made.scale)}


def _mx(case: Case) -> dict[str, FloatArray]:
    """Its reference has squares alone: rows are given to it 32 times each, and are their square."""
    module = importlib.import_module("test_mxfp8_2d_quantize")
    given, each = _given(case), 32
    parts = [given] if case.weight else [x.repeat_interleave(each, 0) for x in given.split(32)]
    step = 1 if case.weight else each
    made = [module._mxfp8_2d_quantize_reference(part) for part in parts]
    scales = module._e8m0_to_scale_inv(torch.cat([scale[::each] for _, scale, _ in made]))
    return {
        "values": _numbers(torch.cat([data[::step] for data, _, _ in made])),
        "scales": _numbers(scales),
    }


def _nvfp4(case: Case) -> dict[str, FloatArray]:
    module, scaling = importlib.import_module(f"{CUSTOM}.reference_nvfp4"), case.scaling
    formats = importlib.import_module(f"{CUSTOM}.reference_utils").Fp4Formats
    made = module.NVFP4QuantizerRef(
        formats.E2M1,
        columnwise=scaling.hadamard,
        quant_tile_shape=(16, 16) if case.weight else (1, 16),
        row_scaled_nvfp4=scaling.tensor == "rows",
        nvfp4_use_4over6=scaling.four_over_six,
        nvfp4_e4m3_max=256 if scaling.four_over_six else 448,
        with_rht=scaling.hadamard,
    ).quantize(_given(case))
    data, scales, amax = made.data, made.scale, made.global_amax_row
    if scaling.hadamard:
        data, scales, amax = made.data_t, made.scale_t, made.global_amax_col
    tops = 6.0 * (256.0 if scaling.four_over_six else 448.0)
    tensor = torch.div(torch.tensor(tops), amax).clamp(max=LARGEST)
    tensor = torch.where(amax == 0, torch.tensor(1.0), tensor)
    return {
        "values": _numbers(module.cast_from_fp4x2(data, torch.float32)),
        "scales": _numbers(scales[::16] if case.weight else scales),
        "tensor": _numbers(tensor.reshape(-1, 1) if scaling.tensor == "rows" else tensor),
    }


def _delayed(case: Case) -> dict[str, FloatArray]:
    """Its kernels cast with the scale that is there, note the amax, and then the rule is asked.

    The largest number is a tensor: torch divides a number of Python by a tensor through its
    reciprocal, which gives a quarter of the scales another last bit, and not the kernel's.
    """
    update = importlib.import_module("transformer_engine.pytorch.quantization")
    recipe = importlib.import_module("transformer_engine.common.recipe").DelayedScaling(
        margin=case.scaling.margin,
        amax_history_len=case.scaling.history,
        amax_compute_algo=case.scaling.amax,
    )
    dtype = getattr(torch, case.format)
    top = torch.finfo(dtype).max
    history, scale = torch.zeros(case.scaling.history, 1), torch.ones(1)
    rows, scales = [], []
    for row in _given(case):
        rows.append((row * scale).clamp(-top, top).to(dtype))
        scales.append(scale.clone())
        history[0] = row.abs().max()
        update._amax_and_scale_update(history, scale, torch.tensor(top), recipe)
    return {"values": _numbers(torch.stack(rows)), "scales": _numbers(torch.cat(scales))}


REFERENCES: dict[str, Callable[[Case], dict[str, FloatArray]]] = {
    "current": _current,
    "blocks": _blocks,
    "mx": _mx,
    "nvfp4": _nvfp4,
    "delayed": _delayed,
}


def _read_as(quantizer: Any, tensor: str, columnwise: bool) -> str:
    """Return what a product reads of a tensor, in the words of `docs/lab/presets.md`."""
    given = getattr(quantizer, "given", {})
    kind = type(quantizer).__name__
    if kind == "HybridQuantizer":
        side = given["columnwise_quantizer" if columnwise else "rowwise_quantizer"]
        copied = columnwise and given.get("columnwise_source", "original") != "original"
        return f"{'copy: ' * copied}{_read_as(side, tensor, columnwise)}"
    if kind == "DelayedScalingRequest":
        top = getattr(quantizer.fp8_format.value, "max_bwd" if tensor == "gradient" else "max_fwd")
        return f"{ {448: 'e4m3', 57344: 'e5m2'}[top] } late"
    if kind == "NVFP4Quantizer":
        words = ["nv"] + ["row"] * given.get("row_scaled_nvfp4", False)
        words += ["sq"] * given["with_2d_quantization"] + ["sr"] * given["stochastic_rounding"]
        return " ".join(words + ["rht"] * (given["with_rht"] and columnwise))
    if kind == "Float8BlockQuantizer":
        assert given["force_pow_2_scales"]
        return f"128{' sq' * (given['block_scaling_dim'] == 2)}"
    usual = {"MXFP8Quantizer": "mx", "IdentityQuantizer": "bf16"}
    return usual.get(kind) or given["fp8_dtype"].removeprefix("kFloat8").lower()


def _compositions(module: Any, factory: str, roles: Any, kind: str) -> list[list[str]]:
    """Return what fprop, dgrad and wgrad read under a factory."""
    of = {"input": "input", "weight": "weight", "gradient": "grad_output"}
    make = getattr(module, factory)
    made = {name: make(roles(module_type=kind, tensor_type=role)) for name, role in of.items()}
    products = (
        (("input", False), ("weight", False)),
        (("gradient", False), ("weight", True)),
        (("gradient", True), ("input", True)),
    )
    return [[_read_as(made[name], name, side) for name, side in pair] for pair in products]


def compare_factories() -> int:
    """Print what each factory has products read beside the table; return how many differ."""
    roles = importlib.import_module("transformer_engine.pytorch.quantization").QuantizerRole
    wrong = 0
    for preset, (place, factory, kind) in FACTORIES.items():
        module = importlib.import_module(f"{CUSTOM}.{place}")
        there = _compositions(module, factory, roles, kind)
        differ = there != READ[preset]
        wrong += differ
        words = " | ".join(", ".join(pair) for pair in there)
        print(f"{preset}: {factory} has {words}{', which differs' * differ}")
    return wrong


FACTORIES = {
    "te.delayed": ("quantizer_factories", "delayed_scaling_factory", "linear"),
    "te.current": ("quantizer_factories", "current_scaling_factory", "linear"),
    "te.float8_block": ("quantizer_factories", "float8_block_scaling_factory", "linear"),
    "te.mxfp8": ("quantizer_factories", "mxfp8_factory", "linear"),
    "te.nvfp4": ("quantizer_factories", "nvfp4_factory", "linear"),
} | {
    # that of `composer2` has NVFP4 in experts alone
    f"te.{name}": ("quantizer_factory_zoo", f"{name}_factory", kind)
    for name, kind in (
        ("high_precision_fwd_mxfp8_bwd", "linear"),
        ("mxfp8_fwd_nvfp4_bwd", "linear"),
        ("nvfp4_1d_weight", "linear"),
        ("mxfp8_fwd_high_precision_bwd", "linear"),
        ("nvfp4_row_scaled_fwd_mxfp8_bwd", "grouped_linear"),
        ("nvfp4_row_scaled_fwd_high_precision_bwd", "linear"),
    )
}
"""By preset, the factory of Transformer Engine that it is: its module, name, and kind of module."""


def differences(found: FloatArray, expected: FloatArray) -> int:
    """Return how many numbers have other bits."""
    there = expected.reshape(found.shape)
    return int((found.view(np.uint32) != there.view(np.uint32)).sum())


def main() -> int:
    """Run the command; return how many factories and cases differ."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("checkout", type=Path)
    finder = _Finder(parser.parse_args().checkout)
    sys.meta_path.insert(0, finder)
    rows, wrong = {}, compare_factories()
    print(f"{len(FACTORIES)} factories, {wrong} differ")
    for name, case in CASES.items():
        expected, found = REFERENCES[case.by](case), case.found()
        off = {key: differences(found[key], expected[key].copy()) for key in expected}
        said = ", ".join(f"{off[key]} of {found[key].size:,} {key}" for key in expected)
        print(f"{name}: {said} differ", flush=True)
        wrong += any(off.values())
        rows[name] = {"given": digests({"given": case.given()})["given"], **digests(expected)}
    print(
        f"{len(rows)} cases; of cases and factories {wrong} differ; stubbed:",
        ", ".join(sorted(finder.stubbed)),
    )
    FILE.write_text(json.dumps(rows, indent=1) + "\n")
    print(f"{FILE}: {FILE.stat().st_size} bytes")
    return wrong


if __name__ == "__main__":
    raise SystemExit(main())
