"""Newer language models: rotary positions, experts, relative biases and state spaces."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.census.net import Net, whole

VOCABULARY, LENGTH, WIDTH, HEADS = 31, 8, 16, 2
HEAD = WIDTH // HEADS


class RMSNorm(nn.Module):
    """Root mean square norm as in LLaMA."""

    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def _norm(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x: Tensor) -> Tensor:
        return self._norm(x.float()).type_as(x) * self.weight


def precompute_freqs_cis(dim: int, end: int, theta: float = 10000.0) -> Tensor:
    freqs = 1.0 / (theta ** (torch.arange(0, dim, 2)[: (dim // 2)].float() / dim))
    freqs = torch.outer(torch.arange(end), freqs).float()
    return torch.polar(torch.ones_like(freqs), freqs)


def apply_rotary_emb(xq: Tensor, xk: Tensor, freqs_cis: Tensor) -> tuple[Tensor, Tensor]:
    xq_ = torch.view_as_complex(xq.float().reshape(*xq.shape[:-1], -1, 2))
    xk_ = torch.view_as_complex(xk.float().reshape(*xk.shape[:-1], -1, 2))
    freqs_cis = freqs_cis.view(1, xq_.shape[1], 1, xq_.shape[-1])
    xq_out = torch.view_as_real(xq_ * freqs_cis).flatten(3)
    xk_out = torch.view_as_real(xk_ * freqs_cis).flatten(3)
    return xq_out.type_as(xq), xk_out.type_as(xk)


def repeat_kv(x: Tensor, n_rep: int) -> Tensor:
    bs, slen, n_kv_heads, head_dim = x.shape
    return (
        x[:, :, :, None, :]
        .expand(bs, slen, n_kv_heads, n_rep, head_dim)
        .reshape(bs, slen, n_kv_heads * n_rep, head_dim)
    )


class Attention(nn.Module):
    """LLaMA 2's attention with grouped queries and complex rotary positions."""

    def __init__(self) -> None:
        super().__init__()
        self.wq = nn.Linear(WIDTH, HEADS * HEAD, bias=False)
        self.wk = nn.Linear(WIDTH, HEAD, bias=False)
        self.wv = nn.Linear(WIDTH, HEAD, bias=False)
        self.wo = nn.Linear(HEADS * HEAD, WIDTH, bias=False)

    def forward(self, x: Tensor, freqs_cis: Tensor, mask: Tensor | None) -> Tensor:
        bsz, seqlen, _ = x.shape
        xq, xk, xv = self.wq(x), self.wk(x), self.wv(x)
        xq = xq.view(bsz, seqlen, HEADS, HEAD)
        xk = xk.view(bsz, seqlen, 1, HEAD)
        xv = xv.view(bsz, seqlen, 1, HEAD)
        xq, xk = apply_rotary_emb(xq, xk, freqs_cis=freqs_cis)
        keys, values = repeat_kv(xk, HEADS), repeat_kv(xv, HEADS)
        xq, keys, values = xq.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)
        scores = torch.matmul(xq, keys.transpose(2, 3)) / math.sqrt(HEAD)
        if mask is not None:
            scores = scores + mask
        scores = F.softmax(scores.float(), dim=-1).type_as(xq)
        output = torch.matmul(scores, values)
        return self.wo(output.transpose(1, 2).contiguous().view(bsz, seqlen, -1))


