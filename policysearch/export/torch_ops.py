"""The text of an exported torch file that says which op of a policy a function of torch is."""

from __future__ import annotations

OPS = '''
PRODUCTS = ("matmul", "conv2d", "conv_transpose2d")

# op: names of the functions of torch that are it
NAMES = {
    "matmul": "linear matmul mm bmm mv dot vdot inner outer addmm addmv addbmm baddbmm einsum "
    "bilinear tensordot scaled_dot_product_attention multi_head_attention_forward lstm gru "
    "rnn_tanh rnn_relu lstm_cell gru_cell",
    "conv2d": "conv1d conv2d conv3d",
    "conv_transpose2d": "conv_transpose1d conv_transpose2d conv_transpose3d",
    "add": "add",
    "subtract": "sub subtract",
    "multiply": "mul multiply",
    "divide": "div divide true_divide truediv",
    "scale": "neg negative",
    "relu": "relu",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "gelu": "gelu",
    "silu": "silu mish",
    "hardtanh": "hardtanh relu6",
    "leaky_relu": "leaky_relu prelu",
    "hardswish": "hardswish",
    "softmax": "softmax log_softmax",
    "dropout": "dropout dropout1d dropout2d dropout3d",
    "exp": "exp exp2 expm1 log log1p log2 log10",
    "sqrt": "sqrt",
    "rsqrt": "rsqrt rms_norm",
    "pow": "pow square reciprocal",
    "sum": "sum logsumexp cumsum prod norm std var",
    "mean": "mean",
    "where": "where",
    "masked_fill": "masked_fill",
    "concatenate": "cat concat concatenate stack",
    "embedding": "embedding",
    "max_pool": "max_pool1d max_pool2d max_pool3d",
    "average_pool": "avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d "
    "adaptive_avg_pool3d",
    "layer_norm": "layer_norm group_norm instance_norm",
    "batch_norm": "batch_norm",
    "loss": "cross_entropy nll_loss mse_loss l1_loss smooth_l1_loss huber_loss kl_div "
    "binary_cross_entropy binary_cross_entropy_with_logits ctc_loss",
}
PLACES = (torch, torch.Tensor, torch.nn.functional, torch._VF, torch.special)


def _functions(pattern):
    """Return {function of torch: its op}; `pattern` makes a name of one in NAMES."""
    named = [(pattern.format(x), op) for op, names in NAMES.items() for x in names.split()]
    found = [(getattr(place, name, None), op) for name, op in named for place in PLACES]
    return {function: op for function, op in found if function is not None}


IN_PLACE = {**_functions("{}_"), **_functions("__i{}__")}
OP = {**_functions("{}"), **_functions("__{}__"), **_functions("__r{}__"), **IN_PLACE}

def _written_out(function):
    """Return a function of torch written in Python that does not hand its call to a mode."""
    seen = {**function.__globals__, "has_torch_function": lambda given: False}
    made = types.FunctionType(function.__code__, seen, function.__name__, function.__defaults__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


# With the weights that it returns it is several ops, each in its own dtype.
ATTENTION = torch.nn.functional.multi_head_attention_forward
WRITTEN_OUT = _written_out(ATTENTION)

# A number divided by a tensor, which torch computes as a reciprocal and a product.
QUOTIENTS = (torch.Tensor.__rtruediv__, torch.Tensor.__rdiv__)

# The op that one of two operands leaves, the other being a number.
WITH_A_NUMBER = {"add": "shift", "subtract": "shift", "multiply": "scale", "divide": "scale"}

# Functions that torch refuses to call with two dtypes.
ONE_DTYPE = (*PRODUCTS, "layer_norm", "leaky_relu")

'''
