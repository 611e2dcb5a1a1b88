"""What torch makes of a policy: the nearest one that an exported file obeys.

Linear layers in float8 are those that torchao computes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from policysearch.formats import Rounding
from policysearch.importers.program import UNCAST
from policysearch.importers.torch_model import TorchModel
from policysearch.nn.model import Model
from policysearch.ops.catalogue import LOSS_OPS
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import (
    AS_FIRST,
    AS_STORED,
    LayerPolicy,
    Policy,
    RoleRounding,
    uniform_layer,
)
from policysearch.policy.preset_row import MOVES as MOVES
from policysearch.policy.scaling import Scaling
from policysearch.rewrite.format_rules import LISTS
from policysearch.train.loss_scale import first_scale, highest, lowest, skips_update
from policysearch.train.step import SMALLEST_BATCH, trace_forward

DTYPE = "float8_e4m3fn"
"""The format of the operands that torchao takes, `float8_e5m2` for gradients."""

MULTIPLE = 16
"""What both sides of a weight are multiples of where float8 products run."""

FLOAT8 = f'''\

from torchao.float8 import Float8GemmConfig, Float8LinearConfig, convert_to_float8_training
from torchao.float8.float8_linear import matmul_with_hp_or_float8_args

POWER_OF_TWO = $power_of_two  # the scales


class _Rounded(torch.autograd.Function):
    """A value in float32 whose gradient is rounded to a dtype."""

    @staticmethod
    def forward(ctx, x, dtype):
        ctx.dtype = dtype
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.to(ctx.dtype).to(gradient.dtype), None


class _Float8Forward(_Forward):
    """The forward of an nn.Linear that becomes a Float8Linear, its biases added before rounding.

    On a GPU without float8 products, and on a CPU, they are emulated.
    """

    def __init__(self, part, row, device_type, result):
        super().__init__(part, (row[1], *row[1:]), device_type, result)
        self.dtype = getattr(torch, row[1])
        emulate = device_type != "cuda" or torch.cuda.get_device_capability() < (8, 9)
        sums = Float8GemmConfig(use_fast_accum=False)
        config = Float8LinearConfig(
            gemm_config_output=sums,
            round_scales_to_power_of_2=POWER_OF_TWO,
            emulate=emulate,
            pad_inner_dim=True,  # the gradient of a weight sums over rows, however many there are
        )
        other = convert_to_float8_training(torch.nn.Sequential(part), config=config)[0]
        self.own = [name for name in other.__dict__ if name not in part.__dict__]
        part.__dict__.update({{name: other.__dict__[name] for name in self.own}})
        part.__class__ = type(other)

    def run(self, input):
        self = _own(self)
        device_type = self.mode.device_type
        with torch._C.DisableTorchFunction(), torch.autocast(device_type, enabled=False):
            y = self.product(input.float()).to(self.dtype)
        return y if self.result is None else y.to(self.result)

    def product(self, x):
        part, dtype = self.part, self.dtype
        x, weight = _Rounded.apply(x, dtype), _Rounded.apply(part.weight, dtype)
        options = part.linear_mm_config, part.config
        if x.numel():
            y = matmul_with_hp_or_float8_args.apply(x, weight.t(), *options)
        else:  # an expert that got no rows: there is no largest value to scale by
            y = x @ weight.t()
        return y if part.bias is None else y + part.bias.to(dtype).float()

    def put_back(self):
        super().put_back()
        self.part.__class__ = torch.nn.Linear
        for name in self.own:
            self.part.__dict__.pop(name)


FORWARDS["{DTYPE}"] = _Float8Forward
'''
"""The text of the file that needs torchao."""


def strict_products(policy: Policy, model: Model) -> tuple[str, ...]:
    """Return the layers with products in strict float32, where others have them in tfloat32.

    Of the two torch has one, for all products of a process.
    """
    computed = {formats.compute for _, formats in policy.layers}
    if not {"float32", "tfloat32"} <= computed:
        return ()
    nodes = trace_forward(model, SMALLEST_BATCH).nodes
    layers = dict.fromkeys(node.layer for node in nodes if node.op.kind == "gemm")
    return tuple(name for name in layers if policy.layer(name).compute == "float32")


def is_float8(formats: LayerPolicy) -> bool:
    """Return whether these are the formats of torchao's linears: those of `uniform_layer`."""
    wanted = uniform_layer(DTYPE)
    return formats.compute == DTYPE and formats == LayerPolicy(
        DTYPE, formats.output, wanted.grad, formats.output, "float32"
    )


