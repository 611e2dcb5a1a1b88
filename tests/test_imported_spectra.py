"""Spectra, complex numbers, linear algebra, strided views and counts beside torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from policysearch.optimizers.optimizer import Optimizer
from policysearch.policy.presets import preset
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.train.step import trace_step
from policysearch.values import InputError
from tests.imported_steps import BATCH, LOSS, assert_as_torch, imported

pytestmark = pytest.mark.torch

Function = Callable[[Any, Any], Any]
SIDE = 4


def _complex(x: Any) -> Any:
    return torch.complex(x, x.flip(-1))


def _ema(x: Any, w: Any) -> Any:
    seen = w.data
    return x * (w + seen)


def _histogram(x: Any, w: Any) -> Any:
    return x * w * torch.histc(w, bins=4, min=-1, max=1).sum()


def _counted(x: Any, w: Any) -> Any:
    places = (w > 0).long().flatten()
    return x * w * torch.bincount(places, minlength=3)[:2].max() / 16


def _regular(w: Any) -> Any:
    return 2 * torch.eye(SIDE) + 0.2 * torch.tanh(w)


def _changed(x: Any, *how: Any, **options: Any) -> Any:
    """Return the signal of a spectrum of x, turned and stretched."""
    length, options["return_complex"] = options.pop("length", None), True
    spectrum = torch.stft(x.flatten(1), *how, **options)
    options["return_complex"] = False
    return torch.istft(spectrum * (1.5 + 0.5j), *how, **options, length=length)


def _written(x: Any, w: Any) -> Any:
    spectrum = torch.fft.rfft(x * w)
    out = torch.zeros(len(x), SIDE, 3, dtype=spectrum.dtype)
    out[:, :, :2] = spectrum[:, :, :2]
    return torch.fft.irfft(out, n=SIDE)


def _sought(x: Any, w: Any) -> Any:
    """Places in rows that rise, one for each example: of equal values the first or the last."""
    rows = torch.round(x * 2).flatten(1).sort(1).values
    sought = torch.round(x[:, 0] * 2)
    low, high = torch.searchsorted(rows, sought), torch.searchsorted(rows, sought, right=True)
    return w[:, 0] * low + w[0] * high


def _listed(x: Any, w: Any) -> Any:
    """Constants of every example, split."""
    places = torch.arange(6.0).repeat(len(x), 1).reshape(len(x) * 3, 2)
    first, second = places.split([1, 1], dim=-1)
    return (x[:, :3] * w[:3]) * (first - second / 3).reshape(len(x), 3, 1)


FUNCTIONS: Mapping[str, Function] = MappingProxyType(
    {
        "rfft": lambda x, w: torch.fft.rfft(x * w).imag,
        "rfft, longer": lambda x, w: torch.fft.rfft(x * w, n=7, norm="ortho").real,
        "irfft, odd": lambda x, w: torch.fft.irfft(_complex(x * w), n=5, dim=-1),
        "irfft, shorter": lambda x, w: torch.fft.irfft(_complex(x * w), n=4, norm="forward"),
        "fft2": lambda x, w: torch.fft.fft2(x * w).real,
        "ifft": lambda x, w: torch.fft.ifft(_complex(x * w), norm="ortho").imag,
        "rfft2": lambda x, w: torch.fft.rfft2(x * w, norm="ortho").abs(),
        "irfft2": lambda x, w: torch.fft.irfft2(torch.fft.rfft2(x * w) * torch.fft.rfft2(w)),
        "hfft": lambda x, w: torch.fft.hfft(_complex(x * w), n=6),
        "fftshift": lambda x, w: torch.fft.fftshift(torch.fft.fft(x * w), (1, 2)).real,
        "stft": lambda x, w: torch.stft(
            (x * w).flatten(1), 8, 4, window=torch.hann_window(8).to(x), return_complex=True
        ).abs(),
        "istft": lambda x, w: _changed(x * w, 8, 2, window=torch.hann_window(8)),
        "istft, short": lambda x, w: _changed(x * w, 8, 2, 6, torch.hann_window(6), length=13),
        "istft, from the start": lambda x, w: _changed(
            x * w, 6, 2, window=torch.ones(6), center=False, normalized=True
        ),
        "istft, whole": lambda x, w: _changed(x * w, 4, window=torch.ones(4), onesided=False),
        "written": _written,
        "convolution": lambda x, w: torch.fft.irfft(
            torch.fft.rfft(x, n=8) * torch.fft.rfft(w, n=8).conj(), n=8
        ),
        "matmul": lambda x, w: (_complex(x) @ _complex(w).mT).imag,
        "real matmul": lambda x, w: torch.view_as_real(_complex(x) @ _complex(w).mH).sum(-1),
        "einsum": lambda x, w: torch.einsum("bij,jk->bik", _complex(x), _complex(w)).abs(),
        "exp": lambda x, w: (torch.exp(_complex(x * w) * 0.3) * 1j).real,
        "polar": lambda x, w: (torch.polar(w.abs() + 0.1, x + w) ** 2).imag,
        "quotient": lambda x, w: (_complex(x) / (2 + _complex(w).abs())).imag,
        "complex quotient": lambda x, w: (_complex(x) / (_complex(w) + (3 + 1j))).real,
        "moves": lambda x, w: torch.cat([_complex(x * w), _complex(x)[:, 1:]], 1).sum(1).imag,
        "minus": lambda x, w: (_complex(x * w) - _complex(w) - 1).conj().imag * 1,
        "solve": lambda x, w: torch.linalg.solve(_regular(w), x),
        "inverse": lambda x, w: x @ torch.linalg.inv(_regular(w)),
        "matrix_exp": lambda x, w: x @ torch.matrix_exp(w - w.mT),
        "logdet": lambda x, w: x * torch.slogdet(_regular(w))[1],
        "determinant": lambda x, w: x * torch.linalg.det(_regular(w)),
        "householder": lambda x, w: (
            x @ torch.linalg.householder_product(w.tril(-1), 2 / (1 + (w.tril(-1) ** 2).sum(-2)))
        ),
        "cholesky": lambda x, w: x @ torch.linalg.cholesky(w @ w.mT + torch.eye(SIDE)),
        "cholesky of a triangle": lambda x, w: (
            x @ torch.linalg.cholesky(w @ w.mT + torch.eye(SIDE) + w.triu(1))
        ),
        "upper cholesky of a triangle": lambda x, w: (
            x @ torch.linalg.cholesky(w @ w.mT + torch.eye(SIDE) + w.tril(-1), upper=True)
        ),
        "solve_triangular": lambda x, w: torch.linalg.solve_triangular(_regular(w), x, upper=False),
        "solve_triangular, upper": lambda x, w: torch.linalg.solve_triangular(
            _regular(w).expand(len(x), -1, -1), w, upper=True
        ),
        "solve_triangular, right": lambda x, w: torch.linalg.solve_triangular(
            w, x, upper=True, left=False, unitriangular=True
        ),
        "cholesky_solve": lambda x, w: torch.cholesky_solve(
            x, torch.linalg.cholesky(w @ w.mT + torch.eye(SIDE))
        ),
        "cholesky_solve, upper": lambda x, w: torch.cholesky_solve(x, _regular(w).triu(), True),
        "searchsorted": _sought,
        "list that grows": _listed,
        "as_strided": lambda x, w: (x * w).as_strided((len(x), 3, 8), (16, 4, 1)),
        "as_strided, turned": lambda x, w: (x * w).mT.as_strided((len(x), 3, 4), (16, 4, 1), 2),
        "cummax": lambda x, w: torch.cummax(x * w, -1).values,
        "cummin": lambda x, w: torch.cummin(x * w, 1)[0],
        "data": _ema,
        "divided by a count": lambda x, w: x * w / float(len(x)),
        "a share of a count": lambda x, w: (x * w).cos() * (1 / len(x)),
        "a number that grows": lambda x, w: x * w / (-0.7 * x.numel()),
        "item": lambda x, w: x * w * (2 - w.mean().item()),
        "pairs of a batch": lambda x, w: x * ((x.flatten(1) @ x.flatten(1).T).flatten().amax() * w),
        "histc": _histogram,
        "bincount": _counted,
    }
)


class Net(nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.randn(SIDE, SIDE) * 0.7)

    def forward(self, x: Any) -> Any:
        return self.function(x, self.weight).flatten(1)


def _inputs() -> list[Any]:
    x = np.random.default_rng(3).standard_normal((BATCH, SIDE, SIDE)).astype(np.float32)
    return [x]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients_are_those_of_torch(name: str) -> None:
    torch.manual_seed(0)
    assert_as_torch(Net(FUNCTIONS[name]), _inputs())


@pytest.mark.parametrize("name", ["matmul", "rfft2", "solve", "istft"])
def test_no_policy_rounds_what_torch_has_in_float32_alone(name: str) -> None:
    torch.manual_seed(0)
    model = imported(Net(FUNCTIONS[name]), _inputs())
    for policy in ("apex.O1", "torch.autocast.bfloat16"):
        graph = apply_policy(
            trace_step(model, LOSS, Optimizer("sgd"), BATCH), preset(policy, model.layer_names)
        )
        low = {node.op.name for node in graph.nodes if node.format not in ("float32", "")}
        assert not low & {"matmul", "fft", "rfft", "irfft", "fold", "solve", "complex_product"}


class Steps(nn.Module):
    """A recurrence that writes its float32 sums into a tensor like its low-precision input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(SIDE, SIDE)

    def forward(self, x: Any) -> Any:
        h = self.layer(x)
        out = torch.empty_like(h)
        for i in range(SIDE):
            out[:, i] = (h[:, i : i + 1] * h).sum(1)
        return out.flatten(1)


