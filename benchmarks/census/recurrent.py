"""Recurrences, gates and sequences to sequences."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.census.net import Net, normal, whole

VOCABULARY, LENGTH, WIDTH, CLASSES = 21, 6, 8, 4


class BahdanauAttention(nn.Module):
    """Additive attention (Bahdanau et al. 2015), as in torch's tutorial."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.Wa = nn.Linear(hidden_size, hidden_size)
        self.Ua = nn.Linear(hidden_size, hidden_size)
        self.Va = nn.Linear(hidden_size, 1)

    def forward(self, query: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.Va(torch.tanh(self.Wa(query) + self.Ua(keys)))
        scores = scores.squeeze(2).unsqueeze(1)
        weights = F.softmax(scores, dim=-1)
        return torch.bmm(weights, keys), weights


class Seq2Seq(nn.Module):
    """A translator that is fed the true words."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder_embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.encoder = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.attention = BahdanauAttention(WIDTH)
        self.gru = nn.GRU(2 * WIDTH, WIDTH, batch_first=True)
        self.out = nn.Linear(WIDTH, VOCABULARY)
        self.dropout = nn.Dropout(0.1)

    def step(self, token: Tensor, hidden: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        embedded = self.dropout(self.embedding(token))
        query = hidden.permute(1, 0, 2)
        context, _ = self.attention(query, keys)
        output, hidden = self.gru(torch.cat((embedded, context), dim=2), hidden)
        return self.out(output), hidden

    def forward(self, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        keys, hidden = self.encoder(self.dropout(self.encoder_embedding(source)))
        token = torch.empty(source.size(0), 1, dtype=torch.long, device=source.device).fill_(0)
        outputs = []
        for i in range(target.size(1)):
            output, hidden = self.step(token, hidden, keys)
            outputs.append(output)
            token = target[:, i].unsqueeze(1)
        logits = F.log_softmax(torch.cat(outputs, dim=1), dim=-1)
        return nn.NLLLoss()(logits.view(-1, logits.size(-1)), target.view(-1)), logits


class Greedy(Seq2Seq):
    """The translator fed its own best words."""

    def forward(self, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        keys, hidden = self.encoder(self.encoder_embedding(source))
        token = torch.zeros(source.size(0), 1, dtype=torch.long)
        outputs = []
        for _ in range(target.size(1)):
            output, hidden = self.step(token, hidden, keys)
            outputs.append(output)
            _, topi = output.topk(1)
            token = topi.squeeze(-1).detach()
        logits = torch.cat(outputs, dim=1)
        return F.cross_entropy(logits.transpose(1, 2), target), logits


class PositionalEncoding(nn.Module):
    """Sinusoidal positions, the length first."""

    pe: Tensor

    def __init__(self, d_model: int, max_len: int = 32) -> None:
        super().__init__()
        den = torch.exp(-torch.arange(0, d_model, 2) * math.log(10000) / d_model)
        pos = torch.arange(0, max_len).reshape(max_len, 1)
        pe = torch.zeros((max_len, d_model))
        pe[:, 0::2] = torch.sin(pos * den)
        pe[:, 1::2] = torch.cos(pos * den)
        self.dropout = nn.Dropout(0.1)
        self.register_buffer("pe", pe.unsqueeze(-2))

    def forward(self, token_embedding: Tensor) -> Tensor:
        return self.dropout(token_embedding + self.pe[: token_embedding.size(0), :])


class Seq2SeqTransformer(nn.Module):
    """nn.Transformer for translation, as in torch's tutorial."""

    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.Transformer(WIDTH, 2, 1, 1, 16, 0.1)
        self.generator = nn.Linear(WIDTH, VOCABULARY)
        self.src_tok_emb, self.tgt_tok_emb = (nn.Embedding(VOCABULARY, WIDTH) for _ in range(2))
        self.positional_encoding = PositionalEncoding(WIDTH)
        self.loss_fn = nn.CrossEntropyLoss(ignore_index=0)

    def forward(self, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        src, tgt = source.transpose(0, 1), target.transpose(0, 1)
        tgt_input, tgt_out = tgt[:-1, :], tgt[1:, :]
        tgt_mask = self.transformer.generate_square_subsequent_mask(tgt_input.size(0))
        src_mask = torch.zeros((src.shape[0], src.shape[0])).type(torch.bool)
        src_pad, tgt_pad = (src == 0).transpose(0, 1), (tgt_input == 0).transpose(0, 1)
        src_emb = self.positional_encoding(self.src_tok_emb(src.long()) * math.sqrt(WIDTH))
        tgt_emb = self.positional_encoding(self.tgt_tok_emb(tgt_input) * math.sqrt(WIDTH))
        outs = self.transformer(
            src_emb, tgt_emb, src_mask, tgt_mask, None, src_pad, tgt_pad, src_pad
        )
        logits = self.generator(outs)
        return self.loss_fn(logits.reshape(-1, VOCABULARY), tgt_out.reshape(-1)), logits


class CellLoop(nn.Module):
    """LSTM cells in a loop, as in torch's example of a sine wave."""

    def __init__(self, future: int = 2) -> None:
        super().__init__()
        self.lstm1, self.lstm2 = nn.LSTMCell(1, WIDTH), nn.LSTMCell(WIDTH, WIDTH)
        self.linear, self.future = nn.Linear(WIDTH, 1), future

    def forward(self, input: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        outputs = []
        h_t = torch.zeros(input.size(0), WIDTH, dtype=input.dtype)
        c_t = torch.zeros(input.size(0), WIDTH, dtype=input.dtype)
        h_t2, c_t2 = torch.zeros_like(h_t), torch.zeros_like(c_t)
        for input_t in input.split(1, dim=1):
            h_t, c_t = self.lstm1(input_t, (h_t, c_t))
            h_t2, c_t2 = self.lstm2(h_t, (h_t2, c_t2))
            output = self.linear(h_t2)
            outputs += [output]
        for _ in range(self.future):
            h_t, c_t = self.lstm1(output, (h_t, c_t))
            h_t2, c_t2 = self.lstm2(h_t, (h_t2, c_t2))
            output = self.linear(h_t2)
            outputs += [output]
        out = torch.cat(outputs, dim=1)
        return nn.MSELoss()(out[:, : target.size(1)], target), out


class GRULoop(nn.Module):
    """GRU cells from the last word to the first, with layer norm."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(VOCABULARY, WIDTH), nn.LayerNorm(WIDTH)
        self.cell, self.fc = nn.GRUCell(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.h0 = nn.Parameter(torch.zeros(1, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        h = self.h0.expand(x.shape[0], -1)
        states = [h] * x.shape[1]
        for t in reversed(range(x.shape[1])):
            h = self.norm(self.cell(x[:, t], h))
            states[t] = h
        return self.fc(torch.stack(states, dim=1))


class QRNN(nn.Module):
    """Quasi-recurrent net with fo-pooling (Bradbury et al. 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.conv, self.fc = nn.Conv1d(WIDTH, 3 * WIDTH, 2), nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        x = F.pad(self.embed(tokens).transpose(1, 2), (1, 0))
        z, f, o = self.conv(x).transpose(1, 2).chunk(3, dim=2)
        z, f, o = z.tanh(), f.sigmoid(), o.sigmoid()
        c, hs = None, []
        for z_t, f_t, o_t in zip(z.unbind(1), f.unbind(1), o.unbind(1), strict=True):
            c = (1 - f_t) * z_t if c is None else f_t * c + (1 - f_t) * z_t
            hs.append(o_t * c)
        return self.fc(torch.stack(hs, dim=1))


class Highway(nn.Module):
    """Highway layers (Srivastava et al. 2015) over letters (Kim et al. 2016)."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.conv = nn.Conv1d(WIDTH, WIDTH, 3)
        self._layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH * 2) for _ in range(layers)])
        for layer in self._layers:
            layer.bias[WIDTH:].data.fill_(1)
        self.fc = nn.Linear(WIDTH, CLASSES)

    def forward(self, letters: Tensor) -> Tensor:
        x = torch.tanh(self.conv(self.embed(letters).transpose(1, 2))).max(dim=2)[0]
        for layer in self._layers:
            projected = layer(x)
            nonlinear = F.relu(projected[:, 0:WIDTH])
            gate = torch.sigmoid(projected[:, WIDTH : 2 * WIDTH])
            x = gate * x + (1 - gate) * nonlinear
        return self.fc(x)


class FiLM(nn.Module):
    """A question that scales and shifts an image (Perez et al. 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.rnn = (
            nn.Embedding(VOCABULARY, WIDTH),
            nn.GRU(WIDTH, WIDTH, batch_first=True),
        )
        self.film = nn.Linear(WIDTH, 2 * WIDTH)
        self.stem = nn.Conv2d(3 + 2, WIDTH, 3, padding=1)
        self.conv = nn.Conv2d(WIDTH, WIDTH, 3, padding=1)
        self.bn, self.fc = nn.BatchNorm2d(WIDTH, affine=False), nn.Linear(WIDTH, CLASSES)

    def forward(self, image: Tensor, question: Tensor) -> Tensor:
        _, h = self.rnn(self.embed(question))
        gammas, betas = self.film(h[-1]).chunk(2, dim=-1)
        b, _, height, width = image.shape
        rows = torch.linspace(-1, 1, height).view(1, 1, -1, 1).expand(b, 1, height, width)
        columns = torch.linspace(-1, 1, width).view(1, 1, 1, -1).expand(b, 1, height, width)
        x = F.relu(self.stem(torch.cat([image, rows, columns], 1)))
        y = self.bn(self.conv(x))
        gammas = gammas.unsqueeze(2).unsqueeze(3).expand_as(y)
        betas = betas.unsqueeze(2).unsqueeze(3).expand_as(y)
        x = x + F.relu((1 + gammas) * y + betas)
        return self.fc(F.adaptive_max_pool2d(x, 1).squeeze(-1).squeeze(-1))


def looked_at(generator: torch.Generator, batch: int) -> tuple[Tensor, ...]:
    """Draws images and questions."""
    image = torch.randn(batch, 3, 8, 8, generator=generator)
    return image, torch.randint(0, VOCABULARY, (batch, LENGTH), generator=generator)


tokens = whole((VOCABULARY, (LENGTH,)))
translated = whole((VOCABULARY, (LENGTH,)), (VOCABULARY, (LENGTH,)), lowest=1)

NETS: Mapping[str, Net] = MappingProxyType(
    {
        "seq2seq with attention": Net(Seq2Seq, translated, loss="own", labels="target"),
        "seq2seq, greedy": Net(Greedy, translated, loss="own", labels="target"),
        "nn.Transformer": Net(Seq2SeqTransformer, translated, loss="own", labels="target"),
        "lstm cells": Net(CellLoop, normal((LENGTH,), (LENGTH,)), loss="own", labels="target"),
        "gru cells": Net(GRULoop, tokens),
        "qrnn": Net(QRNN, tokens),
        "highway": Net(Highway, tokens),
        "film": Net(FiLM, looked_at),
    }
)
