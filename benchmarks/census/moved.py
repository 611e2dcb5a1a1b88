"""Nets that move, sort, warp, scatter and adapt what they read, as their users write them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.census.net import Net, both, normal, uniform, whole

WIDTH, TIME, WORDS, SIDE, CLASSES = 16, 8, 23, 8, 10


class RAFT(nn.Module):
    """Flow from all pairs, looked up at two scales by a recurrent cell (Teed & Deng 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.fnet = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1), nn.InstanceNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, 1, 1)
        )
        self.cnet = nn.Conv2d(3, WIDTH, 3, 2, 1)
        self.convz, self.convr, self.convq = (nn.Conv2d(8 + 20, 8, 3, padding=1) for _ in range(3))
        self.encode, self.flow_head = nn.Conv2d(18 + 2, 12, 3, padding=1), nn.Conv2d(8, 2, 3, 1, 1)

    @staticmethod
    def sampled(img: Tensor, coords: Tensor) -> Tensor:
        H, W = img.shape[-2:]
        xgrid, ygrid = coords.split([1, 1], dim=-1)
        xgrid, ygrid = 2 * xgrid / (W - 1) - 1, 2 * ygrid / (H - 1) - 1
        return F.grid_sample(img, torch.cat([xgrid, ygrid], dim=-1), align_corners=True)

    def corr(self, pyramid: list[Tensor], coords: Tensor) -> Tensor:
        coords = coords.permute(0, 2, 3, 1)
        b, h, w, _ = coords.shape
        out = []
        for i, level in enumerate(pyramid):
            d = torch.linspace(-1, 1, 3)
            delta = torch.stack(torch.meshgrid(d, d, indexing="ij"), axis=-1)
            centroid = coords.reshape(b * h * w, 1, 1, 2) / 2**i
            out.append(self.sampled(level, centroid + delta.view(1, 3, 3, 2)).view(b, h, w, -1))
        return torch.cat(out, dim=-1).permute(0, 3, 1, 2).contiguous().float()

    def forward(self, one: Tensor, two: Tensor, flow_gt: Tensor) -> Tensor:
        f1, f2 = self.fnet(one), self.fnet(two)
        b, d, h, w = f1.shape
        corr = torch.matmul(f1.view(b, d, h * w).transpose(1, 2), f2.view(b, d, h * w))
        corr = (corr.view(b, h, w, 1, h, w) / torch.sqrt(torch.tensor(d).float())).reshape(
            b * h * w, 1, h, w
        )
        pyramid = [corr, F.avg_pool2d(corr, 2, stride=2)]
        net, inp = torch.split(self.cnet(one), [8, 8], dim=1)
        net, inp = torch.tanh(net), torch.relu(inp)
        ys, xs = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        coords0 = torch.stack([xs, ys], dim=0).float()[None].repeat(b, 1, 1, 1)
        coords1, loss = coords0.clone(), 0.0
        for it in range(2):
            coords1 = coords1.detach()
            flow = coords1 - coords0
            motion = F.relu(self.encode(torch.cat([self.corr(pyramid, coords1), flow], 1)))
            x = torch.cat([inp, motion], 1)
            hx = torch.cat([net, x], dim=1)
            z, r = torch.sigmoid(self.convz(hx)), torch.sigmoid(self.convr(hx))
            q = torch.tanh(self.convq(torch.cat([r * net, x], dim=1)))
            net = (1 - z) * net + z * q
            coords1 = coords1 + self.flow_head(net)
            up = 2 * F.interpolate(
                coords1 - coords0, size=(2 * h, 2 * w), mode="bilinear", align_corners=True
            )
            loss = loss + 0.8 ** (1 - it) * (up - flow_gt).abs().mean()
        return loss


