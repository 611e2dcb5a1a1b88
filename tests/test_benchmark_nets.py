"""The nets that the benchmarks time are the same here and in torch."""

from __future__ import annotations

import re

import numpy as np
import pytest

from benchmarks.nets import ALL_NETS, batch_of, policy_of, prepared


def _name(theirs: str) -> str:
    """Return what a parameter of the transformers in torch is called here."""
    name = "position.bias" if theirs == "position" else theirs
    name = re.sub(r"^blocks\.(\d+)", lambda found: f"block{int(found[1]) + 1}", name)
    return re.sub(r"\.([qkvo])\.", r".attention.\1.", name)


@pytest.mark.torch
@pytest.mark.parametrize("name", ["mlp", "lenet5", "transformer", "resnet", "gpt"])
def test_the_loss_is_that_of_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    from benchmarks.torch_step import NO_PLACES, net_of

    model, batch = ALL_NETS[name](), 4
    step = prepared(model, policy_of(model, "float32"), batch)
    inputs, targets = batch_of(model, batch)
    net = net_of(model, NO_PLACES, sdpa=False)
    mine = [spec.name for spec in model.parameters() if not spec.statistic]
    theirs = dict(net.named_parameters())
    if name in ("transformer", "gpt"):
        theirs = {_name(each): value for each, value in theirs.items()}
    else:
        theirs = dict(zip(mine, theirs.values(), strict=True))
    assert set(mine) == set(theirs)
    for each, parameter in theirs.items():
        value = torch.from_numpy(np.ascontiguousarray(step.arrays[each]))
        parameter.data.copy_(value.reshape(parameter.shape))
    given, labels = torch.from_numpy(np.ascontiguousarray(inputs)), torch.from_numpy(targets)
    logits = net(given.long() if model.loss else given)
    labels = labels.long() if model.loss else labels.argmax(1)
    expected = float(torch.nn.functional.cross_entropy(logits, labels).detach())
    step.forward_backward()
    assert float(step.value("loss")) == pytest.approx(expected, rel=1e-5)
