"""A study small enough for a test: one second of training in all."""

from __future__ import annotations

from pathlib import Path

TINY = """
[study]
name = "tiny"
trials = 6
sampler = "random"
workers = 2
seeds = [0, 1]

[task]
model = "mlp"
activation = "tanh"
widths = [8]
data = "digits"
batch_size = 32
steps = 6
tail_steps = 3

[cost]
device = "H100-SXM5"
stack = "torch.compile"
batch_size = 4096

[space]
formats = ["float32", "bfloat16", "float8_e4m3fn"]
ops = ["tanh"]
master_weights = [true, false]
loss_scales = ["none", "fixed", "dynamic"]
growth_intervals = [10, 100]
ladder = ["bfloat16", "mindspore.O0", "apex.O3"]
"""


def write_study(folder: Path, *changes: tuple[str, str], name: str = "tiny.toml") -> Path:
    """Write TINY with texts replaced to a file in `folder`; return its path."""
    text = TINY
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path
