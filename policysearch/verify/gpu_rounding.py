"""16-bit ops on a CPU computed as a GPU does: float32 inside, rounded once.

On a CPU torch rounds the number of an addition, the mean and deviation that a norm keeps for its
gradients, what the gradients of a convolution sum, what overlapping parts of a `fold`, of a
transposed convolution or of a pool's gradients add up, what rows of an embedding or their gradients
do, and the weights of a `grid_sample`. It rounds what is inside `log_softmax` over the last axis, a
softmax over another, their gradients and those of `glu`, `sigmoid` and `logsigmoid`, and a batch
norm with weights of 16 bits; past the last whole vector of a tensor, also what is inside a
reciprocal root. Gradients of a batch norm it sums in 16 bits unless all that they read lies in one
order in memory. A float32 tensor without axes that a 16-bit one is multiplied or
divided by stays as it is there; a GPU rounds it first, as tensors of any other shape. In a cube of
float16 a GPU rounds the square (`aten/src/ATen/native/cuda/PowKernel.cu`), a CPU does not.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

LOW = (torch.float16, torch.bfloat16)
aten = torch.ops.aten
PRODUCTS = (aten.mul.Tensor, aten.mul_.Tensor, aten.div.Tensor, aten.div_.Tensor)
SUMS = {
    aten.add.Tensor: aten.add.Tensor,
    aten.sub.Tensor: aten.sub.Tensor,
    aten.rsub.Scalar: aten.rsub.Scalar,
    aten.add_.Tensor: aten.add.Tensor,
    aten.sub_.Tensor: aten.sub.Tensor,
}
"""Sums, in place or not, by what they are out of place."""

STATISTICS = (aten.native_layer_norm.default, aten.native_group_norm.default)
"""Ops whose first result is rounded; mean and deviation, which they keep, are float32."""

WIDE = (
    aten.rsqrt.default,
    aten.sigmoid_backward.default,
    aten._softmax.default,
    aten.prod.default,
    aten.prod.dim_int,
    aten.embedding_dense_backward.default,
    aten._embedding_bag.default,
    aten._embedding_bag_dense_backward.default,
    aten.avg_pool2d_backward.default,
    aten.max_pool2d_with_indices_backward.default,
    aten.convolution_backward.default,
    aten.native_layer_norm_backward.default,
    aten.native_group_norm_backward.default,
    aten.glu_backward.default,
    aten._log_softmax.default,
    aten.col2im.default,
    aten.grid_sampler_2d.default,
    aten.grid_sampler_2d_backward.default,
    aten.grid_sampler_3d.default,
    aten.grid_sampler_3d_backward.default,
)
"""Ops with every result rounded to the dtype of what they read first."""


class AsAGpu(TorchDispatchMode):
    """While it is entered, ops of 16-bit tensors on a CPU round as they do on a GPU."""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function is aten.native_batch_norm_backward.default:
            return _norm_gradients(*(_contiguous(x) for x in args))
        if function is aten.native_batch_norm.default and args[1] is not None:
            weights = _wide(args[1]), _wide(args[2])
            return function(args[0], *weights, *args[3:], **kwargs)
        if function is aten.log_sigmoid_backward.default and args[0].dtype in LOW:
            grad, x, _ = map(_wide, args)  # the last holds exp(-|x|), rounded
            return function(grad, x, torch.exp(-x.abs())).to(args[0].dtype)
        if function is aten._softmax_backward_data.default and args[0].dtype in LOW:
            grad, result, dim, dtype = args
            return function(grad.float(), result.float(), dim, torch.float32).to(dtype)
        if function is aten.pow.Tensor_Scalar and args[0].dtype in LOW and args[1] in (3, -2):
            square = args[0] * args[0]
            return square * args[0] if args[1] == 3 else square.reciprocal()
        if function in SUMS or function in PRODUCTS:
            dtype = torch.result_type(*args[:2])
            args = (*(_as_an_array(x, dtype) for x in args[:2]), *args[2:])
            if dtype in LOW and function in SUMS:
                result = SUMS[function](*map(_wide, args), **kwargs).to(dtype)
                return result if SUMS[function] is function else args[0].copy_(result)
        elif _is_wide(function, args) and args[0].dtype in LOW:
            dtype, result = args[0].dtype, function(*map(_wide, args), **kwargs)
            if function in STATISTICS:
                return (result[0].to(dtype), *result[1:])
            return _rounded_results(result, dtype)
        return function(*args, **kwargs)


def _is_wide(function: Any, args: Any) -> bool:
    transposed = function is aten.convolution.default and args[6]
    return transposed or function in (*WIDE, *STATISTICS)


def _rounded_results(result: Any, dtype: Any) -> Any:
    if isinstance(result, torch.Tensor):
        return result.to(dtype) if result.is_floating_point() else result
    return result if result is None else tuple(_rounded_results(x, dtype) for x in result)


def _wide(x: Any) -> Any:
    return x.float() if isinstance(x, torch.Tensor) and x.dtype in LOW else x


def _as_an_array(x: Any, dtype: Any) -> Any:
    """Return what meets a 16-bit tensor in the format of that, also where it has no axes."""
    floats = isinstance(x, torch.Tensor) and x.is_floating_point()
    return x.to(dtype) if floats and dtype in LOW else x


def _contiguous(x: Any) -> Any:
    return x.contiguous() if isinstance(x, torch.Tensor) else x


def _norm_gradients(grad: Any, x: Any, weight: Any, *others: Any) -> Any:
    """Return the gradients of a batch norm with its weight in float32."""
    of_input, *sums = aten.native_batch_norm_backward.default(grad, x, _wide(weight), *others)
    if weight is None:
        return (of_input, *sums)
    return (of_input, *(y if y is None else y.to(weight.dtype) for y in sums))


def written_out(lstm: Any) -> Any:
    """Return LSTMs as torch itself writes them out; oneDNN rounds less of what is inside.

    Products of steps that are not side by side in memory would be rounded before the bias is added.
    """

    def call(x: Any, states: Any, *arguments: Any) -> Any:
        # packed, or projected, so that its states differ in size, it is written out as it is
        if isinstance(states, torch.Tensor) or states[0].shape != states[1].shape:
            return lstm(x, states, *arguments)
        batch_first = arguments[-1]
        steps = (x.transpose(0, 1) if batch_first else x).contiguous()
        torch._C._set_mkldnn_enabled(False)
        try:
            outputs, *last = lstm(steps, states, *arguments[:-1], False)
        finally:
            torch._C._set_mkldnn_enabled(True)
        return (outputs.transpose(0, 1) if batch_first else outputs, *last)

    return call
