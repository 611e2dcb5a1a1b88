"""Casts to the format of a value, and where values lie in memory, beside torch's autocast."""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn

from benchmarks.census.measure import verdict
from benchmarks.census.net import Net, normal
from policysearch.importers import followed

pytestmark = pytest.mark.torch
LEAST, FACTOR = 1e-6, 2.0
instructions = dis.get_instructions


def _normed(x: Tensor) -> Tensor:
    before = x.dtype
    x = x.to(torch.float32)
    return (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)).to(before)


class Stored(nn.Module):
    """A dtype in a variable, of a product; the weight of the norm is cast to float32 too."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 5)
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        h = _normed(self.first(x))
        wide = h.float() - h.float().mean(-1, keepdim=True)
        y = (wide * self.weight.float()).type_as(h)
        return torch.as_tensor(self.last(y * y.sigmoid()))


class Named(nn.Module):
    """Whole numbers, a parameter and a constant in the format of another value, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 5)
        self.bias, self.table = nn.Parameter(torch.randn(8)), torch.randn(8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        places = (x.detach() > 0).sum(-1, keepdim=True)
        y = h * places.to(dtype=h.dtype, device=h.device) + self.bias.float().to(h.dtype)
        return torch.as_tensor(self.last(y * y + self.table.type_as(h)))


class Lying(nn.Module):
    """A batch norm of turned axes, which lies in their order, before a layer with a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.first(x).transpose(1, 2)).transpose(1, 2)
        return torch.as_tensor(self.last(h))


class Left(nn.Module):
    """A parameter that multiplies the matrices of a batch from the left."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.weight = nn.Linear(6, 8), nn.Parameter(torch.randn(7, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight @ self.first(x)


class Overlapping(nn.Module):
    """Windows that overlap, whose gradients are summed and rounded."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(2, 4, 3, padding=1), nn.Linear(4, 5)
        self.pool = nn.MaxPool2d(3, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.last(self.pool(self.first(x).relu()).mean((2, 3))))


class Renamed(nn.Module):
    """A variable that first holds the dtype of one value, then what a function says of another."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        wide = h.float()
        dtype = wide.dtype
        y = torch.tanh(wide).to(dtype)
        dtype = self.read(h)
        return torch.as_tensor(self.last(y.to(dtype) * h))

    @staticmethod
    def read(h: Tensor) -> torch.dtype:
        return h.dtype


class Kept(nn.Module):
    """A value that is also read as it was before it was cast to the format of a parameter."""

    def __init__(self, typed: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 5)
        self.weight, self.typed = nn.Parameter(torch.randn(8)), typed

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        wide = h.type_as(self.weight) if self.typed else h.to(self.weight.dtype)
        return torch.as_tensor(self.last((wide * self.weight).to(h.dtype) + h * h))


MADE: Mapping[str, Callable[[Tensor], Tensor]] = {
    "full": lambda y: torch.full((8,), 0.3, dtype=y.dtype),
    "tensor": lambda y: torch.tensor([0.3] * 8, dtype=y.dtype),
    "tensor, cast": lambda y: torch.tensor([0.3] * 8).to(y),
    "new_tensor": lambda y: y.new_tensor([0.3] * 8),
    "ones, computed with": lambda y: torch.ones(8, dtype=y.dtype).mul(0.3).neg(),
    "empty, filled": lambda y: torch.empty(8, dtype=y.dtype).fill_(0.3),
}


class Made(nn.Module):
    """A tensor made in the format of a value that meets one in bfloat16: float32, or so too."""

    def __init__(self, name: str, wide: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 5)
        self.norm, self.make, self.wide = nn.LayerNorm(8), MADE[name], wide

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        y = self.norm(h) if self.wide else h
        return torch.as_tensor(self.last((h * self.make(y)) * h + y))


@pytest.mark.parametrize("wide", (True, False), ids=("wide", "low"))
@pytest.mark.parametrize("name", MADE)
def test_what_is_made_in_the_format_of_a_value_has_it(name: str, wide: bool) -> None:
    found = verdict(Net(lambda: Made(name, wide), normal((4, 6))))
    assert found.single is not None and found.single.within(3.0, LEAST), found
    assert found.half is not None and found.half.within(FACTOR, LEAST), found


class Holding(nn.Module):
    """A tensor that the module holds and puts in the format of a value, as CLIP's mask is."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.mask = nn.Linear(6, 8), nn.Linear(8, 5), torch.randn(8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        self.mask = self.mask.to(dtype=h.dtype, device=h.device)
        return torch.as_tensor(self.last(h * self.mask))


def _by_type() -> Kept:
    return Kept(typed=True)


def _by_dtype() -> Kept:
    return Kept(typed=False)


CASES: tuple[tuple[Any, Any], ...] = (
    (Stored, normal((4, 6))),
    (Named, normal((4, 6))),
    (Renamed, normal((4, 6))),
    (Holding, normal((4, 6))),
    (_by_type, normal((4, 6))),
    (_by_dtype, normal((4, 6))),
    (Lying, normal((4, 6))),
    (Left, normal((4, 6))),
    (Overlapping, normal((2, 9, 9))),
)


@pytest.mark.parametrize(("make", "inputs"), CASES, ids=lambda x: getattr(x, "__name__", ""))
def test_one_step_is_that_of_torch_under_autocast(make: Any, inputs: Any) -> None:
    found = verdict(Net(make, inputs))
    assert found.single is not None and found.single.within(3.0, LEAST), found
    assert found.half is not None and found.half.within(FACTOR, LEAST), found


def _other_names(code: Any) -> Any:
    return [row._replace(opname=f"{row.opname}_OF_NEXT_YEAR") for row in instructions(code)]


def _other_places(code: Any) -> Any:
    return [row._replace(offset=row.offset // 2) for row in instructions(code)]


def _no_positions(code: Any) -> Any:
    nowhere = dis.Positions(None, None, None, None)
    return [row._replace(positions=nowhere) for row in instructions(code)]


def _no_arguments(code: Any) -> Any:
    return [row._replace(argval=None) for row in instructions(code)]


def _refused(code: Any) -> Any:
    raise ValueError("no such code")


OTHERS = (_other_names, _other_places, _no_positions, _no_arguments, _refused)


@pytest.fixture
def forgotten() -> Iterator[None]:
    """Read all code anew, before and after."""
    known = (followed.places_known, followed._rows, followed._only_reads)
    for function in known:
        function.cache_clear()
    yield
    for function in known:
        function.cache_clear()


@pytest.mark.parametrize("other", OTHERS)
def test_nothing_is_followed_on_a_python_of_other_code(
    other: Any, forgotten: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dis, "get_instructions", other)
    assert not followed.places_known()
    found = verdict(Net(Stored, normal((4, 6))))
    assert found.single is not None and found.single.within(3.0, LEAST), found


def test_the_code_of_this_python_is_known(forgotten: None) -> None:
    assert followed.places_known()
