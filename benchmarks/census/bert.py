"""Encoders and taggers of text with padding, and other kinds of attention."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.census.net import Net, whole

VOCABULARY, LENGTH, WIDTH, HEADS, CLASSES = 31, 8, 16, 2, 5


class GRUTagger(nn.Module):
    """A GRU tagger whose loss leaves out padding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0)
        self.gru = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.fc = nn.Linear(WIDTH, CLASSES)

    def forward(self, ids: Tensor, tags: Tensor) -> tuple[Tensor, Tensor]:
        pad = ids == 0
        output, _ = self.gru(self.embedding(ids))
        logits = self.fc(output)
        loss = F.cross_entropy(logits.transpose(1, 2), tags, reduction="none")
        mask = (~pad).float()
        return (loss * mask).sum() / mask.sum().clamp(min=1), logits


class GRUClassifier(nn.Module):
    """A GRU whose padded states are left out of a mean."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0)
        self.gru = nn.GRU(WIDTH, WIDTH, num_layers=2, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(2 * WIDTH, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        mask = (ids != 0).unsqueeze(-1)
        states, _ = self.gru(self.embedding(ids))
        states = states.masked_fill(~mask, 0.0)
        return self.fc(states.sum(dim=1) / mask.sum(dim=1).clamp(min=1))


class BiLSTMTagger(nn.Module):
    """Bidirectional LSTM tagger (Huang et al. 2015)."""

    def __init__(self) -> None:
        super().__init__()
        self.word_embeds = nn.Embedding(VOCABULARY, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH // 2, bidirectional=True, batch_first=True)
        self.dropout = nn.Dropout(0.25)
        self.hidden2tag = nn.Linear(WIDTH, CLASSES)

    def forward(self, sentence: Tensor) -> Tensor:
        b = sentence.size(0)
        h0 = torch.zeros(2, b, WIDTH // 2, device=sentence.device)
        c0 = torch.zeros(2, b, WIDTH // 2, device=sentence.device)
        out, _ = self.lstm(self.dropout(self.word_embeds(sentence)), (h0, c0))
        return self.hidden2tag(self.dropout(out))


class LSTMLast(nn.Module):
    """A classifier on the last hidden state of an LSTM, both directions joined."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, bidirectional=True, batch_first=True)
        self.fc = nn.Linear(2 * WIDTH, CLASSES)

    def forward(self, text: Tensor) -> Tensor:
        _, (hidden, _) = self.lstm(self.embedding(text))
        hidden = torch.cat((hidden[-2, :, :], hidden[-1, :, :]), dim=1)
        return self.fc(hidden)


