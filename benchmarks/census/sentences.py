"""Nets of words, of users and items, and of tuned language models, as their users write them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.census.net import Net, both, uniform, whole

WIDTH, WORDS, TIME, CLASSES, USERS, ITEMS = 16, 30, 8, 5, 12, 20
words = whole((WORDS, (TIME,)))


class SkipGram(nn.Module):
    """Words by their neighbours with drawn negatives fed (Mikolov et al. 2013)."""

    def __init__(self) -> None:
        super().__init__()
        self.u_embeddings = nn.Embedding(WORDS, WIDTH, sparse=True)
        self.v_embeddings = nn.Embedding(WORDS, WIDTH, sparse=True)
        nn.init.uniform_(self.u_embeddings.weight.data, -1.0 / WIDTH, 1.0 / WIDTH)

    def forward(self, pos_u: Tensor, pos_v: Tensor, neg_v: Tensor) -> Tensor:
        emb_u, emb_v = self.u_embeddings(pos_u), self.v_embeddings(pos_v)
        score = torch.sum(torch.mul(emb_u, emb_v), dim=1)
        score = -F.logsigmoid(torch.clamp(score, max=10, min=-10))
        neg = torch.bmm(self.v_embeddings(neg_v), emb_u.unsqueeze(2)).squeeze()
        neg = torch.clamp(neg, max=10, min=-10)
        return torch.mean(score - torch.sum(F.logsigmoid(-neg), dim=1))


class HAN(nn.Module):
    """Attention over words and over sentences (Yang et al. 2016)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH, padding_idx=0)
        self.word, self.sentence = (
            nn.GRU(WIDTH, WIDTH // 2, bidirectional=True, batch_first=True) for _ in range(2)
        )
        self.word_fc, self.sent_fc = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.word_context = nn.Parameter(torch.randn(WIDTH, 1))
        self.sent_context = nn.Linear(WIDTH, 1, bias=False)
        self.fc = nn.Linear(WIDTH, CLASSES)

    def forward(self, docs: Tensor) -> Tensor:
        b, s, t = docs.size()
        out, _ = self.word(self.embed(docs.view(b * s, t)))
        score = torch.tanh(self.word_fc(out)).matmul(self.word_context).squeeze(-1)
        score = score.masked_fill(docs.view(b * s, t) == 0, -1e9)
        sents = (out * F.softmax(score, dim=1).unsqueeze(-1)).sum(1).view(b, s, -1)
        out, _ = self.sentence(sents)
        weight = torch.softmax(self.sent_context(torch.tanh(self.sent_fc(out))), dim=1)
        return self.fc((weight * out).sum(dim=1))


class BiDAF(nn.Module):
    """Context and question attend to each other; two ends of a span (Seo et al. 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.context_lstm = nn.LSTM(WIDTH, WIDTH // 2, bidirectional=True, batch_first=True)
        self.c, self.q, self.cq = (nn.Linear(WIDTH, 1) for _ in range(3))
        self.modeling = nn.LSTM(4 * WIDTH, WIDTH // 2, bidirectional=True, batch_first=True)
        self.start, self.end = nn.Linear(5 * WIDTH, 1), nn.Linear(5 * WIDTH, 1)

    def forward(self, context: Tensor, question: Tensor, s: Tensor, e: Tensor) -> Tensor:
        c, _ = self.context_lstm(self.embed(context))
        q, _ = self.context_lstm(self.embed(question))
        c_len, q_len = c.size(1), q.size(1)
        cq = []
        for i in range(q_len):
            cq.append(self.cq(c * q.select(1, i).unsqueeze(1)).squeeze(-1))
        scores = (
            self.c(c).expand(-1, -1, q_len)
            + self.q(q).permute(0, 2, 1).expand(-1, c_len, -1)
            + torch.stack(cq, dim=-1)
        )
        c2q = torch.bmm(F.softmax(scores, dim=2), q)
        b = F.softmax(torch.max(scores, dim=2)[0], dim=1).unsqueeze(1)
        q2c = torch.bmm(b, c).squeeze(1).unsqueeze(1).expand(-1, c_len, -1)
        g = torch.cat([c, c2q, c * c2q, c * q2c], dim=-1)
        m, _ = self.modeling(g)
        gm = torch.cat([g, m], dim=-1)
        p1, p2 = self.start(gm).squeeze(-1), self.end(gm).squeeze(-1)
        return F.cross_entropy(p1, s) + F.cross_entropy(p2, e)


class ESIM(nn.Module):
    """Soft alignment of premise and hypothesis with masks (Chen et al. 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.embeds = nn.Embedding(WORDS, WIDTH)
        self.bn_embeds = nn.BatchNorm1d(WIDTH)
        self.lstm1 = nn.LSTM(WIDTH, WIDTH, batch_first=True, bidirectional=True)
        self.lstm2 = nn.LSTM(WIDTH * 8, WIDTH, batch_first=True, bidirectional=True)
        self.fc = nn.Sequential(
            *(nn.BatchNorm1d(WIDTH * 8), nn.Linear(WIDTH * 8, WIDTH), nn.ELU(inplace=True)),
            *(nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 2), nn.Softmax(dim=-1)),
        )

    def align(self, x1: Tensor, x2: Tensor, mask1: Tensor, mask2: Tensor) -> Any:
        attention = torch.matmul(x1, x2.transpose(1, 2))
        mask1 = mask1.float().masked_fill_(mask1, float("-inf"))
        mask2 = mask2.float().masked_fill_(mask2, float("-inf"))
        weight1 = F.softmax(attention + mask2.unsqueeze(1), dim=-1)
        weight2 = F.softmax(attention.transpose(1, 2) + mask1.unsqueeze(1), dim=-1)
        return torch.matmul(weight1, x2), torch.matmul(weight2, x1)

    def pooled(self, x: Tensor) -> Tensor:
        p1 = F.avg_pool1d(x.transpose(1, 2), x.size(1)).squeeze(-1)
        p2 = F.max_pool1d(x.transpose(1, 2), x.size(1)).squeeze(-1)
        return torch.cat([p1, p2], 1)

    def forward(self, sent1: Tensor, sent2: Tensor) -> Tensor:
        mask1, mask2 = sent1.eq(0), sent2.eq(0)
        x1 = self.bn_embeds(self.embeds(sent1).transpose(1, 2).contiguous()).transpose(1, 2)
        x2 = self.bn_embeds(self.embeds(sent2).transpose(1, 2).contiguous()).transpose(1, 2)
        (o1, _), (o2, _) = self.lstm1(x1), self.lstm1(x2)
        q1, q2 = self.align(o1, o2, mask1, mask2)
        q1 = torch.cat([o1, q1, torch.cat([o1 * q1, o1 - q1], -1)], -1)
        q2 = torch.cat([o2, q2, torch.cat([o2 * q2, o2 - q2], -1)], -1)
        (q1, _), (q2, _) = self.lstm2(q1), self.lstm2(q2)
        return self.fc(torch.cat([self.pooled(q1), self.pooled(q2)], -1))


class MaLSTM(nn.Module):
    """Sentences are alike by the exponential of their distance (Mueller and Thyagarajan 2016)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(WORDS, WIDTH), nn.LSTM(WIDTH, WIDTH, num_layers=2)

    def forward(self, a: Tensor, b: Tensor, score: Tensor) -> Tensor:
        _, (h1, _) = self.lstm(self.embedding(a.t()))
        _, (h2, _) = self.lstm(self.embedding(b.t()))
        near = torch.exp(-torch.norm(h1[-1] - h2[-1], p=1, dim=-1, keepdim=False) / WIDTH)
        return F.mse_loss(near, score)


class PointerGenerator(nn.Module):
    """Words come from a vocabulary or are copied, with coverage (See et al. 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.encoder = nn.LSTM(WIDTH, WIDTH, batch_first=True, bidirectional=True)
        self.reduce_h, self.reduce_c = nn.Linear(2 * WIDTH, WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.cell = nn.LSTMCell(WIDTH, WIDTH)
        self.W_h, self.W_c = (
            nn.Linear(2 * WIDTH, WIDTH, bias=False),
            nn.Linear(1, WIDTH, bias=False),
        )
        self.W_s, self.v = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1, bias=False)
        self.p_gen, self.out = nn.Linear(4 * WIDTH, 1), nn.Linear(3 * WIDTH, WORDS)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        enc, (h, c) = self.encoder(self.embedding(source))
        h = F.relu(self.reduce_h(h.transpose(0, 1).reshape(-1, 2 * WIDTH)))
        c = F.relu(self.reduce_c(c.transpose(0, 1).reshape(-1, 2 * WIDTH)))
        coverage = torch.zeros_like(source, dtype=torch.float)
        losses = []
        for t in range(3):
            x = self.embedding(target[:, t])
            h, c = self.cell(x, (h, c))
            e = self.W_h(enc) + self.W_s(h).unsqueeze(1) + self.W_c(coverage.unsqueeze(-1))
            attn = F.softmax(self.v(torch.tanh(e)).squeeze(-1), dim=-1)
            context = torch.bmm(attn.unsqueeze(1), enc).squeeze(1)
            p = torch.sigmoid(self.p_gen(torch.cat([context, h, x], 1)))
            vocab = p * F.softmax(self.out(torch.cat([h, context], 1)), dim=1)
            final = vocab.scatter_add(1, source, (1 - p) * attn)
            gold = torch.gather(final, 1, target[:, t + 1].unsqueeze(1)).squeeze(1)
            step = -torch.log(gold + 1e-12) + torch.sum(torch.min(attn, coverage), 1)
            coverage = coverage + attn
            losses.append(step)
        return torch.stack(losses, 1).mean()


class MemN2N(nn.Module):
    """End-to-end memory in three hops with position encoding (Sukhbaatar et al. 2015)."""

    def __init__(self) -> None:
        super().__init__()
        self.C = nn.ModuleList([nn.Embedding(WORDS, WIDTH, padding_idx=0) for _ in range(4)])
        j, k = torch.arange(1, TIME + 1).float(), torch.arange(1, WIDTH + 1).float()
        encoding = 1 - j[:, None] / TIME - (k[None] / WIDTH) * (1 - 2 * j[:, None] / TIME)
        self.register_buffer("encoding", encoding)

    def forward(self, story: Tensor, query: Tensor) -> Tensor:
        encoding = self.encoding.unsqueeze(0)
        u = [torch.sum(self.C[0](query) * encoding, 1)]
        for hop in range(3):
            flat = story.view(story.size(0), -1)
            m_a = self.C[hop](flat).view(*story.size(), WIDTH)
            m_a = torch.sum(m_a * encoding.unsqueeze(1), 2)
            prob = F.softmax(torch.sum(m_a * u[-1].unsqueeze(1).expand_as(m_a), 2), dim=-1)
            m_c = torch.sum(
                self.C[hop + 1](flat).view(*story.size(), WIDTH) * encoding.unsqueeze(1), 2
            )
            u.append(u[-1] + torch.sum(m_c * prob.unsqueeze(2).expand_as(m_c), 1))
        return u[-1] @ self.C[3].weight.transpose(0, 1)


class CharCNN(nn.Module):
    """Words by their letters, highways and an LSTM over them (Kim et al. 2016)."""

    def __init__(self) -> None:
        super().__init__()
        self.chars = nn.Embedding(WORDS, 6, padding_idx=0)
        self.convs = nn.ModuleList([nn.Conv1d(6, 4 * w, w) for w in (1, 2, 3)])
        self.transform, self.gate = nn.Linear(24, 24), nn.Linear(24, 24)
        self.gate.bias.data.fill_(-2)
        self.lstm, self.out = nn.LSTM(24, WIDTH, batch_first=True), nn.Linear(WIDTH, WORDS)

    def forward(self, x: Tensor) -> Tensor:
        b, t, n = x.shape
        x = self.chars(x.view(-1, n)).transpose(1, 2)
        x = torch.cat([torch.tanh(c(x)).max(dim=2).values for c in self.convs], dim=1)
        g = torch.sigmoid(self.gate(x))
        x = g * F.relu(self.transform(x)) + (1 - g) * x
        return self.out(self.lstm(x.view(b, t, -1))[0])


class Biaffine(nn.Module):
    """Dependency arcs and labels by biaffine products (Dozat and Manning 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, 2, batch_first=True, bidirectional=True)
        self.arc_h, self.arc_d = nn.Linear(2 * WIDTH, 8), nn.Linear(2 * WIDTH, 8)
        self.rel_h, self.rel_d = nn.Linear(2 * WIDTH, 6), nn.Linear(2 * WIDTH, 6)
        self.arc = nn.Parameter(torch.randn(9, 8) * 0.1)
        self.rel = nn.Parameter(torch.randn(4, 7, 7) * 0.1)

    def forward(self, x: Tensor, heads: Tensor, rels: Tensor) -> Tensor:
        h = self.lstm(self.embed(x))[0]
        hh, hd = F.leaky_relu(self.arc_h(h), 0.1), F.leaky_relu(self.arc_d(h), 0.1)
        hd = torch.cat((hd, torch.ones_like(hd[..., :1])), -1)
        s_arc = hd @ self.arc @ hh.transpose(-1, -2)
        rh, rd = F.leaky_relu(self.rel_h(h), 0.1), F.leaky_relu(self.rel_d(h), 0.1)
        rh, rd = (torch.cat((r, torch.ones_like(r[..., :1])), -1) for r in (rh, rd))
        s_rel = torch.einsum("bxi,oij,byj->boxy", rd, self.rel, rh).permute(0, 2, 3, 1)
        s_rel = s_rel[torch.arange(len(x))[:, None], torch.arange(x.shape[1]), heads]
        arc = F.cross_entropy(s_arc.flatten(0, 1), heads.flatten())
        return arc + F.cross_entropy(s_rel.flatten(0, 1), rels.flatten())


class Adapter(nn.Module):
    """A frozen encoder with adapters and a prefix of keys (Houlsby 2019, Li and Liang 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        for p in self.parameters():
            p.requires_grad = False
        self.prefix = nn.Parameter(torch.randn(2, 4, 3, WIDTH // 4))
        self.down, self.up = nn.Linear(WIDTH, 4), nn.Linear(4, WIDTH)
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        b, t = ids.shape
        x = self.embed(ids)
        q, k, v = self.qkv(x).view(b, t, 3, 4, -1).permute(2, 0, 3, 1, 4).unbind(0)
        k = torch.cat([self.prefix[0].expand(b, -1, -1, -1), k], dim=2)
        v = torch.cat([self.prefix[1].expand(b, -1, -1, -1), v], dim=2)
        mask = torch.ones(t, t + 3, dtype=torch.bool).tril(diagonal=3)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, -1)) * self.scale
        return self.head((x + self.up(F.gelu(self.down(x))))[:, -1])


class Preferences(nn.Module):
    """Odds of chosen answers over rejected ones, no reference (ORPO, Hong et al. 2024)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.rnn = nn.Embedding(WORDS, WIDTH), nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.lm_head = nn.Linear(WIDTH, WORDS, bias=False)
        self.lm_head.weight = self.embed.weight

    def logps(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.lm_head(self.rnn(self.embed(ids[:, :-1]))[0])
        labels, mask = ids[:, 1:].clone(), ids[:, 1:] != 0
        logp = torch.gather(logits.log_softmax(-1), 2, labels.unsqueeze(2)).squeeze(2)
        return (logp * mask).sum(-1) / mask.sum(-1).clamp(min=1), logits

    def forward(self, chosen: Tensor, rejected: Tensor) -> Tensor:
        (good, logits), (bad, _) = self.logps(chosen), self.logps(rejected)
        odds = (good - bad) - (torch.log1p(-torch.exp(good)) - torch.log1p(-torch.exp(bad)))
        shift = logits.contiguous().view(-1, WORDS)
        sft = F.cross_entropy(shift, chosen[:, 1:].contiguous().view(-1), ignore_index=0)
        return sft - 0.1 * F.logsigmoid(odds).mean()


class NormalisedGPT(nn.Module):
    """Weights and states on a sphere, squared ReLU, softly capped logits, value residuals."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.qkv = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.fc, self.proj = nn.Linear(WIDTH, 32, bias=False), nn.Linear(32, WIDTH, bias=False)
        self.alpha, self.sqk = nn.Parameter(torch.full((WIDTH,), 0.05)), nn.Parameter(torch.ones(8))
        self.lamb, self.head = nn.Parameter(torch.tensor(0.5)), nn.Linear(WIDTH, WORDS, bias=False)

    @staticmethod
    def justnorm(x: Tensor) -> Tensor:
        return x / x.norm(p=2, dim=-1, keepdim=True)

    def forward(self, idx: Tensor, targets: Tensor) -> Tensor:
        x = self.justnorm(self.wte(idx))
        v1 = None
        for _ in range(2):
            q, k, v = self.qkv(x).split(WIDTH, dim=2)
            q, k, v = (y.view(*idx.shape, 2, 8).transpose(1, 2) for y in (q, k, v))
            v1 = v if v1 is None else v1
            v = (1 - self.lamb) * v + self.lamb * v1.view_as(v)
            q, k = self.sqk * self.justnorm(q), self.sqk * self.justnorm(k)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=math.sqrt(8))
            y = self.justnorm(y.transpose(1, 2).contiguous().view_as(x))
            x = self.justnorm(x + self.alpha.abs() * (y - x))
            x = F.rms_norm(x + self.proj(F.relu(self.fc(x)).square()), (x.size(-1),))
        logits = 30 * torch.tanh(self.head(x) / 30)
        z = torch.logsumexp(logits.float(), -1).pow(2).mean()
        return F.cross_entropy(logits.view(-1, WORDS), targets.view(-1)) + 1e-4 * z


pairs = whole((WORDS, (TIME,)), (WORDS, (TIME,)))

NETS: Mapping[str, Net] = MappingProxyType(
    {
        "skip-gram": Net(SkipGram, whole((WORDS, ()), (WORDS, ()), (WORDS, (5,))), "own"),
        "hierarchical attention": Net(HAN, whole((WORDS, (3, TIME)))),
        "bidaf": Net(BiDAF, whole((WORDS, (TIME,)), (WORDS, (4,)), (TIME, ()), (TIME, ())), "own"),
        "esim": Net(ESIM, whole((WORDS, (TIME,)), (WORDS, (6,)), lowest=1)),
        "malstm": Net(MaLSTM, both(pairs, uniform(())), "own"),
        "pointer generator": Net(PointerGenerator, pairs, "own"),
        "memory network": Net(MemN2N, whole((WORDS, (4, TIME)), (WORDS, (TIME,)))),
        "char cnn lm": Net(CharCNN, whole((WORDS, (TIME, 6)))),
        "biaffine parser": Net(
            Biaffine, whole((WORDS, (TIME,)), (TIME, (TIME,)), (4, (TIME,))), "own"
        ),
        "adapters, prefix": Net(Adapter, words),
        "orpo": Net(Preferences, pairs, "own"),
        "normalised gpt": Net(NormalisedGPT, pairs, "own"),
    }
)
