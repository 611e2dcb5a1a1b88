"""Mixtures of experts as users write them: tokens chosen by where a mask is true."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import policysearch
from benchmarks.census.measure import verdict
from benchmarks.census.net import Net, normal
from policysearch.values import InputError

pytestmark = pytest.mark.torch

WIDTH, EXPERTS = 8, 3
Experts = Callable[[int, Tensor], Tensor]
"""expert(number, tokens): what an expert makes of some of the tokens."""

Form = Callable[[Experts, Tensor, Tensor, Tensor], Tensor]
"""form(expert, tokens [n, WIDTH], shares [n, k], choices [n, k]): as `tokens`."""


def mixtral(expert: Experts, tokens: Tensor, shares: Tensor, choices: Tensor) -> Tensor:
    """As transformers has it: a mask [expert, slot, token], and tokens of a row of their own."""
    out = torch.zeros(len(tokens), WIDTH, dtype=tokens.dtype)
    mask = F.one_hot(choices, EXPERTS).permute(2, 1, 0)
    for number in range(EXPERTS):
        slot, token = torch.where(mask[number])
        if token.shape[0] == 0:
            continue
        chosen = tokens[None, token].reshape(-1, WIDTH)
        made = expert(number, chosen) * shares[token, slot, None]
        out.index_add_(0, token, made.to(tokens.dtype))
    return out


def deepseek(expert: Experts, tokens: Tensor, shares: Tensor, choices: Tensor) -> Tensor:
    out = torch.zeros_like(tokens)
    for number in range(EXPERTS):
        token, slot = torch.where(choices == number)
        out[token] += expert(number, tokens[token]) * shares[token, slot, None]
    return out


def listed(expert: Experts, tokens: Tensor, shares: Tensor, choices: Tensor) -> Tensor:
    out = torch.zeros_like(tokens)
    for number in range(EXPERTS):
        token, slot = (choices == number).nonzero(as_tuple=True)
        if token.numel() > 0:
            made = expert(number, tokens.index_select(0, token))
            out = out.index_add(0, token, made * shares[token, slot].unsqueeze(-1))
    return out


def one(expert: Experts, tokens: Tensor, shares: Tensor, choices: Tensor) -> Tensor:
    out = torch.zeros_like(tokens)
    for number in range(EXPERTS):
        token = (choices[:, 0] == number).nonzero().squeeze(-1)
        out[token] = expert(number, tokens[token]) * shares[:, 0][token, None]
    return out


def masked(expert: Experts, tokens: Tensor, shares: Tensor, choices: Tensor) -> Tensor:
    out = torch.zeros_like(tokens)
    for number in range(EXPERTS):
        mask, share = (choices == number).any(-1), (shares * (choices == number)).sum(-1)
        out[mask] += expert(number, tokens[mask]) * share[mask].unsqueeze(-1)
    return out


FORMS: Mapping[str, Form] = {
    form.__name__: form for form in (mixtral, deepseek, listed, one, masked)
}


class Mixture(nn.Module):
    def __init__(self, form: Form) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, WIDTH), nn.Linear(WIDTH, 5)
        self.router, self.form = nn.Linear(WIDTH, EXPERTS), form
        self.mix = nn.Parameter(0.3 * torch.randn(WIDTH, 2 * WIDTH))
        self.up = nn.ModuleList(nn.Linear(WIDTH, 2 * WIDTH) for _ in range(EXPERTS))
        self.down = nn.ModuleList(nn.Linear(WIDTH, WIDTH, False) for _ in range(EXPERTS))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        tokens = h.view(-1, WIDTH)
        shares, choices = (8 * self.router(tokens)).float().softmax(-1).topk(2)
        out = self.form(self.expert, tokens, shares.to(tokens.dtype), choices)
        return torch.as_tensor(self.last(out.view_as(h) + h))

    def expert(self, number: int, tokens: Tensor) -> Tensor:
        gate, up = self.up[number](tokens).chunk(2, -1)
        return torch.as_tensor(
            self.down[number](F.silu(gate) * up + F.glu(torch.tanh(up @ self.mix)))
        )


@pytest.mark.parametrize("name", FORMS)
def test_a_mixture_of_experts_is_torchs(name: str) -> None:
    torch.set_num_threads(1)
    found = verdict(Net(lambda: Mixture(FORMS[name]), normal((4, 6))))
    assert not found.refusal
    assert found.single is not None and found.single.within(3.0, 1e-6), found
    assert found.half is not None and found.half.within(2.0, 1e-6), found


def test_each_expert_has_some_tokens() -> None:
    counts: list[list[int]] = []

    def counted(expert: Experts, tokens: Tensor, shares: Tensor, choices: Tensor) -> Tensor:
        counts.append([int((choices == number).sum()) for number in range(EXPERTS)])
        return mixtral(expert, tokens, shares, choices)

    torch.manual_seed(0)
    Mixture(counted)(torch.randn(4, 4, 6))
    assert all(0 < count < 16 for count in counts[0]) and len({*counts[0]}) > 1


def _all_in_one(expert: Experts, tokens: Tensor, shares: Tensor, choices: Tensor) -> Tensor:
    return tokens + expert(0, tokens[(choices == 0).nonzero()[:, 0]]).sum()


def _of_another(expert: Experts, tokens: Tensor, shares: Tensor, choices: Tensor) -> Tensor:
    first, other = torch.where(choices == 0)[0], torch.where(choices == 1)[0]
    return tokens.index_add(0, first, expert(0, tokens[other]))


def _beside(expert: Experts, tokens: Tensor, shares: Tensor, choices: Tensor) -> Tensor:
    token, slot = torch.where(choices == 0)
    return tokens + tokens.view(-1, 2, 4)[token, :, slot].sum()


def _counted(expert: Experts, tokens: Tensor, shares: Tensor, choices: Tensor) -> Tensor:
    return tokens * len(torch.where(choices == 0)[0])


def _as_values(expert: Experts, tokens: Tensor, shares: Tensor, choices: Tensor) -> Tensor:
    order = torch.zeros(len(tokens), dtype=torch.long)
    order[choices[:, 0]] = torch.where(choices == 0)[0]
    return tokens * order[:, None]


def _added(expert: Experts, tokens: Tensor, shares: Tensor, choices: Tensor) -> Tensor:
    order = torch.zeros(len(tokens), dtype=torch.long)
    return tokens * order.index_add(0, choices[:, 0], torch.where(choices == 0)[0])[:, None]


REFUSED: Mapping[str, tuple[Form, str]] = {
    "in one tensor": (_all_in_one, r"places of several axes in one tensor; expected torch.where"),
    "of another mask": (_of_another, "index_add: values that are not of the same places"),
    "beside others": (_beside, "index: places beside other indices"),
    "as values": (_as_values, "index_put_: places as values, or of a selection"),
    "added": (_added, "index_add: places as values, or of a selection"),
    "counted": (_counted, "a data-dependent branch, or a number out of a tensor"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_places_are_refused_in_a_line(name: str) -> None:
    form, message = REFUSED[name]
    with pytest.raises(InputError, match=message) as refusal:
        policysearch.from_torch(Mixture(form), torch.randn(4, 4, 6))
    assert "\n" not in str(refusal.value)


def test_no_value_of_what_is_not_chosen_counts() -> None:
    """A row that is left out may be anything: it has no part in the loss, nor in gradients."""

    class Roots(nn.Linear):
        def forward(self, x: Any) -> Any:
            y = super().forward(x)
            rows = torch.where(y[:, 0] > 0)[0]
            return torch.zeros_like(y).index_add(0, rows, y[rows].abs().log() - y[rows, :1].sqrt())

    found = verdict(Net(lambda: Roots(6, 5), normal((6,))))
    assert found.single is not None and found.single.within(3.0, 1e-6), found
