"""Nets of sound, of series, of science and of control, as their users write them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.census.net import Net, both, normal, uniform

WIDTH, CLASSES, TIME = 16, 5, 12


class Masking(nn.Module):
    """Speech cleaned by a mask on its spectrum and turned back, SI-SDR (Hu et al. 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(16))
        self.lstm, self.mask = nn.LSTM(18, WIDTH, batch_first=True), nn.Linear(WIDTH, 18)

    def forward(self, noisy: Tensor, clean: Tensor) -> Tensor:
        spec = torch.stft(noisy, 16, 8, window=self.window, return_complex=True)
        x = torch.cat([spec.real, spec.imag], 1).transpose(1, 2)
        m = torch.tanh(self.mask(self.lstm(x)[0])).transpose(1, 2)
        mask = torch.complex(m[:, :9], m[:, 9:])
        wav = torch.istft(spec * mask, 16, 8, window=self.window, length=noisy.shape[-1])
        clean = clean - clean.mean(-1, keepdim=True)
        wav = wav - wav.mean(-1, keepdim=True)
        dot = torch.sum(wav * clean, -1, keepdim=True)
        target = dot * clean / (torch.sum(clean**2, -1, keepdim=True) + 1e-8)
        ratio = (target**2).sum(-1) / (((wav - target) ** 2).sum(-1) + 1e-8)
        return -10 * torch.log10(ratio + 1e-8).mean()


