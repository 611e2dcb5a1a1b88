"""Nets of users and items and of facts, as their users write them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.census.net import Net, both, normal, uniform, whole

WIDTH, WORDS, TIME, CLASSES, USERS, ITEMS = 16, 30, 8, 5, 12, 20
words = whole((WORDS, (TIME,)))


pairs = whole((WORDS, (TIME,)), (WORDS, (TIME,)))


class GRU4Rec(nn.Module):
    """The next item of a session against those of the batch (Hidasi et al. 2016)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.gru = nn.Embedding(ITEMS, WIDTH), nn.GRU(WIDTH, WIDTH, batch_first=True)

    def forward(self, session: Tensor, positive: Tensor) -> Tensor:
        _, h = self.gru(self.embed(session))
        logit = h[-1] @ self.embed(positive).T
        diff = logit.diag().view(-1, 1).expand_as(logit) - logit
        bpr = -torch.mean(F.logsigmoid(diff))
        reg = torch.mean(torch.sigmoid(logit**2))
        return bpr + 0.1 * reg


class Caser(nn.Module):
    """Convolutions across and along a sequence of items (Tang and Wang 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(USERS, WIDTH), nn.Embedding(ITEMS, WIDTH)
        self.conv_v = nn.Conv2d(1, 2, (5, 1))
        self.conv_h = nn.ModuleList([nn.Conv2d(1, 3, (i, WIDTH)) for i in range(1, 6)])
        self.fc1 = nn.Linear(2 * WIDTH + 15, WIDTH)
        self.W2, self.b2 = nn.Embedding(ITEMS, 2 * WIDTH), nn.Embedding(ITEMS, 1)
        self.b2.weight.data.zero_()

    def forward(self, seq: Tensor, user: Tensor, items: Tensor) -> Tensor:
        embs, user_emb = self.item(seq).unsqueeze(1), self.user(user).squeeze(1)
        out_v = self.conv_v(embs).view(-1, 2 * WIDTH)
        out_hs = []
        for conv in self.conv_h:
            conv_out = F.relu(conv(embs).squeeze(3))
            out_hs.append(F.max_pool1d(conv_out, conv_out.size(2)).squeeze(2))
        z = F.relu(self.fc1(torch.cat([out_v, torch.cat(out_hs, 1)], 1)))
        x = torch.cat([z, user_emb], 1)
        w2, b2 = self.W2(items), self.b2(items)
        res = torch.baddbmm(b2, w2, x.unsqueeze(2)).squeeze()
        pos, neg = torch.split(res, [1, items.size(1) - 1], dim=1)
        positive = -torch.mean(torch.log(torch.sigmoid(pos)))
        return positive - torch.mean(torch.log(1 - torch.sigmoid(neg)))


class LightGCN(nn.Module):
    """Users and items smoothed over their graph, dense (He et al. 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Parameter(torch.randn(USERS + ITEMS, WIDTH) * 0.1)
        r = (torch.rand(USERS, ITEMS, generator=torch.Generator().manual_seed(0)) > 0.7).float()
        a = torch.zeros(USERS + ITEMS, USERS + ITEMS)
        a[:USERS, USERS:], a[USERS:, :USERS] = r, r.t()
        d = a.sum(1).clamp(min=1).pow(-0.5)
        self.graph = d[:, None] * a * d[None]

    def forward(self, users: Tensor, pos: Tensor, neg: Tensor) -> Tensor:
        all_emb, embs = self.embed, [self.embed]
        for _ in range(3):
            all_emb = self.graph @ all_emb
            embs.append(all_emb)
        light = torch.mean(torch.stack(embs, dim=1), dim=1)
        u, i = torch.split(light, [USERS, ITEMS])
        p, n = (torch.mul(u[users], i[x]).sum(dim=1) for x in (pos, neg))
        reg = 0.5 * (self.embed[users].norm(2).pow(2) + self.embed[USERS + pos].norm(2).pow(2))
        return torch.mean(F.softplus(n - p)) + 1e-4 * reg / float(len(users))


class FiBiNET(nn.Module):
    """Squeeze and excitation of fields, pairs of them bilinear (Huang et al. 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.fields = nn.ModuleList([nn.Embedding(10, 4) for _ in range(5)])
        self.excitation = nn.Sequential(
            nn.Linear(5, 2, bias=False), nn.ReLU(), nn.Linear(2, 5, bias=False), nn.ReLU()
        )
        self.W = nn.Linear(4, 4, bias=False)
        self.dnn = nn.Sequential(nn.Linear(80, WIDTH), nn.PReLU(), nn.Linear(WIDTH, 1))
        self.bias = nn.Parameter(torch.zeros(1))

    def pairs(self, x: Tensor) -> Tensor:
        from itertools import combinations

        parts = torch.split(x, 1, dim=1)
        return torch.cat([torch.mul(self.W(v), w) for v, w in combinations(parts, 2)], dim=1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        e = torch.stack([f(x[:, i]) for i, f in enumerate(self.fields)], 1)
        v = e * self.excitation(torch.mean(e, dim=-1, out=None)).unsqueeze(2)
        both_ = torch.flatten(torch.cat((self.pairs(v), self.pairs(e)), dim=1), start_dim=1)
        return F.binary_cross_entropy(torch.sigmoid(self.dnn(both_) + self.bias).squeeze(1), y)


class MultVAE(nn.Module):
    """Users by their items, drawn codes, multinomial likelihood (Liang et al. 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.ModuleList([nn.Linear(ITEMS, WIDTH), nn.Linear(WIDTH, 8)])
        self.p = nn.ModuleList([nn.Linear(4, WIDTH), nn.Linear(WIDTH, ITEMS)])

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        h = torch.tanh(self.q[0](F.normalize(x)))
        mu, logvar = torch.chunk(self.q[1](h), 2, dim=1)
        z = noise.mul(torch.exp(0.5 * logvar)).add_(mu)
        recon = self.p[1](torch.tanh(self.p[0](z)))
        bce = -torch.mean(torch.sum(F.log_softmax(recon, 1) * x, -1))
        return bce - 0.5 * torch.mean(torch.sum(1 + logvar - mu.pow(2) - logvar.exp(), dim=1))


class RotatE(nn.Module):
    """Relations rotate entities; negatives weighted by themselves (Sun et al. 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.Tensor([6.0]), requires_grad=False)
        self.entity = nn.Parameter(torch.randn(ITEMS, 2 * WIDTH) * 0.3)
        self.relation = nn.Parameter(torch.rand(4, WIDTH) - 0.5)

    def score(self, head: Tensor, relation: Tensor, tail: Tensor) -> Tensor:
        re_head, im_head = torch.chunk(head, 2, dim=2)
        re_tail, im_tail = torch.chunk(tail, 2, dim=2)
        phase = relation / (0.5 / 3.14159265358979)
        re, im = torch.cos(phase), torch.sin(phase)
        re_score = re_head * re - im_head * im - re_tail
        im_score = re_head * im + im_head * re - im_tail
        score = torch.stack([re_score, im_score], dim=0).norm(dim=0)
        return self.gamma.item() - score.sum(dim=2)

    def forward(self, triple: Tensor, negative: Tensor) -> Tensor:
        head = torch.index_select(self.entity, dim=0, index=triple[:, 0]).unsqueeze(1)
        rel = torch.index_select(self.relation, dim=0, index=triple[:, 1] % 4).unsqueeze(1)
        tail = torch.index_select(self.entity, dim=0, index=triple[:, 2]).unsqueeze(1)
        b, n = negative.size(0), negative.size(1)
        others = torch.index_select(self.entity, dim=0, index=negative.view(-1)).view(b, n, -1)
        neg = self.score(head, rel, others)
        neg = (F.softmax(neg, dim=1).detach() * F.logsigmoid(-neg)).sum(dim=1)
        return (-F.logsigmoid(self.score(head, rel, tail)).squeeze(1).mean() - neg.mean()) / 2


NETS: Mapping[str, Net] = MappingProxyType(
    {
        "gru4rec": Net(GRU4Rec, whole((ITEMS, (TIME,)), (ITEMS, ())), "own"),
        "caser": Net(Caser, whole((ITEMS, (5,)), (USERS, (1,)), (ITEMS, (4,))), "own"),
        "lightgcn": Net(LightGCN, whole((USERS, ()), (ITEMS, ()), (ITEMS, ())), "own"),
        "fibinet": Net(FiBiNET, both(whole((10, (5,))), uniform(())), "own"),
        "mult-vae": Net(MultVAE, both(uniform((ITEMS,)), normal((4,))), "own"),
        "rotate": Net(RotatE, whole((ITEMS, (3,)), (ITEMS, (6,))), "own"),
    }
)
