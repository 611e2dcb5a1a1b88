"""The policy: every precision decision of one training run, as one frozen value."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any, Literal

from policysearch.accumulators import accumulator_named
from policysearch.formats import Rounding, format_named
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.parallel import Parallel
from policysearch.policy.products import Operand, Product, Products, Source, is_narrow, short_form
from policysearch.policy.scaling import Scaling
from policysearch.values import (
    InputError,
    Shown,
    brief,
    from_plain,
    json_value,
    names_once,
    number,
    one_line,
    one_of,
    shown,
    to_plain,
)

VERSION = 2
"""Of version 1, a layer with one of `compute` and `grad` narrow multiplied a gradient in high
precision by the other operand quantised to `compute` again, or the reverse. Read from such a file,
these products are said in full, so that it trains what it has trained.
"""

CLIPPING = "gradient_clip_norm"
"""A field of older files: what gradients were clipped to, which is of the recipe now."""

LATER = MappingProxyType(
    {
        "casts": "op",
        "norm_inner": "float32",
        "gradient_storage": "computed",
        "second_moment": "optimizer_state",
        "state_block": 0,
        "compensation": "none",
        "parallel": to_plain(Parallel()),
    }
)
"""Fields that older files lack, with what holds there: so said, they are not in the digest."""


LATER_OF_LAYERS = MappingProxyType(
    {"backward": "tensor", "products": to_plain(Products())}
    | dict.fromkeys(("scaling", "gradient_sum", "all_reduce"))
)
LATER_OF_SCALING = MappingProxyType(
    {"weights": "rows", "hadamard": False, "tensor": "whole", "top": 0.0, "four_over_six": False}
)
"""Such fields of layers and of the scaling; they are in no file that does not need them."""


_NAMED = (
    *((name, format_named) for name in ("compute", "output", "grad", "wgrad", "param")),
    *(("accumulator", accumulator_named), ("gradient_sum", format_named)),
    ("all_reduce", format_named),
)
"""The fields of a layer that name rows, and what finds these."""


@dataclass(frozen=True)
class LayerPolicy:
    """The formats of one layer.

    `compute`: the operands of fprop. `output`: the result of fprop. `grad`: the incoming
    gradient as an operand of dgrad and wgrad, whose other operand is narrow where the gradient is,
    and in high precision where the gradient is: made from the "tensor" itself or, with `backward`,
    from the "forward" copy, dequantised. `wgrad`: the result of wgrad, before it is cast to
    float32 for the update. `param`: storage of the parameters the forward pass reads; with
    master weights the optimizer keeps float32. The result of dgrad has the `grad` format, or
    `output`'s where `grad` is for operands only: below 16 bits, or tfloat32. `scaling` is another
    recipe than the policy's; `products` says single products in full. Gradients of the parameters
    are summed over micro-batches in `gradient_sum`, where that is None as the parameter is stored,
    and reduced over devices in `all_reduce`, where that is None as the policy says.
    """

    compute: str = "float32"
    output: str = "float32"
    grad: str = "float32"
    wgrad: str = "float32"
    param: str = "float32"
    accumulator: str = "float32"
    backward: Source = "tensor"
    scaling: Scaling | None = None
    products: Products = Products()
    gradient_sum: str | None = None
    all_reduce: str | None = None

    def __post_init__(self) -> None:
        for name, known in _NAMED:
            try:
                if (given := getattr(self, name)) is not None:
                    known(given)
            except InputError as error:
                raise InputError(f"{name}: {error}") from None

    @property
    def dgrad(self) -> str:
        """Format of the result of dgrad."""
        # a product reads operands in these formats, and its result is written in a wider one
        return self.output if format_named(self.grad).operands_only else self.grad

    def product(self, role: str) -> Product:
        """Return what the layer's products of a role read and sum in, its accumulator named."""
        return self._products[role]

    @cached_property
    def _products(self) -> Mapping[str, Product]:
        found = {}
        for role in ("fprop", "dgrad", "wgrad"):
            said: Product | None = getattr(self.products, role)
            whole = said or short_form(role, self.compute, self.grad, self.backward)
            found[role] = replace(whole, accumulator=whole.accumulator or self.accumulator)
        return found

    @property
    def operand_formats(self) -> frozenset[str]:
        """The formats of the operands of all products."""
        roles = (self.product(role) for role in ("fprop", "dgrad", "wgrad"))
        return frozenset(operand.format for row in roles for operand in row.operands)

    @property
    def is_split(self) -> bool:
        """Whether one direction multiplies narrow operands and the other does not."""
        return is_narrow(self.compute) != is_narrow(self.grad) and not self.products.dgrad