def why_not(policy: Policy, layer: str, model: Model) -> str:
    """Return why torchao does not compute a float8 layer as the policy says, "" if it does."""
    if model.layer_types.get(layer) != "Linear":
        return "torch has float8 products in linears alone"
    for spec in model.parameters_of(layer):
        if len(spec.shape) == 2 and any(side % MULTIPLE for side in spec.shape):
            sides = " x ".join(map(str, spec.shape))
            return f"torchao wants multiples of {MULTIPLE}, and its weight is {sides}"
    if policy.scaling.recipe != "current" or policy.scaling.margin or policy.scaling.top:
        return "torchao scales by the tensor itself, recipe 'current' without a margin or a top"
    if not policy.master_weights:
        return "torchao reads float32 parameters"
    if not is_float8(policy.layer(layer)) or "matmul" not in policy.low_precision_ops:
        return "torchao takes float8_e4m3fn operands and float8_e5m2 gradients"
    return ""


DTYPES = ("float32", "float16", "bfloat16")
"""Formats that modules of torch compute and store in."""

KEPT = ("float32", "bfloat16", AS_STORED)
"""Where state can be kept that the file itself rounds."""

DRAWN = Rounding("stochastic")

PLAINLY: Mapping[str, Any] = MappingProxyType(
    {"second_moment": AS_FIRST, "state_block": 0, "compensation": "none"}
)
"""State as optimizers of torch keep it."""


def low_losses(policy: Policy) -> tuple[str, ...]:
    """Return the losses that the policy has in low precision: here they never are."""
    return tuple(op for op in LOSS_OPS if op in policy.low_precision_ops)


def runs(policy: Policy, model: Model) -> Policy:
    """Return the policy that the exported file obeys in a module of `model`.

    Products of a layer torch has no dtype for take that of their result, but for the linears that
    torchao computes in float8 (`why_not`) and tfloat32 without `strict_products`; gradients follow
    the operands; values are moved in the format they have, biases added by the product before its
    one rounding; every op casts what it reads, norms have float32 inside, losses are float32.
    Optimizers round every operation on parameters stored low, as torch's do unless made with
    `fused=True`, and keep their state as the parameter is stored; beside `refused` gradients there
    is no loss scale. Where updates are rounded by chance (`draws_updates`) the file does that
    itself, of an update computed in float32 from gradients stored as their parameter is.
    It is its own: `runs(runs(p)) == runs(p)`.
    """
    tf32 = not strict_products(policy, model)
    layers = tuple((name, _layer(name, policy, model, tf32)) for name, _ in policy.layers)
    narrow = any(formats.compute == DTYPE for _, formats in layers)
    power_of_two = policy.scaling.power_of_two
    lists = dict.fromkeys(LOSS_OPS, LISTS["fp32"])
    if "bias" in _lists_by_op(policy):
        lists["bias"] = _lists_by_op(policy).get("matmul", _lists_by_op(policy)["bias"])
    wide = is_stored_wide(policy)
    drawn = draws_updates(replace(policy, layers=layers))
    state = policy.optimizer_state
    kept = state if drawn and state in KEPT else "float32" if wide else AS_STORED
    return replace(
        _with_lists(with_free_moves(policy), lists),
        layers=layers,
        bias="fused",
        optimizer_order="fused" if wide or drawn else "eager",
        casts="op",
        norm_inner="float32",
        optimizer_state=kept,
        **PLAINLY,
        gradient_storage="param" if drawn else "computed",
        all_reduce="float32",
        loss_scale=LossScale() if refused(policy, model) else _loss_scale(policy.loss_scale),
        scaling=Scaling("current", power_of_two=power_of_two) if narrow else Scaling(),
        rounding=RoleRounding(update=DRAWN) if drawn else RoleRounding(),
        phases=(),
    )


def draws_updates(policy: Policy) -> bool:
    """Return whether the file rounds what updates store by chance: onto bfloat16 alone."""
    stored = {policy.stored(name) for name, _ in policy.layers}
    states = {policy.state_of(name) for name, _ in policy.layers}
    drawn = policy.rounding.update.mode == "stochastic"
    return drawn and "bfloat16" in stored | states and stored | states <= {"float32", "bfloat16"}


