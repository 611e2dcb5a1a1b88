"""Published networks as recorded graphs: read back whole, and priced as policies are."""

from __future__ import annotations

import gzip
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.validation.recorded_table import records
from policysearch.cost.copies import copied
from policysearch.cost.devices import DEVICES
from policysearch.cost.roofline import FITTED, kernel_seconds, load_of
from policysearch.cost.stacks import STACKS
from policysearch.cost.time import step_time
from policysearch.importers.record import model_of, record_of
from policysearch.objective.published.graphs import (
    Run,
    recorded_price,
    recorded_works,
)
from policysearch.objective.published.judged import settings_of
from policysearch.objective.published.models import RECORDS, model_at
from policysearch.objective.published.networks import NETWORKS, as_run_by, network_named
from policysearch.objective.published.rows import shipped_rows
from policysearch.objective.published.stacks import FLOAT16, FLOAT32, TORCH, Precision
from policysearch.objective.published.steps import measured_of
from policysearch.optimizers.optimizer import Optimizer
from policysearch.train.step import trace_step
from policysearch.values import InputError

STACK = replace(TORCH, fused_optimizer=True, library=11)

LARGEST_RECORD = 40_000

PARAMETERS = {
    "resnet50": 25_557_032,
    "vgg16": 138_357_544,
    "squeezenet1_0": 1_248_424,
    "mnasnet1_0": 4_383_312,
    "efficientnet-b0": 5_288_548,
    "wide_resnet50_2": 68_883_240,
    "transformer-xl-base-full": 191_948_759,
    "transformer-xl-large-full": 519_963_095,
}
"""Trained numbers, as torchvision's pages give them, and the logs of Lambda's runs."""


def run_of(name: str, batch: int, precision: Precision, device: str, length: int = 0) -> Run:
    return Run(network_named(name), length, batch, precision, DEVICES[device], STACK)


def seconds_of(run: Run) -> float:
    """Kernel seconds of what one micro-batch asks for."""
    load = load_of(recorded_works(run), run.device, run.stack)
    seconds = kernel_seconds(load, FITTED)
    return float(((seconds.kernel + seconds.shift) * load.count).sum())


def test_every_network_of_the_table_has_a_small_record_and_no_record_is_left_over() -> None:
    wanted = {
        f"{name}.{length}.json.gz" if length else f"{name}.json.gz" for name, length in records()
    }
    found = {path.name: path.stat().st_size for path in RECORDS.iterdir()}
    assert set(found) == wanted
    assert max(found.values()) < LARGEST_RECORD


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_record_has_the_parameters_that_its_publication_gives(name: str) -> None:
    total = 0
    for spec in model_at(NETWORKS[name], NETWORKS[name].length).parameters():
        count = 1
        for extent in spec.shape:
            count *= extent
        total += count
    assert total == PARAMETERS[name]


@pytest.mark.parametrize("path", sorted(RECORDS.iterdir())[::4], ids=lambda path: path.name)
def test_a_record_read_and_written_is_the_same_file(path: Path) -> None:
    kept = path.read_bytes()
    assert record_of(model_of(kept)) == kept


def test_the_update_of_a_micro_batch_is_a_share_of_the_step() -> None:
    run = run_of("bert-large", 8, FLOAT32, "V100-SXM2", 128)
    without = replace(run, precision=replace(FLOAT32, update=False))
    whole, none = seconds_of(run), seconds_of(without)
    assert none < whole < none * 1.02