@lru_cache(maxsize=1024)
def uniform_layer(
    name: str, *, param: str = "float32", accumulator: str = "float32"
) -> LayerPolicy:
    """Return a layer that computes in format `name` throughout.

    Formats below 16 bits are operands only, as in Transformer Engine: results stay bfloat16, and
    float8_e4m3fn takes float8_e5m2 for gradients ("hybrid"). Results of tfloat32 are float32.
    """
    if name == "tfloat32":
        return LayerPolicy(name, "float32", name, "float32", param, accumulator)
    if format_named(name).bits >= 16:
        return LayerPolicy(name, name, name, name, param, accumulator)
    # gradients need range more than precision: E5M2 for them, E4M3 for the rest (arXiv 2209.05433)
    grad = "float8_e5m2" if name == "float8_e4m3fn" else name
    return LayerPolicy(name, "bfloat16", grad, "bfloat16", param, accumulator)


def usual_storage(compute: str) -> str:
    """Return where parameters of a layer in this format are stored without masters."""
    if compute == "tfloat32":
        return "float32"
    return compute if format_named(compute).bits >= 16 else "bfloat16"


def with_accumulator(policy: Policy, name: str) -> Policy:
    """Return the policy where every layer that computes below float32 sums in `name`."""
    layers = tuple(
        (layer, dataclasses.replace(old, accumulator=name) if old.compute != "float32" else old)
        for layer, old in policy.layers
    )
    return dataclasses.replace(policy, layers=layers)


@dataclass(frozen=True)
class RoleRounding:
    """Rounding of node results by role; casts follow the role of the node they feed."""

    fprop: Rounding = Rounding()
    dgrad: Rounding = Rounding()
    wgrad: Rounding = Rounding()
    update: Rounding = Rounding()


Layers = tuple[tuple[str, LayerPolicy], ...]


@dataclass(frozen=True)
class Phase:
    """From step `first_step` on, these layers take these formats instead."""

    first_step: int
    layers: Layers


AS_FIRST = "optimizer_state"
"""What a policy says of second moments in the format of the rest of the state."""


SECOND_MOMENTS = frozenset(
    {"v", "square_avg", "sum", "acc_delta", "variance", "row_var", "col_var"}
)
"""What optimizers call their sums of squares."""

Compensation = Literal["none", "kahan", "remainder"]

AS_STORED = "param"
"""The optimizer's state in the format that its parameter is stored in."""

NO_FORMATS = MappingProxyType({"optimizer_state": AS_STORED, "second_moment": AS_FIRST})
"""By field, what it may say in the place of a format."""


