"""Import rules: values drawn anew in every step, the same for all policies of a seed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from policysearch.graph import Shape
from policysearch.importers.elementwise import add, multiply
from policysearch.importers.tracer import Rule, Tensor, Tracer, refuse
from policysearch.ops import draws

ALPHA = 1.7580993408473766
"""Minus the value that SELU has at minus infinity (arXiv 1706.02515)."""


def _read(t: Tracer, x: Tensor, like: Tensor | None, follows: bool) -> Tensor:
    """Return a draw in the format of `like`, or, where it `follows`, of what it will meet."""
    if like is not None:
        return t.emit(draws.like, like, x)
    if follows:
        t.follow(x)
    return x


def drawn(kind: str, *defaults: float) -> Rule:
    """Return the rule of draws of a kind of `DRAWS`, whose numbers torch gives last or not at all.

    A call names sizes first: they are the reader's `size`.
    """

    def rule(
        t: Tracer, *numbers: Any, size: Shape, like: Tensor | None = None, follows: bool = False
    ) -> Tensor:
        given = [float(x) for x in numbers if isinstance(x, int | float)]
        return _read(t, t.draw(size, kind, *given, *defaults[len(given) :]), like, follows)

    return rule


def normal(t: Tracer, mean: Any = 0.0, deviation: Any = 1.0, *_: Any, **options: Any) -> Tensor:
    """Draws of means and deviations that may be tensors."""
    if not isinstance(mean, Tensor) and not isinstance(deviation, Tensor):
        number: Tensor = drawn("normal")(t, mean, deviation, **options)
        return number
    spread = t.draw(options["size"], "normal", 0.0, 1.0)
    beside = next(x for x in (mean, deviation) if isinstance(x, Tensor))
    noise = t.emit(draws.like, beside, spread)
    return add(t, multiply(t, noise, deviation), mean)


def bernoulli(t: Tracer, p: Any = 0.5, **options: Any) -> Tensor:
    if not isinstance(p, Tensor):
        mask: Tensor = drawn("bernoulli", 0.5)(t, p, **options)
        return mask
    return t.whole(draws.bernoulli, p, t.draw(options["size"], "uniform", 0.0, 1.0))


def integers(t: Tracer, *bounds: Any, size: Shape, **options: Any) -> Tensor:
    numbers = [x for x in (*bounds, options.get("low"), options.get("high")) if isinstance(x, int)]
    low, high = (0, *numbers)[-2:]
    return t.draw(size, "integers", low, high, whole=True)


def permutation(t: Tracer, *_: Any, size: Shape, **__: Any) -> Tensor:
    return t.draw(size, "permutation", whole=True)


def _noise(t: Tracer, x: Tensor, p: float, shape: Shape) -> Tensor:
    """Return 1 where values are kept, 0 where not, in the format of x."""
    return t.emit(draws.like, x, t.draw(shape, "bernoulli", 1.0 - p))


def _drops(t: Tracer, p: float, train: bool) -> bool:
    if p >= 1.0:
        raise refuse("dropout of everything", "use a share below 1")
    return bool(train and t.training and p)


def feature_dropout(t: Tracer, x: Tensor, p: float, train: bool = True) -> Tensor:
    """Drop whole channels; torch rounds 1 / (1 - p) to the format of x first (`Dropout.cpp`)."""
    if not _drops(t, p, train):
        return x
    noise = _noise(t, x, p, _of_channels(x.shape))
    return multiply(t, x, multiply(t, noise, 1.0 / (1.0 - p)))


def _of_channels(shape: Shape) -> Shape:
    return (*shape[:2], *(1,) * (len(shape) - 2))


def alpha_dropout(features: bool) -> Rule:
    """Return the rule of a dropout that keeps mean and deviation, of whole channels or not."""

    def rule(t: Tracer, x: Tensor, p: float, train: bool = True) -> Tensor:
        if not _drops(t, p, train):
            return x
        noise = _noise(t, x, p, _of_channels(x.shape) if features else x.shape)
        factor = 1.0 / math.sqrt((ALPHA * ALPHA * p + 1.0) * (1.0 - p))
        shift = add(t, multiply(t, add(t, noise, -1.0), ALPHA * factor), ALPHA * factor * p)
        return add(t, multiply(t, x, multiply(t, noise, factor)), shift)

    return rule


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        **dict.fromkeys(("randn", "randn_like"), drawn("normal", 0.0, 1.0)),
        **dict.fromkeys(("rand", "rand_like", "uniform"), drawn("uniform", 0.0, 1.0)),
        "exponential": drawn("exponential", 1.0),
        "normal": normal,
        "bernoulli": bernoulli,
        **dict.fromkeys(("randint", "randint_like", "random"), integers),
        "randperm": permutation,
        "feature_dropout": feature_dropout,
        "alpha_dropout": alpha_dropout(False),
        "feature_alpha_dropout": alpha_dropout(True),
    }
)
