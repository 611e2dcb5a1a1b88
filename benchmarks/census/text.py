"""Language models, as their authors write them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.census.net import Net, whole

VOCABULARY, BLOCK, WIDTH, HEADS = 31, 8, 16, 2


class LayerNorm(nn.Module):
    """nanoGPT's layer norm with an optional bias."""

    def __init__(self, ndim: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(ndim))
        self.bias = nn.Parameter(torch.zeros(ndim)) if bias else None

    def forward(self, input: Tensor) -> Tensor:
        return F.layer_norm(input, self.weight.shape, self.weight, self.bias, 1e-5)


class CausalSelfAttention(nn.Module):
    """nanoGPT's attention."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.c_attn = nn.Linear(WIDTH, 3 * WIDTH, bias=bias)
        self.c_proj = nn.Linear(WIDTH, WIDTH, bias=bias)
        self.n_head, self.n_embd, self.dropout = HEADS, WIDTH, 0.0
        self.resid_dropout = nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        dropout = self.dropout if self.training else 0
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=None, dropout_p=dropout, is_causal=True
        )
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.resid_dropout(self.c_proj(y))


class MLP(nn.Module):
    """nanoGPT's feed-forward net."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.c_fc = nn.Linear(WIDTH, 4 * WIDTH, bias=bias)
        self.gelu = nn.GELU()
        self.c_proj = nn.Linear(4 * WIDTH, WIDTH, bias=bias)
        self.dropout = nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.c_proj(self.gelu(self.c_fc(x))))


class Block(nn.Module):
    """nanoGPT's block."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.ln_1 = LayerNorm(WIDTH, bias=bias)
        self.attn = CausalSelfAttention(bias)
        self.ln_2 = LayerNorm(WIDTH, bias=bias)
        self.mlp = MLP(bias)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class NanoGPT(nn.Module):
    """nanoGPT (Karpathy 2022)."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(VOCABULARY, WIDTH),
                "wpe": nn.Embedding(BLOCK, WIDTH),
                "drop": nn.Dropout(0.0),
                "h": nn.ModuleList([Block(bias) for _ in range(2)]),
                "ln_f": LayerNorm(WIDTH, bias=bias),
            }
        )
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.transformer.wte.weight = self.lm_head.weight
        self.apply(self._init_weights)
        for name, parameter in self.named_parameters():
            if name.endswith("c_proj.weight"):
                nn.init.normal_(parameter, mean=0.0, std=0.02 / math.sqrt(4))

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, mean=0.0, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, mean=0.0, std=0.02)

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor | None, Tensor]:
        device = idx.device
        _, t = idx.size()
        assert t <= BLOCK, f"Cannot forward sequence of length {t}"
        pos = torch.arange(0, t, dtype=torch.long, device=device)
        tok_emb = self.transformer.wte(idx)
        pos_emb = self.transformer.wpe(pos)
        x = self.transformer.drop(tok_emb + pos_emb)
        for block in self.transformer.h:
            x = block(x)
        x = self.transformer.ln_f(x)
        if targets is None:
            return None, self.lm_head(x[:, [-1], :])
        logits = self.lm_head(x)
        loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
        return loss, logits


class NewGELU(nn.Module):
    """minGPT's GELU."""

    def forward(self, x: Tensor) -> Tensor:
        inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))
        return 0.5 * x * (1.0 + torch.tanh(inner))