class Demucs(nn.Module):
    """Waveform to waveform with GLUs, skips and an LSTM in the middle (Défossez et al. 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.ModuleList(), nn.ModuleList()
        channels, hidden = 1, 4
        for index in range(2):
            encode = [nn.Conv1d(channels, hidden, 8, 4), nn.ReLU()]
            self.encoder.append(nn.Sequential(*encode, nn.Conv1d(hidden, 2 * hidden, 1), nn.GLU(1)))
            decode = [nn.Conv1d(hidden, 2 * hidden, 1), nn.GLU(dim=1)]
            decode += [nn.ConvTranspose1d(hidden, channels, 8, 4)] + [nn.ReLU()] * (index > 0)
            self.decoder.insert(0, nn.Sequential(*decode))
            channels, hidden = hidden, 2 * hidden
        self.lstm = nn.LSTM(channels, channels, bidirectional=True)
        self.linear = nn.Linear(2 * channels, channels)

    def forward(self, mix: Tensor, clean: Tensor) -> Tensor:
        std = mix.std(dim=-1, keepdim=True)
        x = F.pad(mix / (1e-3 + std), (0, self.padded(mix.shape[-1]) - mix.shape[-1]))
        skips = []
        for encode in self.encoder:
            x = encode(x)
            skips.append(x)
        x, _ = self.lstm(x.permute(2, 0, 1))
        x = self.linear(x).permute(1, 2, 0)
        for decode in self.decoder:
            skip = skips.pop(-1)
            x = decode(x + skip[..., : x.shape[-1]])
        return F.l1_loss(std * x[..., : mix.shape[-1]], clean)

    @staticmethod
    def padded(length: int) -> int:
        for _ in range(2):
            length = max(math.ceil((length - 8) / 4) + 1, 1)
        for _ in range(2):
            length = (length - 1) * 4 + 8
        return int(length)


class HiFiGAN(nn.Module):
    """A vocoder's weight-normed blocks, judged by its periods (Kong et al. 2020)."""

    def __init__(self) -> None:
        super().__init__()
        norm = nn.utils.parametrizations.weight_norm
        self.pre, self.post = (
            norm(nn.Conv1d(8, 16, 7, 1, padding=3)),
            norm(nn.Conv1d(8, 1, 7, padding=3)),
        )
        self.up = norm(nn.ConvTranspose1d(16, 8, 8, 4, padding=2))
        self.blocks = nn.ModuleList(
            [norm(nn.Conv1d(8, 8, 3, 1, dilation=d, padding=d)) for d in (1, 3, 5)]
        )
        self.period = nn.ModuleList(
            [norm(nn.Conv2d(1, 4, (5, 1), (3, 1), padding=(2, 0))), norm(nn.Conv2d(4, 1, (3, 1)))]
        )

    def forward(self, mel: Tensor, real: Tensor) -> Tensor:
        x = self.up(F.leaky_relu(self.pre(mel), 0.1))
        for conv in self.blocks:
            x = x + conv(F.leaky_relu(x, 0.1))
        y = torch.tanh(self.post(F.leaky_relu(x)))
        b, c, t = y.shape
        maps = []
        for wave in (real, y):
            n_pad = 3 - (t % 3)
            d = F.pad(wave, (0, n_pad), "reflect").view(b, c, (t + n_pad) // 3, 3)
            maps.append(F.leaky_relu(self.period[0](d), 0.1))
        fake = torch.flatten(self.period[1](maps[1]), 1, -1)
        loss = torch.mean((1 - fake) ** 2) + 2 * torch.mean(torch.abs(maps[0] - maps[1]))
        return loss + 45 * F.l1_loss(y, real)


class XVector(nn.Module):
    """Speakers by statistics pooled over time, generalised end-to-end loss (Wan et al. 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.tdnn = nn.Sequential(
            *(nn.Conv1d(6, 12, 5, dilation=1), nn.ReLU(), nn.BatchNorm1d(12)),
            *(nn.Conv1d(12, 12, 3, dilation=2), nn.ReLU(), nn.BatchNorm1d(12)),
        )
        self.segment = nn.Linear(24, 8)
        self.w, self.b = nn.Parameter(torch.tensor(10.0)), nn.Parameter(torch.tensor(-5.0))

    def forward(self, x: Tensor) -> Tensor:
        n, m = x.shape[:2]
        h = self.tdnn(x.flatten(0, 1))
        h = torch.cat((torch.mean(h, dim=2), torch.var(h, dim=2)), dim=1)
        e = F.normalize(self.segment(h), p=2, dim=1).view(n, m, -1)
        centroids = e.mean(dim=1)
        others = (e.sum(1, keepdim=True) - e) / (m - 1)
        sim = F.cosine_similarity(e.unsqueeze(2), centroids[None, None], dim=-1)
        same = torch.eye(n, dtype=torch.bool)[:, None].expand_as(sim)
        own = F.cosine_similarity(e, others, dim=-1).unsqueeze(-1).expand_as(sim)
        sim = self.w * torch.where(same, own, sim) + self.b
        pos = sim[torch.arange(n), :, torch.arange(n)]
        return -(pos - torch.log((torch.exp(sim) + 1e-6).sum(dim=2))).sum()


class MelKeywords(nn.Module):
    """Mel spectra by hand, residual blocks of one axis, a few words (Choi et al. 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hamming_window(32))
        self.register_buffer("mel", torch.rand(17, 8, generator=torch.Generator().manual_seed(0)))
        self.conv1, self.bn = nn.Conv1d(8, 12, 3, padding=1), nn.BatchNorm1d(12)
        self.conv2, self.down = nn.Conv1d(12, 16, 9, 2, 4), nn.Conv1d(12, 16, 1, 2)
        self.fc = nn.Linear(16, CLASSES)

    def forward(self, wav: Tensor) -> Tensor:
        wav = torch.cat([wav[:, :1], wav[:, 1:] - 0.97 * wav[:, :-1]], 1)
        frames = F.pad(wav, (16, 16), mode="reflect").unfold(-1, 32, 16) * self.window
        power = torch.fft.rfft(frames).abs().pow(2)
        mel = torch.log(torch.clamp(power @ self.mel, min=1e-5)).transpose(1, 2)
        mel = (mel - mel.mean(2, keepdim=True)) / (mel.std(2, keepdim=True) + 1e-5)
        x = F.relu(self.bn(self.conv1(mel)))
        x = F.relu(self.conv2(x) + self.down(x))
        return self.fc(F.adaptive_avg_pool1d(x, 1).squeeze(-1))


class InceptionTime(nn.Module):
    """Series by kernels of three lengths beside a pool (Ismail Fawaz et al. 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.bottleneck = nn.Conv1d(3, 8, 1, bias=False)
        self.convs = nn.ModuleList(
            [nn.Conv1d(8, 8, k, padding="same", bias=False) for k in (3, 5, 9)]
        )
        self.pool = nn.Sequential(
            nn.MaxPool1d(3, stride=1, padding=1), nn.Conv1d(3, 8, 1, bias=False)
        )
        self.bn, self.short = (
            nn.BatchNorm1d(32),
            nn.Sequential(nn.Conv1d(3, 32, 1), nn.BatchNorm1d(32)),
        )
        self.fc = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        z = self.bottleneck(x)
        z = torch.cat([conv(z) for conv in self.convs] + [self.pool(x)], dim=1)
        return self.fc(F.relu(F.relu(self.bn(z)) + self.short(x)).mean(-1))


class LSTNet(nn.Module):
    """Convolution, recurrence, recurrence with skips, and a line (Lai et al. 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.gru1 = nn.Conv2d(1, 8, (3, 4)), nn.GRU(8, 8)
        self.gru_skip, self.linear1 = nn.GRU(8, 4), nn.Linear(8 + 2 * 4, 4)
        self.highway = nn.Linear(6, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        b = x.size(0)
        c = torch.squeeze(F.relu(self.conv1(x.view(-1, 1, TIME, 4))), 3)
        r = torch.squeeze(self.gru1(c.permute(2, 0, 1).contiguous())[1], 0)
        s = c[:, :, -10:].contiguous().view(b, 8, 5, 2).permute(2, 0, 3, 1).contiguous()
        s = self.gru_skip(s.view(5, b * 2, 8))[1].view(b, 2 * 4)
        res = self.linear1(torch.cat((r, s), 1))
        z = x[:, -6:, :].permute(0, 2, 1).contiguous().view(-1, 6)
        return F.l1_loss(res + self.highway(z).view(-1, 4), y)


class ITransformer(nn.Module):
    """Series are tokens; means and deviations taken out and put back (Liu et al. 2024)."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            WIDTH, 4, 32, dropout=0.0, activation="gelu", batch_first=True
        )
        self.embed, self.encoder = nn.Linear(TIME, WIDTH), nn.TransformerEncoder(layer, 2)
        self.project = nn.Linear(WIDTH, 4, bias=True)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        means = x.mean(1, keepdim=True).detach()
        x = x - means
        stdev = torch.sqrt(torch.var(x, dim=1, keepdim=True, unbiased=False) + 1e-5)
        x = x / stdev
        out = self.project(self.encoder(self.embed(x.permute(0, 2, 1)))).permute(0, 2, 1)
        out = out * stdev[:, 0, :].unsqueeze(1).repeat(1, 4, 1)
        return F.mse_loss(out + means[:, 0, :].unsqueeze(1).repeat(1, 4, 1), y)


class STGCN(nn.Module):
    """Gated convolutions of time between those of a road graph (Yu et al. 2018)."""

    def __init__(self) -> None:
        super().__init__()
        a = torch.rand(6, 6, generator=torch.Generator().manual_seed(0))
        self.register_buffer("lap", torch.stack([torch.eye(6), a, 2 * a @ a - torch.eye(6)]))
        self.temporal1, self.temporal2 = nn.Conv2d(1, 2 * 8, (3, 1)), nn.Conv2d(8, 2 * 8, (3, 1))
        self.theta, self.b = (
            nn.Parameter(torch.randn(8, 8, 3) * 0.2),
            nn.Parameter(torch.zeros(1, 8, 1, 1)),
        )
        self.ln, self.fc = nn.LayerNorm([6, 8]), nn.Conv2d(8, 1, (8, 1))

    def glu(self, conv: nn.Module, x: Tensor) -> Tensor:
        p, q = conv(x).chunk(2, 1)
        return p * torch.sigmoid(q)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.glu(self.temporal1, x.unsqueeze(1))
        c = torch.einsum("knm,bitm->bitkn", self.lap, x)
        x = F.relu(torch.einsum("iok,bitkn->botn", self.theta, c) + self.b)
        x = self.glu(self.temporal2, x)
        x = self.ln(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return F.smooth_l1_loss(self.fc(x).squeeze(), y)


class GRUD(nn.Module):
    """Missing values decay to their means (Che et al. 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.gamma_x, self.gamma_h = nn.Parameter(torch.rand(4)), nn.Linear(4, WIDTH)
        self.register_buffer("x_mean", torch.zeros(4))
        self.cell, self.fc = nn.GRUCell(8, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, mask: Tensor, delta: Tensor) -> Tensor:
        mask = (mask > 0.5).float()
        h = x.new_zeros(x.size(0), WIDTH)
        last = torch.zeros_like(x[:, 0])
        for t in range(6):
            m, d = mask[:, t], delta[:, t]
            last = torch.where(m > 0, x[:, t], last)
            g = torch.exp(-torch.max(torch.zeros(4), self.gamma_x * d))
            filled = m * x[:, t] + (1 - m) * (g * last + (1 - g) * self.x_mean)
            h = torch.exp(-torch.relu(self.gamma_h(d))) * h
            h = self.cell(torch.cat((filled, m), 1), h)
        return self.fc(h)


series = normal((TIME, 4))

NETS: Mapping[str, Net] = MappingProxyType(
    {
        "masking, istft": Net(Masking, normal((64,), (64,)), "own"),
        "demucs": Net(Demucs, normal((1, 100), (1, 100)), "own"),
        "hifi-gan": Net(HiFiGAN, both(normal((8, 6)), normal((1, 24))), "own"),
        "x-vector, ge2e": Net(XVector, normal((3, 6, TIME)), "own"),
        "mel keywords": Net(MelKeywords, normal((128,))),
        "inceptiontime": Net(InceptionTime, normal((3, 20))),
        "lstnet": Net(LSTNet, both(series, normal((4,))), "own"),
        "itransformer": Net(ITransformer, both(series, normal((4, 4))), "own"),
        "stgcn": Net(STGCN, normal((TIME, 6), (6,)), "own"),
        "gru-d": Net(GRUD, both(normal((6, 4)), uniform((6, 4), (6, 4)))),
    }
)