class OctConv(nn.Module):
    """Convolutions of high and low frequencies (Chen et al. 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTH, 3, 1, 1, bias=False)
        self.h2h, self.h2l = nn.Conv2d(WIDTH, 8, 3, 1, 1), nn.Conv2d(WIDTH, 8, 3, 1, 1)
        self.l2l, self.l2h = nn.Conv2d(8, 8, 3, 1, 1), nn.Conv2d(8, 8, 3, 1, 1)
        self.hh, self.pool = nn.Conv2d(8, 8, 3, 1, 1), nn.AvgPool2d(kernel_size=(2, 2), stride=2)
        self.bn_h, self.bn_l = nn.BatchNorm2d(8), nn.BatchNorm2d(8)
        self.up, self.fc = nn.Upsample(scale_factor=2, mode="nearest"), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x_h, x_l = self.h2h(x), self.h2l(self.pool(x))
        x_h, x_l = F.relu(self.bn_h(x_h)), F.relu(self.bn_l(x_l))
        y_h = self.up(self.l2h(x_l)) + self.hh(x_h)
        y_l = self.l2l(x_l) + self.pool(x_h)
        pooled = [F.adaptive_max_pool2d(y, 1).flatten(1) for y in (y_h, y_l)]
        return self.fc(torch.cat(pooled, 1))


class Reformer(nn.Module):
    """Attention among tokens of one bucket, by fixed random rotations (Kitaev et al. 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.pos = nn.Embedding(WORDS, WIDTH), nn.Embedding(TIME, WIDTH)
        self.qk, self.v = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WORDS)
        self.register_buffer(
            "rotations", torch.randn(WIDTH, 2, generator=torch.Generator().manual_seed(0))
        )

    def forward(self, ids: Tensor) -> Tensor:
        b, t = ids.shape
        x = self.emb(ids) + self.pos(torch.arange(t, device=ids.device))
        qk, v = self.qk(x), self.v(x)
        rotated = torch.einsum("btf,fi->bti", qk.detach(), self.rotations)
        buckets = torch.argmax(torch.cat([rotated, -rotated], dim=-1), dim=-1)
        ticker = torch.arange(t).unsqueeze(0).expand_as(buckets)
        _, sticker = (t * buckets + ticker).sort(dim=-1)
        _, undo = sticker.sort(dim=-1)
        st = sticker % t

        def sort(y: Tensor) -> Tensor:
            return y.gather(1, st.unsqueeze(-1).expand(-1, -1, y.shape[-1]))

        def chunk(y: Tensor) -> Tensor:
            return torch.reshape(y, (b, 4, -1, *y.shape[2:]))

        def look_back(y: Tensor) -> Tensor:
            return torch.cat([y, torch.cat([y[:, -1:, ...], y[:, :-1, ...]], dim=1)], dim=2)

        q, places = chunk(sort(qk)), chunk(st)
        k = look_back(F.normalize(q, p=2, dim=-1).type_as(q))
        values, seen = look_back(chunk(sort(v))), look_back(places)
        dots = torch.einsum("bhie,bhje->bhij", q, k) * (WIDTH**-0.5)
        dots.masked_fill_(places[:, :, :, None] < seen[:, :, None, :], -torch.finfo(dots.dtype).max)
        dots.masked_fill_(places[:, :, :, None] == seen[:, :, None, :], -5e4)
        logsumexp = torch.logsumexp(dots, dim=-1, keepdim=True)
        dots = torch.exp(dots - logsumexp).type_as(dots)
        so = torch.reshape(torch.einsum("buij,buje->buie", dots, values), (b, -1, WIDTH))
        return self.out(x + so.gather(1, undo.unsqueeze(-1).expand_as(so)))


class MixtureOfDepths(nn.Module):
    """Blocks that only some tokens go through (Raposo et al. 2024)."""

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.router = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 1, bias=False)
        self.pos = nn.Embedding(TIME, WIDTH)
        self.block = nn.TransformerEncoderLayer(WIDTH, 4, 32, dropout=0.0, batch_first=True)
        self.aux, self.out = nn.Linear(WIDTH, 1), nn.Linear(WIDTH, WORDS)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        x = self.emb(ids) + self.pos.weight
        _, _, d = x.shape
        weights = self.router(x).squeeze(-1)
        top, chosen = torch.topk(weights, 3, dim=1, sorted=False)
        chosen, order = torch.sort(chosen, dim=1)
        top = torch.gather(F.softmax(top, dim=1), 1, order)
        index = chosen.unsqueeze(-1).expand(-1, -1, d)
        inside = torch.gather(x, 1, index)
        mask = torch.triu(torch.full((3, 3), float("-inf")), diagonal=1)
        y = self.block(inside, src_mask=mask) * top.unsqueeze(-1)
        x = torch.scatter_add(x, dim=1, index=index, src=y)
        targets = torch.zeros_like(weights).scatter_(1, chosen, 1.0)
        aux = F.binary_cross_entropy_with_logits(self.aux(x.detach()).squeeze(-1), targets)
        logits = self.out(x)
        loss = F.cross_entropy(logits[:, :-1].reshape(-1, WORDS), ids[:, 1:].reshape(-1))
        return loss + 0.1 * aux, logits


