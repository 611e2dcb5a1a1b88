"""Stacks of published rows: the frameworks of their time, each as a pair of baseline and mixed.

The two may differ: libraries had kernels for NHWC and fused norms in half precision alone, and
training scripts took a fused optimizer where they took mixed precision.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from policysearch.cost.stacks import STACKS, Stack
from policysearch.values import InputError

EAGER = STACKS["torch.eager"]


@dataclass(frozen=True)
class Precision:
    """What a step computes in.

    `products` and `convolutions`: formats of their operands; `activations`: of everything stored
    between layers. `masters`: parameters, their gradients and the update are float32 and are cast;
    else all is in `activations`. `update`: whether the step has an optimizer.
    """

    products: str
    convolutions: str
    activations: str
    masters: bool = True
    update: bool = True


FLOAT32 = Precision("float32", "float32", "float32")
TFLOAT32 = Precision("tfloat32", "tfloat32", "float32")
FLOAT16 = Precision("float16", "float16", "float16")

TORCH = replace(EAGER, name="torch", library=10, fused_optimizer=False)

GRAPH = replace(
    EAGER,
    name="tensorflow",
    library=10,
    float32_norms=True,
    launch_seconds=6.7e-6,
)
"""TensorFlow without XLA; the cost of a launch is assumed."""

LIBRARY = replace(EAGER, name="library", library=10)
"""MXNet, Paddle, OneFlow and Caffe: the library's kernels for composites, a fused update."""


@dataclass(frozen=True)
class Pair:
    """The stacks of the baseline and of the mixed run of one framework."""

    framework: str
    baseline: Stack
    mixed: Stack

    def changed(self, **changes: Any) -> Pair:
        """Return the pair with both stacks changed."""
        stacks = (replace(stack, **changes) for stack in (self.baseline, self.mixed))
        return Pair(self.framework, *stacks)


def channels_last(stack: Stack) -> Stack:
    """Return the stack in NHWC with fused norms."""
    return replace(stack, layout="NHWC", norm_fusion=True)


def compiled(pair: Pair) -> Pair:
    """Return the pair with chains of elementwise ops and casts compiled into kernels."""
    return pair.changed(elementwise_fusion=True, cast_fusion=True)


def pair_named(framework: str, notes: tuple[str, ...] = ()) -> Pair:
    """Return the stacks of a published row's framework and notes.

    Versions decide the library's generation. InputError for an unknown framework.
    """
    name, said = framework.lower(), " ".join((framework, *notes))
    if "pytorch" in name or "hf transformers" in name:
        pair = _torch(name)
    elif "tensorflow" in name or re.search(r"\btf ?\d", name):
        library = 11 if re.search(r"(tensorflow|tf) ?2", name) else 10
        mixed = replace(GRAPH, layout="NHWC", library=library)
        pair = Pair("tensorflow", replace(GRAPH, library=library), mixed)
    elif "gluon" in name:
        pair = Pair("mxnet", LIBRARY, LIBRARY)
    elif "mxnet" in name or "oneflow" in name or "paddle" in name:
        mixed = channels_last(LIBRARY)
        if "paddlepaddle 1" in name:
            mixed = replace(mixed, norm_fusion=False)
        pair = Pair(name.split()[0], LIBRARY, mixed)
    elif "caffe" in name or "chainer" in name:
        older = replace(LIBRARY, library=9)
        pair = Pair(name.split()[0], older, older)
    elif "jax" in name:
        newer = replace(LIBRARY, library=11, layout="NHWC")
        pair = compiled(Pair("jax", newer, newer))
    else:
        raise InputError(
            f"unknown framework {framework!r}; expected PyTorch, HF transformers, TensorFlow, "
            "MXNet, OneFlow, Paddle, Gluon, Caffe, Chainer or JAX"
        )
    if "XLA" in said:
        pair = compiled(pair)
    if "mixed=NHWC" in said:
        fused = "fused" in said or pair.mixed.norm_fusion
        pair = replace(pair, mixed=replace(pair.mixed, layout="NHWC", norm_fusion=fused))
    if "NCHW both" in said:
        pair = pair.changed(layout="NCHW")
    return pair


OF_CONTAINER = ((23, 2, (2, 0)), (20, 6, (1, 7)), (0, 0, (1, 5)))
"""Versions of PyTorch, about, by the first container of NVIDIA's (year, month) that has them."""


def torch_version(framework: str) -> tuple[int, int] | None:
    """Return the version of PyTorch that a row names, None where it names none.

    NVIDIA's containers are named by year and month ("NGC PyTorch 20.03").
    """
    found = re.search(r"pytorch (\d+)\.(\d+)", framework.lower())
    if found is None:
        return None
    version = int(found[1]), int(found[2])
    if version[0] < 16:
        return version
    return next(known for year, month, known in OF_CONTAINER if version >= (year, month))


def _torch(name: str) -> Pair:
    """Return the stacks of a version of PyTorch.

    Scripts of its first years took apex's fused optimizer under mixed precision alone, those of
    Hugging Face never. tfloat32 was the default of products until 1.11.
    """
    version = torch_version(name)
    library = 10
    if version:
        library = 9 if version < (1, 0) else 10 if version < (1, 7) else 11
    modern = version is not None and version >= (2, 0)
    products = "tfloat32" if version is None or version < (1, 12) else "float32"
    baseline = replace(
        TORCH,
        library=12 if modern else library,
        fused_optimizer=modern,
        float32_products=products,  # type: ignore[arg-type]
    )
    return Pair("torch", baseline, replace(baseline, fused_optimizer="hf" not in name))