@pytest.mark.parametrize(
    ("name", "library", "tensors", "launches"),
    [
        ("resnet50", 10, 8, 3),  # mul_(momentum).add_(grad), add_(-rate)
        ("bert-base-mlm", 10, 18, 7),
        ("bert-base-squad", 10, 32, 14),  # the script's own BertAdam, clipped by parameter
        ("transformer-xl-base", 10, 12, 3),
    ],
)
def test_an_update_that_is_not_fused_runs_op_by_op(
    name: str, library: int, tensors: int, launches: int
) -> None:
    network = NETWORKS[name]
    stack = replace(TORCH, fused_optimizer=False, library=library)
    run = Run(network, network.length, 1, FLOAT32, DEVICES["V100-SXM2"], stack)
    works = [work for work in recorded_works(run) if work.kind == "update"]
    shapes = [spec.shape for spec in model_at(network, network.length).parameters()]
    numbers = sum(math.prod(shape) for shape in shapes)
    assert sum(work.bytes * work.count for work in works) == 4 * tensors * numbers
    assert sum(work.launches * work.count for work in works) == launches * len(shapes)
    fused = replace(run, stack=replace(stack, fused_optimizer=True))
    joined = [work for work in recorded_works(fused) if work.kind == "update"]
    assert sum(work.launches * work.count for work in joined) <= 5 < launches * len(shapes)


def test_from_torch_2_on_an_update_takes_many_tensors_at_once() -> None:
    stack = replace(TORCH, fused_optimizer=False, library=12)
    run = Run(NETWORKS["resnet50"], 0, 1, FLOAT32, DEVICES["V100-SXM2"], stack)
    works = [work for work in recorded_works(run) if work.kind == "update"]
    assert 3 <= sum(work.launches * work.count for work in works) <= 3 * 3


def test_the_gradient_of_a_norms_bias_is_summed_with_that_of_its_weight() -> None:
    """ResNet-18 has 20 norms and one product with a bias."""
    run = run_of("resnet18", 8, FLOAT32, "A100-SXM4-80GB")
    ops = [kernel.op for kernel in recorded_price(run).time.kernels]
    assert ops.count("batch_norm_weight_grad") == 20
    assert ops.count("bias_grad") == 1
    # of a module that holds both, the product's own is a pass still
    nodes = tuple(replace(node, layer="one") for node in run.graph.nodes)
    kernels = step_time(replace(run.graph, nodes=nodes), run.device, run.stack).kernels
    assert [kernel.op for kernel in kernels].count("bias_grad") == 1


def test_electra_is_pretrained_with_a_generator() -> None:
    """Of 12 blocks of 256, its embeddings and the product with them shared."""
    both, told = (
        sum(math.prod(spec.shape) for spec in model_at(NETWORKS[name], 128).parameters())
        for name in ("electra-base", "electra-base-discriminator")
    )
    block = 4 * 256 * 257 + 256 * 1025 + 1024 + 1024 * 256 + 4 * 256
    assert both - told == 768 * 256 + 256 + 12 * block + 256 * 768 + 3 * 768


def test_a_network_is_that_of_the_scripts_of_its_framework() -> None:
    network = network_named("mask rcnn")
    assert as_run_by(network, "PyTorch 1.9") == network
    fixed = as_run_by(network, "TensorFlow2", "github:NVIDIA/DeepLearningExamples")
    assert fixed.family == network.family
    one = run_of(network.name, 1, FLOAT32, "A100-SXM4-80GB")
    flops = [
        sum(work.flops * work.count for work in recorded_works(replace(one, network=each)))
        for each in (network, fixed)
    ]
    assert flops[1] > 1.2 * flops[0]  # masks of 128 regions, not of 8 objects


def test_frozen_norms_of_torchs_detector_give_float32() -> None:
    """A root is float32 under autocast, and so is what it multiplies, up to the next product."""
    rows = [row for row in shipped_rows() if row.model == "mask-rcnn-r50-fpn"]
    mixed = {s.stacks.framework: s.runs[1] for s in settings_of(rows)[0]}["torch"]
    stored = replace(mixed, stack=replace(mixed.stack, float32_norms=False))
    widths = []
    for run in (mixed, stored):
        nodes = run.graph.nodes
        assert {node.format for node in nodes if node.op.name == "conv2d_dgrad"} == {"float16"}
        maps = [node.format for node in nodes if node.op.name == "relu" and len(node.shape) == 4]
        widths.append((maps[0], maps[-1]))  # behind a norm, and in the head of masks
    assert widths == [("float32", "float16"), ("float16", "float16")]
    assert seconds_of(mixed) > 1.2 * seconds_of(stored)