class Megabyte(nn.Module):
    """Patches by a global model, bytes by a local one (Yu et al. 2023)."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.local_bytes = nn.Embedding(WORDS, 8), nn.Embedding(WORDS, WIDTH)
        self.pad = nn.Parameter(torch.randn(1, 1, 4 * 8) * 0.02)
        self.wide = nn.TransformerEncoderLayer(32, 4, 32, 0.0, batch_first=True, norm_first=True)
        self.near = nn.TransformerEncoderLayer(WIDTH, 2, 32, 0.0, batch_first=True)
        self.down, self.start = nn.Linear(8, WIDTH), nn.Parameter(torch.randn(WIDTH) * 0.02)
        self.out = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        b, t = ids.shape
        patches = self.bytes(ids).view(b, t // 4, 4 * 8)
        patches = torch.cat((self.pad.expand(b, -1, -1), patches[:, :-1]), dim=1)
        causal = nn.Transformer.generate_square_subsequent_mask(t // 4)
        wide = self.wide(patches, src_mask=causal, is_causal=True)
        wide = self.down(wide.view(b, t // 4, 4, 8)).flatten(0, 1)
        near = self.local_bytes(ids).view(b * (t // 4), 4, WIDTH)
        near = torch.cat((self.start.repeat(near.shape[0], 1, 1), near[:, :-1]), dim=1)
        causal = nn.Transformer.generate_square_subsequent_mask(4)
        return self.out(self.near(near + wide, src_mask=causal).reshape(b, t, WIDTH))


class DIEN(nn.Module):
    """Interests that evolve: a GRU whose update gate is attended (Zhou et al. 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.items, self.gru = nn.Embedding(WORDS, 8, padding_idx=0), nn.GRU(8, 8, batch_first=True)
        self.att, self.w_x, self.w_h = nn.Linear(32, 1), nn.Linear(8, 24), nn.Linear(8, 24)
        self.aux = nn.Sequential(nn.Linear(16, 8), nn.Sigmoid(), nn.Linear(8, 1))
        self.dnn = nn.Sequential(nn.Linear(16, WIDTH), nn.PReLU(), nn.Linear(WIDTH, 2))

    def forward(self, history: Tensor, negative: Tensor, item: Tensor, click: Tensor) -> Tensor:
        mask = history > 0
        x, target = self.items(history), self.items(item)
        h, _ = self.gru(x)
        click_p = self.aux(torch.cat([h[:, :-1], x[:, 1:]], -1)).squeeze(-1)
        noclick = self.aux(torch.cat([h[:, :-1], self.items(negative)[:, 1:]], -1)).squeeze(-1)
        m = mask[:, 1:].float()
        aux = -(F.logsigmoid(click_p) * m).sum() / m.sum().clamp(min=1.0)
        aux = aux - (torch.log(1 - torch.sigmoid(noclick) + 1e-8) * m).mean()
        q = target.unsqueeze(1).expand_as(h)
        scores = self.att(torch.cat([q, h, q - h, q * h], dim=-1)).squeeze(-1)
        scores = torch.where(mask, scores, torch.full_like(scores, -(2**32) + 1))
        a = F.softmax(scores, dim=-1)
        state = torch.zeros_like(target)
        for t in range(h.shape[1]):
            x_r, x_u, x_n = self.w_x(h[:, t]).chunk(3, 1)
            h_r, h_u, h_n = self.w_h(state).chunk(3, 1)
            u = a[:, t].view(-1, 1) * torch.sigmoid(x_u + h_u)
            new = torch.tanh(x_n + torch.sigmoid(x_r + h_r) * h_n)
            new = (1.0 - u) * state + u * new
            state = torch.where(mask[:, t].unsqueeze(1), new, state)
        return F.cross_entropy(self.dnn(torch.cat([state, target], -1)), click) + aux


class ConvE(nn.Module):
    """Entities and relations as one picture, all tails at once (Dettmers et al. 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.emb_e, self.emb_rel = nn.Embedding(WORDS, 12), nn.Embedding(4, 12)
        self.bn0, self.bn1, self.bn2 = nn.BatchNorm2d(1), nn.BatchNorm2d(4), nn.BatchNorm1d(12)
        self.conv1, self.fc = nn.Conv2d(1, 4, (3, 3), 1, 0, bias=True), nn.Linear(4 * 6 * 2, 12)
        self.b = nn.Parameter(torch.zeros(WORDS))

    def forward(self, e1: Tensor, rel: Tensor, tails: Tensor) -> Tensor:
        e1_embedded = self.emb_e(e1).view(-1, 1, 4, 3)
        rel_embedded = self.emb_rel(rel).view(-1, 1, 4, 3)
        stacked = self.bn0(torch.cat([e1_embedded, rel_embedded], 2))
        stacked = torch.cat([stacked, stacked[..., :1]], 3)
        x = F.relu(self.bn1(self.conv1(stacked)))
        x = F.relu(self.bn2(self.fc(x.view(x.shape[0], -1))))
        pred = torch.sigmoid(
            torch.mm(x, self.emb_e.weight.transpose(1, 0))
            + self.b.expand_as(torch.mm(x, self.emb_e.weight.t()))
        )
        e2 = torch.zeros(e1.shape[0], WORDS).scatter_(1, tails, 1.0)
        return F.binary_cross_entropy(pred, ((1.0 - 0.1) * e2) + (1.0 / e2.size(1)))


class Reversal(torch.autograd.Function):
    """The gradient turned round, as every domain-adversarial net has it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, alpha: float) -> Tensor:
        ctx.alpha = alpha
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad.neg() * ctx.alpha, None


