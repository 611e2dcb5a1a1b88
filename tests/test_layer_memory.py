"""What layer lists keep for their backward, against what torch saves for its own."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from benchmarks.validation.layers.convolutions import update
from benchmarks.validation.layers.footprint import STORED, Footprint, Keeping, footprint
from benchmarks.validation.layers.layer_memory import Kept, LayerMemory, Weights
from benchmarks.validation.layers.precision import FLOAT16, FLOAT32
from benchmarks.validation.networks.catalogue import NETWORKS, network_named
from benchmarks.validation.published_memory import training
from policysearch.cost.stacks import STACKS

EAGER = STACKS["torch.eager"]


def kept_bytes(name: str, batch: int, weights: Weights) -> tuple[float, float]:
    """Return what the layers of a network keep, copies of weights apart, and its parameters."""
    network = network_named(name)
    step = LayerMemory(EAGER, FLOAT32 if weights == "float32" else FLOAT16, weights)
    network.build(step, batch, network.length)
    return sum((k.activations + k.masks) * k.times for k in step.kept), step.parameters


def saved_by_torch(name: str, batch: int, monkeypatch: pytest.MonkeyPatch) -> float:
    """Return the bytes of the storages that torch saves for backward, parameters apart.

    The net lives on the meta device. Dropout is the op that CUDA calls, with its mask of a byte.
    """
    torch = pytest.importorskip("torch")
    from benchmarks.live_nets import NETS

    def dropout(own: Any, x: Any) -> Any:
        return torch.native_dropout(x, own.p, True)[0]

    monkeypatch.setattr(torch.nn.Dropout, "forward", dropout)
    net = next(net for net in NETS if net.name == name)
    with torch.device("meta"):
        model = net.model()
    fixed = {p.untyped_storage()._cdata for p in (*model.parameters(), *model.buffers())}
    saved: dict[int, Any] = {}

    def pack(x: Any) -> Any:
        storage = x.untyped_storage()
        if storage._cdata not in fixed:
            saved[storage._cdata] = (x, storage)
        return x

    inputs = net.batch(batch, "meta")
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        net.loss(model(*inputs[:-1]), inputs[-1])
    assert len(saved) > 8
    return sum(float(storage.nbytes()) for _, storage in saved.values())


@pytest.mark.torch
@pytest.mark.parametrize(
    ("name", "batch", "share"),
    [
        ("resnet50", 8, 0.001),
        ("vgg16", 8, 0.001),
        ("convnet-32", 64, 0.001),
        ("mlp-8x4096", 8, 0.001),
        ("bert-base-squad", 8, 0.002),
        ("bert-base", 8, 0.01),
        ("ncf", 1000, 0.03),
    ],
)
def test_layers_keep_what_torch_saves(
    name: str, batch: int, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = saved_by_torch(name, batch, monkeypatch)
    assert kept_bytes(name, batch, "float32")[0] == pytest.approx(expected, rel=share)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_keeps_more_at_a_larger_batch_and_less_in_half(name: str) -> None:
    wide, larger = (kept_bytes(name, batch, "float32")[0] for batch in (8, 16))
    half = kept_bytes(name, 8, "halved")[0]
    assert 1.8 * wide < larger < 2.2 * wide
    assert 0.45 * wide < half < wide


def test_a_chain_by_hand() -> None:
    step = LayerMemory(EAGER, FLOAT16, "cached")
    step.linear(10, 100, 50)  # keeps 10 x 100 beside the float32 batch, 100 x 50 as a narrow copy
    step.relu(10 * 50)  # keeps its output, which the next layer reads
    step.linear(10, 50, 7)
    step.dropout(10 * 7)  # a mask
    step.layer_norm(10 * 7, 7)  # its float32 input
    step.softmax(10 * 7)  # its float32 output
    step.cross_entropy(10 * 7)
    assert sum(k.activations for k in step.kept) == 2 * (1000 + 500) + 4 * (1000 + 3 * 70)
    assert sum(k.masks for k in step.kept) == 70
    assert sum(k.copies for k in step.kept) == 2 * (5000 + 350)
    assert step.parameters == 5000 + 50 + 350 + 7 + 14


def of_adam(weights: Weights, kept: list[Kept], persistent: bool = False) -> Footprint:
    return footprint(kept, 1000, Keeping(weights, "adam", "fused", persistent))


def test_the_peak_is_the_largest_moment() -> None:
    """Backward of the last layer, of the first, or the update: whichever holds most."""
    last_passes = [Kept("a", activations=10, parameters=500), Kept("b", passing=20000)]
    found = of_adam("float32", last_passes)
    assert found.moment == "backward of b (2 of 2)"
    assert found.live_bytes == 4000 + 8000 + 10 + 20000
    first_passes = [Kept("a", passing=1999, parameters=500), Kept("b", parameters=500)]
    found = of_adam("float32", first_passes)
    assert found.moment == "update" and found.live_bytes == 16 * 1000
    first_passes = [Kept("a", activations=5, passing=5000), Kept("b", parameters=500)]
    found = of_adam("float32", first_passes)
    assert found.moment == "backward of a (1 of 2)"
    assert found.live_bytes == 4000 + 8000 + 5 + 5000 + 4 * 500


@pytest.mark.parametrize(
    ("weights", "bytes"), [("float32", 16), ("cached", 16), ("halved", 20), ("pure", 8)]
)
def test_bytes_per_parameter_with_adam(weights: Weights, bytes: int) -> None:
    assert of_adam(weights, []).live_bytes == bytes * 1000
    assert weights in STORED


def test_gradients_that_persist_are_there_at_the_start_of_backward() -> None:
    kept = [Kept("a", passing=10000.0, parameters=1000)]
    given_back, persistent = (of_adam("float32", kept, p) for p in (False, True))
    assert persistent.live_bytes - given_back.live_bytes == 4000


def test_autocast_needs_more_than_float32_where_weights_are_most() -> None:
    """As users reported of PyTorch: narrow copies come on top of float32 parameters."""
    network = network_named("mlp-8x4096")
    plain = training(network, "PyTorch 1.7", FLOAT32, "float32")
    mixed = training(network, "PyTorch 1.7", FLOAT16, "cached")
    assert mixed.footprint(64).live_bytes > plain.footprint(64).live_bytes
    assert mixed.footprint(65536).live_bytes < 0.75 * plain.footprint(65536).live_bytes
    assert mixed.footprint(64).copies == 2 * 8 * 4096**2  # that of the last layer is gone


def test_autocast_casts_a_float32_stream_for_each_product() -> None:
    """Behind a layer norm, three products of one input keep three narrow copies of it."""
    kept = {}
    for weights in get_args(Weights)[1:3]:
        step = LayerMemory(EAGER, FLOAT16, weights)
        step.layer_norm(100, 10)
        for place in range(3):
            if place:
                step.branch(100)
            step.linear(10, 10, 10)
        kept[weights] = sum(k.activations for k in step.kept)
    assert kept == {"cached": 400 + 3 * 200, "halved": 200 + 200}


def test_the_update_says_which_optimizer_it_was() -> None:
    step = LayerMemory(EAGER, FLOAT32, "float32")
    step.parameter(10)
    update(step, "lamb")
    assert step.optimizer == "lamb"