class FeedForward(nn.Module):
    """LLaMA's gated feed-forward net."""

    def __init__(self, hidden: int = 32) -> None:
        super().__init__()
        self.w1 = nn.Linear(WIDTH, hidden, bias=False)
        self.w2 = nn.Linear(hidden, WIDTH, bias=False)
        self.w3 = nn.Linear(WIDTH, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class LlamaBlock(nn.Module):
    """LLaMA's block."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.feed_forward = FeedForward()
        self.attention_norm = RMSNorm(WIDTH)
        self.ffn_norm = RMSNorm(WIDTH)

    def forward(self, x: Tensor, freqs_cis: Tensor, mask: Tensor | None) -> Tensor:
        h = x + self.attention(self.attention_norm(x), freqs_cis, mask)
        return h + self.feed_forward(self.ffn_norm(h))


class Llama(nn.Module):
    """LLaMA 2 (Touvron et al. 2023), with complex numbers as published."""

    def __init__(self) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList([LlamaBlock() for _ in range(2)])
        self.norm = RMSNorm(WIDTH)
        self.output = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.freqs_cis = precompute_freqs_cis(HEAD, LENGTH * 2)

    def forward(self, tokens: Tensor) -> Tensor:
        _, seqlen = tokens.shape
        h = self.tok_embeddings(tokens)
        freqs_cis = self.freqs_cis.to(h.device)[:seqlen]
        mask = torch.full((seqlen, seqlen), float("-inf"), device=tokens.device)
        mask = torch.triu(mask, diagonal=1).type_as(h)
        for layer in self.layers:
            h = layer(h, freqs_cis, mask)
        return self.output(self.norm(h)).float()


def rotate_half(x: Tensor) -> Tensor:
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


class Rotary(nn.Module):
    """Rotary positions (Su et al. 2021) as in Hugging Face's LLaMA."""

    inv_freq: Tensor

    def __init__(self) -> None:
        super().__init__()
        inv_freq = 1.0 / (10000 ** (torch.arange(0, HEAD, 2, dtype=torch.int64).float() / HEAD))
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    @torch.no_grad()
    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        inv_freq = self.inv_freq[None, :, None].float().expand(position_ids.shape[0], -1, 1)
        freqs = (inv_freq @ position_ids[:, None, :].float()).transpose(1, 2)
        emb = torch.cat((freqs, freqs), dim=-1)
        return emb.cos().to(x.dtype), emb.sin().to(x.dtype)


class HalfBlock(nn.Module):
    """A LLaMA block with positions turned by halves."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.k_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.v_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.o_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.input_layernorm = RMSNorm(WIDTH)
        self.post_attention_layernorm = RMSNorm(WIDTH)
        self.mlp = FeedForward()

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        h = self.input_layernorm(x)
        shape = (*h.shape[:-1], -1, HEAD)
        q = self.q_proj(h).view(shape).transpose(1, 2)
        k = self.k_proj(h).view(shape).transpose(1, 2)
        v = self.v_proj(h).view(shape).transpose(1, 2)
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        q = (q * cos) + (rotate_half(q) * sin)
        k = (k * cos) + (rotate_half(k) * sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o_proj(y.transpose(1, 2).reshape(*h.shape[:-1], -1).contiguous())
        return x + self.mlp(self.post_attention_layernorm(x))


class HalfLlama(nn.Module):
    """LLaMA with positions turned by halves and its own shifted loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0)
        self.rotary_emb = Rotary()
        self.layers = nn.ModuleList([HalfBlock() for _ in range(2)])
        self.norm = RMSNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, input_ids: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        x = self.embed_tokens(input_ids)
        position_ids = torch.arange(x.shape[1], device=x.device).unsqueeze(0)
        cos, sin = self.rotary_emb(x, position_ids)
        for layer in self.layers:
            x = layer(x, cos, sin)
        logits = self.lm_head(self.norm(x)).float()
        shift_logits = logits[..., :-1, :].contiguous()
        shift_labels = labels[..., 1:].contiguous()
        loss = F.cross_entropy(shift_logits.view(-1, VOCABULARY), shift_labels.view(-1))
        return loss, logits