class DANN(nn.Module):
    """Features by which domains are not told apart (Ganin et al. 2016)."""

    def __init__(self) -> None:
        super().__init__()
        self.feature = nn.Sequential(nn.Linear(6, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU())
        self.classes, self.domains = nn.Linear(WIDTH, 5), nn.Linear(WIDTH, 2)

    def forward(self, source: Tensor, target: Tensor, y: Tensor) -> Tensor:
        s, t = self.feature(source), self.feature(target)
        both_ = Reversal.apply(torch.cat([s, t]), 0.7)
        domain = torch.cat([torch.zeros(len(s)).long(), torch.ones(len(t)).long()])
        loss = F.cross_entropy(self.classes(s), y)
        return loss + F.cross_entropy(self.domains(both_), domain)


class Quantised(nn.Module):
    """Training for int8 by torch's own fake quantisation."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, WIDTH, 3), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        w = self.conv.weight
        scales = w.detach().abs().amax((1, 2, 3)) / 127
        w = torch.fake_quantize_per_channel_affine(
            w, scales, torch.zeros(WIDTH, dtype=torch.int32), 0, -128, 127
        )
        x = F.relu(F.conv2d(x, w, self.conv.bias))
        x = torch.fake_quantize_per_tensor_affine(x, 0.02, 0, 0, 255)
        return self.fc(x.mean((2, 3)))


class LIIF(nn.Module):
    """Pixels asked for by place, four neighbours weighted by area (Chen et al. 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Conv2d(3, 4, 3, padding=1)
        self.imnet = nn.Sequential(nn.Linear(4 * 9 + 4, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 3))

    def forward(self, x: Tensor, coord: Tensor, cell: Tensor, gt: Tensor) -> Tensor:
        feat = self.encoder(x)
        feat = F.unfold(feat, 3, padding=1).view(feat.shape[0], 4 * 9, *feat.shape[-2:])
        coord = coord * 2 - 1
        rx, ry = 2 / feat.shape[-2] / 2, 2 / feat.shape[-1] / 2
        seqs = [torch.arange(-1 + 1 / n, 1, 2 / n).float()[:n] for n in feat.shape[-2:]]
        grid = torch.stack(torch.meshgrid(*seqs, indexing="ij"), dim=-1)
        feat_coord = grid.permute(2, 0, 1).unsqueeze(0).expand(feat.shape[0], 2, *feat.shape[-2:])
        preds, areas = [], []
        for vx in (-1, 1):
            for vy in (-1, 1):
                c = coord.clone()
                c[:, :, 0] += vx * rx + 1e-6
                c[:, :, 1] += vy * ry + 1e-6
                c.clamp_(-1 + 1e-6, 1 - 1e-6)
                at = c.flip(-1).unsqueeze(1)
                q = F.grid_sample(feat, at, mode="nearest", align_corners=False)[:, :, 0, :]
                place = F.grid_sample(feat_coord, at, mode="nearest", align_corners=False)
                rel = coord - place[:, :, 0, :].permute(0, 2, 1)
                rel[:, :, 0] *= feat.shape[-2]
                rel[:, :, 1] *= feat.shape[-1]
                inp = torch.cat([q.permute(0, 2, 1), rel, cell * 2], dim=-1)
                b, n = coord.shape[:2]
                preds.append(self.imnet(inp.view(b * n, -1)).view(b, n, -1))
                areas.append(torch.abs(rel[:, :, 0] * rel[:, :, 1]) + 1e-9)
        total = torch.stack(areas).sum(dim=0)
        areas = areas[::-1]
        ret: Any = 0
        for pred, area in zip(preds, areas, strict=True):
            ret = ret + pred * (area / total).unsqueeze(-1)
        return F.l1_loss(ret, gt)


class Pillars(nn.Module):
    """Points of pillars put onto a canvas (Lang et al. 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = (
            nn.Linear(7, 8, bias=False),
            nn.BatchNorm1d(8, eps=1e-3, momentum=0.01),
        )
        self.head = nn.Conv2d(8, CLASSES, 3, stride=2)

    def forward(self, points: Tensor, counts: Tensor, coords: Tensor) -> Tensor:
        mean = points[..., :3].sum(2, keepdim=True) / counts.type_as(points).view(
            *counts.shape, 1, 1
        )
        x = torch.cat([points, points[..., :3] - mean], dim=-1)
        mask = counts.unsqueeze(-1) > torch.arange(points.shape[2], dtype=torch.int)
        x = self.linear(x * mask.unsqueeze(-1).type_as(x))
        x = F.relu(self.norm(x.flatten(0, 2)).view(*x.shape)).max(2)[0]
        batch = []
        for i in range(points.shape[0]):
            canvas = torch.zeros(8, SIDE * SIDE, dtype=x.dtype)
            indices = coords[i, :, 0] * SIDE + coords[i, :, 1]
            canvas[:, indices] = x[i].t()
            batch.append(canvas)
        canvas = torch.stack(batch, 0).view(-1, 8, SIDE, SIDE)
        return self.head(canvas).permute(0, 2, 3, 1).contiguous()


class Softmaxes(nn.Module):
    """A mixture of softmaxes over tied words (Yang et al. 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.rnn = nn.Embedding(WORDS, 8), nn.LSTM(8, WIDTH)
        self.prior, self.latent = nn.Linear(WIDTH, 3, bias=False), nn.Linear(WIDTH, 3 * 8)
        self.decoder = nn.Linear(8, WORDS)
        self.decoder.weight = self.encoder.weight

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        raw, _ = self.rnn(self.encoder(ids.t()))
        logit = self.decoder(torch.tanh(self.latent(raw)).view(-1, 8))
        prior = F.softmax(self.prior(raw).contiguous().view(-1, 3), -1)
        prob = F.softmax(logit.view(-1, WORDS), -1).view(-1, 3, WORDS)
        prob = (prob * prior.unsqueeze(2).expand_as(prob)).sum(1)
        log_prob = torch.log(prob.add_(1e-8)).view(-1, WORDS)
        raw_loss = F.nll_loss(log_prob, targets.t().reshape(-1))
        return raw_loss + (raw[1:] - raw[:-1]).pow(2).mean()


class Adaptive(nn.Module):
    """Words in clusters by how rare they are: torch's adaptive softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.gru = nn.Embedding(WORDS, 8), nn.GRU(8, WIDTH, batch_first=True)
        self.loss = nn.AdaptiveLogSoftmaxWithLoss(WIDTH, WORDS, [5, 12], div_value=2.0)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        h, _ = self.gru(self.emb(ids))
        return self.loss(h.reshape(-1, WIDTH), targets.reshape(-1)).loss


image = normal((3, 16, 16))

NETS: Mapping[str, Net] = MappingProxyType(
    {
        "raft": Net(RAFT, normal((3, 16, 16), (3, 16, 16), (2, 16, 16)), "own"),
        "octave convolutions": Net(OctConv, image),
        "reformer": Net(Reformer, whole((WORDS, (TIME,)))),
        "mixture of depths": Net(MixtureOfDepths, whole((WORDS, (TIME,))), "own"),
        "megabyte": Net(Megabyte, whole((WORDS, (TIME,)))),
        "dien": Net(
            DIEN,
            both(whole((WORDS, (6,)), (WORDS, (6,)), (WORDS, ())), whole((2, ()))),
            "own",
        ),
        "conve": Net(ConvE, whole((WORDS, ()), (4, ()), (WORDS, (2,))), "own"),
        "dann": Net(DANN, both(normal((6,), (6,)), whole((5, ()))), "own"),
        "fake quantised": Net(Quantised, image),
        "liif": Net(LIIF, both(image, uniform((5, 2), (5, 2)), normal((5, 3))), "own"),
        "pointpillars": Net(
            Pillars, both(normal((6, 5, 4)), whole((6, (6,)), lowest=1), whole((SIDE, (6, 2))))
        ),
        "mixture of softmaxes": Net(Softmaxes, whole((WORDS, (TIME,)), (WORDS, (TIME,))), "own"),
        "adaptive softmax": Net(Adaptive, whole((WORDS, (TIME,)), (WORDS, (TIME,))), "own"),
    }
)