def test_what_is_copied_into_a_tensor_has_its_format() -> None:
    model = imported(Steps(), _inputs())
    policy = preset("torch.autocast.bfloat16", model.layer_names)
    graph = apply_policy(trace_step(model, LOSS, Optimizer("sgd"), BATCH), policy)
    assert {n.format for n in graph.nodes if n.op.name == "sum" and n.role == "fprop"} == {
        "float32"
    }
    copied = [n for n in graph.nodes if n.op.name == "like"]
    assert len(copied) >= SIDE and {n.format for n in copied} == {"bfloat16"}


class Keeps(nn.Module):
    """Keeps what it has seen, as reversible norms do between two calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.mean = nn.Linear(4, 4), 0.0

    def forward(self, x: Any) -> Any:
        self.mean = x.mean(1, keepdim=True)
        self.seen = x
        return self.layer(x - self.mean) + self.mean


def test_a_module_keeps_no_attribute_of_an_import() -> None:
    net = Keeps()
    assert_as_torch(net, [_inputs()[0][:, 0]])
    imported(again := Keeps(), [_inputs()[0][:, 0]])
    assert again.mean == 0.0 and not hasattr(again, "seen")


class Hangs(nn.Module):
    """Hangs a hook on its layer in its first call, to sum what passes, as transformers does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.hung = nn.Linear(4, 4), False

    def forward(self, x: Any) -> Any:
        if not self.hung:
            self.hung = True
            self.layer.register_forward_hook(lambda _, __, y: 2 * y)
        return self.layer(x)


