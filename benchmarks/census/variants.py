"""Later language models and what is added to them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.census.net import Net, whole

VOCABULARY, LENGTH, WIDTH, HEADS = 21, 8, 16, 2
HEAD = WIDTH // HEADS


class LM(nn.Module):
    """An embedding, one block and a head."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.embed, self.block = nn.Embedding(VOCABULARY, WIDTH), block
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.block(self.embed(tokens))))


class LoRALinear(nn.Module):
    """A frozen layer and a learnt one of low rank (Hu et al. 2022)."""

    def __init__(self, base: nn.Linear, r: int = 2, alpha: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_A = nn.Parameter(torch.zeros(r, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, r))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))
        self.scaling, self.dropout = alpha / r, nn.Dropout(0.05)

    def forward(self, x: Tensor) -> Tensor:
        low = self.dropout(x) @ self.lora_A.transpose(0, 1) @ self.lora_B.transpose(0, 1)
        return self.base(x) + low * self.scaling


class LoRABlock(nn.Module):
    """A feed-forward net with LoRA on both layers."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = LoRALinear(nn.Linear(WIDTH, 32)), LoRALinear(nn.Linear(32, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(x), approximate="tanh"))


class Gemma(nn.Module):
    """Gemma 2's attention in a sliding window with capped scores (2024), queries normalised."""

    def __init__(self, window: int = 4, cap: float = 50.0) -> None:
        super().__init__()
        self.window, self.cap = window, cap
        self.qkv_proj = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.o_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.q_norm, self.k_norm = nn.RMSNorm(HEAD, eps=1e-6), nn.RMSNorm(HEAD, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q, k, v = self.qkv_proj(x).view(b, t, 3, HEADS, HEAD).permute(2, 0, 3, 1, 4).unbind()
        scores = torch.matmul(self.q_norm(q), self.k_norm(k).transpose(2, 3)) * HEAD**-0.5
        scores = torch.tanh(scores / self.cap) * self.cap
        all_ones = torch.ones_like(scores, dtype=torch.bool)
        seen = torch.tril(all_ones) & torch.triu(all_ones, -1 * self.window + 1)
        scores = torch.where(seen, scores, torch.tensor(-2.3819763e38))
        weights = F.softmax(scores.float(), dim=-1).type_as(q)
        return x + self.o_proj((weights @ v).transpose(1, 2).contiguous().view(b, t, -1))


class MLA(nn.Module):
    """Latent attention of DeepSeek V2 (2024)."""

    def __init__(self, rank: int = 6) -> None:
        super().__init__()
        self.q_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.kv_a, self.kv_norm = nn.Linear(WIDTH, rank, bias=False), nn.RMSNorm(rank)
        self.kv_b = nn.Linear(rank, 2 * WIDTH, bias=False)
        self.o_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        sink = torch.zeros(HEADS)
        self.sinks = nn.Parameter(sink)

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q = self.q_proj(x).unflatten(-1, (HEADS, HEAD)).transpose(1, 2)
        kv = self.kv_b(self.kv_norm(self.kv_a(x))).unflatten(-1, (HEADS, 2 * HEAD)).transpose(1, 2)
        k, v = torch.tensor_split(kv, 2, dim=-1)
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(HEAD)
        scores = scores + x.new_full((t, t), -torch.inf).triu_(1)
        sinks = self.sinks.reshape(1, -1, 1, 1).expand(b, -1, t, -1)
        weights = torch.cat([scores, sinks], dim=-1).softmax(-1)[..., :-1]
        return x + self.o_proj(torch.einsum("bhqk,bhkd->bqhd", weights, v).flatten(-2))


class RWKV(nn.Module):
    """RWKV's mixing of time, as a loop (Peng et al. 2023)."""

    def __init__(self) -> None:
        super().__init__()
        self.time_decay = nn.Parameter(torch.linspace(-5, 1, WIDTH))
        self.time_first = nn.Parameter(torch.ones(WIDTH) * math.log(0.3))
        self.time_mix_k, self.time_mix_v, self.time_mix_r = (
            nn.Parameter(torch.rand(1, 1, WIDTH)) for _ in range(3)
        )
        self.time_shift = nn.ZeroPad2d((0, 0, 1, -1))
        self.key, self.value, self.receptance, self.output = (
            nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        xx = self.time_shift(x)
        k = self.key(x * self.time_mix_k + xx * (1 - self.time_mix_k))
        v = self.value(x * self.time_mix_v + xx * (1 - self.time_mix_v))
        r = torch.sigmoid(self.receptance(x * self.time_mix_r + xx * (1 - self.time_mix_r)))
        w, u = -torch.exp(self.time_decay), self.time_first
        aa, bb = torch.zeros_like(k[:, 0]), torch.zeros_like(k[:, 0])
        pp = torch.full_like(aa, -1e38)
        out = torch.empty_like(v)
        for t in range(k.size(1)):
            qq = torch.maximum(pp, u + k[:, t])
            e1, e2 = torch.exp(pp - qq), torch.exp(u + k[:, t] - qq)
            out[:, t] = (e1 * aa + e2 * v[:, t]) / (e1 * bb + e2)
            qq = torch.maximum(pp + w, k[:, t])
            e1, e2 = torch.exp(pp + w - qq), torch.exp(k[:, t] - qq)
            aa, bb, pp = e1 * aa + e2 * v[:, t], e1 * bb + e2, qq
        return x + self.output(r * out)


class RetNet(nn.Module):
    """Retention in its parallel form (Sun et al. 2023), normalised by groups."""

    gamma: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.g, self.o = (
            nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(5)
        )
        self.register_buffer("gamma", 1 - 2 ** (-5 - torch.arange(HEADS, dtype=torch.float)))
        self.group_norm = nn.GroupNorm(HEADS, WIDTH, affine=False)

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q, k, v = (m(x).view(b, t, HEADS, HEAD).transpose(1, 2) for m in (self.q, self.k, self.v))
        n = torch.arange(t).unsqueeze(1)
        m = torch.arange(t).unsqueeze(0)
        decay = (self.gamma.view(-1, 1, 1) ** (n - m)) * (n >= m).float()
        decay = torch.nan_to_num(decay)
        y = (q @ k.transpose(-1, -2) * decay) @ v
        y = self.group_norm(y.transpose(1, 2).reshape(b * t, WIDTH)).view(b, t, WIDTH)
        return x + self.o(F.silu(self.g(x)) * y)


class S4D(nn.Module):
    """Diagonal state spaces (Gu et al. 2022), convolved by Fourier transforms."""

    def __init__(self, n: int = 4) -> None:
        super().__init__()
        self.log_dt = nn.Parameter(torch.rand(WIDTH) * 2 - 4)
        self.C = nn.Parameter(torch.randn(WIDTH, n, 2))
        self.log_A_real = nn.Parameter(torch.log(0.5 * torch.ones(WIDTH, n)))
        self.A_imag = nn.Parameter(math.pi * torch.arange(n).repeat(WIDTH, 1).float())
        self.D = nn.Parameter(torch.randn(WIDTH))
        self.output_linear = nn.Sequential(nn.Conv1d(WIDTH, 2 * WIDTH, 1), nn.GLU(dim=-2))

    def kernel(self, length: int) -> Tensor:
        dt, C = torch.exp(self.log_dt), torch.view_as_complex(self.C)
        A = -torch.exp(self.log_A_real) + 1j * self.A_imag
        dtA = A * dt.unsqueeze(-1)
        K = dtA.unsqueeze(-1) * torch.arange(length, device=A.device)
        C = C * (torch.exp(dtA) - 1.0) / A
        return 2 * torch.einsum("hn, hnl -> hl", C, torch.exp(K)).real

    def forward(self, x: Tensor) -> Tensor:
        u = x.transpose(-1, -2)
        length = u.size(-1)
        k_f = torch.fft.rfft(self.kernel(length), n=2 * length)
        u_f = torch.fft.rfft(u, n=2 * length)
        y = torch.fft.irfft(u_f * k_f, n=2 * length)[..., :length]
        y = F.gelu(y + u * self.D.unsqueeze(-1))
        return x + self.output_linear(y).transpose(-1, -2)


class FNet(nn.Module):
    """Fourier transforms in the place of attention (Lee-Thorp et al. 2022)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.ff = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x + torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real)
        return x + self.ff(x)


class Switch(nn.Module):
    """Switch transformer (Fedus et al. 2022): one expert per token, and its balance."""

    def __init__(self, experts: int = 3) -> None:
        super().__init__()
        self.embed, self.experts = nn.Embedding(VOCABULARY, WIDTH), experts
        self.router, self.head = nn.Linear(WIDTH, experts), nn.Linear(WIDTH, VOCABULARY)
        self.w1 = nn.Parameter(torch.randn(experts, WIDTH, 32) * 0.1)
        self.w2 = nn.Parameter(torch.randn(experts, 32, WIDTH) * 0.1)

    def forward(self, tokens: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        x = self.embed(tokens).flatten(0, 1)
        logits = self.router(x)
        probs = logits.softmax(-1)
        gate, index = torch.max(probs, dim=-1)
        chosen = F.one_hot(index, self.experts).float()
        balance = self.experts * torch.sum(chosen.mean(0) * probs.mean(0))
        z_loss = torch.logsumexp(logits, dim=-1).square().mean()
        h = torch.baddbmm(torch.zeros(1), x.expand(self.experts, -1, -1), self.w1).relu()
        y = torch.einsum("end,ne->nd", torch.bmm(h, self.w2), chosen) * gate[:, None]
        out = self.head(x + y).view(*tokens.shape, -1)
        loss = F.cross_entropy(out.flatten(0, 1), labels.flatten())
        return loss + 0.01 * balance + 0.001 * z_loss, out


class Chunked(nn.Module):
    """GPT-J's parallel block (2021) with turned pairs and no gain in its norm."""

    def __init__(self) -> None:
        super().__init__()
        self.ln, self.qkv = (
            nn.LayerNorm(WIDTH, elementwise_affine=False),
            nn.Linear(WIDTH, 3 * WIDTH),
        )
        self.out, self.fc = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 32)
        self.fc_out = nn.Linear(32, WIDTH)

    def rotate(self, x: Tensor) -> Tensor:
        t = torch.arange(x.size(-2), dtype=torch.float)
        angle = torch.einsum("i,j->ij", t, 10000 ** (-torch.arange(0, HEAD, 2) / HEAD))
        sin, cos = (torch.repeat_interleave(f(angle), 2, dim=-1) for f in (torch.sin, torch.cos))
        turned = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
        return x * cos + turned * sin

    def forward(self, x: Tensor) -> Tensor:
        h = self.ln(x)
        q, k, v = (
            s.unflatten(-1, (HEADS, HEAD)).swapaxes(1, 2) for s in self.qkv(h).tensor_split(3, -1)
        )
        mask = torch.ones(x.size(1), x.size(1), dtype=torch.bool).tril()
        y = F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v, attn_mask=mask)
        return x + self.out(y.swapaxes(1, 2).flatten(2)) + self.fc_out(F.relu(self.fc(h)).square())


def model(block: type[nn.Module]) -> Net:
    """Returns a language model of one block."""
    return Net(lambda: LM(block()), whole((VOCABULARY, (LENGTH,))))


labelled = whole((VOCABULARY, (LENGTH,)), (VOCABULARY, (LENGTH,)))

NETS: Mapping[str, Net] = MappingProxyType(
    {
        "lora": model(LoRABlock),
        "gemma": model(Gemma),
        "latent attention": model(MLA),
        "rwkv": model(RWKV),
        "retnet": model(RetNet),
        "s4d": model(S4D),
        "fnet": model(FNet),
        "switch": Net(Switch, labelled, loss="own", labels="labels"),
        "gpt-j": model(Chunked),
    }
)
