"""Speech, sound and series, as their authors write them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

from benchmarks.census.net import Net, both, normal, whole

WIDTH, MELS, FRAMES, LEVELS = 8, 6, 16, 16


class CausalConv1d(nn.Conv1d):
    """A convolution padded on the left."""

    def __init__(self, cin: int, cout: int, kernel: int, dilation: int = 1) -> None:
        super().__init__(cin, cout, kernel, padding=(kernel - 1) * dilation, dilation=dilation)

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        return out[:, :, : -self.padding[0]] if self.padding[0] else out


class WaveNet(nn.Module):
    """WaveNet (van den Oord et al. 2016) over quantised samples."""

    def __init__(self) -> None:
        super().__init__()
        self.start = CausalConv1d(LEVELS, WIDTH, 2)
        self.dilated = nn.ModuleList([CausalConv1d(WIDTH, 2 * WIDTH, 2, d) for d in (1, 2, 4)])
        self.residual = nn.ModuleList([nn.Conv1d(WIDTH, WIDTH, 1) for _ in range(3)])
        self.skip = nn.ModuleList([nn.Conv1d(WIDTH, WIDTH, 1) for _ in range(3)])
        self.end1, self.end2 = nn.Conv1d(WIDTH, WIDTH, 1), nn.Conv1d(WIDTH, LEVELS, 1)

    def forward(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        x = self.start(F.one_hot(samples, LEVELS).float().transpose(1, 2))
        skip: Tensor | float = 0.0
        for dilated, residual, to_skip in zip(self.dilated, self.residual, self.skip, strict=True):
            filtered, gate = torch.split(dilated(x), WIDTH, dim=1)
            z = torch.tanh(filtered) * torch.sigmoid(gate)
            skip = skip + to_skip(z)
            x = residual(z) + x
        logits = self.end2(F.relu(self.end1(F.relu(skip))))
        return F.cross_entropy(logits[:, :, :-1], samples[:, 1:]), logits


class Chomp1d(nn.Module):
    """Cuts what a padded convolution sees of the future."""

    def __init__(self, chomp_size: int) -> None:
        super().__init__()
        self.chomp_size = chomp_size

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :, : -self.chomp_size].contiguous()


class TemporalBlock(nn.Module):
    """A block of the TCN (Bai et al. 2018) with weight norm."""

    def __init__(self, cin: int, cout: int, kernel: int, dilation: int) -> None:
        super().__init__()
        padding = (kernel - 1) * dilation
        self.net = nn.Sequential(
            weight_norm(nn.Conv1d(cin, cout, kernel, padding=padding, dilation=dilation)),
            Chomp1d(padding),
            nn.ReLU(),
            nn.Dropout(0.2),
            weight_norm(nn.Conv1d(cout, cout, kernel, padding=padding, dilation=dilation)),
            Chomp1d(padding),
            nn.ReLU(),
            nn.Dropout(0.2),
        )
        self.downsample = nn.Conv1d(cin, cout, 1) if cin != cout else None

    def forward(self, x: Tensor) -> Tensor:
        res = x if self.downsample is None else self.downsample(x)
        return F.relu(self.net(x) + res)


class TCN(nn.Module):
    """A classifier of series on the last step."""

    def __init__(self) -> None:
        super().__init__()
        self.tcn = nn.Sequential(TemporalBlock(3, WIDTH, 3, 1), TemporalBlock(WIDTH, WIDTH, 3, 2))
        self.linear = nn.Linear(WIDTH, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        o = self.linear(self.tcn(inputs)[:, :, -1])
        return F.log_softmax(o, dim=1)


class Prenet(nn.Module):
    """Tacotron 2's net before the decoder, whose dropout never rests (Shen et al. 2018)."""

    def __init__(self) -> None:
        super().__init__()
        sizes = ((MELS, WIDTH), (WIDTH, WIDTH))
        self.layers = nn.ModuleList([nn.Linear(i, o, bias=False) for i, o in sizes])

    def forward(self, x: Tensor) -> Tensor:
        for linear in self.layers:
            x = F.dropout(F.relu(linear(x)), p=0.5, training=True)
        return x


