"""A net of one's own and its data, as `policysearch init` takes them: two functions."""

import torch
from torch import nn

from policysearch.data.datasets import load_dataset


class Block(nn.Module):
    """A residual block: norm, a wider layer and back."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(width), nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    """A patch embedding, four blocks, and a head on the mean of the patches."""

    def __init__(self, width: int = 48, depth: int = 4, classes: int = 10) -> None:
        super().__init__()
        self.embed = nn.Conv2d(1, width, kernel_size=2, stride=2)
        self.place = nn.Parameter(0.1 * torch.randn(16, width))
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.embed(images).flatten(2).transpose(1, 2) + self.place
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def model() -> nn.Module:
    return Net()


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """Images [count, 1, 8, 8] and their labels; yours may come from anywhere."""
    digits = load_dataset("digits")
    return torch.tensor(digits.images), torch.tensor(digits.labels)