class TextCNN(nn.Module):
    """Convolutions over words with max over time (Kim 2014)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.convs = nn.ModuleList([nn.Conv2d(1, 4, (k, WIDTH)) for k in (2, 3, 4)])
        self.dropout = nn.Dropout(0.5)
        self.fc = nn.Linear(12, CLASSES)

    def forward(self, text: Tensor) -> Tensor:
        embedded = self.embedding(text).unsqueeze(1)
        conved = [F.relu(conv(embedded)).squeeze(3) for conv in self.convs]
        pooled = [F.max_pool1d(c, c.shape[2]).squeeze(2) for c in conved]
        return self.fc(self.dropout(torch.cat(pooled, dim=1)))


class Encoder(nn.Module):
    """BERT's block (Devlin et al. 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.dense = nn.Linear(WIDTH, WIDTH)
        self.attention_norm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.intermediate = nn.Linear(WIDTH, 4 * WIDTH)
        self.output = nn.Linear(4 * WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.dropout = nn.Dropout(0.1)

    def split_heads(self, x: Tensor) -> Tensor:
        return x.view(*x.size()[:-1], HEADS, WIDTH // HEADS).permute(0, 2, 1, 3)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (self.split_heads(m(x)) for m in (self.query, self.key, self.value))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(WIDTH // HEADS) + mask
        probabilities = self.dropout(nn.Softmax(dim=-1)(scores))
        context = torch.matmul(probabilities, v).permute(0, 2, 1, 3).contiguous()
        context = context.view(*context.size()[:-2], WIDTH)
        x = self.attention_norm(self.dropout(self.dense(context)) + x)
        return self.norm(self.dropout(self.output(F.gelu(self.intermediate(x)))) + x)


class Roberta(nn.Module):
    """RoBERTa's positions from the padding mask (Liu et al. 2019)."""

    padding_idx = 1

    def __init__(self) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(VOCABULARY, WIDTH, padding_idx=self.padding_idx)
        self.position_embeddings = nn.Embedding(
            LENGTH + self.padding_idx + 1, WIDTH, padding_idx=self.padding_idx
        )
        self.norm = nn.LayerNorm(WIDTH, eps=1e-5)
        self.encoder = Encoder()
        self.dense = nn.Linear(WIDTH, WIDTH)
        self.out_proj = nn.Linear(WIDTH, CLASSES)

    def forward(self, input_ids: Tensor) -> Tensor:
        mask = input_ids.ne(self.padding_idx).int()
        position_ids = torch.cumsum(mask, dim=1).type_as(mask) * mask
        position_ids = position_ids.long() + self.padding_idx
        x = self.word_embeddings(input_ids) + self.position_embeddings(position_ids)
        extended = (1.0 - mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        x = self.encoder(self.norm(x), extended)
        return self.out_proj(torch.tanh(self.dense(x[:, 0, :])))


class BertMLM(nn.Module):
    """BERT's masked language model with a mean over the tokens that are not padding."""

    def __init__(self) -> None:
        super().__init__()
        self.word = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0)
        self.position = nn.Embedding(LENGTH, WIDTH)
        self.kind = nn.Embedding(2, WIDTH)
        self.register_buffer("position_ids", torch.arange(LENGTH).expand((1, -1)))
        self.norm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.layers = nn.ModuleList([Encoder() for _ in range(2)])
        self.transform = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH))
        self.bias = nn.Parameter(torch.zeros(VOCABULARY))
        self.next = nn.Linear(WIDTH, 2)

    def forward(self, input_ids: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        attention_mask = (input_ids != 0).long()
        types = torch.zeros_like(input_ids)
        x = self.word(input_ids) + self.position(self.position_ids) + self.kind(types)
        x = self.norm(x)
        mask = (1.0 - attention_mask[:, None, None, :].float()) * -10000.0
        for layer in self.layers:
            x = layer(x, mask)
        logits = F.linear(self.transform(x), self.word.weight, self.bias)
        weights = attention_mask.unsqueeze(-1).expand(x.size()).float()
        pooled = torch.sum(x * weights, 1) / torch.clamp(weights.sum(1), min=1e-9)
        loss = F.cross_entropy(logits.view(-1, VOCABULARY), labels.view(-1), ignore_index=-100)
        order = self.next(pooled)
        first = torch.zeros(order.size(0), dtype=torch.long, device=order.device)
        return loss + F.cross_entropy(order, first), logits


class TransformerClassifier(nn.Module):
    """nn.TransformerEncoder over sinusoidal positions, with a key padding mask."""

    pe: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        position = torch.arange(LENGTH).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, WIDTH, 2) * (-math.log(10000.0) / WIDTH))
        pe = torch.zeros(1, LENGTH, WIDTH)
        pe[0, :, 0::2] = torch.sin(position * div_term)
        pe[0, :, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.fc = nn.Linear(WIDTH, CLASSES)

    def forward(self, src: Tensor) -> Tensor:
        x = self.embed(src) * math.sqrt(WIDTH) + self.pe[:, : src.size(1)]
        x = self.encoder(x, src_key_padding_mask=src == 0)
        return self.fc(x.mean(dim=1))


class Performer(nn.Module):
    """Linear attention by random positive features (Choromanski et al. 2021)."""

    projection: Tensor

    def __init__(self, features: int = 12) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.to_qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.to_out = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)
        self.register_buffer("projection", torch.randn(features, WIDTH // HEADS))

    def kernel(self, data: Tensor, is_query: bool, eps: float = 1e-4) -> Tensor:
        data = data * data.shape[-1] ** -0.25
        ratio = self.projection.shape[0] ** -0.5
        dash = torch.einsum("...id,...jd->...ij", data, self.projection)
        diag = (data**2).sum(dim=-1, keepdim=True) / 2.0
        dims = (-1,) if is_query else (-1, -2)
        return ratio * (torch.exp(dash - diag - dash.amax(dim=dims, keepdim=True).detach()) + eps)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        b, n, _ = x.shape
        q, k, v = (t.view(b, n, HEADS, -1).transpose(1, 2) for t in self.to_qkv(x).chunk(3, -1))
        q, k = self.kernel(q, True), self.kernel(k, False)
        d_inv = 1.0 / torch.einsum("...nd,...d->...n", q, k.sum(dim=-2))
        context = torch.einsum("...nd,...ne->...de", k, v)
        out = torch.einsum("...de,...nd,...n->...ne", context, q, d_inv)
        return self.head(x + self.to_out(out.transpose(1, 2).reshape(b, n, -1)))


class Linformer(nn.Module):
    """Attention with projected keys and values (Wang et al. 2020)."""

    def __init__(self, k: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.to_q = nn.Linear(WIDTH, WIDTH, bias=False)
        self.to_kv = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.proj_k = nn.Parameter(torch.empty(LENGTH, k).uniform_(-0.5, 0.5))
        self.proj_v = nn.Parameter(torch.empty(LENGTH, k).uniform_(-0.5, 0.5))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        b, n, _ = x.shape
        keys, values = self.to_kv(x).chunk(2, dim=-1)
        keys = torch.einsum("bnd,nk->bkd", keys, self.proj_k[:n])
        values = torch.einsum("bnd,nk->bkd", values, self.proj_v[:n])
        q = self.to_q(x).reshape(b, n, HEADS, -1).transpose(1, 2)
        keys = keys.reshape(b, -1, HEADS, WIDTH // HEADS).transpose(1, 2)
        values = values.reshape(b, -1, HEADS, WIDTH // HEADS).transpose(1, 2)
        attn = torch.einsum("bhnd,bhkd->bhnk", q, keys).mul(q.shape[-1] ** -0.5).softmax(dim=-1)
        out = torch.einsum("bhnk,bhkd->bhnd", attn, values)
        return self.head(x + out.transpose(1, 2).reshape(b, n, -1))


class TransformerXL(nn.Module):
    """Relative positions by a shift of the scores (Dai et al. 2019)."""

    def __init__(self) -> None:
        super().__init__()
        head = WIDTH // HEADS
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.qkv_net = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.r_net = nn.Linear(WIDTH, WIDTH, bias=False)
        self.o_net = nn.Linear(WIDTH, WIDTH, bias=False)
        self.r_w_bias = nn.Parameter(torch.zeros(HEADS, head))
        self.r_r_bias = nn.Parameter(torch.zeros(HEADS, head))
        self.layer_norm = nn.LayerNorm(WIDTH)
        self.inv_freq = 1 / (10000 ** (torch.arange(0.0, WIDTH, 2.0) / WIDTH))

    def _rel_shift(self, x: Tensor) -> Tensor:
        zero_pad = torch.zeros((*x.shape[:3], 1), device=x.device, dtype=x.dtype)
        padded = torch.cat([zero_pad, x], dim=3)
        padded = padded.view(x.size(0), x.size(1), x.size(3) + 1, x.size(2))
        return padded[:, :, 1:].view_as(x)

    def forward(self, tokens: Tensor) -> Tensor:
        w = self.embed(tokens)
        b, n, d = w.shape
        pos_seq = torch.arange(n - 1, -1, -1.0, device=w.device)
        sinusoid = torch.outer(pos_seq, self.inv_freq)
        r = self.r_net(torch.cat([sinusoid.sin(), sinusoid.cos()], dim=-1)).view(n, HEADS, -1)
        q, k, v = torch.chunk(self.qkv_net(w), 3, dim=-1)
        q, k, v = (t.view(b, n, HEADS, d // HEADS) for t in (q, k, v))
        AC = torch.einsum("bihd,bjhd->bhij", q + self.r_w_bias, k)
        BD = self._rel_shift(torch.einsum("bihd,jhd->bhij", q + self.r_r_bias, r))
        score = (AC + BD).mul_(1 / math.sqrt(d // HEADS))
        mask = torch.triu(w.new_ones(n, n), diagonal=1).bool()
        score = score.float().masked_fill(mask[None, None], -float("inf")).type_as(score)
        vec = torch.einsum("bhij,bjhd->bihd", F.softmax(score, dim=-1), v)
        x = self.layer_norm(w + self.o_net(vec.contiguous().view(b, n, d)))
        return F.linear(x, self.embed.weight)


tokens = whole((VOCABULARY, (LENGTH,)))
tagged = whole((VOCABULARY, (LENGTH,)), (CLASSES, (LENGTH,)))
masked = whole((VOCABULARY, (LENGTH,)), (VOCABULARY, (LENGTH,)))

NETS: Mapping[str, Net] = MappingProxyType(
    {
        "gru tagger": Net(GRUTagger, tagged, loss="own", labels="tags"),
        "gru mean": Net(GRUClassifier, tokens),
        "bilstm tagger": Net(BiLSTMTagger, tokens),
        "lstm last state": Net(LSTMLast, tokens),
        "text cnn": Net(TextCNN, tokens),
        "roberta": Net(Roberta, tokens),
        "bert mlm": Net(BertMLM, masked, loss="own", labels="labels"),
        "nn.TransformerEncoder": Net(TransformerClassifier, tokens),
        "performer": Net(Performer, tokens),
        "linformer": Net(Linformer, tokens),
        "transformer-xl": Net(TransformerXL, tokens),
    }
)
