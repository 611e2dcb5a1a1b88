"""Parts of `verify` that stand for torch: nets, single kernels, notes of calls, an LSTM's steps."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch.nn import functional

from policysearch.cost.timings import Work
from policysearch.emulator.compile import compile_graph
from policysearch.nn.models import MODELS
from policysearch.ops.catalogue import OPS
from policysearch.train.step import trace_forward
from policysearch.values import InputError
from policysearch.verify.gpu_rounding import written_out
from policysearch.verify.torch_kernels import KERNELS, Operands, kernel
from policysearch.verify.torch_trace import Trace, scale_events
from policysearch.verify.torch_training import loaded
from policysearch.verify.torch_twin import Twin

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")
BATCH = 3
NETS = {
    "mlp": ((6, 6), "sigmoid", ()),
    "lenet5": ((1, 28, 28), "relu", ()),
    "resnet": ((1, 16, 16), "gelu_tanh", ()),
    "transformer": ((8, 8), "gelu", (16, 32)),
    "gpt": ((8,), "tanh", (16, 32)),
}
"""Built-in nets that torch has, with the shape of an example and widths that are quickly run."""


@pytest.mark.parametrize("name", NETS)
def test_a_net_has_the_parameters_and_outputs_of_its_twin(name: str) -> None:
    shape, activation, widths = NETS[name]
    model: Any = MODELS[name](shape, 10, activation, widths)
    rng = np.random.default_rng(0)
    arrays = model.init(rng)
    step = compile_graph(trace_forward(model, BATCH))
    (given,) = model.inputs
    x = rng.standard_normal((BATCH, *shape)).astype(np.float32)
    x = np.floor(np.abs(x) * 4) if name == "gpt" else x
    for key, value in {**arrays, **model.constants, given.name: x}.items():
        step.arrays[key][...] = value
    step.forward_backward()
    twin = Twin(model)
    named = dict(twin.named_parameters())
    assert {spec.name for spec in model.parameters() if not spec.statistic} == set(named)
    loaded(twin, arrays)
    with torch.no_grad():
        made = twin.eval()(torch.from_numpy(x).long() if name == "gpt" else torch.from_numpy(x))
    np.testing.assert_allclose(made.numpy(), step.value("logits"), rtol=2e-5, atol=2e-6)


def test_a_layer_that_torch_lacks_is_refused_by_name() -> None:
    model: Any = MODELS["rms_transformer"]((8, 8), 10, "relu", (16, 32))
    with pytest.raises(InputError, match=r"layer block1\.\w+: \w+; expected one torch has"):
        Twin(model)


ATTRS: dict[str, dict[str, Any]] = {
    "scale": {"factor": 0.25},
    "gelu": {"form": "erf"},
    "gelu_grad": {"form": "erf"},
}
"""Those of ops that have some."""


def _run(work: Work) -> tuple[Any, list[Any]]:
    """Return what a kernel of torch gives, and the operands that were made for it."""
    operands: list[Any] = []
    normal, labels = Operands.normal, Operands.labels

    def seen(make: Any) -> Any:
        def made(o: Operands, *shape: int) -> Any:
            operands.append(make(o, *shape))
            return operands[-1]

        return made

    torch.manual_seed(0)
    with (
        mock.patch.object(Operands, "normal", seen(normal)),
        mock.patch.object(Operands, "labels", seen(labels)),
    ):
        call = kernel(work, CPU)
    assert call is not None
    return call(), operands


@pytest.mark.parametrize("sides", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("batch", [1, 2])
def test_a_product_reads_its_sides_as_they_are_said_to_lie(sides: str, batch: int) -> None:
    made, (a, b) = _run(Work(f"matmul.{sides}", "float32", (batch, 4, 6, 8)))
    assert a.is_contiguous() and b.is_contiguous() and a.ndim == b.ndim == (2 if batch == 1 else 3)
    letters = {"n": ("...ij", "...jk"), "t": ("...ji", "...kj")}
    first, second = letters[sides[0]][0], letters[sides[1]][1]
    expected = np.einsum(f"{first},{second}->...ik", a.double().numpy(), b.double().numpy())
    np.testing.assert_allclose(made.numpy(), expected, rtol=1e-5, atol=1e-5)


def test_a_linear_layer_adds_its_bias_and_a_cast_rounds() -> None:
    made, (x, weight, bias) = _run(Work("linear", "float32", (1, 4, 6, 8)))
    np.testing.assert_allclose(made, x @ weight.T + bias, rtol=1e-5, atol=1e-5)
    made, (x,) = _run(Work("cast", "float32>float16", (4, 6)))
    assert torch.equal(made, x.half()) and x.dtype == torch.float32
    made, (x,) = _run(Work("transpose.120", "bfloat16", (4, 6, 3)))
    assert torch.equal(made, x.permute(1, 2, 0)) and made.is_contiguous()


PLAIN = sorted(
    name
    for name in KERNELS
    if name in OPS
    and name not in ("bias", "cast", "transpose")
    and not {"norm", "entropy"} & {*name.split("_")}
)


@pytest.mark.parametrize("name", PLAIN)
def test_a_kernel_computes_what_the_op_does(name: str) -> None:
    made, operands = _run(Work(name, "float32", (4, 6)))
    expected = OPS[name].forward([x.numpy() for x in operands], ATTRS.get(name, {}))
    np.testing.assert_allclose(made.numpy(), expected, rtol=2e-5, atol=2e-6)


def test_kernels_of_norms_and_losses_are_those_that_autograd_calls() -> None:
    assert len(PLAIN) > 15
    extents = (4, 6)
    made, (x, weight, bias) = _run(Work("layer_norm", "float32", extents))
    torch.testing.assert_close(made, functional.layer_norm(x, (6,), weight, bias))
    made, (grad, x, weight, bias) = _run(Work("layer_norm_grad", "float32", extents))
    given = [part.clone().requires_grad_() for part in (x, weight, bias)]
    functional.layer_norm(given[0], (6,), *given[1:]).backward(grad)
    for ours, part in zip(made, given, strict=True):
        torch.testing.assert_close(ours, part.grad)
    made, (x, labels) = _run(Work("softmax_cross_entropy", "float32", extents))
    torch.testing.assert_close(made, functional.cross_entropy(x, labels))
    assert labels.shape == (4,) and int(labels.min()) >= 0 and int(labels.max()) < 6
    made, (x, labels) = _run(Work("token_cross_entropy_grad", "float32", extents))
    given = [x.clone().requires_grad_()]
    functional.cross_entropy(given[0], labels).backward()
    torch.testing.assert_close(made, given[0].grad)


@pytest.mark.parametrize("work", [("sinh", "float32"), ("relu", "float6_e3m2fn"), ("cast", "x>y")])
def test_what_torch_does_not_run_has_no_kernel(work: tuple[str, str]) -> None:
    assert kernel(Work(*work, (4, 6)), CPU) is None


def test_calls_are_noted_with_all_that_they_read_and_give() -> None:
    low, wide = torch.ones(2, 3, dtype=torch.float16), torch.ones(2, 3)
    out = torch.empty(2, 3, dtype=torch.float64)
    with Trace() as trace:
        torch.add(low, 1.0)
        torch.max(wide, 1)
        torch.stack([wide, wide])
        torch.add(low, wide, out=out)
    assert trace.calls == [
        "add.Tensor(float16) -> float16",
        "max.dim(float32) -> float32 int64",
        "stack.default(float32 float32) -> float32",
        "add.out(float16 float32 float64) -> float64",
    ]


class _Scaler(torch.amp.GradScaler):
    """Torch's own with what an exported one says of itself."""

    lowest, highest, schedule = 0.0, 2.0**20, ((0, 8.0), (5, 16.0))

    def scale_at(self, step: int) -> float:
        return float(dict(self.schedule)[step])


