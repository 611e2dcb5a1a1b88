"""Nets of graphs, codes, pairs, tasks and rewards, as their users write them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.census.net import Net, both, normal, uniform, whole

WIDTH, CLASSES, TIME, WORDS = 8, 5, 8, 20
words = whole((WORDS, (TIME,)))
labelled = both(normal((6,)), whole((CLASSES, ())))


class SparseGCN(nn.Module):
    """pygcn with a sparse adjacency matrix (Kipf and Welling 2017)."""

    def __init__(self) -> None:
        super().__init__()
        a = (torch.rand(6, 6, generator=torch.Generator().manual_seed(0)) > 0.6).float()
        self.register_buffer("adj", (a / (a.sum(1, keepdim=True) + 1)).to_sparse())
        self.embed, self.gc = nn.Embedding(6, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, node: Tensor) -> Tensor:
        nodes = F.relu(torch.sparse.mm(self.adj, self.embed.weight))
        return self.gc(nodes)[node]


class PNA(nn.Module):
    """Several aggregators of messages along edges, scaled by degree (Corso et al. 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("edge_index", torch.tensor([[0, 1, 2, 3, 4, 0], [1, 2, 3, 4, 5, 5]]))
        self.pre, self.post = nn.Linear(6, WIDTH), nn.Linear(4 * WIDTH + 3, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        src, dst = self.edge_index[0], self.edge_index[1]
        msg = self.pre(torch.cat([x[:, src], x[:, dst]], -1)).relu()
        index = dst.view(1, -1, 1).expand_as(msg)
        outs = []
        for how in ("sum", "mean", "amin", "amax"):
            zeros = torch.zeros(x.size(0), x.size(1), msg.size(-1), dtype=msg.dtype)
            outs.append(zeros.scatter_reduce(1, index, msg, reduce=how, include_self=False))
        degree = torch.bincount(dst, minlength=6).clamp(min=1).to(x.dtype)
        h = torch.cat([*outs, x], -1) * degree.add(1).log()[:, None]
        return self.post(h).mean(1)


class SchNet(nn.Module):
    """Continuous filters of distances with a cosine cutoff (Schütt et al. 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("offset", torch.linspace(0, 3, 6))
        self.atoms = nn.Embedding(4, WIDTH, padding_idx=0)
        self.filter = nn.Sequential(nn.Linear(6, WIDTH), nn.Softplus(), nn.Linear(WIDTH, WIDTH))
        self.lin1, self.lin2 = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, 1)

    def forward(self, z: Tensor, pos: Tensor, energy: Tensor) -> Tensor:
        i, j = torch.triu_indices(5, 5, 1)
        d = (pos[:, i] - pos[:, j]).norm(dim=-1)
        rbf = torch.exp(-2.0 * torch.pow(d.unsqueeze(-1) - self.offset, 2))
        cutoff = 0.5 * (torch.cos(d * math.pi / 4.0) + 1.0) * (d < 4.0)
        w = self.filter(rbf) * cutoff.unsqueeze(-1)
        h = self.atoms(z)
        x = self.lin1(h)
        out = torch.zeros_like(x).index_add(1, i, x[:, j] * w).index_add(1, j, x[:, i] * w)
        e = self.lin2(F.softplus(h + out) - math.log(2)).squeeze(-1)
        e = e.masked_fill(z == 0, 0.0).sum(1)
        return (e - energy).abs().mean()


class Slots(nn.Module):
    """Slot attention from learnt starts, a GRU cell for the slots (Locatello et al. 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.slots = nn.Parameter(torch.randn(1, 3, WIDTH))
        self.norm_in, self.norm = nn.LayerNorm(6), nn.LayerNorm(WIDTH)
        self.k, self.v = nn.Linear(6, WIDTH, False), nn.Linear(6, WIDTH, False)
        self.q, self.gru = nn.Linear(WIDTH, WIDTH, False), nn.GRUCell(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        b, _, _ = inputs.shape
        inputs = self.norm_in(inputs)
        slots, k, v = self.slots.expand(b, -1, -1), self.k(inputs), self.v(inputs)
        for _ in range(2):
            prev = slots
            dots = torch.einsum("bid,bjd->bij", self.q(self.norm(slots)), k) * WIDTH**-0.5
            attn = dots.softmax(dim=1) + 1e-8
            attn = attn / attn.sum(dim=-1, keepdim=True)
            updates = torch.einsum("bjd,bij->bid", v, attn)
            slots = self.gru(updates.reshape(-1, WIDTH), prev.reshape(-1, WIDTH))
            slots = slots.reshape(b, -1, WIDTH)
        return self.head(slots.sum(1))


class Quantiser(nn.Module):
    """Residual codes with averages kept in buffers, straight through (van den Oord et al.)."""

    def __init__(self, codes: int = 6) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(6, 4), nn.Linear(4, 6)
        self.codes = codes
        for i in range(2):
            book = torch.randn(codes, 4)
            self.register_buffer(f"book{i}", book)
            self.register_buffer(f"size{i}", torch.ones(codes))
            self.register_buffer(f"sum{i}", book.clone())

    def quantise(self, i: int, x: Tensor) -> Tensor:
        book = getattr(self, f"book{i}")
        dist = x.pow(2).sum(1, keepdim=True) - 2 * x @ book.t() + book.pow(2).sum(1)
        ids = dist.argmin(1)
        out = F.embedding(ids, book)
        if self.training:
            with torch.no_grad():
                hot = F.one_hot(ids, self.codes).type(x.dtype)
                size, total = getattr(self, f"size{i}"), getattr(self, f"sum{i}")
                size.data.mul_(0.9).add_(hot.sum(0), alpha=0.1)
                total.data.mul_(0.9).add_(hot.t() @ x.detach(), alpha=0.1)
                book.data.copy_(total / size.add(1e-5).unsqueeze(1))
        return out

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = residual = self.enc(x)
        total, commit = torch.zeros_like(z), x.new_zeros(())
        for i in range(2):
            q = self.quantise(i, residual)
            commit = commit + F.mse_loss(residual, q.detach())
            residual, total = residual - q.detach(), total + q
        recon = self.dec(z + (total - z).detach())
        return F.mse_loss(recon, x) + 0.25 * commit, recon


class FSQ(nn.Module):
    """Finite scalar quantisation by rounding straight through (Mentzer et al. 2024)."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(6, 3), nn.Linear(3, 6)
        self.register_buffer("levels", torch.tensor([7, 5, 5], dtype=torch.int32))

    def forward(self, x: Tensor) -> Tensor:
        z = self.enc(x)
        half_l = (self.levels - 1) * (1 - 1e-3) / 2
        offset = torch.where(self.levels % 2 == 1, 0.0, 0.5)
        bounded = (z + torch.tan(offset / half_l)).tanh() * half_l - offset
        quantised = bounded + (bounded.round() - bounded).detach()
        return F.l1_loss(self.dec(quantised / (self.levels // 2)), x)


class MoCo(nn.Module):
    """A queue of keys in a buffer, the key encoder's gradient stopped (He et al. 2020)."""

    queue: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.encoder_q, self.encoder_k = nn.Linear(6, WIDTH), nn.Linear(6, WIDTH)
        for p in self.encoder_k.parameters():
            p.requires_grad = False
        self.register_buffer("queue", F.normalize(torch.randn(WIDTH, 12), dim=0))

    def forward(self, im_q: Tensor, im_k: Tensor) -> Tensor:
        q = nn.functional.normalize(self.encoder_q(im_q), dim=1)
        with torch.no_grad():
            k = nn.functional.normalize(self.encoder_k(im_k), dim=1)
        l_pos = torch.einsum("nc,nc->n", [q, k]).unsqueeze(-1)
        l_neg = torch.einsum("nc,ck->nk", [q, self.queue.clone().detach()])
        logits = torch.cat([l_pos, l_neg], dim=1)
        logits /= 0.07
        self.queue = torch.cat([self.queue[:, k.size(0) :], k.t()], 1)
        return F.cross_entropy(logits, torch.zeros(logits.shape[0], dtype=torch.long))


class SparseMax(nn.Module):
    """Attention by sparsemax, as entmax sorts it (Martins and Astudillo 2016)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.query = nn.Embedding(WORDS, WIDTH), nn.Parameter(torch.randn(WIDTH))
        self.out = nn.Linear(WIDTH, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        z = x @ self.query
        z = z - z.max(-1, keepdim=True).values
        zs, _ = torch.sort(z, dim=-1, descending=True)
        rho = torch.arange(1, z.size(-1) + 1, dtype=z.dtype, device=z.device)
        cum = zs.cumsum(-1) - 1
        support = (rho * zs > cum).sum(-1, keepdim=True)
        tau = cum.gather(-1, support - 1) / support.to(z.dtype)
        p = torch.clamp(z - tau, min=0)
        return self.out(torch.matmul(p.unsqueeze(1), x).squeeze(1))


class MMoE(nn.Module):
    """Experts shared by two tasks, uncertainty weights (Ma et al. 2018; Kendall et al. 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.fields = nn.ModuleList(nn.Embedding(n, 4) for n in (5, 7, 9))
        self.register_buffer("offsets", torch.tensor([0, 5, 12]))
        self.experts = nn.ModuleList(nn.Linear(18, WIDTH) for _ in range(3))
        self.gates = nn.ModuleList(nn.Linear(18, 3) for _ in range(2))
        self.towers = nn.ModuleList(nn.Linear(WIDTH, 1) for _ in range(2))
        self.log_var = nn.Parameter(torch.zeros(2))

    def forward(self, ids: Tensor, dense: Tensor, y: Tensor) -> dict[str, Any]:
        x = torch.cat([f(ids[:, i] % f.num_embeddings) for i, f in enumerate(self.fields)], -1)
        x = torch.hstack([x, torch.log1p(dense.abs()) * dense.sign()])
        shared = torch.stack([F.relu(e(x)) for e in self.experts], dim=1)
        losses, outs = [], {}
        for i, (gate, tower) in enumerate(zip(self.gates, self.towers, strict=True)):
            mixed = torch.bmm(gate(x).softmax(1).unsqueeze(1), shared).squeeze(1)
            outs[f"task{i}"] = tower(mixed).squeeze(1)
            losses.append(F.binary_cross_entropy_with_logits(outs[f"task{i}"], y[:, i]))
        total = sum(torch.exp(-s) * loss + s for s, loss in zip(self.log_var, losses, strict=True))
        return {"loss": total, **outs}


class CircleLoss(nn.Module):
    """Pairs of a batch weighted by how far they are off (Sun et al. 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, WIDTH), nn.BatchNorm1d(WIDTH, affine=False))

    def forward(self, x: Tensor, label: Tensor) -> Tensor:
        feature = F.normalize(self.net(x))
        sim = feature @ feature.transpose(1, 0)
        same = label.unsqueeze(1) == label.unsqueeze(0)
        upper = torch.ones_like(same).triu(diagonal=1)
        positive, negative = same & upper, ~same & upper
        ap = torch.clamp_min(-sim.detach() + 1.25, min=0.0)
        an = torch.clamp_min(sim.detach() + 0.25, min=0.0)
        logit_p, logit_n = -ap * (sim - 0.75) * 8, an * (sim - 0.25) * 8
        logit_p = logit_p.masked_fill(~positive, -1e4).flatten()
        logit_n = logit_n.masked_fill(~negative, -1e4).flatten()
        return F.softplus(torch.logsumexp(logit_n, dim=0) + torch.logsumexp(logit_p, dim=0))


class Prototypes(nn.Module):
    """Center loss beside distances to learnt centers (Wen et al. 2016)."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.centers = nn.Linear(6, WIDTH), nn.Parameter(torch.randn(CLASSES, WIDTH))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        z = self.net(x)
        n = z.size(0)
        distmat = (
            torch.pow(z, 2).sum(dim=1, keepdim=True).expand(n, CLASSES)
            + torch.pow(self.centers, 2).sum(dim=1, keepdim=True).expand(CLASSES, n).t()
        )
        distmat = torch.addmm(distmat, z, self.centers.t(), beta=1, alpha=-2)
        classes = torch.arange(CLASSES).long()
        mask = labels.unsqueeze(1).expand(n, CLASSES).eq(classes.expand(n, CLASSES))
        dist = distmat * mask.float()
        return dist.clamp(min=1e-12, max=1e12).sum() / n + F.cross_entropy(-distmat, labels)


class Quaternion(nn.Module):
    """A Hamilton product of four blocks (Parcollet et al. 2019), and binary weights with it."""

    def __init__(self) -> None:
        super().__init__()
        for part in "rijk":
            setattr(self, f"{part}_weight", nn.Parameter(torch.randn(2, 2)))
        self.binary, self.head = nn.Parameter(torch.randn(WIDTH, WIDTH)), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        r, i, j, k = self.r_weight, self.i_weight, self.j_weight, self.k_weight
        rows = [
            torch.cat(row, dim=0)
            for row in ((r, -i, -j, -k), (i, r, -k, j), (j, k, r, -i), (k, -j, i, r))
        ]
        h = torch.mm(x, torch.cat(rows, dim=1))
        w = self.binary
        w = (w.sign() * w.abs().mean(1, keepdim=True) - w).detach() + w
        return self.head(F.hardtanh(h) @ w.T)


class ChebyKAN(nn.Module):
    """Chebyshev polynomials by the arc cosine of what tanh leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.c2 = (nn.Parameter(torch.randn(i, o, 4) / 8) for i, o in ((6, 8), (8, 5)))
        self.register_buffer("arange", torch.arange(0, 4, 1))
        self.norm = nn.LayerNorm(8)

    def layer(self, x: Tensor, coefficients: Tensor) -> Tensor:
        x = torch.tanh(x).view((-1, coefficients.shape[0], 1)).expand(-1, -1, 4)
        x = x.clamp(-1 + 1e-4, 1 - 1e-4).acos()
        x = x * self.arange
        return torch.einsum("bid,iod->bo", x.cos(), coefficients)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.norm(self.layer(x, self.c1)), self.c2)


class Rainbow(nn.Module):
    """V-trace targets and a value transform, computed backwards in time (Espeholt et al. 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.core = nn.LSTM(6, WIDTH)
        self.policy, self.value = nn.Linear(WIDTH, 3), nn.Linear(WIDTH, 1)

    def forward(self, obs: Tensor, action: Tensor, behaviour: Tensor, reward: Tensor) -> Tensor:
        h, _ = self.core(obs.transpose(0, 1))
        logits, v = self.policy(h), self.value(h).squeeze(-1)
        log_pi = torch.log_softmax(logits, -1).gather(-1, action.t().unsqueeze(-1)).squeeze(-1)
        reward = torch.sign(reward.t()) * (torch.sqrt(reward.t().abs() + 1) - 1)
        with torch.no_grad():
            rho = torch.exp(log_pi - behaviour.t()).clamp(max=1.0)
            nxt = torch.cat([v[1:], v[-1:]], 0)
            deltas = rho * (reward + 0.9 * nxt - v)
            acc = torch.zeros_like(v[-1])
            out: list[Tensor] = []
            for i in reversed(range(v.shape[0])):
                acc = deltas[i] + 0.9 * rho[i] * acc
                out.insert(0, acc)
            vs = torch.stack(out) + v
            advantage = rho * (reward + 0.9 * torch.cat([vs[1:], v[-1:]], 0) - v)
        entropy = -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1).mean()
        return -(advantage * log_pi).mean() + 0.5 * (vs - v).pow(2).mean() - 0.01 * entropy


NETS: Mapping[str, Net] = MappingProxyType(
    {
        "pygcn": Net(SparseGCN, whole((6, ()))),
        "pna": Net(PNA, normal((6, 3))),
        "schnet": Net(SchNet, both(whole((4, (5,))), normal((5, 3), ())), "own"),
        "slot attention": Net(Slots, normal((TIME, 6))),
        "residual codes": Net(Quantiser, normal((6,)), "own"),
        "fsq": Net(FSQ, normal((6,)), "own"),
        "moco": Net(MoCo, normal((6,), (6,)), "own"),
        "sparsemax": Net(SparseMax, words),
        "mmoe": Net(MMoE, both(whole((9, (3,))), normal((6,)), uniform((2,))), "own"),
        "circle loss": Net(CircleLoss, labelled, "own"),
        "center loss": Net(Prototypes, labelled, "own"),
        "quaternion, binary": Net(Quaternion, normal((WIDTH,))),
        "chebykan": Net(ChebyKAN, normal((6,))),
        "impala": Net(
            Rainbow,
            both(normal((TIME, 6)), whole((3, (TIME,))), normal((TIME,), (TIME,))),
            "own",
        ),
    }
)