@dataclass(frozen=True)
class Policy(Shown):
    """A complete mixed-precision policy: applying it looks nothing up anywhere else.

    `low_precision_ops` run in their layer's formats, `fp32_ops` in float32, `promote_ops` in the
    widest format among their inputs; an op used by the model must be in one of the three.
    `bias`: "fused" adds the bias before the one output rounding, "rounded" after it with a
    second rounding, "fp32" adds in float32 and leaves the result there. "convolution_rounded" is
    "rounded" for convolutions and "fused" elsewhere, as torch on CUDA, whose cuDNN adds no bias.
    `casts`: "op" brings what every op reads into its layer's format, as eager modes do; "layer"
    casts what enters a layer, as MindSpore's graph mode does: its ops read what layers inside it
    give as it is, and such an op runs in the widest format it reads. `norm_inner`: norms sum and
    keep what is between in "float32" or in the "format" of their result.
    `optimizer_state` is a format, or "param": that in which the state's parameter is stored.
    `second_moment` is another one for what sums squares (v of Adam). States below 16 bits have a
    float32 scale for every `state_block` values, none where that is 0. Where parameters are stored
    below float32, `compensation` "kahan" keeps beside each, in its format, what rounding has lost;
    "remainder" the 16 bits of float32 that bfloat16 lacks, which updates read and write whole.
    `optimizer_order`: "fused" computes a whole update in float32 and rounds what it stores;
    "eager" runs operation after operation, each rounded to the tensor it writes, and reads the
    rounded state back. In the eager order the number of an addition (learning rate, weight
    decay, epsilon) is float32 or, `optimizer_scalars` "storage", has the format of that tensor.
    `gradient_storage`: "computed" hands a fused update its gradients as they were computed,
    "param" rounds them, to nearest, to the storage of their parameter first, as torch's `.grad`.
    `all_reduce`: gradients are rounded to it once, when reduced. `parallel` is priced, not trained.
    """

    name: str
    layers: Layers
    low_precision_ops: tuple[str, ...]
    fp32_ops: tuple[str, ...]
    promote_ops: tuple[str, ...]
    bias: Literal["fused", "rounded", "fp32", "convolution_rounded"] = "fused"
    casts: Literal["op", "layer"] = "op"
    norm_inner: Literal["float32", "format"] = "float32"
    master_weights: bool = True
    optimizer_state: str = "float32"
    second_moment: str = AS_FIRST
    state_block: int = 0
    compensation: Compensation = "none"
    optimizer_order: Literal["fused", "eager"] = "fused"
    optimizer_scalars: Literal["float32", "storage"] = "float32"
    gradient_storage: Literal["computed", "param"] = "computed"
    all_reduce: str = "float32"
    parallel: Parallel = Parallel()
    loss_scale: LossScale = LossScale()
    scaling: Scaling = Scaling()
    rounding: RoleRounding = RoleRounding()
    phases: tuple[Phase, ...] = ()
    version: int = field(default=VERSION)

    def __repr__(self) -> str:
        formats: dict[str, int] = {}
        for _, layer in self.layers:
            formats[layer.compute] = formats.get(layer.compute, 0) + 1
        said = ", ".join(f"{name} in {count}" for name, count in sorted(formats.items()))
        masters = "float32" if self.master_weights else "none"
        scale = f"loss scale {self.loss_scale.kind}, masters {masters}"
        return brief(f"Policy({self.name!r}, {len(self.layers)} layers: {said}; {scale})")

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise InputError(f"version: {self.version!r}; expected {VERSION}")
        for name in ("optimizer_state", "second_moment", "all_reduce"):
            if getattr(self, name) == NO_FORMATS.get(name):
                continue
            try:
                format_named(getattr(self, name))
            except InputError as error:
                raise InputError(f"{name}: {error}") from None
        number("state_block", self.state_block, 0, 65536)
        if self.optimizer_order == "eager" and (self.state_block or self.compensation != "none"):
            said = f"{self.compensation!r} and state_block {self.state_block}"
            raise InputError(f"compensation: {said} with optimizer_order 'eager'; expected 'fused'")
        one_line("name", self.name)
        names_once("layers", [one_line("layers", name) for name, _ in self.layers])
        lists = (self.low_precision_ops, self.fp32_ops, self.promote_ops)
        names_once("op lists", [name for ops in lists for name in ops])
        firsts = [phase.first_step for phase in self.phases]
        if firsts != sorted(set(firsts)) or any(step < 1 for step in firsts):
            raise InputError(f"phases: first steps {firsts}; expected rising steps from 1")
        for index, phase in enumerate(self.phases):
            for name, _ in phase.layers:
                one_of(f"phases[{index}].layers", name, dict(self.layers))

    def layer(self, name: str) -> LayerPolicy:
        """Return the formats of layer `name`; InputError where the policy has no such layer."""
        if name not in self._by_layer:
            raise InputError(
                f"policy {self.name!r} layers: no layer {name!r}; "
                f"it has {', '.join(known for known, _ in self.layers)}"
            )
        return self._by_layer[name]

    @cached_property
    def _by_layer(self) -> Mapping[str, LayerPolicy]:
        return dict(self.layers)

    def scaling_of(self, name: str, operand: Operand | None = None) -> Scaling:
        """Return the recipe of layer `name`, or of an operand of its products."""
        if operand is not None and operand.scaling is not None:
            return operand.scaling
        return self._by_layer[name].scaling or self.scaling

    @property
    def recipes(self) -> tuple[str, ...]:
        """The names of the scaling recipes of all layers and operands, each once."""
        found = dict.fromkeys([self.scaling.recipe])
        for _, layer in self.layers:
            rows = [layer.scaling, *(o.scaling for p in _said(layer) for o in p.operands)]
            found |= dict.fromkeys(row.recipe for row in rows if row is not None)
        return tuple(found)

    def stored(self, name: str) -> str:
        """Return the format that the optimizer keeps the parameters of layer `name` in."""
        return "float32" if self.master_weights else self.layer(name).param

    def summed(self, name: str) -> str:
        """Return what gradients of layer `name` are summed in over micro-batches."""
        return self.layer(name).gradient_sum or self.stored(name)

    @cached_property
    def reductions(self) -> Mapping[str, str]:
        """The layers whose gradients are reduced in a format of their own, and that."""
        return {name: row.all_reduce for name, row in self.layers if row.all_reduce}

    def state_of(self, name: str, state: str = "") -> str:
        """Return the format of the optimizer's state of the parameters of layer `name`.

        `state` is what the optimizer calls it, which matters for SECOND_MOMENTS.
        """
        if state in SECOND_MOMENTS and self.second_moment != AS_FIRST:
            return self.second_moment
        return self.stored(name) if self.optimizer_state == AS_STORED else self.optimizer_state

    @property
    def state_summary(self) -> str:
        """How the optimizer's state is kept, and what is kept beside parameters, in words."""
        state = self.optimizer_state
        words = ["as its parameters are stored" if state == AS_STORED else state]
        words += [f"second moments {self.second_moment}"] * (self.second_moment != AS_FIRST)
        words += [f"a scale per {self.state_block}"] * bool(self.state_block)
        kept = {"none": [], "kahan": ["Kahan sums"], "remainder": ["16-bit remainders"]}
        return ", ".join(words + kept[self.compensation])

    def at_step(self, step: int) -> Policy:
        """Return the policy in force at `step`, with the last phase that began applied."""
        # phases do not add up: each says all that differs from the policy without phases
        layers = dict(self.layers)
        begun = [phase for phase in self.phases if phase.first_step <= step]
        if begun:
            layers.update(begun[-1].layers)
        return dataclasses.replace(self, layers=tuple(layers.items()), phases=())

    def with_layers(self, changes: Mapping[str, LayerPolicy], name: str | None = None) -> Policy:
        """Return a copy where the named layers have the given formats (the inner setting wins)."""
        for layer in changes:
            one_of("layers", layer, dict(self.layers))
        layers = tuple((layer, changes.get(layer, old)) for layer, old in self.layers)
        return dataclasses.replace(self, layers=layers, name=name or self.name)

    def check_layers(self, names: Iterable[str]) -> None:
        """Raise InputError unless the policy has exactly the layers `names`."""
        given, valid = [name for name, _ in self.layers], list(names)
        for name in given:
            one_of("layers", name, valid)
        for name in valid:
            self.layer(name)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all but the name (and see LATER): equal digests train and cost the same."""
        # A field that came later is left out where it says what held before it: digests, and the
        # results stored under them, outlive new fields.
        left_out = {"name": self.name, **LATER}
        plain = {k: v for k, v in to_data(self).items() if k not in left_out or v != left_out[k]}
        plain[CLIPPING] = None  # What it said in nearly all policies, while they had the field.
        phases = [layer for phase in self.phases for layer in phase.layers]
        split = any(layer.is_split for _, layer in (*self.layers, *phases))
        plain["version"] = VERSION if split else 1  # All others mean what they meant.
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()

    def to_json(self) -> str:
        """Return the policy as JSON text; `from_json` gives the equal value back."""
        return json.dumps(to_data(self), indent=2) + "\n"


def from_json(text: str, where: str = "policy") -> Policy:
    """Return the policy written in `text`; InputError names the place of a mistake."""
    return from_data(json_value(text, where, "a policy"), where)


def to_data(policy: Policy) -> dict[str, Any]:
    """Return the policy as plain data, its layers as an object keyed by name."""
    data: dict[str, Any] = to_plain(policy)
    data["layers"] = _layers(data["layers"])
    for phase in data["phases"]:
        phase["layers"] = _layers(phase["layers"])
    data["scaling"] = _without(data["scaling"], LATER_OF_SCALING)
    return data


def _layers(pairs: Iterable[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    return {name: _without(layer, LATER_OF_LAYERS) for name, layer in pairs}


def _without(data: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return `data` without the fields that say what holds where they are left out."""
    return {k: v for k, v in data.items() if k not in defaults or v != defaults[k]}