class _Exported:
    @staticmethod
    def make_grad_scaler(kind: str) -> Any:
        return _Scaler(kind, 1024.0, growth_interval=10)


def test_a_loss_scale_is_forced_to_show_growth_backoff_and_both_ends() -> None:
    """By hand: torch doubles after the interval, halves at an overflow, and knows no ends."""
    moved = -(2.0**-10)
    up, down = float(2**20), 2.0**-100
    assert scale_events(_Exported, "cpu") == [
        [1024.0, moved],
        [512.0, 0.0],
        [512.0, moved],
        [256.0, 0.0],
        [128.0, 0.0],
        [10.0, 0.0],
        [128.0, moved],
        [256.0, moved],
        [256.0, moved],
        [128.0, 0.0],
        [up / 2, 0.0],
        [up * 2, moved],
        [down / 2, 0.0],
        [down * 2, moved],
        [0.0, 8.0],
        [5.0, 16.0],
    ]


def test_a_scale_that_is_off_is_seen_in_one_step() -> None:
    class Off:
        @staticmethod
        def make_grad_scaler(kind: str) -> Any:
            return _Scaler(kind, enabled=False)

    assert scale_events(Off, "cpu") == [[1.0, -(2.0**-10)]]


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
def test_an_lstm_that_is_written_out_is_the_lstm(batch_first: bool, layers: int) -> None:
    torch.manual_seed(0)
    lstm = torch.nn.LSTM(6, 7, layers, batch_first=batch_first)
    x = torch.randn(3, 5, 6)
    batch = x.shape[0] if batch_first else x.shape[1]
    states = torch.randn(layers, batch, 7), torch.randn(layers, batch, 7)
    weights = [getattr(lstm, name) for name in lstm._flat_weights_names]
    given = x, states, weights, True, layers, 0.0, False, False, batch_first
    for ours, theirs in zip(
        written_out(torch._VF.lstm)(*given), torch._VF.lstm(*given), strict=True
    ):
        assert ours.shape == theirs.shape
        torch.testing.assert_close(ours, theirs)
    assert torch._C._get_mkldnn_enabled()