def is_stored_wide(policy: Policy) -> bool:
    """Return whether updates read and write float32 alone: then their order rounds nothing."""
    return policy.master_weights or {row.param for _, row in policy.layers} == {"float32"}


def refused(policy: Policy, model: Model) -> tuple[str, ...]:
    """Return the layers with gradients that torch.amp.GradScaler raises on: float16 ones.

    A gradient has the dtype that its parameter is stored in; one is enough for the whole step.
    """
    stored = [name for name, row in policy.layers if row.param == "float16"]
    if policy.master_weights or not stored:
        return ()
    trained = {name for spec in model.parameters() if spec.trained for name in spec.owners}
    return tuple(name for name in stored if name in trained)


def is_tf32(formats: LayerPolicy) -> bool:
    """Return whether these are the formats of a float32 product of torch with TF32 on."""
    return formats.compute == "tfloat32" and formats.output == "float32"


def offers(formats: LayerPolicy, layer_type: str) -> bool:
    """Return whether torch, or torchao in a linear, computes and returns in these formats."""
    if formats.output not in DTYPES:
        return False
    return (
        formats.compute in DTYPES
        or is_tf32(formats)
        or (layer_type == "Linear" and is_float8(formats))
    )


def runs_in(formats: LayerPolicy, tf32: bool) -> str:
    """Return the format that the products of a layer run in, where TF32 may be switched on."""
    if formats.compute in DTYPES or (tf32 and is_tf32(formats)):
        return formats.compute
    return formats.output if formats.output in DTYPES else "float32"


def _layer(name: str, policy: Policy, model: Model, tf32: bool) -> LayerPolicy:
    formats = policy.layer(name)
    if is_float8(formats) and offers(formats, "Linear") and not why_not(policy, name, model):
        return replace(formats, gradient_sum=None, all_reduce=None)
    # under autograd a gradient has the dtype of the value it belongs to: there is no other choice
    compute = runs_in(formats, tf32)
    stored = formats.param if formats.param in DTYPES and not policy.master_weights else "float32"
    return LayerPolicy(
        compute=compute,
        output=formats.output if formats.output in DTYPES else "float32",
        grad=compute,
        wgrad="float32" if compute == "tfloat32" else compute,
        param=stored,
    )


def with_free_moves(policy: Policy) -> Policy:
    """Return the policy whose moves keep the format of what they move."""
    return _with_lists(policy, dict.fromkeys(MOVES, LISTS["promote"]))


def _lists_by_op(policy: Policy) -> dict[str, str]:
    """Return {op: name of its list}."""
    return {op: name for name in LISTS.values() for op in getattr(policy, name)}


def _with_lists(policy: Policy, to: Mapping[str, str]) -> Policy:
    """Return the policy with those of its ops in other lists."""
    of = _lists_by_op(policy)
    of |= {op: name for op, name in to.items() if op in of}
    low, wide, promoted = (tuple(op for op in of if of[op] == name) for name in LISTS.values())
    return replace(policy, low_precision_ops=low, fp32_ops=wide, promote_ops=promoted)


def _loss_scale(scale: LossScale) -> LossScale:
    """Return the same scale under the rule of GradScaler, with the bounds its own rule has."""
    if scale.kind == "none":
        return LossScale()
    if scale.kind != "dynamic":
        skips = skips_update(scale, finite=False)
        return replace(scale, rule="torch.GradScaler", skip_on_overflow=skips)
    return replace(
        scale,
        init_scale=first_scale(scale),
        min_scale=lowest(scale),
        max_scale=highest(scale),
        rule="torch.GradScaler",
    )


def folded(model: Model) -> tuple[str, ...]:
    """Return the modules that compute constants alone."""
    return model.program.folded if isinstance(model, TorchModel) else ()


def has_uncast_calls(model: Model) -> bool:
    """Return whether the module itself turns autocast off around some of its calls."""
    calls = model.program.calls if isinstance(model, TorchModel) else ()
    return any(name == UNCAST for call in calls for name, _ in call.options)


def holders(model: Model) -> Iterator[tuple[str, str]]:
    """Yield the modules that hold parameters, each with the layer that these belong to."""
    layers = {spec.name: spec.layer for spec in model.parameters()}
    for spec in model.specs if isinstance(model, TorchModel) else ():
        yield from ((module, layers[spec.name]) for module in spec.owners)
    yield from ((name.rpartition(".")[0], layer) for name, layer in layers.items())