class Experts(nn.Module):
    """A sparse mixture of experts, two per token (Mixtral, Jiang et al. 2024)."""

    def __init__(self, experts: int = 4, top_k: int = 2) -> None:
        super().__init__()
        self.top_k = top_k
        self.num_experts = experts
        self.gate = nn.Linear(WIDTH, experts, bias=False)
        self.experts = nn.ModuleList([FeedForward() for _ in range(experts)])

    def forward(self, hidden_states: Tensor) -> Tensor:
        batch, length, dim = hidden_states.shape
        flat = hidden_states.view(-1, dim)
        weights = F.softmax(self.gate(flat), dim=1, dtype=torch.float)
        weights, selected = torch.topk(weights, self.top_k, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        final = torch.zeros_like(flat)
        mask = F.one_hot(selected, num_classes=self.num_experts).permute(2, 1, 0)
        for index, expert in enumerate(self.experts):
            place, top = torch.where(mask[index])
            chosen = expert(flat[top]) * weights[top, place, None]
            final.index_add_(0, top, chosen)
        return final.reshape(batch, length, dim)


class DenseExperts(Experts):
    """The same mixture with every expert run on all tokens."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        logits = self.gate(hidden_states)
        weights, selected = torch.topk(logits, self.top_k, dim=-1)
        gates = torch.zeros_like(logits).scatter(-1, selected, weights.softmax(dim=-1))
        outputs = torch.stack([expert(hidden_states) for expert in self.experts], dim=-2)
        return torch.einsum("bte,bted->btd", gates, outputs)


class MoE(nn.Module):
    """A tagger with one layer of experts."""

    def __init__(self, layer: type[Experts]) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.moe = layer()
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        return self.head(x + self.moe(self.norm(x)))


class T5Attention(nn.Module):
    """T5's attention with buckets of relative positions (Raffel et al. 2020)."""

    def __init__(self, buckets: int = 8) -> None:
        super().__init__()
        self.buckets = buckets
        self.relative_attention_bias = nn.Embedding(buckets, HEADS)
        self.q = nn.Linear(WIDTH, WIDTH, bias=False)
        self.k = nn.Linear(WIDTH, WIDTH, bias=False)
        self.v = nn.Linear(WIDTH, WIDTH, bias=False)
        self.o = nn.Linear(WIDTH, WIDTH, bias=False)

    def bucket(self, relative_position: Tensor, max_distance: int = 16) -> Tensor:
        buckets = self.buckets // 2
        result = (relative_position > 0).to(torch.long) * buckets
        distance = torch.abs(relative_position)
        max_exact = buckets // 2
        is_small = distance < max_exact
        large = max_exact + (
            torch.log(distance.float() / max_exact)
            / math.log(max_distance / max_exact)
            * (buckets - max_exact)
        ).to(torch.long)
        large = torch.min(large, torch.full_like(large, buckets - 1))
        return result + torch.where(is_small, distance, large)

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        context = torch.arange(t, dtype=torch.long, device=x.device)[:, None]
        memory = torch.arange(t, dtype=torch.long, device=x.device)[None, :]
        values = self.relative_attention_bias(self.bucket(memory - context))
        bias = values.permute([2, 0, 1]).unsqueeze(0)
        q, k, v = (m(x).view(b, t, HEADS, HEAD).transpose(1, 2) for m in (self.q, self.k, self.v))
        scores = torch.matmul(q, k.transpose(3, 2)) + bias
        weights = F.softmax(scores.float(), dim=-1).type_as(scores)
        y = torch.matmul(weights, v).transpose(1, 2).contiguous().view(b, -1, WIDTH)
        return self.o(y)


class T5(nn.Module):
    """A T5 encoder with a head on every token."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Embedding(VOCABULARY, WIDTH)
        self.norms = nn.ModuleList([RMSNorm(WIDTH) for _ in range(3)])
        self.attention = T5Attention()
        self.wi = nn.Linear(WIDTH, 32, bias=False)
        self.wo = nn.Linear(32, WIDTH, bias=False)
        self.dropout = nn.Dropout(0.1)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.dropout(self.shared(tokens))
        x = x + self.dropout(self.attention(self.norms[0](x)))
        x = x + self.dropout(self.wo(self.dropout(F.relu(self.wi(self.norms[1](x))))))
        return (self.norms[2](x) * WIDTH**-0.5) @ self.shared.weight.t()


class Mamba(nn.Module):
    """Mamba's block with its scan as a loop (Gu and Dao 2023)."""

    def __init__(self, state: int = 4, inner: int = 32, rank: int = 2) -> None:
        super().__init__()
        self.state, self.inner, self.rank = state, inner, rank
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.norm = RMSNorm(WIDTH)
        self.in_proj = nn.Linear(WIDTH, inner * 2, bias=False)
        self.conv1d = nn.Conv1d(inner, inner, 4, groups=inner, padding=3, bias=True)
        self.x_proj = nn.Linear(inner, rank + state * 2, bias=False)
        self.dt_proj = nn.Linear(rank, inner, bias=True)
        self.A_log = nn.Parameter(torch.log(torch.arange(1, state + 1).float().repeat(inner, 1)))
        self.D = nn.Parameter(torch.ones(inner))
        self.out_proj = nn.Linear(inner, WIDTH, bias=False)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def selective_scan(self, u: Tensor, delta: Tensor, B: Tensor, C: Tensor) -> Tensor:
        A = -torch.exp(self.A_log.float())
        deltaA = torch.exp(torch.einsum("bld,dn->bldn", delta, A))
        deltaB_u = torch.einsum("bld,bln,bld->bldn", delta, B, u)
        x = torch.zeros((u.shape[0], self.inner, self.state), device=u.device)
        ys = []
        for i in range(u.shape[1]):
            x = deltaA[:, i] * x + deltaB_u[:, i]
            ys.append(torch.einsum("bdn,bn->bd", x, C[:, i, :]))
        return torch.stack(ys, dim=1) + u * self.D

    def forward(self, tokens: Tensor) -> Tensor:
        residual = self.embed(tokens)
        _, length, _ = residual.shape
        x, res = self.in_proj(self.norm(residual)).split([self.inner, self.inner], dim=-1)
        x = self.conv1d(x.transpose(1, 2))[:, :, :length].transpose(1, 2)
        x = F.silu(x)
        sizes = [self.rank, self.state, self.state]
        delta, B, C = self.x_proj(x).split(split_size=sizes, dim=-1)
        y = self.selective_scan(x, F.softplus(self.dt_proj(delta)), B, C)
        return self.head(residual + self.out_proj(y * F.silu(res)))


tokens = whole((VOCABULARY, (LENGTH,)))
token_pairs = whole((VOCABULARY, (LENGTH,)), (VOCABULARY, (LENGTH,)))

NETS: Mapping[str, Net] = MappingProxyType(
    {
        "llama complex": Net(Llama, tokens),
        "llama halves": Net(HalfLlama, token_pairs, loss="own", labels="labels"),
        "mixtral experts": Net(lambda: MoE(Experts), tokens),
        "dense experts": Net(lambda: MoE(DenseExperts), tokens),
        "t5 encoder": Net(T5, tokens),
        "mamba": Net(Mamba, tokens),
    }
)
