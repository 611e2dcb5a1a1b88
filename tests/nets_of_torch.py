"""Small nets as their authors write them in torch: what the importer is tried on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.image_nets_of_torch import CLASSES, MobileNetV2, ResNet18, UNet

TOKENS = 11
TIME = 6


class ViTBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Any:
        batch, count, width = x.shape
        qkv = self.qkv(self.norm1(x)).reshape(batch, count, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        y = functional.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, count, width))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    """Patches, a class token and positions that are bare parameters (arXiv 2010.11929)."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(3, width, 4, 4)
        self.cls_token = nn.Parameter(0.02 * torch.randn(1, 1, width))
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, 17, width))
        self.blocks = nn.Sequential(ViTBlock(width, 4), ViTBlock(width, 4))
        self.norm, self.head = nn.LayerNorm(width, eps=1e-6), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Any:
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])


class CausalAttention(nn.Module):
    """nanoGPT's, its mask a buffer."""

    bias: Tensor

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        mask = torch.tril(torch.ones(TIME, TIME)).view(1, 1, TIME, TIME)
        self.register_buffer("bias", mask)

    def forward(self, x: Tensor) -> Any:
        batch, time, width = x.size()
        q, k, v = self.c_attn(x).split(width, dim=2)
        shape = (batch, time, self.heads, width // self.heads)
        q, k, v = (part.view(shape).transpose(1, 2) for part in (q, k, v))
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :time, :time] == 0, float("-inf"))
        y = functional.softmax(att, dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(batch, time, width))


class NanoGPT(nn.Module):
    """One pre-norm block; the head is the embedding of the tokens."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(TOKENS, width), nn.Embedding(TIME, width)
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width, bias=False)
        self.attn = CausalAttention(width, 4)
        self.c_fc, self.c_proj = nn.Linear(width, 32, bias=False), nn.Linear(32, width)
        self.ln_f, self.lm_head = nn.LayerNorm(width), nn.Linear(width, TOKENS, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, idx: Tensor) -> Any:
        x = self.wte(idx) + self.wpe(torch.arange(0, idx.size(1), device=idx.device))
        x = x + self.attn(self.ln_1(x))
        x = x + self.c_proj(functional.gelu(self.c_fc(self.ln_2(x))))
        return self.lm_head(self.ln_f(x))


class DroppedGPT(NanoGPT):
    """The same with dropout of a tenth, whose factor no 16-bit format holds."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.1)

    def forward(self, idx: Tensor) -> Any:
        x = self.drop(self.wte(idx) + self.wpe(torch.arange(0, idx.size(1), device=idx.device)))
        x = x + self.drop(self.attn(self.ln_1(x)))
        x = x + functional.dropout(self.c_proj(functional.gelu(self.c_fc(self.ln_2(x)))), 0.1)
        return self.lm_head(self.ln_f(x))


