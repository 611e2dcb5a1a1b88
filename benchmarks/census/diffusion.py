"""Diffusion, flows, style and implicit functions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.census.net import Net, both, normal, uniform, whole

WIDTH, STEPS = 8, 20


class SinusoidalPosEmb(nn.Module):
    """Sinusoidal embedding of a time step (Ho et al. 2020)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, time: Tensor) -> Tensor:
        device = time.device
        half_dim = self.dim // 2
        embeddings = math.log(10000) / (half_dim - 1)
        embeddings = torch.exp(torch.arange(half_dim, device=device) * -embeddings)
        embeddings = time[:, None] * embeddings[None, :]
        return torch.cat((embeddings.sin(), embeddings.cos()), dim=-1)


class ResnetBlock(nn.Module):
    """A block with scale and shift from the time step."""

    def __init__(self, dim: int, dim_out: int, time_dim: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.SiLU(), nn.Linear(time_dim, dim_out * 2))
        self.proj1 = nn.Conv2d(dim, dim_out, 3, padding=1)
        self.norm1 = nn.GroupNorm(4, dim_out)
        self.proj2 = nn.Conv2d(dim_out, dim_out, 3, padding=1)
        self.norm2 = nn.GroupNorm(4, dim_out)
        self.act = nn.SiLU()
        self.res_conv = nn.Conv2d(dim, dim_out, 1) if dim != dim_out else nn.Identity()

    def forward(self, x: Tensor, time_emb: Tensor) -> Tensor:
        time_emb = self.mlp(time_emb)[:, :, None, None]
        scale, shift = time_emb.chunk(2, dim=1)
        h = self.norm1(self.proj1(x))
        h = self.act(h * (scale + 1) + shift)
        return self.act(self.norm2(self.proj2(h))) + self.res_conv(x)


