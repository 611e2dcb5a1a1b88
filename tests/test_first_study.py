"""The study that `init` writes, from what was said of net, device and baseline."""

from __future__ import annotations

import tomllib

import pytest

from policysearch.cost.device_file import device_at
from policysearch.data.datasets import Dataset
from policysearch.nn.models import mlp
from policysearch.study.first_study import FirstStudy


@pytest.mark.parametrize(
    ("device", "baseline", "formats", "scales"),
    [
        ("L4", "torch.autocast.bfloat16", ["bfloat16"], ["none"]),
        ("L4", "torch.autocast.float16", ["bfloat16", "float16"], ["none", "dynamic"]),
        ("L4", "float32", ["bfloat16"], ["none"]),
        ("V100-SXM2", "torch.autocast.float16", ["float16"], ["none", "dynamic"]),
    ],
)
def test_what_is_run_today_is_searched_too(
    digits: Dataset, device: str, baseline: str, formats: list[str], scales: list[str]
) -> None:
    first = FirstStudy(
        net="net.py",
        name="net",
        model="net.py:model",
        data="net.py:data",
        device_name=device,
        device=device_at(device),
        stack="torch.compile",
        baseline=baseline,
        batch=64,
    )
    space = tomllib.loads(first.text(mlp((64, 32, 10)), digits))["space"]
    assert [name for name in space["formats"] if name[-2:] == "16"] == formats
    assert space["loss_scales"] == scales and space["base"] == baseline