def test_lambdas_transformers_tell_all_words_and_are_timed_in_tokens() -> None:
    rows = [row for row in shipped_rows() if row.model.startswith("transformer-xl")]
    settings = settings_of(rows)[0]
    full = {"lambdal" in s.row.source: s.network.name.endswith("-full") for s in settings}
    assert full == {True: True, False: False}
    seconds = measured_of(settings).seconds
    for setting, pair in zip(settings, seconds, strict=True):
        tokens = [setting.length * batch for batch in setting.row.batches]
        assert pair.tolist() == pytest.approx(np.divide(tokens, setting.row.throughputs).tolist())


def test_recipes_are_of_nvidias_scripts_alone() -> None:
    network, nvidia = NETWORKS["bert-large"], "github:NVIDIA/DeepLearningExamples"
    assert as_run_by(network, "PyTorch", nvidia).recipe.compiled == ("torch",)
    others = as_run_by(network, "PyTorch", "github:else/where").recipe
    assert others.compiled == others.binned == ()
    assert others.written_attention


def test_no_time_is_that_of_sequences_that_were_binned() -> None:
    """Three rows of BERT of 512: its loader bins them; their speedups count as they are."""
    rows = [row for row in shipped_rows() if row.model == "bert-large"]
    settings = settings_of(rows)[0]
    steps = measured_of(settings)
    binned = [setting.row.id for setting in settings if setting.binned]
    assert sorted(binned) == ["141", "159", "27"]
    for setting, seconds in zip(settings, steps.seconds, strict=True):
        assert np.isnan(seconds).all() == setting.binned
    assert np.all(steps.speedups > 1)


def test_heads_of_one_kernel_of_attention_are_views() -> None:
    """Of ViT's seven changes of order a block, forward, three are copied."""
    model = model_at(NETWORKS["vit_b_16"], 0, fused=True)
    step = trace_step(model, model.loss, Optimizer("sgd"), 2)
    block = "encoder.layers.encoder_layer_3"
    of_block = {n.id for n in step.nodes if n.layer.startswith(block) and n.role == "fprop"}
    orders = [n for n in step.nodes if n.op.name == "transpose" and n.id in of_block]
    assert (len(orders), sum(n.id in of_block for n in copied(step))) == (7, 3)


def test_fused_norms_take_the_passes_of_sum_and_relu_along() -> None:
    plain = run_of("resnet50", 256, FLOAT16, "A100-SXM4-80GB")
    fused = replace(plain, stack=replace(STACK, norm_fusion=True))
    assert seconds_of(fused) < seconds_of(plain)
    kernels = [k.op for k in recorded_price(fused).time.kernels if k.role == "fprop"]
    assert "relu" not in kernels and "add" not in kernels


@pytest.mark.parametrize("stack", ["torch.compile", "mindspore.graph"])
def test_compilers_fuse_what_is_behind_a_norm_as_any_chain(stack: str) -> None:
    run = replace(run_of("resnet18", 8, FLOAT16, "A100-SXM4-80GB"), stack=STACKS[stack])
    kernels = [k.op for k in recorded_price(run).time.kernels if k.role == "fprop"]
    assert "relu" not in kernels


@pytest.mark.torch
def test_a_network_recorded_again_is_the_same_file() -> None:
    pytest.importorskip("torch")
    from benchmarks.validation.record import recorded

    assert recorded("vae-cf", 0) == (RECORDS / "vae-cf.json.gz").read_bytes()


def test_records_are_priced_without_torch() -> None:
    told = (
        "import sys; from policysearch.objective.published.models import float32_step; "
        "from policysearch.objective.published.networks import NETWORKS; "
        "float32_step(NETWORKS['vgg11'], 0, 2); print('torch' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("text", "said"), [("[]", "version None"), ('{"version":2}', "version 2; expected 1")]
)
def test_a_record_of_another_version_is_refused_in_a_line(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        model_of(gzip.compress(text.encode()))


def test_what_is_not_gzipped_is_refused_in_a_line() -> None:
    with pytest.raises(InputError, match="expected gzipped JSON"):
        model_of(b"no gzip")
