"""Recommenders in plain torch: embeddings of many rows and narrow products."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

USERS, ITEMS = 138493, 26744
"""Rows of MovieLens-20M."""

CRITEO_TABLES = 26
"""Categorical columns of Criteo's advertisements."""

OUTBRAIN_TABLES = (
    *((300_000, 128), (250_000, 128), (100_000, 128), (5_000, 128)),
    *((4_000, 64), (4_000, 64), (2_500, 64), (2_500, 64), (2_000, 64), (1_000, 64), (1_000, 64)),
    *((300, 64), (4, 19)),
)
"""Rows and widths of the tables of NVIDIA's script that take one category (DeepLearningExamples,
TensorFlow2/Recommendation/WideAndDeep/data/outbrain/features.py)."""

OUTBRAIN_LISTS = ((350, 64), (10_000, 64), (100, 64))
"""The same of those that take the mean of three."""

LISTED = 3
"""Categories in a list."""


def chain(widths: tuple[int, ...], dropout: float = 0.0) -> nn.Sequential:
    """Return products of these widths with ReLU, and dropout if any, behind each."""
    layers: list[nn.Module] = []
    for n_in, n_out in pairwise(widths):
        layers += [nn.Linear(n_in, n_out), nn.ReLU(), *([nn.Dropout(dropout)] * bool(dropout))]
    return nn.Sequential(*layers)


class Ncf(nn.Module):
    """NeuMF: 64 factors, and an MLP of 256, 256, 128 and 64 (He et al., 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.user_factors, self.item_factors = nn.Embedding(USERS, 64), nn.Embedding(ITEMS, 64)
        self.user_rows, self.item_rows = nn.Embedding(USERS, 128), nn.Embedding(ITEMS, 128)
        self.mlp = chain((256, 256, 128, 64), 0.5)
        self.final = nn.Linear(128, 1)

    def forward(self, users: Any, items: Any) -> Any:
        factors = self.user_factors(users) * self.item_factors(items)
        hidden = self.mlp(torch.cat([self.user_rows(users), self.item_rows(items)], 1))
        return self.final(torch.cat([factors, hidden], 1))


class WideAndDeep(nn.Module):
    """Sums of single weights, and an MLP of 1024, 1024, 1024, 1024 and 1024 over embeddings."""

    def __init__(self, numbers: int = 13) -> None:
        super().__init__()
        tables = (*OUTBRAIN_TABLES, *OUTBRAIN_LISTS)
        self.wide = nn.ModuleList(nn.Embedding(rows, 1) for rows, _ in tables)
        self.deep = nn.ModuleList(nn.Embedding(rows, width) for rows, width in tables)
        self.straight = nn.Linear(numbers, 1)
        n_in = sum(width for _, width in tables) + numbers
        self.mlp = chain((n_in, *(1024,) * 5), 0.1)
        self.final = nn.Linear(1024, 1)

    def looked_up(self, tables: Any, columns: Any) -> list[Any]:
        """Return the rows of the tables, the mean of three where they take a list."""
        single = len(OUTBRAIN_TABLES)
        rows = [table(columns[:, i]) for i, table in enumerate(tables[:single])]
        for i, table in enumerate(tables[single:]):
            start = single + LISTED * i
            rows.append(table(columns[:, start : start + LISTED]).mean(1))
        return rows

    def forward(self, numbers: Any, columns: Any) -> Any:
        wide = self.straight(numbers)
        for row in self.looked_up(self.wide, columns):
            wide = wide + row
        rows = self.looked_up(self.deep, columns)
        return wide + self.final(self.mlp(torch.cat([*rows, numbers], 1)))


class VaeCf(nn.Module):
    """A variational autoencoder of 600 and 200 over items seen (Liang, 2018); own loss."""

    def __init__(self, items: int = 20108) -> None:
        super().__init__()
        self.up, self.code = nn.Linear(items, 600), nn.Linear(600, 400)
        self.down, self.out = nn.Linear(200, 600), nn.Linear(600, items)

    def forward(self, seen: Any) -> Any:
        mean, spread = self.code(torch.tanh(self.up(F.dropout(seen, 0.5, self.training)))).chunk(
            2, 1
        )
        drawn = mean + torch.exp(0.5 * spread) * torch.randn_like(spread)
        shares = torch.log_softmax(self.out(torch.tanh(self.down(drawn))), 1)
        distance = (spread.exp() + mean.square() - 1 - spread).mean()
        return distance - (shares * seen).mean()


class Dlrm(nn.Module):
    """DLRM: 26 tables of 128, all pairs of rows multiplied (Naumov et al., 2019)."""

    def __init__(self, rows: int = 100000, width: int = 128) -> None:
        super().__init__()
        tables = CRITEO_TABLES
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.bottom = chain((13, 512, 256, width))
        self.top = chain((width + (tables + 1) ** 2, 1024, 1024, 512, 256))
        self.final = nn.Linear(256, 1)

    def forward(self, numbers: Any, columns: Any) -> Any:
        told = self.bottom(numbers)
        rows = [table(columns[:, place]) for place, table in enumerate(self.tables)]
        rows = torch.stack([told, *rows], 1)
        pairs = (rows @ rows.transpose(1, 2)).flatten(1)
        return self.final(self.top(torch.cat([told, pairs], 1)))


def dlrm() -> tuple[nn.Module, tuple[Any, ...]]:
    """Return the net and example inputs: numbers and categories of an advertisement."""
    columns = torch.zeros(2, CRITEO_TABLES, dtype=torch.long)
    return Dlrm(), (torch.zeros(2, 13), columns)


def ncf() -> tuple[nn.Module, tuple[Any, ...]]:
    """Return the net and example inputs: users and items."""
    return Ncf(), (torch.zeros(2, dtype=torch.long),) * 2


def wide_and_deep() -> tuple[nn.Module, tuple[Any, ...]]:
    """Return the net and example inputs: numbers and categories of an advertisement."""
    count = len(OUTBRAIN_TABLES) + LISTED * len(OUTBRAIN_LISTS)
    columns = torch.zeros(2, count, dtype=torch.long)
    return WideAndDeep(), (torch.zeros(2, 13), columns)


def vae_cf() -> tuple[nn.Module, tuple[Any, ...]]:
    """Return the net and example inputs: rows of items."""
    net = VaeCf()
    return net, (torch.zeros(2, net.up.in_features),)
