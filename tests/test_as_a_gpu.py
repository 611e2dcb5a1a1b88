"""Training for `verify` on a CPU: 16-bit ops are float32 inside and round once, as on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch.nn import functional as F

from policysearch.verify.gpu_rounding import AsAGpu, written_out

pytestmark = pytest.mark.torch

CALLS: Mapping[str, Callable[[Any, Any], Any]] = {
    "x + 0.3": lambda x, w: x + 0.3,
    "1.3 - x": lambda x, w: 1.3 - x,
    "x - 0.3 y": lambda x, w: torch.sub(x, w, alpha=0.3),
    "x += 0.3": lambda x, w: (1 * x).add_(0.3),
    "layer_norm": lambda x, w: F.layer_norm(x, (4,), w[:4, 0, 0], w[4:, 0, 0]),
    "group_norm": lambda x, w: F.group_norm(x, 4, w[:, 0, 0], w[:, 1, 0]),
    "glu": lambda x, w: F.glu(x, 0),
    "logsigmoid": lambda x, w: F.logsigmoid(x),
    "avg_pool2d": lambda x, w: F.avg_pool2d(x, 2, 1),
    "max_pool2d": lambda x, w: F.max_pool2d(x, 2, 1),
    "fold": lambda x, w: F.fold(x, (3, 3), 2),
    "grid_sample": lambda x, w: F.grid_sample(
        x[None], 0.25 * w[None, ..., :2], align_corners=False
    ),
    "conv1d": lambda x, w: F.conv1d(x, w, padding=1),
    "conv_transpose1d": lambda x, w: F.conv_transpose1d(x, w, stride=2, padding=1),
}


def computed(call: Callable[[Any, Any], Any], dtype: Any) -> list[Any]:
    """Return the result and the gradients of x and w, of the same values for every dtype."""
    torch.manual_seed(0)
    x, w = ((1 + torch.randn(8, 8, 4)).half().bfloat16() for _ in range(2))
    x, w = (given.to(dtype).requires_grad_() for given in (x, w))
    made = call(x, w)
    made.backward(torch.randn(made.shape).bfloat16().to(dtype))
    return [made.detach(), *(given.grad for given in (x, w) if given.grad is not None)]


@pytest.mark.parametrize("name", CALLS)
def test_what_is_inside_an_op_is_float32(name: str) -> None:
    others = 0
    for dtype in (torch.float16, torch.bfloat16):
        expected = [value.to(dtype) for value in computed(CALLS[name], torch.float32)]
        with AsAGpu():
            found = computed(CALLS[name], dtype)
        for ours, value in zip(found, expected, strict=True):
            assert ours.dtype == dtype
            torch.testing.assert_close(ours, value, rtol=0, atol=0)
        bare = computed(CALLS[name], dtype)
        others += sum(not torch.equal(a, b) for a, b in zip(bare, expected, strict=True))
    assert others


@pytest.mark.parametrize("name", ["sigmoid", "softmax"])
def test_gradients_of_a_rounded_result_are_float32_inside(name: str) -> None:
    """On a CPU that of a sigmoid in float16, and of a softmax over another axis than the last."""
    axes, others = () if name == "sigmoid" else (1,), 0
    for dtype in (torch.float16, torch.bfloat16):
        x, grad = (torch.randn(8, 4, 6, generator=torch.manual_seed(0)).to(dtype) for _ in "xg")
        given = x.clone().requires_grad_()
        with AsAGpu():
            made = getattr(torch, name)(given, *axes)
            made.backward(grad)
        assert torch.equal(made, getattr(torch, name)(x.float(), *axes).to(dtype))
        wide, slope = grad.float(), made.detach().float()
        if name == "sigmoid":
            expected = torch.ops.aten.sigmoid_backward(wide, slope)
        else:
            expected = torch.ops.aten._softmax_backward_data(wide, slope, 1, torch.float32)
        assert torch.equal(given.grad, expected.to(dtype))
        bare = x.clone().requires_grad_()
        result = getattr(torch, name)(bare, *axes)
        result.backward(grad)
        others += not torch.equal(bare.grad, given.grad) or not torch.equal(result, made)
    assert others


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_square_in_a_power_is_rounded(dtype: torch.dtype) -> None:
    x = torch.randn(1000).to(dtype)
    square = x * x
    with AsAGpu():
        cube, inverse = x**3, x**-2
    assert torch.equal(cube, square * x) and torch.equal(inverse, square.reciprocal())
    assert not torch.equal(cube, (x.double() ** 3).to(dtype))


@pytest.mark.parametrize("axes", [(0, 2, 1), (0, 3, 1, 2)])
def test_gradients_of_a_batch_norm_are_those_of_values_in_one_order(axes: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    shape = (8, 4, 5, 6)[: len(axes) - 1]
    x, weight = torch.randn(*shape, 6).bfloat16(), torch.rand(6)
    grad = torch.randn(x.permute(axes).shape).bfloat16()

    def gradients(contiguous: bool) -> list[Any]:
        given = x.clone().requires_grad_()
        scale, shift = (weight.clone().requires_grad_() for _ in range(2))
        turned = given.permute(axes)
        turned = turned.contiguous() if contiguous else turned
        F.batch_norm(turned, None, None, scale, shift, True).backward(grad)
        return [given.grad, shift.grad]

    expected = gradients(contiguous=True)
    with AsAGpu():
        found = gradients(contiguous=False)
    assert all(map(torch.equal, found, expected))
    assert not any(map(torch.equal, gradients(contiguous=False), expected))


@pytest.mark.parametrize("call", [torch.mul, torch.div, torch.add, torch.sub])
def test_a_number_in_a_tensor_is_rounded_to_the_format_that_it_meets(call: Any) -> None:
    x, factor, changed = torch.linspace(1.0, 2.0, 100).bfloat16(), torch.tensor(0.3), []
    for a, b in ((x, factor), (factor, x)):
        expected = call(a.bfloat16().float(), b.bfloat16().float()).bfloat16()
        with AsAGpu():
            assert torch.equal(call(a, b), expected)
        changed.append(not torch.equal(call(a, b), expected))
    assert any(changed) == (call in (torch.mul, torch.div))


def test_a_root_of_few_values_rounds_once() -> None:
    x = torch.linspace(1.0, 2.0, 15).half()
    expected = torch.rsqrt(x.float()).half()
    with AsAGpu():
        assert torch.equal(torch.rsqrt(x), expected)
    assert not torch.equal(torch.rsqrt(x), expected)


def test_float32_stays_as_it_is() -> None:
    x = torch.randn(5)
    with AsAGpu():
        assert torch.equal(x + 0.3, x.add(0.3))
        assert (x.bfloat16() + x).dtype == torch.float32
        assert (x.bfloat16() + torch.tensor(0.3)).dtype == torch.bfloat16


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
def test_a_projected_lstm_is_written_out_as_it_is() -> None:
    """oneDNN has none, and steps that are made contiguous would add their bias in one rounding."""
    torch.manual_seed(0)
    layer = torch.nn.LSTM(6, 7, proj_size=4, batch_first=True).bfloat16()
    x, read = torch.randn(3, 5, 6).bfloat16(), []

    def call(x: Any, *others: Any) -> Any:
        read.append(x)
        return torch._VF.lstm(x, *others)

    states = torch.zeros(1, 3, 4).bfloat16(), torch.zeros(1, 3, 7).bfloat16()
    weights = [getattr(layer, name) for name in layer._flat_weights_names]
    outputs, *_ = written_out(call)(x, states, weights, True, 1, 0.0, True, False, True)
    assert read[0] is x
    assert torch.equal(outputs, layer(x)[0])
