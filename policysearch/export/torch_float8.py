"""Linear layers in float8, as torchao computes them in an exported torch file."""

from __future__ import annotations

from policysearch.nn.model import Model
from policysearch.policy.policy import LayerPolicy, Policy, uniform_layer

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
            gemm_config_output=sums, round_scales_to_power_of_2=POWER_OF_TWO, emulate=emulate
        )
        other = convert_to_float8_training(torch.nn.Sequential(part), config=config)[0]
        self.own = [name for name in other.__dict__ if name not in part.__dict__]
        part.__dict__.update({{name: other.__dict__[name] for name in self.own}})
        part.__class__ = type(other)

    def run(self, input):
        device_type = self.mode.device_type
        with torch._C.DisableTorchFunction(), torch.autocast(device_type, enabled=False):
            made = self.product(input.float()).to(self.dtype)
        return made if self.result is None else made.to(self.result)

    def product(self, x):
        part, dtype = self.part, self.dtype
        x, weight = _Rounded.apply(x, dtype), _Rounded.apply(part.weight, dtype)
        options = part.linear_mm_config, part.config
        made = matmul_with_hp_or_float8_args.apply(x, weight.t(), *options)
        return made if part.bias is None else made + part.bias.to(dtype).float()

    def put_back(self):
        super().put_back()
        self.part.__class__ = torch.nn.Linear
        for name in self.own:
            self.part.__dict__.pop(name)


FORWARDS["{DTYPE}"] = _Float8Forward
'''
"""The text of the file that needs torchao."""


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
    if policy.scaling.recipe != "current" or policy.scaling.margin:
        return "torchao scales by the tensor itself, recipe 'current' without a margin"
    if not policy.master_weights:
        return "torchao reads float32 parameters"
    if not is_float8(policy.layer(layer)) or "matmul" not in policy.low_precision_ops:
        return "torchao takes float8_e4m3fn operands and float8_e5m2 gradients"
    return ""
