"""Layer lists of the catalogue against the counts of the libraries that define the networks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from benchmarks.validation.layers.layers import Layers
from benchmarks.validation.layers.precision import FLOAT32
from benchmarks.validation.networks.catalogue import NETWORKS, SAME, network_named
from benchmarks.validation.networks.network import spelled_alike
from benchmarks.validation.published import read_rows, setting_of
from policysearch.cost.stacks import STACKS
from policysearch.values import InputError

TORCHVISION = {
    "inception_v3": (5.713, 27.161),
    "mobilenet_v3_small": (0.057, 2.543),
    "mobilenet_v3_large": (0.217, 5.483),
    "mnasnet0_75": (0.215, 3.170),
    "mnasnet1_3": (0.526, 6.282),
    "efficientnet-b1": (0.687, 7.794),
    "efficientnet-b2": (0.994, 9.110),
    "efficientnet-b3": (1.827, 12.233),
    "efficientnet-b5": (10.266, 30.390),
    "efficientnet-b6": (19.068, 43.041),
    "efficientnet-b7": (37.746, 66.348),
    "efficientnet_v2_s": (5.308, 21.458),
    "regnet_y_400mf": (0.402, 4.344),
    "regnet_y_800mf": (0.834, 6.433),
    "regnet_y_1_6gf": (1.612, 11.202),
    "regnet_y_3_2gf": (3.176, 19.436),
    "regnet_y_8gf": (8.473, 39.381),
    "regnet_y_16gf": (15.912, 83.590),
    "regnet_y_32gf": (32.280, 145.047),
    "regnet_x_400mf": (0.414, 5.496),
    "regnet_x_800mf": (0.800, 7.260),
    "regnet_x_1_6gf": (1.603, 9.190),
    "regnet_x_3_2gf": (3.177, 15.297),
    "regnet_x_8gf": (7.995, 39.573),
    "regnet_x_16gf": (15.941, 54.279),
    "regnet_x_32gf": (31.736, 107.812),
    "convnext_tiny": (4.456, 28.589),
    "convnext_small": (8.684, 50.224),
    "convnext_base": (15.355, 88.591),
    "convnext_large": (34.361, 197.767),
    "swin_t": (4.491, 28.288),
    "swin_s": (8.741, 49.606),
    "swin_b": (15.431, 87.768),
    "vit_b_16": (17.564, 86.568),
    "vit_b_32": (4.409, 88.224),
    "vit_l_16": (61.555, 304.327),
    "vit_l_32": (15.378, 306.535),
    "vit_h_14": (167.295, 632.046),
    "resnext101_64x4d": (15.460, 83.455),
    "fcn_resnet50": (152.717, 35.322),
    "fcn_resnet101": (232.738, 54.314),
    "deeplabv3_resnet50": (178.722, 42.004),
    "deeplabv3_resnet101": (258.743, 60.996),
    "retinanet-r50-fpn": (254.470, 34.068),
    "faster-rcnn-r50-fpn": (208.979, 41.808),
    "mask-rcnn-r50-fpn": (277.084, 44.455),
}
"""Thousands of millions of multiply-adds of a forward pass and millions of parameters: what
`torch.utils.flop_counter` of torch 2.13 counts of torchvision 0.28. Of detectors it is the parts
that are trained, on images of 800 x 1344, 512 regions and 128 masks."""

TIMM = {
    "se_resnet50": (4.092, 28.088),
    "se_resnet101": (7.806, 49.327),
    "se_resnext50_32x4d": (4.233, 27.560),
    "se_resnext101_32x4d": (7.975, 48.955),
    "darknet53": (9.285, 41.610),
    "inception_v4": (12.254, 42.680),
    "deit_tiny_patch16_224": (1.254, 5.717),
    "deit_small_patch16_224": (4.599, 22.051),
    "swin_l": (34.476, 196.532),
}
"""The same of timm 1.0.31."""

OTHERS = {
    "yolov3": (32.93, 61.95),
    "yolov5s": (8.25, 7.2),
    "yolov5m": (24.5, 21.2),
    "yolov5l": (54.55, 46.5),
    "yolov5x": (102.85, 86.7),
    "unet": (192.686, 31.038),
}
"""As published with the networks: Redmon and Farhadi, 2018 (65.86 thousand million operations);
the table of github:ultralytics/yolov5, release 6; and the same count of
github:milesial/Pytorch-UNet@21d7850f2a."""

TRANSFORMERS = {
    "bert-base-cased": (11.608, 108.34),
    "bert-large-cased": (40.044, 333.61),
    "roberta-base": (11.918, 124.70),
    "roberta-large": (40.458, 355.41),
    "xlm-roberta-base": (14.833, 278.30),
    "distilbert-base": (6.043, 66.99),
    "distilroberta-base": (6.331, 82.17),
    "electra-small": (1.321, 13.55),
    "electra-base": (11.249, 109.48),
    "electra-large": (39.594, 335.14),
    "t5-small": (8.045, 60.51),
    "t5-base": (29.431, 222.90),
    "t5-large": (96.821, 737.67),
    "bart-base": (18.078, 139.42),
    "bart-large": (52.893, 406.29),
    "whisper-tiny": (24.485, 37.76),
    "whisper-base": (55.900, 72.59),
    "whisper-small": (214.938, 241.73),
    "whisper-medium": (706.668, 763.86),
    "whisper-large": (1413.140, 1543.30),
    "pythia-160m": (16.119, 162.32),
    "pythia-410m": (46.053, 405.33),
    "pythia-1b": (117.340, 1011.78),
    "pythia-1.4b": (169.416, 1414.65),
    "pythia-2.8b": (341.291, 2775.21),
    "llama 2 7b": (850.001, 6738.42),
    "llama 2 13b": (1651.717, 13015.86),
    "llama3 8b": (964.891, 8030.26),
    "llama3 70b": (8917.694, 70553.71),
    "llama3 405b": (51747.377, 405853.39),
    "llama 3.2 1b": (159.249, 1235.81),
    "llama 3.2 3b": (414.028, 3212.75),
    "tinyllama-1.1b": (133.882, 1100.05),
    "mistral-7b": (914.425, 7241.73),
    "mpt-1b": (169.433, 1311.21),
    "mpt-3b": (341.311, 2645.69),
    "qwen2.5-0.5b": (63.932, 494.03),
    "qwen2.5-1.5b": (198.986, 1543.71),
    "qwen2.5-3b": (397.385, 3085.94),
    "qwen2.5-7b": (908.285, 7615.62),
    "qwen2.5-14b": (1798.853, 14770.03),
    "qwen2.5-32b": (4104.714, 32763.88),
    "qwen3 8b": (973.548, 8190.74),
}
"""The same of transformers 5.23 at 128 tokens on each side; where tokens are masked, the head works
on the 19 of them that are."""

LONGER = {
    "gpt2": (145.824, 124.44),
    "distilgpt2": (92.674, 81.91),
    "gpt2-medium": (413.476, 354.82),
    "gpt2-large": (887.285, 774.03),
    "gpt2-xl": (1753.352, 1557.61),
    "opt-125m": (330.327, 125.24),
    "opt-1.3b": (3097.074, 1315.76),
    "opt-2.7b": (6104.726, 2651.60),
    "opt-6.7b": (14715.363, 6658.47),
    "wav2vec2-base": (74.079, 94.40),
    "wav2vec2-large": (191.943, 315.47),
}
"""The same at the length that each has: 1024 and 2048 tokens, 160,000 samples."""

LENGTHS = dict.fromkeys(TRANSFORMERS, 128) | {
    name: 2048 if name.startswith("opt") else NETWORKS[name].length for name in LONGER
}

COUNTS = TORCHVISION | TIMM | OTHERS | TRANSFORMERS | LONGER

PARAMETERS = {
    "transformer-base": 63.08,
    "quartznet15x5": 18.9,
    "lstm-ptb-large": 66.0,
    "awd-lstm-ptb": 24.0,
}
"""Of `torch.nn.Transformer(512, 8, 6, 6, 2048)` and an embedding of 37,000 rows; and as published:
Kriman et al., 2019; Zaremba et al., 2014; Merity et al., 2017."""


def layers_of(name: str, batch: int, length: int) -> Layers:
    layers = Layers(STACKS["torch.eager"], FLOAT32)
    NETWORKS[name].build(layers, batch, length)
    return layers


@pytest.mark.parametrize("name", COUNTS)
def test_layer_lists_have_the_counts_of_their_libraries(name: str) -> None:
    """Forward and both gradients, two FLOPs each; the first convolution has one gradient only."""
    layers = layers_of(name, 2, LENGTHS.get(name, 0))
    adds, parameters = COUNTS[name]
    flops = sum(work.flops * work.count for work in layers.works)
    assert flops / (3 * 2 * 2) / 1e9 == pytest.approx(adds, rel=0.02, abs=0.003)
    assert layers.parameters / 1e6 == pytest.approx(parameters, rel=0.01)


@pytest.mark.parametrize("name", PARAMETERS)
def test_layer_lists_have_the_published_parameters(name: str) -> None:
    layers = layers_of(name, 1, NETWORKS[name].length)
    assert layers.parameters / 1e6 == pytest.approx(PARAMETERS[name], rel=0.01)


def test_no_two_networks_arespelled_alike_alike() -> None:
    names = [*NETWORKS, *(other for others in SAME.values() for other in others)]
    assert [name for name, count in Counter(map(spelled_alike, names)).items() if count > 1] == []
    assert SAME.keys() <= NETWORKS.keys()


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("ResNet-50 v1.5", "resnet50"),
        ("resnet50_v1.5", "resnet50"),
        ("ViT-B/16", "vit_b_16"),
        ("BERT-Large-Cased", "bert-large-cased"),
        ("regnet_y_16gf", "regnet_y_16gf"),
        ("RegNetY-1.6GF", "regnet_y_1_6gf"),
        ("mnasnet0.5", "mnasnet0_5"),
        ("Llama-3.2-1B", "llama 3.2 1b"),
        ("GPT2 XL", "gpt2-xl"),
        ("google/vit-base-patch16-224", "vit_b_16"),
    ],
)
def test_spellings(given: str, name: str) -> None:
    assert network_named(given) is NETWORKS[name]


def rows_of(tmp_path: Path, fields: str) -> Path:
    path = tmp_path / "rows.json"
    path.write_text(
        '[{"framework": "PyTorch 2.1", "hardware": "A100-SXM4-40GB", "batch_per_gpu_baseline": 8,'
        ' "batch_per_gpu_mixed": 8, "dtype_baseline": "fp32", "dtype_mixed": "fp16",'
        f' "throughput_baseline": 10, "throughput_mixed": 20, {fields}}}]',
        encoding="utf-8",
    )
    return path


def test_a_length_behind_the_name_is_that_of_the_row(tmp_path: Path) -> None:
    (row,) = read_rows(rows_of(tmp_path, '"model": "BERT Large (seq 512)"'))
    setting = setting_of(row)
    assert setting.network is NETWORKS["bert-large"]
    assert setting.length == 512
    path = rows_of(tmp_path, '"model": "BERT Large (seq_len=512)", "seq_len": 128')
    with pytest.raises(InputError, match="seq_len: 128; expected 512 as in its 'model'"):
        read_rows(path)