def _said(layer: LayerPolicy) -> tuple[Product, ...]:
    """Return the products that a layer says in full."""
    rows = layer.products
    return tuple(row for row in (rows.fprop, rows.dgrad, rows.wgrad) if row is not None)


def from_data(data: object, where: str = "policy") -> Policy:
    """Return the policy read from plain data as `to_data` gives it, `clipping_of` left out."""
    clipping_of(data, where)
    given: dict[str, Any] = {**_with_pairs(data, where)}
    given.pop(CLIPPING, None)
    if isinstance(given.get("phases"), list):
        phases = enumerate(given["phases"])
        given["phases"] = [_with_pairs(phase, f"{where}.phases[{i}]") for i, phase in phases]
    before = given.get("version") == 1
    policy = from_plain(Policy, {**given, "version": VERSION} if before else given, where)
    return _as_before(policy) if before else policy


def _as_before(policy: Policy) -> Policy:
    """Return the policy of a file of version 1, its split layers said in full (see VERSION)."""

    def layers(pairs: Layers) -> Layers:
        return tuple((name, _as_it_was(row) if row.is_split else row) for name, row in pairs)

    phases = tuple(replace(row, layers=layers(row.layers)) for row in policy.phases)
    return replace(policy, layers=layers(policy.layers), phases=phases)


