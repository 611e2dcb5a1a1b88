"""Transformers and perceptrons of image patches."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.census.net import Net, normal

WIDTH, HEADS, CLASSES, PATCH, SIZE = 16, 2, 5, 4, 16
PLACES = (SIZE // PATCH) ** 2


def window_partition(x: Tensor, window_size: int) -> Tensor:
    B, H, W, C = x.shape
    x = x.view(B, H // window_size, window_size, W // window_size, window_size, C)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, window_size, window_size, C)


def window_reverse(windows: Tensor, window_size: int, H: int, W: int) -> Tensor:
    B = int(windows.shape[0] / (H * W / window_size / window_size))
    x = windows.view(B, H // window_size, W // window_size, window_size, window_size, -1)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(B, H, W, -1)


class WindowAttention(nn.Module):
    """Attention in a window with a bias for relative positions (Swin, Liu et al. 2021)."""

    relative_position_index: Tensor

    def __init__(self, dim: int, window: int, heads: int) -> None:
        super().__init__()
        self.window, self.num_heads, self.scale = window, heads, (dim // heads) ** -0.5
        self.relative_position_bias_table = nn.Parameter(torch.zeros((2 * window - 1) ** 2, heads))
        coords = torch.stack(torch.meshgrid([torch.arange(window)] * 2, indexing="ij"))
        coords = torch.flatten(coords, 1)
        relative = (coords[:, :, None] - coords[:, None, :]).permute(1, 2, 0).contiguous()
        relative[:, :, 0] += window - 1
        relative[:, :, 1] += window - 1
        relative[:, :, 0] *= 2 * window - 1
        self.register_buffer("relative_position_index", relative.sum(-1))
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)
        nn.init.trunc_normal_(self.relative_position_bias_table, std=0.02)
        self.softmax = nn.Softmax(dim=-1)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        B_, N, C = x.shape
        qkv = self.qkv(x).reshape(B_, N, 3, self.num_heads, C // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attn = (q * self.scale) @ k.transpose(-2, -1)
        bias = self.relative_position_bias_table[self.relative_position_index.view(-1)]
        bias = bias.view(self.window**2, self.window**2, -1).permute(2, 0, 1).contiguous()
        attn = attn + bias.unsqueeze(0)
        if mask is not None:
            nW = mask.shape[0]
            attn = attn.view(B_ // nW, nW, self.num_heads, N, N) + mask.unsqueeze(1).unsqueeze(0)
            attn = attn.view(-1, self.num_heads, N, N)
        x = (self.softmax(attn) @ v).transpose(1, 2).reshape(B_, N, C)
        return self.proj(x)


class SwinBlock(nn.Module):
    """Swin's block with shifted windows."""

    attn_mask: Tensor | None

    def __init__(self, dim: int, resolution: int, window: int, shift: int) -> None:
        super().__init__()
        self.H = self.W = resolution
        self.window_size, self.shift_size = window, shift
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = WindowAttention(dim, window, HEADS)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        self.register_buffer("attn_mask", self.mask() if shift > 0 else None)

    def mask(self) -> Tensor:
        img_mask = torch.zeros((1, self.H, self.W, 1))
        cuts = (
            slice(0, -self.window_size),
            slice(-self.window_size, -self.shift_size),
            slice(-self.shift_size, None),
        )
        cnt = 0
        for h in cuts:
            for w in cuts:
                img_mask[:, h, w, :] = cnt
                cnt += 1
        mask_windows = window_partition(img_mask, self.window_size).view(-1, self.window_size**2)
        attn_mask = mask_windows.unsqueeze(1) - mask_windows.unsqueeze(2)
        attn_mask = attn_mask.masked_fill(attn_mask != 0, (-100.0))
        return attn_mask.masked_fill(attn_mask == 0, 0.0)

    def forward(self, x: Tensor) -> Tensor:
        B, L, C = x.shape
        assert L == self.H * self.W, "input feature has wrong size"
        shortcut, shift = x, self.shift_size
        x = self.norm1(x).view(B, self.H, self.W, C)
        if shift > 0:
            x = torch.roll(x, shifts=(-shift, -shift), dims=(1, 2))
        windows = window_partition(x, self.window_size).view(-1, self.window_size**2, C)
        windows = self.attn(windows, mask=self.attn_mask)
        windows = windows.view(-1, self.window_size, self.window_size, C)
        x = window_reverse(windows, self.window_size, self.H, self.W)
        if shift > 0:
            x = torch.roll(x, shifts=(shift, shift), dims=(1, 2))
        x = shortcut + x.view(B, self.H * self.W, C)
        return x + self.mlp(self.norm2(x))


class PatchMerging(nn.Module):
    """Swin's merging of four patches."""

    def __init__(self, resolution: int, dim: int) -> None:
        super().__init__()
        self.resolution = resolution
        self.reduction = nn.Linear(4 * dim, 2 * dim, bias=False)
        self.norm = nn.LayerNorm(4 * dim)

    def forward(self, x: Tensor) -> Tensor:
        B, _, C = x.shape
        x = x.view(B, self.resolution, self.resolution, C)
        x0, x1 = x[:, 0::2, 0::2, :], x[:, 1::2, 0::2, :]
        x2, x3 = x[:, 0::2, 1::2, :], x[:, 1::2, 1::2, :]
        x = torch.cat([x0, x1, x2, x3], -1).view(B, -1, 4 * C)
        return self.reduction(self.norm(x))


