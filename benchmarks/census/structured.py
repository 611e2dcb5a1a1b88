"""Nets of trees, graphs, frames, rays and tokens that move, as their users write them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import prune

from benchmarks.census.net import Net, both, normal, uniform, whole

WIDTH, CLASSES, TIME, WORDS = 16, 5, 8, 23


class ONLSTM(nn.Module):
    """Ordered neurons: gates by cumulated softmax (Shen et al. 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.n_chunk = nn.Embedding(WORDS, 8), 4
        self.ih, self.hh = nn.Linear(8, 4 * WIDTH + 8), nn.Linear(WIDTH, 4 * WIDTH + 8)
        self.out = nn.Linear(WIDTH, WORDS)

    @staticmethod
    def cumax(x: Tensor) -> Tensor:
        return torch.cumsum(F.softmax(x, -1), dim=-1)

    def forward(self, ids: Tensor) -> Tensor:
        weight = next(self.parameters()).data
        hx = weight.new(ids.size(0), WIDTH).zero_()
        cx = weight.new(ids.size(0), self.n_chunk, WIDTH // self.n_chunk).zero_()
        transformed = self.ih(self.emb(ids.t()))
        hiddens, distances = [], []
        for t in range(ids.size(1)):
            gates = transformed[t] + self.hh(hx)
            cingate, cforgetgate = gates[:, : self.n_chunk * 2].chunk(2, 1)
            outgate, cell, ingate, forgetgate = (
                gates[:, self.n_chunk * 2 :].view(-1, self.n_chunk * 4, 4).chunk(4, 1)
            )
            cingate = 1.0 - self.cumax(cingate)
            cforgetgate = self.cumax(cforgetgate)
            distances.append(1.0 - cforgetgate.sum(dim=-1) / self.n_chunk)
            cingate, cforgetgate = cingate[:, :, None], cforgetgate[:, :, None]
            ingate, forgetgate = torch.sigmoid(ingate), torch.sigmoid(forgetgate)
            overlap = cforgetgate * cingate
            forgetgate = forgetgate * overlap + (cforgetgate - overlap)
            ingate = ingate * overlap + (cingate - overlap)
            cx = forgetgate * cx + ingate * torch.tanh(cell)
            hx = (torch.sigmoid(outgate) * torch.tanh(cx)).view(-1, WIDTH)
            hiddens.append(hx)
        return self.out(torch.stack(hiddens, 1)) + 0.01 * torch.stack(distances, 1)[..., None]


class Liquid(nn.Module):
    """Liquid time constants by a fused solver (Hasani et al. 2021)."""

    def __init__(self) -> None:
        super().__init__()
        for name, shape in {"w": (8, 8), "mu": (8, 8), "sigma": (8, 8), "erev": (8, 8)}.items():
            setattr(self, name, nn.Parameter(torch.rand(shape)))
        self.s_w, self.s_mu = nn.Parameter(torch.rand(3, 8)), nn.Parameter(torch.rand(3, 8))
        self.gleak, self.vleak = nn.Parameter(torch.rand(8)), nn.Parameter(torch.rand(8))
        self.cm = nn.Parameter(torch.rand(8) + 0.4)
        self.register_buffer("mask", (torch.rand(8, 8, generator=torch.Generator()) > 0.4).float())
        self.fc = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        v = torch.zeros(x.shape[0], 8, device=x.device)
        for i in range(x.shape[1]):
            sensory = F.softplus(self.s_w) * torch.sigmoid(x[:, i, :, None] - self.s_mu)
            for _ in range(3):
                act = F.softplus(self.w) * torch.sigmoid(self.sigma * (v[:, :, None] - self.mu))
                act = act * self.mask
                num = torch.sum(act * self.erev, dim=1) + torch.sum(sensory, dim=1)
                den = torch.sum(act, dim=1) + torch.sum(sensory.abs(), dim=1)
                cm_t = F.softplus(self.cm) / (0.1 / 3)
                gleak = F.softplus(self.gleak)
                v = (cm_t * v + gleak * self.vleak + num) / (cm_t + gleak + den + 1e-8)
        return self.fc(v)


class Spiking(nn.Module):
    """Leaky neurons that fire and are reset, a smooth gradient in place of none."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(6, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.beta = nn.Parameter(torch.tensor(0.9))

    def spike(self, u: Tensor) -> Tensor:
        soft = torch.atan(math.pi / 2 * 2.0 * u) / math.pi + 0.5
        return (u > 0).float() + soft - soft.detach()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        mem1, mem2 = torch.zeros(x.size(0), WIDTH), torch.zeros(x.size(0), CLASSES)
        total, count = 0, 0.0
        for t in range(x.size(1)):
            reset1 = (mem1 > 1.0).detach().float()
            mem1 = self.beta.clamp(0, 1) * mem1 + self.fc1(x[:, t]) - reset1
            spk1 = self.spike(mem1 - 1.0)
            mem2 = self.beta.clamp(0, 1) * mem2 + self.fc2(spk1)
            total = total + F.cross_entropy(mem2, y)
            count = count + spk1.mean()
        return total / x.size(1) + 0.01 * count


class PonderNet(nn.Module):
    """Steps with a learnt chance to halt, KL to a geometric prior (Banino et al. 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.GRUCell(6, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.halt = nn.Linear(WIDTH, 1)
        prior = 0.3 * 0.7 ** torch.arange(5, dtype=torch.float)
        self.register_buffer("p_g", prior)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.cell(x, x.new_zeros((x.shape[0], WIDTH)))
        p, lines, un_halted = [], [], h.new_ones((x.shape[0],))
        for n in range(1, 6):
            lam = h.new_ones(h.shape[0]) if n == 5 else torch.sigmoid(self.halt(h))[:, 0]
            p.append(un_halted * lam)
            lines.append(F.cross_entropy(self.out(h), y, reduction="none"))
            un_halted = un_halted * (1 - lam)
            h = self.cell(x, h)
        p = torch.stack(p)
        rec = (p * torch.stack(lines)).sum(0).mean()
        prior = self.p_g[: p.shape[0]].unsqueeze(1).expand_as(p)
        return rec + 0.01 * F.kl_div((p + 1e-8).log(), prior, reduction="batchmean")


class SoftTree(nn.Module):
    """A soft decision tree by paths, with its penalty (Frosst & Hinton 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6 + 1, 7, bias=False), nn.Sigmoid())
        self.leaves = nn.Linear(8, CLASSES, bias=False)

    def penalty(self, layer: int, mu: Tensor, path: Tensor) -> Tensor:
        b, penalty = mu.size(0), torch.tensor(0.0)
        mu, path = mu.view(b, 2**layer), path.view(b, 2 ** (layer + 1))
        for node in range(2 ** (layer + 1)):
            alpha = torch.sum(path[:, node] * mu[:, node // 2], 0) / torch.sum(mu[:, node // 2], 0)
            coeff = 0.1 * 2 ** (-layer)
            penalty = penalty - 0.5 * coeff * (torch.log(alpha) + torch.log(1 - alpha))
        return penalty

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        b = x.size(0)
        prob = self.inner(torch.cat((torch.ones(b, 1), x), 1)).unsqueeze(2)
        prob = torch.cat((prob, 1 - prob), dim=2)
        mu, begin, end, penalty = x.data.new(b, 1, 1).fill_(1.0), 0, 1, torch.tensor(0.0)
        for layer in range(3):
            path = prob[:, begin:end, :]
            penalty = penalty + self.penalty(layer, mu, path)
            mu = mu.view(b, -1, 1).repeat(1, 1, 2) * path
            begin, end = end, end + 2 ** (layer + 1)
        return F.cross_entropy(self.leaves(mu.view(b, 8)), y) + penalty


class TreeLSTM(nn.Module):
    """Child sums from leaves to the root, children by index (Tai et al. 2015)."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(WORDS, 8)
        self.iou_x, self.iou_h = nn.Linear(8, 3 * WIDTH), nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.f_x, self.f_h = nn.Linear(8, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, CLASSES)

    def forward(self, words: Tensor, left: Tensor, right: Tensor) -> Tensor:
        x = self.emb(words)
        rows = torch.arange(len(words))
        hs = [torch.zeros(len(words), WIDTH)]
        cs = [torch.zeros(len(words), WIDTH)]
        for n in range(words.shape[1]):
            H, C = torch.stack(hs, 1), torch.stack(cs, 1)
            kids = torch.stack([left[:, n], right[:, n]], 1).clamp(max=n)
            child_h, child_c = H[rows[:, None], kids], C[rows[:, None], kids]
            i, o, u = (self.iou_x(x[:, n]) + self.iou_h(child_h.sum(1))).chunk(3, dim=1)
            f = torch.sigmoid(self.f_h(child_h) + self.f_x(x[:, n]).unsqueeze(1))
            c = torch.sigmoid(i) * torch.tanh(u) + torch.sum(f * child_c, dim=1)
            hs.append(torch.sigmoid(o) * torch.tanh(c))
            cs.append(c)
        return self.out(hs[-1])


class DiffPool(nn.Module):
    """Dense pooling of graphs with its link and entropy losses (Ying et al. 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.pool = nn.Linear(6, WIDTH), nn.Linear(6, 3)
        self.embed2, self.fc = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.bn = nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor, adj: Tensor, y: Tensor) -> Tensor:
        adj = ((adj + adj.transpose(1, 2)) > 1.0).float()
        deg = adj.sum(-1, keepdim=True).clamp(min=1)
        z = F.relu(self.embed(adj @ x / deg))
        z = self.bn(z.transpose(1, 2)).transpose(1, 2)
        s = torch.softmax(self.pool(adj @ x / deg), dim=-1)
        out, out_adj = torch.matmul(s.transpose(1, 2), z), s.transpose(1, 2) @ adj @ s
        link = torch.norm(adj - torch.matmul(s, s.transpose(1, 2)), p=2) / adj.numel()
        ent = (-s * torch.log(s + 1e-15)).sum(dim=-1).mean()
        h = F.relu(self.embed2(torch.bmm(out_adj, out)))
        return F.cross_entropy(self.fc(h.max(dim=1)[0]), y) + link + ent


class Graphormer(nn.Module):
    """Attention biased by hops, nodes by degrees, a virtual node (Ying et al. 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.atoms, self.degrees = nn.Embedding(9, WIDTH, padding_idx=0), nn.Embedding(8, WIDTH)
        self.spatial, self.virtual = nn.Embedding(6, 4, padding_idx=0), nn.Embedding(1, 4)
        self.graph_token = nn.Embedding(1, WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.ln, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 1)

    def forward(self, atoms: Tensor, hops: Tensor, y: Tensor) -> Tensor:
        b, n = atoms.size()
        degree = (hops == 1).sum(-1)
        nodes = self.atoms(atoms) + self.degrees(degree)
        x = torch.cat([self.graph_token.weight.unsqueeze(0).repeat(b, 1, 1), nodes], dim=1)
        bias = torch.zeros(b, 4, n + 1, n + 1)
        bias[:, :, 1:, 1:] = bias[:, :, 1:, 1:] + self.spatial(hops).permute(0, 3, 1, 2)
        t = self.virtual.weight.view(1, 4, 1)
        bias[:, :, 1:, 0] = bias[:, :, 1:, 0] + t
        bias[:, :, 0, :] = bias[:, :, 0, :] + t
        padding = torch.cat([torch.zeros(b, 1, dtype=torch.bool), atoms.eq(0)], dim=1)
        q, k, v = self.qkv(self.ln(x)).view(b, n + 1, 3, 4, WIDTH // 4).permute(2, 0, 3, 1, 4)
        a = (q * (WIDTH // 4) ** -0.5) @ k.transpose(-2, -1) + bias
        a = a.masked_fill(padding[:, None, None], float("-inf")).softmax(-1)
        x = x + self.proj((a @ v).transpose(1, 2).reshape(b, n + 1, WIDTH))
        return F.l1_loss(self.out(x[:, 0]).squeeze(-1), y)


class VGAE(nn.Module):
    """Links by inner products, rare ones weighted (Kipf & Welling 2016)."""

    def __init__(self) -> None:
        super().__init__()
        self.w0 = nn.Parameter(nn.init.xavier_uniform_(torch.empty(6, WIDTH)))
        self.mu, self.logvar = nn.Linear(WIDTH, 4, bias=False), nn.Linear(WIDTH, 4, bias=False)

    def forward(self, x: Tensor, adj: Tensor, eps: Tensor) -> Tensor:
        a = ((adj + adj.mT) / 2 > 0.6).to(x.dtype)
        a = a * (1 - torch.eye(a.size(-1))) + torch.eye(a.size(-1))
        d = a.sum(-1).rsqrt()
        norm = d.unsqueeze(-1) * a * d.unsqueeze(-2)
        h = F.relu(torch.einsum("bij,bjk,kl->bil", norm, x, self.w0))
        mu, logvar = norm @ self.mu(h), (norm @ self.logvar(h)).clamp(max=10)
        z = mu + eps * torch.exp(0.5 * logvar)
        logits = z @ z.mT
        pos_weight = (a.numel() - a.sum()) / a.sum()
        loss = F.binary_cross_entropy_with_logits(logits, a, pos_weight=pos_weight)
        kl = -0.5 / a.size(-1) * torch.mean(torch.sum(1 + logvar - mu**2 - logvar.exp(), -1))
        return loss + kl


class PointAttention(nn.Module):
    """Invariant point attention on frames (Jumper et al. 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv = nn.Linear(WIDTH, 2 * 4), nn.Linear(WIDTH, 2 * 2 * 4)
        self.q_pts, self.kv_pts = nn.Linear(WIDTH, 2 * 3 * 3), nn.Linear(WIDTH, 2 * 6 * 3)
        self.b, self.out = nn.Linear(8, 2), nn.Linear(2 * (4 + 3 * 4 + 8), WIDTH)
        self.head_weights = nn.Parameter(torch.full((2,), 0.541324854612918))
        self.update = nn.Linear(WIDTH, 6)

    @staticmethod
    def frame(q: Tensor) -> Tensor:
        a, b = torch.split(q, 3, -1)
        e0 = a / torch.sqrt(torch.sum(a**2, -1, keepdim=True) + 1e-8)
        e1 = b - e0 * torch.sum(e0 * b, -1, keepdim=True)
        e1 = e1 / torch.sqrt(torch.sum(e1**2, -1, keepdim=True) + 1e-8)
        return torch.stack([e0, e1, torch.cross(e0, e1, dim=-1)], dim=-1)

    def forward(self, s: Tensor, z: Tensor, six: Tensor, trans: Tensor) -> Tensor:
        rot = self.frame(six)
        q = self.q(s).view(*s.shape[:-1], 2, -1)
        k, v = torch.split(self.kv(s).view(*s.shape[:-1], 2, -1), 4, dim=-1)

        def placed(raw: Tensor) -> Tensor:
            pts = torch.stack(torch.split(raw, raw.shape[-1] // 3, dim=-1), dim=-1)
            return torch.einsum("bnij,bnpj->bnpi", rot, pts) + trans[:, :, None]

        q_pts = placed(self.q_pts(s)).view(*s.shape[:-1], 2, 3, 3)
        k_pts, v_pts = torch.split(
            placed(self.kv_pts(s)).view(*s.shape[:-1], 2, 6, 3), [3, 3], dim=-2
        )
        a = torch.matmul(q.permute(0, 2, 1, 3), k.permute(0, 2, 3, 1)) * math.sqrt(1.0 / (3 * 4))
        a = a + math.sqrt(1.0 / 3) * self.b(z).permute(0, 3, 1, 2)
        pt_att = (q_pts.unsqueeze(-4) - k_pts.unsqueeze(-5)) ** 2
        weights = F.softplus(self.head_weights).view(1, 1, 1, 2, 1)
        weights = weights * math.sqrt(1.0 / (3 * (3 * 9.0 / 2)))
        pt_att = torch.sum(sum(torch.unbind(pt_att, dim=-1)) * weights, dim=-1) * -0.5
        a = torch.softmax(a + pt_att.permute(0, 3, 1, 2), -1)
        o = torch.matmul(a, v.transpose(-2, -3)).transpose(-2, -3).flatten(-2)
        o_pt = torch.sum(
            a[..., None, :, :, None] * v_pts.permute(0, 2, 4, 1, 3)[..., None, :, :], -2
        )
        o_pt = o_pt.permute(0, 3, 1, 4, 2)
        o_pt = torch.einsum("bnji,bnhpj->bnhpi", rot, o_pt - trans[:, :, None, None])
        norm = torch.sqrt(torch.sum(o_pt**2, dim=-1) + 1e-8).flatten(-2)
        o_pair = torch.matmul(a.transpose(-2, -3), z).flatten(-2)
        o_pt = o_pt.reshape(*o_pt.shape[:-3], -1, 3)
        s = s + self.out(torch.cat((o, *torch.unbind(o_pt, dim=-1), norm, o_pair), dim=-1))
        new = self.frame(self.update(s))
        return (torch.matmul(new, rot.mT) - torch.eye(3)).pow(2).mean() + s.pow(2).mean()


class Geodesic(nn.Module):
    """Rotations by six numbers, their angle to the true ones (Zhou et al. 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, WIDTH), nn.LeakyReLU(), nn.Linear(WIDTH, 6))

    def forward(self, x: Tensor, quat: Tensor) -> Tensor:
        a1, a2 = self.net(x)[..., :3], self.net(x)[..., 3:]
        b1 = F.normalize(a1, dim=-1)
        b2 = F.normalize(a2 - (b1 * a2).sum(-1, keepdim=True) * b1, dim=-1)
        R = torch.stack((b1, b2, torch.cross(b1, b2, dim=-1)), dim=-2)
        r, i, j, k = torch.unbind(quat, -1)
        two_s = 2.0 / (quat * quat).sum(-1)
        T = torch.stack(
            (
                *(1 - two_s * (j * j + k * k), two_s * (i * j - k * r), two_s * (i * k + j * r)),
                *(two_s * (i * j + k * r), 1 - two_s * (i * i + k * k), two_s * (j * k - i * r)),
                *(two_s * (i * k - j * r), two_s * (j * k + i * r), 1 - two_s * (i * i + j * j)),
            ),
            -1,
        ).reshape(*quat.shape[:-1], 3, 3)
        trace = torch.einsum("bii->b", torch.bmm(R, T.transpose(1, 2)))
        return torch.acos(torch.clamp((trace - 1) / 2, -1 + 1e-6, 1 - 1e-6)).mean()


class Procrustes(nn.Module):
    """Points registered by soft matches and an SVD (Wang & Solomon 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Sequential(nn.Conv1d(3, WIDTH, 1), nn.ReLU(), nn.Conv1d(WIDTH, WIDTH, 1))

    def forward(self, src: Tensor, tgt: Tensor, noise: Tensor) -> Tensor:
        e_src, e_tgt = self.emb(src), self.emb(tgt)
        scores = torch.matmul(e_src.transpose(2, 1).contiguous(), e_tgt) / math.sqrt(WIDTH)
        corr = torch.matmul(tgt, torch.softmax(scores, dim=2).transpose(2, 1).contiguous())
        src_c = src - src.mean(dim=2, keepdim=True)
        corr_c = corr - corr.mean(dim=2, keepdim=True)
        H = torch.matmul(src_c, corr_c.transpose(2, 1).contiguous()) + 3 * torch.diag(
            torch.tensor([3.0, 2.0, 1.0])
        )
        u, _, vh = torch.linalg.svd(H)
        d = torch.det(vh.mT @ u.mT)
        fix = torch.diag_embed(torch.stack([torch.ones_like(d), torch.ones_like(d), d], -1))
        R = vh.mT @ fix @ u.mT
        t = corr.mean(dim=2, keepdim=True) - R @ src.mean(dim=2, keepdim=True)
        return F.mse_loss(R @ src + t, noise)


class FineNeRF(nn.Module):
    """Rays sampled again where the coarse pass saw something (Mildenhall et al. 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.coarse = nn.Sequential(nn.Linear(3 * 7, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 4))
        self.fine = nn.Sequential(nn.Linear(3 * 7, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 4))

    @staticmethod
    def encoded(x: Tensor) -> Tensor:
        freqs = 2.0 ** torch.linspace(0.0, 2.0, steps=3)
        return torch.cat([x] + [f(x * w) for w in freqs for f in (torch.sin, torch.cos)], -1)

    @staticmethod
    def raw2outputs(raw: Tensor, z_vals: Tensor, rays_d: Tensor) -> tuple[Tensor, Tensor]:
        dists = z_vals[..., 1:] - z_vals[..., :-1]
        dists = torch.cat([dists, torch.Tensor([1e10]).expand(dists[..., :1].shape)], -1)
        dists = dists * torch.norm(rays_d[..., None, :], dim=-1)
        alpha = 1.0 - torch.exp(-F.relu(raw[..., 3]) * dists)
        ones = torch.ones((alpha.shape[0], 1))
        weights = alpha * torch.cumprod(torch.cat([ones, 1.0 - alpha + 1e-10], -1), -1)[:, :-1]
        rgb = torch.sum(weights[..., None] * torch.sigmoid(raw[..., :3]), -2)
        return rgb + (1.0 - torch.sum(weights, -1)[..., None]), weights

    @staticmethod
    def sample_pdf(bins: Tensor, weights: Tensor, u: Tensor) -> Tensor:
        weights = weights + 1e-5
        cdf = torch.cumsum(weights / torch.sum(weights, -1, keepdim=True), -1)
        cdf = torch.cat([torch.zeros_like(cdf[..., :1]), cdf], -1)
        inds = torch.searchsorted(cdf, u.contiguous(), right=True)
        below = torch.max(torch.zeros_like(inds - 1), inds - 1)
        above = torch.min((cdf.shape[-1] - 1) * torch.ones_like(inds), inds)
        inds_g = torch.stack([below, above], -1)
        shape = [inds_g.shape[0], inds_g.shape[1], cdf.shape[-1]]
        cdf_g = torch.gather(cdf.unsqueeze(1).expand(shape), 2, inds_g)
        bins_g = torch.gather(bins.unsqueeze(1).expand(shape), 2, inds_g)
        denom = cdf_g[..., 1] - cdf_g[..., 0]
        denom = torch.where(denom < 1e-5, torch.ones_like(denom), denom)
        t = (u - cdf_g[..., 0]) / denom
        return bins_g[..., 0] + t * (bins_g[..., 1] - bins_g[..., 0])

    def forward(self, rays_o: Tensor, rays_d: Tensor, u: Tensor, target: Tensor) -> Tensor:
        t_vals = torch.linspace(0.0, 1.0, steps=6)
        z = (0.5 * (1.0 - t_vals) + 3.0 * t_vals).expand([rays_o.shape[0], 6])
        pts = rays_o[..., None, :] + rays_d[..., None, :] * z[..., :, None]
        rgb0, weights = self.raw2outputs(self.coarse(self.encoded(pts)), z, rays_d)
        mid = 0.5 * (z[..., 1:] + z[..., :-1])
        samples = self.sample_pdf(mid, weights[..., 1:-1], u).detach()
        z, _ = torch.sort(torch.cat([z, samples], -1), -1)
        pts = rays_o[..., None, :] + rays_d[..., None, :] * z[..., :, None]
        rgb, _ = self.raw2outputs(self.fine(self.encoded(pts)), z, rays_d)
        return torch.mean((rgb - target) ** 2) + torch.mean((rgb0 - target) ** 2)


def pruned() -> Any:
    net = nn.Sequential(nn.Linear(6, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES))
    prune.l1_unstructured(net[0], "weight", amount=0.5)
    prune.ln_structured(net[2], "weight", amount=0.25, n=2, dim=1)
    with torch.no_grad():  # torch copies none whose weights were not yet computed anew
        net(torch.zeros(1, 6))
    return net


def children(generator: torch.Generator, batch: int) -> tuple[Tensor, ...]:
    """Draws words of trees and, of each, the two nodes below it; 0 is none."""
    words = torch.randint(WORDS, (batch, 6), generator=generator)
    bound = torch.arange(1, 7).float()
    two = [(torch.rand(batch, 6, generator=generator) * bound).long() for _ in range(2)]
    return (words, *two)


NETS: Mapping[str, Net] = MappingProxyType(
    {
        "on-lstm": Net(ONLSTM, whole((WORDS, (TIME,)))),
        "liquid time constants": Net(Liquid, normal((4, 3))),
        "spiking": Net(Spiking, both(normal((5, 6)), whole((CLASSES, ()))), "own"),
        "pondernet": Net(PonderNet, both(normal((6,)), whole((CLASSES, ()))), "own"),
        "soft tree": Net(SoftTree, both(normal((6,)), whole((CLASSES, ()))), "own"),
        "tree lstm": Net(TreeLSTM, children),
        "diffpool": Net(
            DiffPool, both(normal((6, 6)), uniform((6, 6)), whole((CLASSES, ()))), "own"
        ),
        "graphormer": Net(
            Graphormer, both(whole((9, (6,))), whole((6, (6, 6))), normal(())), "own"
        ),
        "vgae": Net(VGAE, both(normal((6, 6)), uniform((6, 6)), normal((6, 4))), "own"),
        "invariant point attention": Net(
            PointAttention, normal((5, WIDTH), (5, 5, 8), (5, 6), (5, 3)), "own"
        ),
        "geodesic loss": Net(Geodesic, normal((6,), (4,)), "own"),
        "procrustes": Net(Procrustes, normal((3, 10), (3, 10), (3, 10)), "own"),
        "nerf, sampled again": Net(FineNeRF, both(normal((3,), (3,)), uniform((4,), (3,))), "own"),
        "pruned": Net(pruned, normal((6,))),
    }
)
