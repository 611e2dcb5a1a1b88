"""The `[parallel]` section of a study file, and a space that decides for it as well."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any

from policysearch.formats import format_named
from policysearch.policy.parallel import Gradients, Parallel
from policysearch.policy.policy import Policy
from policysearch.space.decided.base import Params, short_format
from policysearch.space.options import Option
from policysearch.space.space import Space
from policysearch.values import InputError

PREFIX = "parallel."
"""What the names of these decisions begin with."""

_SEARCHED = ("tensor", "zero", "gradients", "all_reduce")


@dataclass(frozen=True)
class ParallelSection:
    """How a step is spread over devices when it is priced, and what of it is searched.

    `devices` of the study's kind take part, at most eight to a node. Each list is searched together
    with the formats; the first of each is what float32 and the presets are priced with. `tensor`:
    so many devices split the products of every layer among them, and such groups share the batch,
    which must divide. `zero`: stages of ZeRO: 1 divides masters and optimizer state among the
    groups, 2 gradients as well, 3 parameters as well. `gradients` are reduced over the groups each
    "tensors" by itself, in "buckets" of `bucket_mib` (counted in float32), or "combined" in one
    buffer after the backward pass; with `overlap` the others go on during it. `all_reduce`: formats
    they are reduced in.

    Speed and memory are those of each device. Training knows one replica of the whole batch: of all
    this it sees `all_reduce` alone, as one rounding of each gradient; sums that are rounded on
    their way from device to device are not emulated.
    """

    devices: int = 1
    tensor: tuple[int, ...] = (1,)
    zero: tuple[int, ...] = (0,)
    gradients: tuple[Gradients, ...] = ("buckets",)
    bucket_mib: float = 25.0
    overlap: bool = True
    all_reduce: tuple[str, ...] = ("float32",)

    def __post_init__(self) -> None:
        for name in _SEARCHED:
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise InputError(f"{name}: {list(values)}; expected one or more different values")
            if self.devices == 1 and values != ParallelSection.__dataclass_fields__[name].default:
                raise InputError(f"{name}: {list(values)} on one device; expected more devices")
        for format in self.all_reduce:
            try:
                format_named(format)
            except InputError as error:
                raise InputError(f"all_reduce: {error}") from None
        tuple(self.strategies())

    def strategies(self) -> Iterator[Parallel]:
        """Yield every way to spread a step that is searched; the first is `base`."""
        for tensor, zero, gradients in product(self.tensor, self.zero, self.gradients):
            strategy = Parallel(
                self.devices, tensor, zero, gradients, self.bucket_mib, self.overlap
            )
            # one group has nothing to divide and nothing to reduce
            alone = Parallel(self.devices, tensor, overlap=self.overlap)
            yield strategy if strategy.groups > 1 else alone

    @property
    def base(self) -> Parallel:
        """What float32 and the presets are priced with."""
        return next(self.strategies())

    def check_batch(self, batch_size: int) -> None:
        """Raise InputError where the priced batch does not divide among the groups."""
        for strategy in self.strategies():
            strategy.batch(batch_size)

    def choices(self) -> dict[str, tuple[Any, ...]]:
        """Return the valid values of every decision that is left, by parameter name."""
        every = {PREFIX + name: getattr(self, name) for name in _SEARCHED}
        return {name: values for name, values in every.items() if len(values) > 1}

    def policy(self, policy: Policy, params: Params) -> Policy:
        """Return the policy spread and reduced as `params` decide."""
        chosen = {n: params.get(PREFIX + n, getattr(self, n)[0]) for n in _SEARCHED}
        one = {n: (v,) for n, v in chosen.items()}
        parallel = replace(self, **one).base  # type: ignore[arg-type]
        reduced = chosen["all_reduce"] if parallel.groups > 1 else "float32"
        return replace(policy, parallel=parallel, all_reduce=reduced)

    def spread(self, policy: Policy) -> Policy:
        """Return a policy that says nothing of devices, on those of the study."""
        named = policy.parallel.devices > 1 or self.devices == 1
        return policy if named else replace(policy, parallel=self.base)


def parallel_option(name: str, value: Any) -> Option:
    """Return what a decision of this section costs a searcher: nothing but a narrow reduction."""
    if name != f"{PREFIX}all_reduce" or value == "float32":
        return Option(f"{name}={value}")
    return Option(f"{name}={value}", format_named(value).epsilon)


@dataclass(frozen=True)
class ParallelSpace(Space):
    """A space whose policies are spread over devices, in ways that it decides for as well."""

    parallel: ParallelSection = ParallelSection()

    def offered(self) -> dict[str, tuple[Any, ...]]:
        return super().offered() | self.parallel.choices()

    def policy(self, params: Params) -> Policy:
        spread = self.parallel.policy(super().policy(params), params)
        words = [spread.name]
        if len(self.parallel.choices()) > (f"{PREFIX}all_reduce" in self.parallel.choices()):
            words.append(f"[{spread.parallel.summary}]")
        if spread.all_reduce != "float32":
            words.append(f"reduce:{short_format(spread.all_reduce)}")
        return replace(spread, name=" ".join(words))

    def preset(self, name: str) -> Policy:
        return self.parallel.spread(super().preset(name))

    def project(self, policy: Policy) -> Params:
        plain = Space(**{field.name: getattr(self, field.name) for field in fields(Space)})
        params = plain.project(policy)
        for name, values in self.parallel.choices().items():
            key = name.removeprefix(PREFIX)
            of = policy if key == "all_reduce" else policy.parallel
            wanted = getattr(of, key)
            params[name] = wanted if wanted in values else values[0]
        return params


def spread_space(space: Space, section: ParallelSection) -> Space:
    """Return the space with the decisions of `section`; itself where there is one device."""
    if section.devices == 1:
        return space
    own = {field.name: getattr(space, field.name) for field in fields(Space)}
    return ParallelSpace(**own, parallel=section)