def _as_it_was(layer: LayerPolicy) -> LayerPolicy:
    product = Product(Operand(layer.grad), Operand(layer.compute))
    return replace(layer, products=Products(dgrad=product, wgrad=product))


def clipping_of(data: object, where: str = "policy") -> float | None:
    """Return the norm that an older policy, as plain data, clips gradients to; None where none."""
    if not isinstance(data, dict):
        raise InputError(f"{where}: {shown(data)}; expected an object")
    limit = data.get(CLIPPING)
    if limit is not None:
        number(f"{where}.{CLIPPING}", limit, 1e-30, 1e30)
    return limit


def _with_pairs(data: Any, where: str) -> Any:
    if not isinstance(data, dict) or "layers" not in data:
        return data
    return {**data, "layers": _pairs(data["layers"], f"{where}.layers")}


def _pairs(data: object, where: str) -> list[tuple[str, LayerPolicy]]:
    if not isinstance(data, dict):
        raise InputError(f"{where}: {shown(data)}; expected an object keyed by layer name")
    each = ((name, from_plain(LayerPolicy, row, f"{where}.{name}")) for name, row in data.items())
    known: dict[LayerPolicy, LayerPolicy] = {}  # of thousands of layers few differ
    return [(name, known.setdefault(layer, layer)) for name, layer in each]


def stretched(policy: Policy, factor: float) -> Policy:
    """Return the policy for a run of `factor` times the steps: its steps are shares of the run.

    Phases and a scheduled loss scale move with the run, as the learning rate does. Where several
    fall on one step, the last holds. A growth interval counts steps of any run, and stays.
    """
    phases = {max(1, round(p.first_step * factor)): p.layers for p in policy.phases}
    schedule = {round(step * factor): scale for step, scale in policy.loss_scale.schedule}
    return replace(
        policy,
        phases=tuple(
            replace(policy.phases[0], first_step=step, layers=layers)
            for step, layers in phases.items()
        ),
        loss_scale=replace(policy.loss_scale, schedule=tuple(schedule.items())),
    )
