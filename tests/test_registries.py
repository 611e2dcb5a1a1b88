"""Every model and data set there is runs through all a study does with it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from policysearch.cost.devices import DEVICES
from policysearch.cost.price import step_price
from policysearch.cost.stacks import STACKS
from policysearch.data.datasets import LOADERS, Dataset, batches, load_dataset
from policysearch.export.targets import targets
from policysearch.nn.chain import Chain
from policysearch.nn.models import MODELS
from policysearch.ops.catalogue import FORWARD_OPS
from policysearch.policy.policy import LayerPolicy
from policysearch.policy.presets import PRESETS, preset
from policysearch.rounding.rounder import FASTS, fast_ways
from policysearch.train.tasks import Task
from policysearch.train.training import train
from policysearch.values import InputError
from tests.emulated_steps import assert_gives_the_bits_of_the_reference, started
from tests.turns import case

FIVE = LayerPolicy("float16", "bfloat16", "float8_e5m2", "tfloat32", "float8_e4m3fn")
"""Compute, output, grad, wgrad and param all differ."""


def _model(name: str) -> Chain:
    shape = (6,) if name == "gpt" else (1, 16, 16)
    return MODELS[name](shape, 10, "relu", (24,) if name == "mlp" else ())


@pytest.mark.parametrize("policy", ["float32", "float8", "five"])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_runs_alike_in_every_way(name: str, policy: str) -> None:
    model = _model(name)
    made = preset("bfloat16" if policy == "five" else policy, model.layer_names)
    if policy == "five":
        made = made.with_layers(dict.fromkeys(model.layer_names, FIVE))
    graph = Task().tracing(model, 4).step_graph(made).wanting("loss", "finite")
    for fast in fast_ways():
        assert_gives_the_bits_of_the_reference(graph, started(graph, model), fast)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_has_a_price_and_is_exported(name: str) -> None:
    """To every target; the presets take turns, so that all models together have all of them."""
    turn = [*MODELS].index(name) * len(targets())
    for place, target in enumerate(targets(), turn):
        preset_name = [*PRESETS][place % len(PRESETS)]
        with case(preset_name, target):
            assert_priced_and_exported(_model(name), preset_name, target)


def assert_priced_and_exported(model: Chain, preset_name: str, target: str) -> None:
    policy = preset(preset_name, model.layer_names)
    graph = Task().tracing(model, 8).step_graph(policy)
    assert {node.source for node in graph.nodes if node.role == "fprop"} <= {
        *FORWARD_OPS,
        *("cast", "scale_loss"),
    }
    price = step_price(graph, DEVICES["H100-SXM5"], STACKS["torch.compile"])
    assert price.time.step_seconds > 0
    assert policy.digest in targets()[target].export(policy, model)


def test_models_and_targets_are_enough_for_all_presets() -> None:
    assert len(MODELS) * len(targets()) >= len(PRESETS)


@pytest.fixture(scope="module", params=LOADERS)
def dataset(request: pytest.FixtureRequest) -> Dataset:
    """The data set without a folder, or of the installed files; skipped where it has none."""
    try:
        return load_dataset(request.param)
    except InputError as error:
        pytest.skip(str(error))


def test_a_data_set_is_split_and_normalised(dataset: Dataset) -> None:
    (inputs,), labels = dataset.train
    assert inputs.shape[1:] == dataset.image_shape
    assert len(inputs) == dataset.train_count and len(dataset.validation[1]) > 0
    assert set(labels.ravel().tolist()) == set(range(dataset.classes))
    if inputs.dtype == np.int64:
        assert set(inputs.ravel().tolist()) == set(range(dataset.classes))
        return
    assert inputs.dtype == np.float32
    assert abs(inputs.mean(dtype=np.float64)) < 1e-5
    assert abs(inputs.std(dtype=np.float64) - 1.0) < 1e-5


def test_a_data_set_is_the_same_again_and_frozen(dataset: Dataset) -> None:
    assert load_dataset(dataset.name).fingerprint == dataset.fingerprint
    for array in (dataset.images, dataset.labels):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_a_data_set_gives_batches_and_trains(dataset: Dataset) -> None:
    rng = np.random.default_rng(0)
    indices = batches(dataset, 16, 3, rng)
    assert indices.shape == (3, 16) and indices.max() < dataset.train_count
    net = "gpt" if dataset.images.dtype == np.int64 else "mlp"
    task = Task(model=net, data=dataset.name, batch_size=16, steps=3, tail_steps=1)
    few = replace(
        dataset,
        inputs=(dataset.images[: dataset.train_count + 32],),
        labels=dataset.labels[: dataset.train_count + 32],
        validation_count=32,
    )
    model = task.build_model(few)
    run = train(task, preset("float16", model.layer_names), 0, dataset=few)
    assert len(run.losses) == 3 and np.isfinite(run.losses).all()
    assert run.fast in FASTS