class MinAttention(nn.Module):
    """minGPT's attention with the mask as a buffer."""

    bias: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.c_attn = nn.Linear(WIDTH, 3 * WIDTH)
        self.c_proj = nn.Linear(WIDTH, WIDTH)
        self.attn_dropout = nn.Dropout(0.1)
        self.resid_dropout = nn.Dropout(0.1)
        mask = torch.tril(torch.ones(BLOCK, BLOCK)).view(1, 1, BLOCK, BLOCK)
        self.register_buffer("bias", mask)

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(WIDTH, dim=2)
        k = k.view(B, T, HEADS, C // HEADS).transpose(1, 2)
        q = q.view(B, T, HEADS, C // HEADS).transpose(1, 2)
        v = v.view(B, T, HEADS, C // HEADS).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        att = self.attn_dropout(F.softmax(att, dim=-1))
        y = (att @ v).transpose(1, 2).contiguous().view(B, T, C)
        return self.resid_dropout(self.c_proj(y))


class MinBlock(nn.Module):
    """minGPT's block with its feed-forward net in a lambda."""

    def __init__(self) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(WIDTH)
        self.attn = MinAttention()
        self.ln_2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.ModuleDict(
            {
                "c_fc": nn.Linear(WIDTH, 4 * WIDTH),
                "c_proj": nn.Linear(4 * WIDTH, WIDTH),
                "act": NewGELU(),
                "dropout": nn.Dropout(0.1),
            }
        )
        m = self.mlp
        self.mlpf: Callable[[Tensor], Tensor] = lambda x: m.dropout(m.c_proj(m.act(m.c_fc(x))))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlpf(self.ln_2(x))


class MinGPT(nn.Module):
    """minGPT (Karpathy 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(VOCABULARY, WIDTH),
                "wpe": nn.Embedding(BLOCK, WIDTH),
                "drop": nn.Dropout(0.1),
                "h": nn.ModuleList([MinBlock() for _ in range(2)]),
                "ln_f": nn.LayerNorm(WIDTH),
            }
        )
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor | None, Tensor]:
        _, t = idx.size()
        pos = torch.arange(0, t, dtype=torch.long, device=idx.device).unsqueeze(0)
        x = self.transformer.drop(self.transformer.wte(idx) + self.transformer.wpe(pos))
        for block in self.transformer.h:
            x = block(x)
        logits = self.lm_head(self.transformer.ln_f(x))
        loss = None
        if targets is not None:
            loss = F.cross_entropy(
                logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1
            )
        return loss, logits


class TiedLSTM(nn.Module):
    """LSTM language model with tied weights (Press and Wolf 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.2)
        self.encoder = nn.Embedding(VOCABULARY, WIDTH)
        self.rnn = nn.LSTM(WIDTH, WIDTH, 2, dropout=0.2, batch_first=True)
        self.decoder = nn.Linear(WIDTH, VOCABULARY)
        self.decoder.weight = self.encoder.weight
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)

    def forward(self, tokens: Tensor) -> Tensor:
        output, _ = self.rnn(self.drop(self.encoder(tokens)))
        return self.decoder(self.drop(output))


class Alibi(nn.Module):
    """Attention with linear biases (Press et al. 2022)."""

    slopes: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.register_buffer(
            "slopes", torch.tensor([2 ** (-8 * (i + 1) / HEADS) for i in range(HEADS)])
        )

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        q, k, v = (u.reshape(b, t, HEADS, d // HEADS).transpose(1, 2) for u in (q, k, v))
        positions = torch.arange(t, device=x.device)
        distance = positions[None, :] - positions[:, None]
        bias = distance[None] * self.slopes[:, None, None]
        causal = torch.triu(torch.full((t, t), float("-inf"), device=x.device), diagonal=1)
        scores = q @ k.transpose(-1, -2) / math.sqrt(d // HEADS) + bias + causal
        y = scores.softmax(dim=-1) @ v
        return self.head(x + self.out(y.transpose(1, 2).flatten(2)))


token_pairs = whole((VOCABULARY, (BLOCK,)), (VOCABULARY, (BLOCK,)))
tokens = whole((VOCABULARY, (BLOCK,)))

NETS: Mapping[str, Net] = MappingProxyType(
    {
        "nanogpt": Net(NanoGPT, token_pairs, loss="own", labels="targets"),
        "nanogpt without biases": Net(
            lambda: NanoGPT(bias=False), token_pairs, loss="own", labels="targets"
        ),
        "mingpt": Net(MinGPT, token_pairs, loss="own", labels="targets"),
        "tied lstm": Net(TiedLSTM, tokens),
        "alibi": Net(Alibi, tokens),
    }
)