class BertLayer(nn.Module):
    """A post-norm encoder layer on tokens of two kinds, some of them padding."""

    def __init__(self, width: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.word = nn.Embedding(TOKENS, width, padding_idx=0)
        self.kind = nn.Embedding(2, width)
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.dense = nn.Linear(width, width), nn.Linear(width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-12), nn.LayerNorm(width, eps=1e-12)
        self.intermediate, self.output = nn.Linear(width, 32), nn.Linear(32, width)
        self.pooler, self.classifier = nn.Linear(width, width), nn.Linear(width, CLASSES)

    def split(self, x: Tensor) -> Any:
        return x.view(*x.shape[:-1], self.heads, -1).permute(0, 2, 1, 3)

    def forward(self, ids: Tensor, kinds: Tensor, mask: Tensor) -> Any:
        x = self.word(ids) + self.kind(kinds)
        q, k, v = (self.split(layer(x)) for layer in (self.query, self.key, self.value))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
        scores = scores + (1.0 - mask[:, None, None, :]) * -10000.0
        y = nn.Softmax(dim=-1)(scores) @ v
        y = y.permute(0, 2, 1, 3).flatten(2)
        x = self.norm1(x + self.dense(y))
        x = self.norm2(x + self.output(functional.gelu(self.intermediate(x))))
        return self.classifier(torch.tanh(self.pooler(x[:, 0])))


class RMSNorm(nn.Module):
    """Llama's, as its authors write it: in float32, whatever comes in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Any:
        dtype = x.dtype
        x = x.float()
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * x.to(dtype)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Any:
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


class LlamaBlock(nn.Module):
    """RMSNorm, rotary positions, grouped queries and SwiGLU (arXiv 2302.13971)."""

    inv_freq: Tensor

    def __init__(self, width: int = 16, heads: int = 4, groups: int = 2) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.embed_tokens = nn.Embedding(TOKENS, width)
        self.input_norm, self.post_norm, self.norm = (RMSNorm(width) for _ in range(3))
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, groups * self.size, bias=False)
        self.v_proj = nn.Linear(width, groups * self.size, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)
        self.gate_proj, self.up_proj = (nn.Linear(width, 24, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(24, width, bias=False)
        self.lm_head = nn.Linear(width, TOKENS, bias=False)
        powers = torch.arange(0, self.size, 2).float() / self.size
        self.register_buffer("inv_freq", 10000.0**-powers, persistent=False)

    def attention(self, x: Tensor) -> Any:
        batch, time, _ = x.shape
        q = self.q_proj(x).view(batch, time, self.heads, self.size).transpose(1, 2)
        k = self.k_proj(x).view(batch, time, self.groups, self.size).transpose(1, 2)
        v = self.v_proj(x).view(batch, time, self.groups, self.size).transpose(1, 2)
        angles = torch.outer(torch.arange(time).float(), self.inv_freq).repeat(1, 2)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        q, k = _rotated(q, cos, sin), _rotated(k, cos, sin)
        k, v = (
            y[:, :, None].expand(-1, -1, self.heads // self.groups, -1, -1).flatten(1, 2)
            for y in (k, v)
        )
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(batch, time, -1))

    def forward(self, ids: Tensor) -> Any:
        x = self.embed_tokens(ids)
        x = x + self.attention(self.input_norm(x))
        y = self.post_norm(x)
        x = x + self.down_proj(functional.silu(self.gate_proj(y)) * self.up_proj(y))
        return self.lm_head(self.norm(x))


class Recurrent(nn.Module):
    """A two-layer LSTM over tokens."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, width)
        self.lstm = nn.LSTM(width, 12, num_layers=2, batch_first=True)
        self.head = nn.Linear(12, TOKENS)

    def forward(self, ids: Tensor) -> Any:
        return self.head(self.lstm(self.embed(ids))[0])


class Normed(nn.Module):
    """Norms that torch calls as one, a part that computes nothing, a dict of results."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.conv, self.group = nn.Conv1d(2, 8, 3), nn.GroupNorm(2, 8)
        self.norm, self.unused = nn.RMSNorm(6), nn.Linear(3, 3)
        self.steps = nn.LSTM(6, 4, 2, batch_first=True, dropout=share) if share else None
        self.head = nn.Linear(48, 3)

    def forward(self, x: Tensor) -> Any:
        y = self.norm(torch.relu(self.group(self.conv(x))))
        steps = self.steps(y)[0].mean() if self.steps else 0.0
        return {"logits": self.head(y.flatten(1)) + steps, "features": y}


class Attending(nn.Module):
    """A layer of a transformer, with dropouts of its own and one inside torch's attention."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, share, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x).mean(1))


class Gated(nn.Module):
    """Two GRUs with a dropout between them."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.gru = nn.GRU(8, 8, 2, batch_first=True, dropout=share)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gru(x)[0][:, -1])


class Towers(nn.Module):
    """One tower for two inputs, which returns nothing but its own loss: a cosine, below zero."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 8)

    def tower(self, x: Tensor) -> Tensor:
        y = self.fc3(torch.tanh(self.fc2(torch.tanh(self.fc1(x)))))
        return y * torch.rsqrt((y * y).sum(-1, keepdim=True) + 1e-6)

    def forward(self, x: Tensor, y: Tensor, alike: Tensor) -> Tensor:
        return -((self.tower(x) * self.tower(y)).sum(-1) * alike).mean()


Inputs = Callable[[Any, int], tuple[Any, ...]]
"""(numpy Generator, batch size): arrays as the net's forward takes them."""


def images(side: int) -> Inputs:
    return lambda rng, batch: (rng.standard_normal((batch, 3, side, side)).astype("float32"),)


def tokens(rng: Any, batch: int) -> tuple[Any, ...]:
    return (rng.integers(0, TOKENS, (batch, TIME)),)


def _two_kinds(rng: Any, batch: int) -> tuple[Any, ...]:
    mask = (rng.random((batch, TIME)) < 0.7).astype("float32")
    mask[:, 0] = 1.0
    return (*tokens(rng, batch), rng.integers(0, 2, (batch, TIME)), mask)


NETS: Mapping[str, tuple[Callable[[], nn.Module], Inputs]] = MappingProxyType(
    {
        "resnet18": (ResNet18, images(64)),
        "mobilenet_v2": (MobileNetV2, images(16)),
        "unet": (UNet, images(8)),
        "vit": (ViT, images(16)),
        "nanogpt": (NanoGPT, tokens),
        "bert": (BertLayer, _two_kinds),
        "llama": (LlamaBlock, tokens),
        "lstm": (Recurrent, tokens),
    }
)
"""Makers of the nets and of their inputs."""