def test_a_module_keeps_no_hook_of_an_import() -> None:
    net = Hangs()
    assert_as_torch(net, [_inputs()[0][:, 0]])
    imported(again := Hangs(), [_inputs()[0][:, 0]])
    assert not again.hung and not again.layer._forward_hooks


REFUSED: Mapping[str, tuple[Function, str]] = MappingProxyType(
    {
        "grad": (
            lambda x, w: torch.autograd.grad((x * w).sum(), w, create_graph=True)[0] * x,
            "derivatives in forward: write the derivative out",
        ),
        "jvp": (
            lambda x, w: torch.func.jvp(lambda y: y * w, (x,), (x,))[1],
            "derivatives in forward: write the derivative out",
        ),
        "vmap": (
            lambda x, w: torch.func.vmap(lambda y: y @ w)(x),
            "torch.func.vmap: write it over a further axis",
        ),
        "bincount": (
            lambda x, w: x * torch.bincount((x > 0).long().flatten()).sum(),
            "torch.bincount: a size that depends on values; expected minlength",
        ),
        "complex tanh": (
            lambda x, w: torch.tanh(_complex(x * w)).real,
            "aten.tanh: complex numbers; compute it of their real and imag parts",
        ),
        "complex result": (lambda x, w: _complex(x * w), "complex numbers; give it their real"),
        "bits": (
            lambda x, w: x * w * ((x.long() ^ 3) % 2),
            "bits of whole numbers; compute them before, as an int64 input",
        ),
    }
)


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_meaning_here_is_refused_in_one_line(name: str) -> None:
    function, message = REFUSED[name]
    with pytest.raises(InputError) as caught:
        imported(Net(function), _inputs())
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_sparse_buffer_is_refused() -> None:
    net = Net(lambda x, w: x * w)
    net.register_buffer("adjacent", torch.eye(3).to_sparse())
    with pytest.raises(InputError, match="adjacent: sparse_coo; expected a dense tensor"):
        imported(net, _inputs())