class PatchEmbed(nn.Module):
    """Patches by a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, WIDTH, kernel_size=PATCH, stride=PATCH)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x).flatten(2).transpose(1, 2)


class Swin(nn.Module):
    """A Swin transformer of one stage and a merging."""

    def __init__(self) -> None:
        super().__init__()
        self.patch_embed = PatchEmbed()
        self.layers = nn.Sequential(SwinBlock(WIDTH, 4, 2, 0), SwinBlock(WIDTH, 4, 2, 1))
        self.downsample = PatchMerging(4, WIDTH)
        self.norm = nn.LayerNorm(2 * WIDTH)
        self.avgpool = nn.AdaptiveAvgPool1d(1)
        self.head = nn.Linear(2 * WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.downsample(self.layers(self.patch_embed(x))))
        return self.head(torch.flatten(self.avgpool(x.transpose(1, 2)), 1))


class ViT(nn.Module):
    """Vision transformer (Dosovitskiy et al. 2021) on nn.MultiheadAttention."""

    class Block(nn.Module):
        """A block that normalises first."""

        def __init__(self) -> None:
            super().__init__()
            self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.attn = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
            self.mlp = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH))

        def forward(self, input: Tensor) -> Tensor:
            x = self.ln_1(input)
            x, _ = self.attn(x, x, x, need_weights=False)
            x = x + input
            return x + self.mlp(self.ln_2(x))

    def __init__(self) -> None:
        super().__init__()
        self.patch_embed = PatchEmbed()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.pos_embed = nn.Parameter(torch.randn(1, PLACES + 1, WIDTH) * 0.02)
        self.blocks = nn.Sequential(self.Block(), self.Block())
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch_embed(x)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1)
        return self.head(self.blocks(x + self.pos_embed)[:, 0])


class LayerScaleBlock(nn.Module):
    """CaiT's block with talking heads and layer scale (Touvron et al. 2021)."""

    def __init__(self, init_values: float = 1e-4) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, WIDTH * 3, bias=True)
        self.proj = nn.Linear(WIDTH, WIDTH)
        self.proj_l, self.proj_w = nn.Linear(HEADS, HEADS), nn.Linear(HEADS, HEADS)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH))
        self.gamma_1 = nn.Parameter(init_values * torch.ones(WIDTH), requires_grad=True)
        self.gamma_2 = nn.Parameter(init_values * torch.ones(WIDTH), requires_grad=True)

    def attention(self, x: Tensor) -> Tensor:
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, HEADS, C // HEADS).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0] * (C // HEADS) ** -0.5, qkv[1], qkv[2]
        attn = q @ k.transpose(-2, -1)
        attn = self.proj_l(attn.permute(0, 2, 3, 1)).permute(0, 3, 1, 2).softmax(dim=-1)
        attn = self.proj_w(attn.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.proj((attn @ v).transpose(1, 2).reshape(B, N, C))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.gamma_1 * self.attention(self.norm1(x))
        return x + self.gamma_2 * self.mlp(self.norm2(x))


class MixerBlock(nn.Module):
    """MLP-Mixer's block (Tolstikhin et al. 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.token = nn.Sequential(nn.Linear(PLACES, 8), nn.GELU(), nn.Linear(8, PLACES))
        self.channel = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.token(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channel(self.norm2(x))


class GMLPBlock(nn.Module):
    """gMLP's block with its spatial gate (Liu et al. 2021)."""

    def __init__(self, ffn: int = 32) -> None:
        super().__init__()
        self.norm, self.gate_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(ffn // 2)
        self.channel_proj1 = nn.Linear(WIDTH, ffn)
        self.channel_proj2 = nn.Linear(ffn // 2, WIDTH)
        self.spatial_proj = nn.Conv1d(PLACES, PLACES, kernel_size=1)
        nn.init.constant_(self.spatial_proj.bias, 1.0)

    def forward(self, x: Tensor) -> Tensor:
        residual = x
        u, v = F.gelu(self.channel_proj1(self.norm(x))).chunk(2, dim=-1)
        return self.channel_proj2(u * self.spatial_proj(self.gate_norm(v))) + residual


class PoolBlock(nn.Module):
    """PoolFormer's block (Yu et al. 2022)."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False)
        self.norm1, self.norm2 = nn.GroupNorm(1, WIDTH), nn.GroupNorm(1, WIDTH)
        self.mlp = nn.Sequential(nn.Conv2d(WIDTH, 32, 1), nn.GELU(), nn.Conv2d(32, WIDTH, 1))

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        x = x.transpose(1, 2).unflatten(2, (SIZE // PATCH, SIZE // PATCH))
        y = self.norm1(x)
        x = x + self.pool(y) - y
        return (x + self.mlp(self.norm2(x))).flatten(2).mT.reshape(b, n, c)


class Patches(nn.Module):
    """A classifier on the mean of the patches."""

    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.patch_embed = PatchEmbed()
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch_embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(dim=1))


images = normal((3, SIZE, SIZE))

NETS: Mapping[str, Net] = MappingProxyType(
    {
        "swin": Net(Swin, images),
        "vit": Net(ViT, images),
        "cait": Net(lambda: Patches(LayerScaleBlock(), LayerScaleBlock()), images),
        "mlp-mixer": Net(lambda: Patches(MixerBlock(), MixerBlock()), images),
        "gmlp": Net(lambda: Patches(GMLPBlock(), GMLPBlock()), images),
        "poolformer": Net(lambda: Patches(PoolBlock()), images),
    }
)