class Tacotron(nn.Module):
    """A decoder of frames that attends to letters by place and content."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, WIDTH)
        self.encoder = nn.LSTM(WIDTH, WIDTH // 2, batch_first=True, bidirectional=True)
        self.prenet = Prenet()
        self.attention_rnn = nn.LSTMCell(2 * WIDTH, WIDTH)
        self.query, self.memory = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)
        self.location, self.v = nn.Conv1d(1, WIDTH, 3, padding=1), nn.Linear(WIDTH, 1, bias=False)
        self.projection = nn.Linear(2 * WIDTH, MELS + 1)

    def forward(self, text: Tensor, mels: Tensor) -> tuple[Tensor, Tensor]:
        memory, _ = self.encoder(self.embedding(text))
        keys = self.memory(memory)
        B, T, _ = memory.shape
        frames = self.prenet(torch.cat((mels.new_zeros(B, 1, MELS), mels[:, :-1]), dim=1))
        h, c, context = (memory.new_zeros(B, WIDTH) for _ in range(3))
        weights = memory.new_zeros(B, T)
        outputs = []
        for frame in frames.unbind(1):
            h, c = self.attention_rnn(torch.cat((frame, context), -1), (h, c))
            located = self.location(weights.unsqueeze(1)).transpose(1, 2)
            energies = self.v(torch.tanh(self.query(h.unsqueeze(1)) + located + keys)).squeeze(-1)
            alignment = F.softmax(energies, dim=1)
            context = torch.bmm(alignment.unsqueeze(1), memory).squeeze(1)
            weights = weights + alignment
            outputs.append(self.projection(torch.cat((h, context), dim=1)))
        mel, gate = torch.stack(outputs, 1).split([MELS, 1], dim=-1)
        stop = torch.zeros_like(gate)
        stop[:, -1] = 1.0
        loss = F.mse_loss(mel, mels) + F.binary_cross_entropy_with_logits(gate, stop)
        return loss, mel


class JasperBlock(nn.Module):
    """Jasper's block with its residual through a convolution of one (Li et al. 2019)."""

    def __init__(self, cin: int, cout: int, kernel: int, repeat: int = 2) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = cin
        for i in range(repeat):
            layers.append(nn.Conv1d(channels, cout, kernel, padding=kernel // 2, bias=False))
            layers.append(nn.BatchNorm1d(cout, eps=1e-3, momentum=0.1))
            if i < repeat - 1:
                layers += [nn.Hardtanh(0, 20), nn.Dropout(0.2)]
            channels = cout
        self.conv = nn.ModuleList(layers)
        self.res = nn.Sequential(nn.Conv1d(cin, cout, 1, bias=False), nn.BatchNorm1d(cout))
        self.out = nn.Sequential(nn.Hardtanh(min_val=0.0, max_val=20.0), nn.Dropout(p=0.2))

    def forward(self, x: Tensor) -> Tensor:
        out = x
        for layer in self.conv:
            out = layer(out)
        return self.out(out + self.res(x))


class Jasper(nn.Module):
    """Speech to letters under CTC (Graves et al. 2006)."""

    def __init__(self, letters: int = 6) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv1d(MELS, WIDTH, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm1d(WIDTH),
            nn.Hardtanh(0, 20),
            JasperBlock(WIDTH, 2 * WIDTH, 5),
        )
        self.decoder = nn.Conv1d(2 * WIDTH, letters, 1)
        self.loss = nn.CTCLoss(blank=0, zero_infinity=True)

    def forward(self, spectrogram: Tensor, transcript: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.decoder(self.encoder(spectrogram))
        log_probs = F.log_softmax(logits.permute(2, 0, 1), dim=-1)
        T, N, _ = log_probs.shape
        input_lengths = torch.full(size=(N,), fill_value=T, dtype=torch.long)
        target_lengths = torch.full((N,), transcript.shape[1], dtype=torch.long)
        return self.loss(log_probs, transcript, input_lengths, target_lengths), logits


class DeepSpeech(nn.Module):
    """Deep Speech 2 (Amodei et al. 2016) with a batch norm over steps."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 4, kernel_size=(3, 5), stride=(2, 2), padding=(1, 2)),
            nn.BatchNorm2d(4),
            nn.Hardtanh(0, 20, inplace=True),
        )
        self.batch_norm = nn.BatchNorm1d(4 * MELS // 2)
        self.rnn = nn.GRU(4 * MELS // 2, WIDTH, bidirectional=True, bias=True)
        self.fc = nn.Sequential(nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 6, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x.unsqueeze(1))
        sizes = x.size()
        x = x.view(sizes[0], sizes[1] * sizes[2], sizes[3])
        x = x.transpose(1, 2).transpose(0, 1).contiguous()
        t, n = x.size(0), x.size(1)
        x = self.batch_norm(x.view(t * n, -1)).view(t, n, -1)
        x, _ = self.rnn(x)
        x = x.view(x.size(0), x.size(1), 2, -1).sum(2).view(x.size(0), x.size(1), -1)
        return self.fc(x.view(t * n, -1)).view(t, n, -1).transpose(0, 1)


class M5(nn.Module):
    """Raw sound to words (Dai et al. 2017), as in torch's tutorial."""

    def __init__(self, classes: int = 5) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv1d(1, WIDTH, kernel_size=16, stride=4), nn.BatchNorm1d(WIDTH)
        self.pool1 = nn.MaxPool1d(4)
        self.conv2, self.bn2 = nn.Conv1d(WIDTH, WIDTH, kernel_size=3), nn.BatchNorm1d(WIDTH)
        self.fc1 = nn.Linear(WIDTH, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool1(F.relu(self.bn1(self.conv1(x))))
        x = F.relu(self.bn2(self.conv2(x)))
        x = F.avg_pool1d(x, x.shape[-1]).permute(0, 2, 1)
        return F.log_softmax(self.fc1(x), dim=2)


class Spectrogram(nn.Module):
    """A classifier of sound that takes its spectrogram inside."""

    def __init__(self, n_fft: int = 16) -> None:
        super().__init__()
        self.n_fft = n_fft
        self.register_buffer("window", torch.hann_window(n_fft))
        self.gru = nn.GRU(n_fft // 2 + 1, WIDTH, batch_first=True)
        self.fc = nn.Linear(WIDTH, 4)

    def forward(self, wave: Tensor) -> Tensor:
        spec = torch.stft(wave, self.n_fft, 8, window=self.window, return_complex=True)
        x = torch.log1p(spec.abs() ** 2).transpose(1, 2)
        return self.fc(self.gru(x)[1].squeeze(0))


class NBeats(nn.Module):
    """N-BEATS (Oreshkin et al. 2020) under the symmetric percentage error."""

    def __init__(self, back: int = 8, ahead: int = 4) -> None:
        super().__init__()
        self.back, self.ahead = back, ahead
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(back, WIDTH), nn.ReLU(), nn.Linear(WIDTH, back + ahead))
            for _ in range(3)
        )

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        residuals = x.flip(dims=(1,))
        forecast = x[:, -1:]
        for block in self.blocks:
            backcast, block_forecast = block(residuals).split([self.back, self.ahead], dim=-1)
            residuals = residuals - backcast
            forecast = forecast + block_forecast
        error = 200 * torch.abs(y - forecast) / (torch.abs(y) + torch.abs(forecast) + 1e-8)
        return error.mean(), forecast


NETS: Mapping[str, Net] = MappingProxyType(
    {
        "wavenet": Net(WaveNet, whole((LEVELS, (FRAMES,))), loss="own"),
        "tcn": Net(TCN, normal((3, FRAMES))),
        "tacotron": Net(
            Tacotron, both(whole((20, (5,))), normal((4, MELS))), loss="own", labels="mels"
        ),
        "jasper, ctc": Net(
            Jasper,
            both(normal((MELS, FRAMES)), whole((6, (3,)), lowest=1)),
            loss="own",
            labels="transcript",
        ),
        "deep speech 2": Net(DeepSpeech, normal((MELS, FRAMES))),
        "m5": Net(M5, normal((1, 128))),
        "spectrogram": Net(Spectrogram, normal((64,))),
        "n-beats": Net(NBeats, normal((8,), (4,)), loss="own", labels="y"),
    }
)
