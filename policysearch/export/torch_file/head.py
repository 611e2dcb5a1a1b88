"""What an exported torch file says first: its tables, and which functions of torch are which op."""

from __future__ import annotations

WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")
"""Names that wrappers of torch put into the names of submodules."""

HEAD = '''\
"""A mixed-precision policy for a torch module, obeyed call by call.

    module = apply_policy(module, device_type="cuda")
    scaler = make_grad_scaler("cuda")
    loss = loss_function(module(inputs), targets)  # float32: the module returns float32
    scaler.scale(loss).backward()
    scaler.step(optimizer)  # an optimizer made after apply_policy$through
    scaler.update()

`remove_policy(module)` takes it off again; `check(module, inputs, targets)` tells whether a
gradient that torch.compile changes is changed without the policy too.
"""
$head

import contextlib
import copy
import dataclasses
import inspect
import types

import torch
from torch.overrides import TorchFunctionMode

# layer: (dtype of the operands of products, dtype of results, dtype of stored parameters or None)
LAYERS = $layers

# Layers without parameters: obeyed where the module has a submodule of this name.
FUNCTIONS = $functions

# Layers that add a bias to something else than a product: there an addition is a bias.
BIASES = $biases

# Modules that compute constants alone, which no format is meant for.
CONSTANT = $folded

# The row of submodules that the policy does not know, with strict=False.
DEFAULT = ("float32", "float32", None)

# Where ops run: in the dtypes of their layer, in float32, or (all others) in the widest given.
LOW = $low
FLOAT32 = $wide

PRODUCTS = ("matmul", "conv2d", "conv3d", "conv_transpose2d", "conv_transpose3d")

# Functions of torch that are ops of the same name.
ALONE = (
    "add relu tanh sigmoid gelu silu mish prelu hardswish hardsigmoid glu softplus threshold "
    "hardshrink softshrink log_softmax exp exp2 expm1 log log1p log2 log10 sin cos tan erf "
    "maximum minimum addcmul addcdiv lerp sqrt sum logsumexp cumsum cumprod prod mean where "
    "sinh cosh masked_fill batch_norm conv3d conv_transpose3d"
)

# op: names of the functions of torch that are it
NAMES = {
    **{name: name for name in ALONE.split()},
    "matmul": "linear matmul mm bmm mv dot vdot inner addmm addmv addbmm baddbmm einsum "
    "bilinear tensordot scaled_dot_product_attention lstm gru rnn_tanh rnn_relu lstm_cell gru_cell "
    "rnn_tanh_cell rnn_relu_cell",
    "conv2d": "conv1d conv2d", "conv_transpose2d": "conv_transpose1d conv_transpose2d",
    "subtract": "sub subtract", "multiply": "mul multiply outer ger",
    "divide": "div divide true_divide truediv",
    "scale": "neg negative",
    "hardtanh": "hardtanh relu6", "leaky_relu": "leaky_relu rrelu",
    "elu": "elu selu celu", "log_sigmoid": "logsigmoid",
    "softmax": "softmax softmin",
    "dropout": "dropout dropout1d dropout2d dropout3d",
    "atan": "atan arctan", "asin": "asin arcsin", "acos": "acos arccos",
    "abs": "abs absolute",
    "clamp": "clamp clip clamp_min clamp_max",
    "remainder": "remainder fmod mod",
    "floor_divide": "floor_divide floordiv",
    "rsqrt": "rsqrt rms_norm",
    "pow": "pow square reciprocal",
    "vector_norm": "norm vector_norm frobenius_norm cdist",
    "std": "std std_mean", "var": "var var_mean", "max": "max amax", "min": "min amin",
    "interpolate": "interpolate upsample",
    "concatenate": "cat concat concatenate stack",
    "embedding": "embedding embedding_bag",
    "index": "index_select",
    "gather": "gather take_along_dim",
    "scatter": "scatter scatter_add",
    "index_put": "index_put index_add index_copy index_fill",
    "max_pool": "max_pool1d max_pool2d max_pool3d adaptive_max_pool1d adaptive_max_pool2d "
    "adaptive_max_pool3d",
    "average_pool": "avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d "
    "adaptive_avg_pool3d",
    "layer_norm": "layer_norm group_norm instance_norm",
    "loss": "cross_entropy nll_loss mse_loss l1_loss smooth_l1_loss huber_loss kl_div ctc_loss "
    "binary_cross_entropy binary_cross_entropy_with_logits poisson_nll_loss soft_margin_loss "
    "gaussian_nll_loss hinge_embedding_loss margin_ranking_loss cosine_embedding_loss "
    "cosine_similarity triplet_margin_loss multi_margin_loss multilabel_margin_loss "
    "multilabel_soft_margin_loss",
}
PLACES = (torch, torch.Tensor, torch.nn.functional, torch._VF, torch.special, torch.linalg)
PLACES += (torch.ops.aten,)


def _functions(pattern):
    """Return {function of torch: its op}; `pattern` makes a name of one in NAMES."""
    named = [(pattern.format(x), op) for op, names in NAMES.items() for x in names.split()]
    found = [(getattr(place, name, None), op) for name, op in named for place in PLACES]
    return {function: op for function, op in found if function is not None}


IN_PLACE = {**_functions("{}_"), **_functions("__i{}__")}
OP = {**_functions("{}"), **_functions("__{}__"), **_functions("__r{}__"), **IN_PLACE}

def _written_out(function):
    """Return a function of torch written in Python that does not hand its call to a mode."""
    asked = (x for x in function.__code__.co_names if x.startswith("has_torch_function"))
    seen = {**function.__globals__, **dict.fromkeys(asked, lambda *given: False)}
    defaults, closure = function.__defaults__, function.__closure__
    made = types.FunctionType(function.__code__, seen, None, defaults, closure)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


# Functions written in Python and no op are several ops.
PYTHON = {x for x in vars(torch.nn.functional).values() if isinstance(x, types.FunctionType)}
PYTHON -= {*OP}
WRITTEN_OUT = {function: _written_out(function) for function in PYTHON}
WRITTEN_OUT[torch.pairwise_distance] = lambda a, b, p=2.0, eps=1e-6, keepdim=False: (
    torch.linalg.vector_norm(a - b + eps, p, dim=-1, keepdim=keepdim)
)

# A number divided by a tensor, which torch computes as a reciprocal and a product.
QUOTIENTS = (torch.Tensor.__rtruediv__, torch.Tensor.__rdiv__)

# The op that one of two operands leaves, the other being a number.
WITH_A_NUMBER = {"add": "shift", "subtract": "shift", "multiply": "scale", "divide": "scale"}

# Functions that torch refuses to call with two dtypes.
ONE_DTYPE = (*PRODUCTS, "layer_norm", "prelu", "lerp", "scatter", "index_put")

# Names that wrappers of torch put into the names of submodules.
WRAPPERS = $wrappers
'''