class SpatialAttention(nn.Module):
    """Self-attention over the places of an image."""

    def __init__(self, dim: int, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.scale = heads, (dim // heads) ** -0.5
        self.norm = nn.GroupNorm(1, dim)
        self.to_qkv = nn.Conv2d(dim, dim * 3, 1, bias=False)
        self.to_out = nn.Conv2d(dim, dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        q, k, v = self.to_qkv(self.norm(x)).view(b, 3, self.heads, -1, h * w).unbind(1)
        sim = torch.einsum("b h d i, b h d j -> b h i j", q * self.scale, k)
        sim = sim - sim.amax(dim=-1, keepdim=True).detach()
        out = torch.einsum("b h i j, b h d j -> b h i d", sim.softmax(dim=-1), v)
        return x + self.to_out(out.permute(0, 1, 3, 2).reshape(b, c, h, w))


class DiffusionUNet(nn.Module):
    """A U-Net that predicts noise."""

    def __init__(self) -> None:
        super().__init__()
        time_dim = WIDTH * 4
        self.init_conv = nn.Conv2d(1, WIDTH, 3, padding=1)
        self.time_mlp = nn.Sequential(
            SinusoidalPosEmb(WIDTH),
            nn.Linear(WIDTH, time_dim),
            nn.GELU(),
            nn.Linear(time_dim, time_dim),
        )
        self.down1 = ResnetBlock(WIDTH, WIDTH, time_dim)
        self.downsample = nn.Conv2d(WIDTH, WIDTH * 2, 4, 2, 1)
        self.mid = ResnetBlock(WIDTH * 2, WIDTH * 2, time_dim)
        self.attn = SpatialAttention(WIDTH * 2)
        self.upsample = nn.Sequential(
            nn.Upsample(scale_factor=2, mode="nearest"),
            nn.Conv2d(WIDTH * 2, WIDTH, 3, padding=1),
        )
        self.up1 = ResnetBlock(WIDTH * 2, WIDTH, time_dim)
        self.final_conv = nn.Conv2d(WIDTH, 1, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        t = self.time_mlp(time)
        h = self.down1(self.init_conv(x), t)
        m = self.attn(self.mid(self.downsample(h), t))
        return self.final_conv(self.up1(torch.cat((self.upsample(m), h), dim=1), t))


class DDPM(nn.Module):
    """The loss of a denoising diffusion model (Ho et al. 2020)."""

    def __init__(self, random: bool) -> None:
        super().__init__()
        self.model, self.random = DiffusionUNet(), random
        alphas_cumprod = torch.cumprod(1.0 - torch.linspace(1e-4, 0.02, STEPS), dim=0)
        self.register_buffer("sqrt_alphas_cumprod", torch.sqrt(alphas_cumprod))
        self.register_buffer("sqrt_one_minus", torch.sqrt(1.0 - alphas_cumprod))

    def forward(self, x: Tensor, t: Tensor | None = None, noise: Tensor | None = None) -> Tensor:
        if t is None:
            t = torch.randint(0, STEPS, (x.shape[0],), device=x.device).long()
        noise = torch.randn_like(x) if noise is None else noise
        scale = self.sqrt_alphas_cumprod.gather(-1, t).reshape(-1, 1, 1, 1)
        sigma = self.sqrt_one_minus[t][:, None, None, None]
        return F.smooth_l1_loss(noise, self.model(scale * x + sigma * noise, t))


class CouplingLayer(nn.Module):
    """Affine coupling of RealNVP (Dinh et al. 2017)."""

    mask: Tensor

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.register_buffer("mask", mask)
        dim = len(mask)
        self.s = nn.Sequential(nn.Linear(dim, 16), nn.LeakyReLU(), nn.Linear(16, dim), nn.Tanh())
        self.t = nn.Sequential(nn.Linear(dim, 16), nn.LeakyReLU(), nn.Linear(16, dim))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x_ = x * self.mask
        s = self.s(x_) * (1 - self.mask)
        t = self.t(x_) * (1 - self.mask)
        return (1 - self.mask) * (x - t) * torch.exp(-s) + x_, -s.sum(dim=1)


class RealNVP(nn.Module):
    """The negative log likelihood of a flow."""

    def __init__(self, dim: int = 4) -> None:
        super().__init__()
        even = torch.arange(dim) % 2
        masks = [even.float(), 1 - even.float()] * 2
        self.layers = nn.ModuleList([CouplingLayer(m) for m in masks])

    def forward(self, x: Tensor) -> Tensor:
        log_det_J = x.new_zeros(x.shape[0])
        for layer in reversed(self.layers):
            x, log_det = layer(x)
            log_det_J += log_det
        log_pz = -0.5 * (x**2 + math.log(2 * math.pi)).sum(dim=1)
        return -(log_pz + log_det_J).mean()


class ModulatedConv2d(nn.Module):
    """A convolution whose weights a style scales (StyleGAN2, Karras et al. 2020)."""

    def __init__(self, cin: int, cout: int, style: int, kernel: int = 3) -> None:
        super().__init__()
        self.cout, self.kernel = cout, kernel
        self.weight = nn.Parameter(torch.randn(1, cout, cin, kernel, kernel))
        self.modulation = nn.Linear(style, cin)
        self.modulation.bias.data.fill_(1.0)
        self.noise_strength = nn.Parameter(torch.zeros(1))
        self.scale = 1 / math.sqrt(cin * kernel**2)

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        batch, in_channel, height, width = x.shape
        s = self.modulation(style).view(batch, 1, in_channel, 1, 1)
        weight = self.scale * self.weight * s
        demod = torch.rsqrt(weight.pow(2).sum([2, 3, 4]) + 1e-8)
        weight = weight * demod.view(batch, self.cout, 1, 1, 1)
        weight = weight.view(batch * self.cout, in_channel, self.kernel, self.kernel)
        x = x.view(1, batch * in_channel, height, width)
        out = F.conv2d(x, weight, padding=self.kernel // 2, groups=batch)
        out = out.view(batch, self.cout, height, width)
        noise = torch.randn(batch, 1, height, width, device=x.device)
        return F.leaky_relu(out + self.noise_strength * noise, 0.2) * math.sqrt(2)


class StyleGenerator(nn.Module):
    """StyleGAN2's generator with a learnt constant, and its loss that does not saturate."""

    def __init__(self, style: int = 8) -> None:
        super().__init__()
        self.mapping = nn.Sequential(nn.Linear(style, style), nn.LeakyReLU(0.2))
        self.constant = nn.Parameter(torch.randn(1, WIDTH, 4, 4))
        self.conv1 = ModulatedConv2d(WIDTH, WIDTH, style)
        self.conv2 = ModulatedConv2d(WIDTH, WIDTH, style)
        self.to_rgb = nn.Conv2d(WIDTH, 3, 1)
        self.disc = nn.Sequential(nn.Conv2d(3, 4, 3), nn.LeakyReLU(0.2), nn.Flatten())
        self.score = nn.Linear(4 * 36, 1)

    def forward(self, z: Tensor) -> Tensor:
        z = z * torch.rsqrt(torch.mean(z**2, dim=1, keepdim=True) + 1e-8)
        w = self.mapping(z)
        x = self.conv1(self.constant.repeat(z.shape[0], 1, 1, 1), w)
        x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
        image = self.to_rgb(self.conv2(x, w))
        return F.softplus(-self.score(self.disc(image))).mean()


def calc_mean_std(feat: Tensor, eps: float = 1e-5) -> tuple[Tensor, Tensor]:
    n, c = feat.size()[:2]
    feat_var = feat.view(n, c, -1).var(dim=2) + eps
    feat_std = feat_var.sqrt().view(n, c, 1, 1)
    return feat.view(n, c, -1).mean(dim=2).view(n, c, 1, 1), feat_std


class AdaIN(nn.Module):
    """Style transfer by adaptive instance norm (Huang and Belongie 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.enc = nn.Sequential(
            nn.ReflectionPad2d((1, 1, 1, 1)), nn.Conv2d(3, WIDTH, 3), nn.ReLU(), nn.MaxPool2d(2)
        )
        for param in self.enc.parameters():
            param.requires_grad = False
        self.decoder = nn.Sequential(
            nn.Upsample(scale_factor=2, mode="nearest"),
            nn.ReflectionPad2d((1, 1, 1, 1)),
            nn.Conv2d(WIDTH, 3, 3),
        )

    def forward(self, content: Tensor, style: Tensor) -> Tensor:
        style_feat, content_feat = self.enc(style), self.enc(content)
        size = content_feat.size()
        style_mean, style_std = calc_mean_std(style_feat)
        mean, std = calc_mean_std(content_feat)
        normalized = (content_feat - mean.expand(size)) / std.expand(size)
        t = normalized * style_std.expand(size) + style_mean.expand(size)
        g_feat = self.enc(self.decoder(t))
        g_mean, g_std = calc_mean_std(g_feat)
        loss_s = F.mse_loss(g_mean, style_mean) + F.mse_loss(g_std, style_std)
        return F.mse_loss(g_feat, t.detach()) + 10 * loss_s


class PixelCNN(nn.Module):
    """Masked convolutions over pixels (van den Oord et al. 2016)."""

    class MaskedConv2d(nn.Conv2d):
        """A convolution that sees only what came before."""

        mask: Tensor

        def __init__(self, mask_type: str, cin: int, cout: int, kernel: int) -> None:
            super().__init__(cin, cout, kernel, padding=kernel // 2, bias=False)
            self.register_buffer("mask", torch.ones_like(self.weight.data))
            _, _, h, w = self.weight.size()
            self.mask[:, :, h // 2, w // 2 + (mask_type == "B") :] = 0
            self.mask[:, :, h // 2 + 1 :] = 0

        def forward(self, x: Tensor) -> Tensor:
            self.weight.data *= self.mask
            return super().forward(x)

    def __init__(self, levels: int = 4) -> None:
        super().__init__()
        self.levels = levels
        self.net = nn.Sequential(
            self.MaskedConv2d("A", 1, WIDTH, 5),
            nn.BatchNorm2d(WIDTH),
            nn.ReLU(True),
            self.MaskedConv2d("B", WIDTH, WIDTH, 3),
            nn.ReLU(True),
            nn.Conv2d(WIDTH, levels, 1),
        )

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.net(pixels.unsqueeze(1).float() / (self.levels - 1))
        return F.cross_entropy(logits, pixels), logits


diffused = both(normal((1, 8, 8)), whole((STEPS, ())), normal((1, 8, 8)))

NETS: Mapping[str, Net] = MappingProxyType(
    {
        "ddpm": Net(lambda: DDPM(random=False), diffused, loss="own"),
        "ddpm, draws inside": Net(lambda: DDPM(random=True), normal((1, 8, 8)), loss="own"),
        "realnvp": Net(RealNVP, normal((4,)), loss="own"),
        "stylegan2 generator": Net(StyleGenerator, normal((8,)), loss="own"),
        "adain": Net(AdaIN, uniform((3, 8, 8), (3, 8, 8)), loss="own"),
        "pixelcnn": Net(PixelCNN, whole((4, (8, 8))), loss="own"),
    }
)
