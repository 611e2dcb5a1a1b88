"""Nets of frequencies, long sequences and sound, as their users write them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.census.net import Net, both, normal, whole

WIDTH, CLASSES, TIME, WORDS = 8, 5, 16, 20
waves = normal((TIME, 2))
words = whole((WORDS, (TIME,)))


class SpectralConv1d(nn.Module):
    """The layer of a Fourier neural operator (Li et al. 2021), complex weights as pairs."""

    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        self.weights1 = nn.Parameter(torch.rand(width, width, modes, 2) / width)

    def forward(self, x: Tensor) -> Tensor:
        x_ft = torch.fft.rfft(x)
        out_ft = torch.zeros(
            x.size(0), x.size(1), x.size(-1) // 2 + 1, device=x.device, dtype=torch.cfloat
        )
        w = torch.view_as_complex(self.weights1)
        out_ft[:, :, : self.modes] = torch.einsum("bix,iox->box", x_ft[:, :, : self.modes], w)
        return torch.fft.irfft(out_ft, n=x.size(-1))


class FNO1d(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc0 = nn.Linear(3, WIDTH)
        self.convs = nn.ModuleList([SpectralConv1d(WIDTH, 5) for _ in range(2)])
        self.ws = nn.ModuleList([nn.Conv1d(WIDTH, WIDTH, 1) for _ in range(2)])
        self.fc1, self.fc2 = nn.Linear(WIDTH, 16), nn.Linear(16, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        grid = torch.linspace(0, 1, x.shape[1], device=x.device)
        x = torch.cat((x, grid.reshape(1, -1, 1).repeat(x.shape[0], 1, 1)), dim=-1)
        x = self.fc0(x).permute(0, 2, 1)
        for i, (conv, w) in enumerate(zip(self.convs, self.ws, strict=True)):
            x = conv(x) + w(x)
            if i < len(self.ws) - 1:
                x = F.gelu(x)
        out = self.fc2(F.gelu(self.fc1(x.permute(0, 2, 1)))).squeeze(-1)
        diff = torch.norm(out.reshape(len(x), -1) - y.reshape(len(x), -1), 2, 1)
        return torch.mean(diff / torch.norm(y.reshape(len(x), -1), 2, 1))


class HyenaOperator(nn.Module):
    """Long convolutions by FFT, their filter a small net of the positions (Poli et al. 2023)."""

    t: Tensor
    decay: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.in_proj = nn.Linear(WIDTH, 3 * WIDTH)
        self.short = nn.Conv1d(3 * WIDTH, 3 * WIDTH, 3, padding=2, groups=3 * WIDTH)
        self.filter = nn.Sequential(nn.Linear(3, 16), nn.GELU(), nn.Linear(16, WIDTH))
        self.bias = nn.Parameter(torch.randn(WIDTH))
        self.out_proj = nn.Linear(WIDTH, WORDS)
        t = torch.linspace(0, 1, TIME)[:, None]
        self.register_buffer("t", torch.cat([t, torch.cos(6.3 * t), torch.sin(6.3 * t)], -1))
        self.register_buffer("decay", torch.exp(-t * torch.linspace(1.0, 4.0, WIDTH)))

    def fftconv(self, u: Tensor, k: Tensor) -> Tensor:
        size = 2 * u.shape[-1]
        k_f = torch.fft.rfft(k, n=size) / size
        u_f = torch.fft.rfft(u.to(dtype=k.dtype), n=size)
        y = torch.fft.irfft(u_f * k_f, n=size, norm="forward")[..., : u.shape[-1]]
        return y + u * self.bias.unsqueeze(-1)

    def forward(self, ids: Tensor) -> Tensor:
        u = self.short(self.in_proj(self.embed(ids)).transpose(1, 2))[..., :TIME]
        x0, x1, v = u.split(WIDTH, dim=1)
        k = (self.filter(self.t) * self.decay).t()
        return self.out_proj((self.fftconv(v * x1, k) * x0).transpose(1, 2))


class GlobalFilter(nn.Module):
    """GFNet's token mixer (Rao et al. 2021)."""

    def __init__(self, dim: int, h: int, w: int) -> None:
        super().__init__()
        self.complex_weight = nn.Parameter(torch.randn(h, w, dim, 2) * 0.2)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        a = int(math.sqrt(n))
        x = torch.fft.rfft2(x.view(b, a, a, c), dim=(1, 2), norm="ortho")
        x = x * torch.view_as_complex(self.complex_weight)
        return torch.fft.irfft2(x, s=(a, a), dim=(1, 2), norm="ortho").reshape(b, n, c)


class GFNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, WIDTH, 4, 4)
        self.norm, self.filter = nn.LayerNorm(WIDTH), GlobalFilter(WIDTH, 4, 3)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 16), nn.GELU(), nn.Linear(16, WIDTH))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = x + self.mlp(self.filter(self.norm(x)))
        return self.head(x.mean(1))


class Autoformer(nn.Module):
    """Auto-correlation over the top delays (Wu et al. 2021), in training as published."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(2, WIDTH) for _ in range(3))
        self.pool, self.head = nn.AvgPool1d(5, 1), nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        front, end = x[:, :1].repeat(1, 2, 1), x[:, -1:].repeat(1, 2, 1)
        padded = torch.cat([front, x, end], dim=1)
        trend = self.pool(padded.permute(0, 2, 1)).permute(0, 2, 1)
        x = x - trend
        q, k, v = (m(x).permute(0, 2, 1).contiguous() for m in (self.q, self.k, self.v))
        res = torch.fft.rfft(q, dim=-1) * torch.conj(torch.fft.rfft(k, dim=-1))
        corr = torch.fft.irfft(res, n=TIME, dim=-1).mean(1)
        weights, delay = torch.topk(corr, 3, dim=-1)
        weights = torch.softmax(weights, dim=-1)
        index = torch.arange(TIME).view(1, 1, -1).expand_as(v)
        out = torch.zeros_like(v)
        doubled = v.repeat(1, 1, 2)
        for i in range(3):
            turned = torch.gather(doubled, -1, index + delay[:, i].view(-1, 1, 1))
            out = out + turned * weights[:, i].view(-1, 1, 1)
        return F.mse_loss(self.head(out.transpose(1, 2)) + trend, y)


class FocalFrequency(nn.Module):
    """An auto-encoder with the focal frequency loss (Jiang et al. 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 6, 3, 2, 1), nn.LeakyReLU(0.2), nn.ConvTranspose2d(6, 1, 4, 2, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        pred = torch.fft.fft2(self.net(x), norm="ortho")
        real = torch.fft.fft2(x, norm="ortho")
        pred = torch.stack([pred.real, pred.imag], -1)
        real = torch.stack([real.real, real.imag], -1)
        distance = (pred - real).pow(2).sum(-1)
        weight = torch.sqrt(distance.detach())
        weight = weight / weight.amax(dim=(-2, -1), keepdim=True)
        return torch.mean(torch.clamp(weight, 0.0, 1.0) * distance)


class Vocoder(nn.Module):
    """Weight-normed upsampling with the loss of short Fourier transforms (Yamamoto et al. 2020)."""

    window: Tensor

    def __init__(self) -> None:
        super().__init__()
        norm = nn.utils.parametrizations.weight_norm
        self.up = norm(nn.ConvTranspose1d(2, 4, 4, 2, 1))
        self.out = norm(nn.Conv1d(4, 1, 5, padding=2))
        self.register_buffer("window", torch.hann_window(8))

    def magnitude(self, x: Tensor) -> Tensor:
        s = torch.stft(x, 16, 4, 8, self.window, return_complex=True)
        return torch.sqrt(torch.clamp(s.real**2 + s.imag**2, min=1e-7)).transpose(2, 1)

    def forward(self, mel: Tensor, wave: Tensor) -> Tensor:
        x = torch.tanh(self.out(F.leaky_relu(self.up(mel.transpose(1, 2)), 0.1))).squeeze(1)
        x_mag, y_mag = self.magnitude(x), self.magnitude(wave)
        sc = torch.norm(y_mag - x_mag, p="fro") / torch.norm(y_mag, p="fro")
        return sc + F.l1_loss(torch.log(y_mag), torch.log(x_mag))


class TimesBlock(nn.Module):
    """Periods by the spectrum of the training set, folded in two dimensions (Wu et al. 2023)."""

    def __init__(self, periods: tuple[int, ...] = (4, 8)) -> None:
        super().__init__()
        self.periods = periods
        self.embed, self.head = nn.Linear(2, WIDTH), nn.Linear(WIDTH, 2)
        self.conv = nn.Sequential(
            nn.Conv2d(WIDTH, WIDTH, 3, padding=1), nn.GELU(), nn.Conv2d(WIDTH, WIDTH, 3, padding=1)
        )

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        means = x.mean(1, keepdim=True).detach()
        x = x.sub(means)
        stdev = torch.sqrt(torch.var(x, dim=1, keepdim=True, unbiased=False) + 1e-5)
        x = self.embed(x / stdev)
        amplitude = torch.fft.rfft(x, dim=1).abs().mean(-1)
        weights = torch.stack([amplitude[:, TIME // p] for p in self.periods], -1).softmax(-1)
        res = []
        for p in self.periods:
            out = x.reshape(x.size(0), TIME // p, p, WIDTH).permute(0, 3, 1, 2).contiguous()
            res.append(self.conv(out).permute(0, 2, 3, 1).reshape(x.size(0), -1, WIDTH))
        folded = torch.sum(torch.stack(res, dim=-1) * weights[:, None, None, :], -1) + x
        return F.mse_loss(self.head(folded) * stdev + means, y)


class LRU(nn.Module):
    """A linear recurrent unit with complex diagonal states (Orvieto et al. 2023)."""

    def __init__(self) -> None:
        super().__init__()
        u1, u2 = torch.rand(6), torch.rand(6)
        self.nu_log = nn.Parameter(torch.log(-0.5 * torch.log(u1 * 0.5 + 0.4)))
        self.theta_log = nn.Parameter(torch.log(u2 * 3.0 + 0.1))
        self.B_re, self.B_im = (nn.Parameter(torch.randn(6, 2) / 2) for _ in range(2))
        self.C_re, self.C_im = (nn.Parameter(torch.randn(WIDTH, 6) / 3) for _ in range(2))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        lam = torch.exp(torch.complex(-self.nu_log.exp(), self.theta_log.exp()))
        gamma = torch.sqrt(1 - lam.abs() ** 2).unsqueeze(-1)
        b = torch.complex(self.B_re, self.B_im) * gamma
        c = torch.complex(self.C_re, self.C_im)
        h = torch.zeros(x.size(0), 6, dtype=torch.cfloat)
        for u in x.unbind(1):
            h = lam * h + torch.complex(u, torch.zeros_like(u)) @ b.T
        return self.head(F.gelu((h @ c.T).real))


class SincNet(nn.Module):
    """Band-pass filters by two frequencies each (Ravanelli and Bengio 2018)."""

    window_: Tensor
    n_: Tensor

    def __init__(self, filters: int = 6, size: int = 9) -> None:
        super().__init__()
        low = torch.linspace(0.02, 0.3, filters).view(-1, 1)
        self.low_hz_, self.band_hz_ = nn.Parameter(low), nn.Parameter(torch.full((filters, 1), 0.1))
        half = size // 2
        self.register_buffer("window_", 0.54 - 0.46 * torch.cos(torch.arange(half) * 0.7))
        self.register_buffer("n_", 2 * math.pi * torch.arange(-half, 0).view(1, -1).float())
        self.bn, self.fc = nn.BatchNorm1d(filters), nn.Linear(filters, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        low = 0.01 + torch.abs(self.low_hz_)
        high = torch.clamp(low + 0.01 + torch.abs(self.band_hz_), 0.01, 0.5)
        band = (high - low)[:, 0]
        f_low, f_high = torch.matmul(low, self.n_), torch.matmul(high, self.n_)
        left = ((torch.sin(f_high) - torch.sin(f_low)) / (self.n_ / 2)) * self.window_
        center = 2 * band.view(-1, 1)
        filters = torch.cat([left, center, torch.flip(left, dims=[1])], dim=1)
        filters = filters / (2 * band[:, None])
        h = F.conv1d(x.unsqueeze(1), filters.unsqueeze(1), stride=2)
        h = F.max_pool1d(torch.abs(self.bn(h)), 2)
        return self.fc(h.mean(-1))


class ECAPA(nn.Module):
    """Res2Net blocks and attentive statistics of a speaker (Desplanques et al. 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(2, WIDTH, 3, padding=1)
        self.convs = nn.ModuleList([nn.Conv1d(2, 2, 3, padding=d, dilation=d) for d in (1, 2, 3)])
        self.bns = nn.ModuleList([nn.BatchNorm1d(2) for _ in range(3)])
        self.attention = nn.Sequential(
            nn.Conv1d(3 * WIDTH, 6, 1), nn.ReLU(), nn.BatchNorm1d(6), nn.Tanh(),
            nn.Conv1d(6, WIDTH, 1), nn.Softmax(dim=2),
        )  # fmt: skip
        self.bn, self.fc = nn.BatchNorm1d(2 * WIDTH), nn.Linear(2 * WIDTH, 6)
        self.weight = nn.Parameter(torch.randn(CLASSES, 6))

    def forward(self, x: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
        out = F.relu(self.first(x.transpose(1, 2)))
        spx = torch.split(out, 2, 1)
        sp = torch.zeros_like(spx[0])
        for i in range(3):
            sp = sp + spx[i]
            sp = self.bns[i](F.relu(self.convs[i](sp)))
            out = sp if i == 0 else torch.cat((out, sp), 1)
        x = torch.cat((out, spx[3]), 1)
        t = x.size()[-1]
        mean = torch.mean(x, dim=2, keepdim=True).repeat(1, 1, t)
        std = torch.sqrt(torch.var(x, dim=2, keepdim=True).clamp(min=1e-4)).repeat(1, 1, t)
        w = self.attention(torch.cat((x, mean, std), dim=1))
        mu = torch.sum(x * w, dim=2)
        sg = torch.sqrt((torch.sum((x**2) * w, dim=2) - mu**2).clamp(min=1e-4))
        x = self.fc(self.bn(torch.cat((mu, sg), 1)))
        cosine = F.linear(F.normalize(x), F.normalize(self.weight))
        one_hot = torch.zeros_like(cosine)
        one_hot.scatter_(1, label.view(-1, 1), 1)
        output = 15.0 * (cosine - one_hot * 0.2)
        return F.cross_entropy(output, label), output


class CRNN(nn.Module):
    """Reads a line of text: convolutions, a bidirectional LSTM and CTC (Shi et al. 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.cnn = nn.Sequential(
            nn.Conv2d(1, 6, 3, 1, 1), nn.ReLU(True), nn.MaxPool2d(2, 2),
            nn.Conv2d(6, WIDTH, 3, 1, 1), nn.BatchNorm2d(WIDTH), nn.ReLU(True),
            nn.MaxPool2d((2, 2), (2, 1), (0, 1)), nn.Conv2d(WIDTH, WIDTH, (2, 1)),
        )  # fmt: skip
        self.rnn = nn.LSTM(WIDTH, 6, bidirectional=True)
        self.embedding = nn.Linear(12, WORDS)
        self.ctc = nn.CTCLoss(blank=0, zero_infinity=True)

    def forward(self, images: Tensor, text: Tensor) -> Tensor:
        conv = self.cnn(images)
        b, c, h, w = conv.size()
        recurrent, _ = self.rnn(conv.view(b, c * h, w).permute(2, 0, 1))
        t, n, width = recurrent.shape
        out = self.embedding(recurrent.view(t * n, width)).view(t, n, -1)
        lengths = torch.full((n,), t, dtype=torch.long)
        return self.ctc(F.log_softmax(out, 2), text, lengths, torch.full((n,), 3, dtype=torch.long))


class NHiTS(nn.Module):
    """Pooled inputs, interpolated forecasts, residuals between stacks (Challu et al. 2022)."""

    def __init__(self) -> None:
        super().__init__()
        self.pools = nn.ModuleList([nn.MaxPool1d(k, k, ceil_mode=True) for k in (4, 2, 1)])
        self.mlps = nn.ModuleList(
            [nn.Sequential(nn.Linear(TIME // k, 16), nn.ReLU(), nn.Linear(16, TIME + 8 // k))
             for k in (4, 2, 1)]
        )  # fmt: skip

    def forward(self, insample_y: Tensor, outsample_y: Tensor) -> dict[str, Tensor]:
        residuals, forecast = insample_y.flip(dims=(-1,)), insample_y[:, -1:]
        for pool, mlp in zip(self.pools, self.mlps, strict=True):
            theta = mlp(pool(residuals.unsqueeze(1)).squeeze(1))
            backcast, knots = theta[:, :TIME], theta[:, TIME:]
            residuals = residuals - backcast
            forecast = forecast + F.interpolate(knots[:, None], size=8, mode="linear")[:, 0]
        mae = torch.mean(torch.abs(forecast - outsample_y))
        return {"loss": mae, "forecast": forecast}


class RevINMixer(nn.Module):
    """TSMixer under reversible instance norm, whose statistics the module keeps between calls."""

    def __init__(self) -> None:
        super().__init__()
        self.affine_weight, self.affine_bias = (
            nn.Parameter(torch.ones(2)),
            nn.Parameter(torch.zeros(2)),
        )
        self.time, self.feature = nn.Linear(TIME, TIME), nn.Linear(2, 2)
        self.norm1, self.norm2 = nn.LayerNorm([TIME, 2]), nn.LayerNorm([TIME, 2])

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        self.mean = torch.mean(x, dim=1, keepdim=True).detach()
        self.stdev = torch.sqrt(torch.var(x, 1, keepdim=True, unbiased=False) + 1e-5).detach()
        x = (x - self.mean) / self.stdev * self.affine_weight + self.affine_bias
        x = x + F.relu(self.time(self.norm1(x).mT)).mT
        x = x + F.relu(self.feature(self.norm2(x)))
        x -= self.affine_bias
        x = x / (self.affine_weight + 1e-10)
        return nn.MSELoss()(x * self.stdev + self.mean, y)


class XLSTM(nn.Module):
    """mLSTM in its parallel form with stabilised gates (Beck et al. 2024)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.qkv, self.gates = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 2)
        self.norm, self.head = nn.GroupNorm(2, WIDTH), nn.Linear(WIDTH, WORDS)
        self.register_buffer("ltr", torch.tril(torch.ones(TIME, TIME, dtype=torch.bool)))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        q, k, v = self.qkv(x).chunk(3, -1)
        igate, fgate = self.gates(x).unbind(-1)
        log_f = F.logsigmoid(fgate).cumsum(-1)
        matrix = log_f.unsqueeze(-1) - log_f.unsqueeze(-2)
        log_d = torch.where(self.ltr, matrix, -float("inf")) + igate.unsqueeze(-2)
        max_log_d, _ = torch.max(log_d, dim=-1, keepdim=True)
        d = torch.exp(log_d - max_log_d)
        c = (q @ (k / math.sqrt(WIDTH)).transpose(-2, -1)) * d
        normalizer = torch.maximum(c.sum(dim=-1, keepdim=True).abs(), torch.exp(-max_log_d))
        h = (c / (normalizer + 1e-6)) @ v
        h = self.norm(h.reshape(-1, WIDTH)).view_as(h)
        return self.head(h)


class DeltaNet(nn.Module):
    """The delta rule step by step, keys normalised (Yang et al. 2024)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.b, self.out = nn.Linear(WIDTH, 1), nn.Linear(WIDTH, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        q, k = (F.normalize(F.silu(m(x)), p=2, dim=-1) for m in (self.q, self.k))
        v, beta = F.silu(self.v(x)), self.b(x).sigmoid()
        o = torch.empty_like(v)
        state = x.new_zeros(x.size(0), WIDTH, WIDTH)
        for i in range(6):
            old = (state * k[:, i, :, None]).sum(-2)
            new = (v[:, i] - old) * beta[:, i]
            state = state + k[:, i].unsqueeze(-1) * new.unsqueeze(-2)
            o[:, i] = (q[:, i, :, None] * state).sum(-2)
        return self.out(o[:, :6])


NETS: Mapping[str, Net] = MappingProxyType(
    {
        "fourier neural operator": Net(FNO1d, normal((TIME, 2), (TIME,)), "own"),
        "hyena": Net(HyenaOperator, words),
        "gfnet": Net(GFNet, normal((3, 16, 16))),
        "autoformer": Net(Autoformer, normal((TIME, 2), (TIME, 2)), "own"),
        "focal frequency loss": Net(FocalFrequency, normal((1, 8, 8)), "own"),
        "stft loss": Net(Vocoder, normal((TIME, 2), (2 * TIME,)), "own"),
        "timesnet": Net(TimesBlock, normal((TIME, 2), (TIME, 2)), "own"),
        "linear recurrent unit": Net(LRU, waves),
        "sincnet": Net(SincNet, normal((64,))),
        "ecapa-tdnn": Net(ECAPA, both(waves, whole((CLASSES, ()))), "own", "label"),
        "crnn, ctc": Net(CRNN, both(normal((1, 8, 24)), whole((WORDS, (3,)), lowest=1)), "own"),
        "n-hits": Net(NHiTS, normal((TIME,), (8,)), "own"),
        "tsmixer, revin": Net(RevINMixer, normal((TIME, 2), (TIME, 2)), "own"),
        "xlstm": Net(XLSTM, words),
        "deltanet": Net(DeltaNet, words),
    }
)
