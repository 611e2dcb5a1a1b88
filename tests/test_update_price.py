"""Prices of optimizers' updates: passes counted in torch, bytes and launches by hand."""

from __future__ import annotations

from typing import Any

import pytest

from policysearch.cli import main
from policysearch.cost.devices import DEVICES
from policysearch.cost.stacks import STACKS
from policysearch.cost.update_price import Kernels, UpdatePrice, update_price
from policysearch.graph import Shape, size
from policysearch.optimizers.optimizer import rules
from policysearch.values import InputError

SHAPES = ((4096, 1024), (1024,)) * 24
TENSORS = tuple(map(size, SHAPES))
TORCH = {
    "sgd": ("SGD", {}),
    "momentum": ("SGD", {"momentum": 0.9}),
    "adam": ("Adam", {}),
    "adamw": ("AdamW", {}),
    "adadelta": ("Adadelta", {}),
}


def priced(
    name: str, kernels: Kernels, groups: tuple[tuple[Shape, ...], ...] = (SHAPES,)
) -> UpdatePrice:
    return update_price(name, kernels, groups, DEVICES["A100-SXM4-40GB"], STACKS["torch.eager"])


def passes_of_torch(name: str) -> list[tuple[int, int]]:
    """Return the distinct tensors that each op of torch's own update reads, one written each."""
    torch = pytest.importorskip("torch")
    from torch.utils._python_dispatch import TorchDispatchMode

    found: list[tuple[int, int]] = []

    class Counting(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
        def __torch_dispatch__(
            self, op: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            read = {x.data_ptr() for x in args if isinstance(x, torch.Tensor) and x.numel() > 1}
            if read:
                found.append((len(read), 1))
            return op(*args, **(kwargs or {}))

    p = torch.nn.Parameter(torch.ones(50))
    p.grad = torch.ones(50)
    kind, options = TORCH[name]
    optimizer = getattr(torch.optim, kind)([p], lr=0.1, foreach=False, **options)
    optimizer.step()
    with torch.no_grad(), Counting():
        optimizer.step()
    return found


@pytest.mark.torch
@pytest.mark.parametrize("name", TORCH)
def test_passes_op_by_op_are_torchs(name: str) -> None:
    assert passes_of_torch(name) == list(rules()[name].separate)


@pytest.mark.parametrize(
    ("name", "bytes"), [("sgd", 12), ("momentum", 20), ("adam", 28), ("adamw", 28), ("lamb", 48)]
)
def test_bytes_per_parameter_in_one_kernel(name: str, bytes: int) -> None:
    assert priced(name, "fused").bytes == bytes * sum(TENSORS)


@pytest.mark.parametrize("name", rules())
def test_fewer_kernels_and_passes_take_less(name: str) -> None:
    single, foreach, combined = (priced(name, k) for k in ("single", "foreach", "combined"))
    rules_of = [(rules()[name].of(shape), shape) for shape in SHAPES]
    products = sum(len(row.products(shape)) for row, shape in rules_of)
    assert single.bytes == foreach.bytes == combined.bytes
    assert (
        combined.launches <= foreach.launches + 4 * len(TENSORS)
        and foreach.launches < 60 + products
    )
    assert single.launches == products + sum(len(row.separate) for row, _ in rules_of)
    assert combined.seconds <= single.seconds and foreach.seconds < single.seconds
    assert (
        single.aside_bytes
        <= foreach.aside_bytes
        == 4 * sum(row.aside * size(shape) for row, shape in rules_of)
    )
    kept = sum(size(own) for row, shape in rules_of for own in row.kept(shape).values())
    assert {p.state_bytes for p in (single, foreach, combined)} == {4 * kept}
    if rules()[name].fused:
        fused = priced(name, "fused")
        assert fused.seconds <= foreach.seconds and fused.aside_bytes == 0


def test_launches_by_hand() -> None:
    """48 tensors: Adam's fused kernel has 4 lists, 36 tensors a launch; a group has its own."""
    assert priced("adam", "fused").launches == 2
    halves = (SHAPES[:24], SHAPES[24:])
    assert priced("adam", "fused", halves).launches == 2
    assert priced("adam", "fused", tuple((x,) for x in SHAPES)).launches == 48
    assert priced("adam", "combined").launches == 7
    assert priced("adam", "combined", halves).launches == 14
    assert priced("lamb", "combined").launches == 12 + 2 * 48
    assert priced("momentum", "foreach").launches == 1 + 1 + 1
    assert priced("momentum", "foreach", (SHAPES + SHAPES,)).launches == 1 + 2 + 2


def test_a_narrow_copy_is_written_too() -> None:
    device, stack = DEVICES["A100-SXM4-40GB"], STACKS["torch.eager"]
    plain, copied = (
        update_price("adam", "fused", (SHAPES,), device, stack, narrow) for narrow in (0, 2)
    )
    assert copied.bytes - plain.bytes == 2 * sum(TENSORS) and copied.seconds > plain.seconds


def test_what_has_no_kernel_is_refused() -> None:
    with pytest.raises(InputError, match="'fused' with adadelta"):
        priced("adadelta", "fused")
    with pytest.raises(InputError, match="rmsprop"):
        priced("rmsprop", "fused")


def test_profile_prints_every_optimizer(capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--model", "lenet5", "--device", "A100-SXM4-40GB", "--stack", "torch.eager"]
    assert main(["profile", "preset:float32", *where, "--optimizers"]) == 0
    lines = capsys.readouterr().out.rstrip().split("\n")[-29:]
    assert [line.split()[:2] for line in lines][-1] == ["adadelta", "single"] and len(lines) == 29
    (fused,) = (line.split() for line in lines if line.split()[:2] == ["adam", "fused"])
    assert fused[2:4] == ["1.00", "1"]
    assert float(fused[4]) == pytest.approx(2 * 4 * 61706 / 2**20, rel=1e-3)  # LeNet-5's parameters
