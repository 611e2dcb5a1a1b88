"""Networks of published trainings: their families, recipes and records as graphs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from policysearch.optimizers.lamb import NORM
from policysearch.optimizers.optimizer import ADD, MULTIPLY, ROOT, Passes, rules
from policysearch.values import InputError, near_miss

PRETRAINING_MICRO_BATCHES = 16
"""Micro-batches of a step of BERT's pretraining with LAMB on one device; assumed."""

MATCHING_SECONDS = 0.03
"""Host seconds per image for masks of polygons, matching and suppression; assumed, with published
rows of this network in view."""

MOVIES_BYTES = 5 * 19.9e6 * (8 + 8 + 4 + 8)
"""MovieLens-20M with four negatives for each rating: user, item, label and place in the shuffle,
all on the device in the published script."""


@dataclass(frozen=True)
class Recipe:
    """What a network's published scripts do in some frameworks ("torch", "tensorflow").

    `channels_last`: those whose mixed run is NHWC with fused norms while its baseline is not;
    `compiled`: those that run it with XLA, `compiled_mixed`: under mixed precision alone;
    `fused_update` and `unfused_update`: those whose baseline fuses the update as the mixed run
    does, and those whose mixed run does not either. `written_attention`: the scripts write
    attention out op by op, also with frameworks that have it as one kernel. `update`: passes of an
    optimizer that NVIDIA's scripts write themselves, tensor by tensor, in torch's runs whose update
    is not fused; () for that of `torch.optim`. `binned`: those whose loader bins the longest
    sequences by length, so that no published time is of that length. `compiled`, `update` and
    `binned` are of NVIDIA's own scripts. `float32_norms`: those whose norms give float32 under
    mixed precision.
    """

    channels_last: tuple[str, ...] = ()
    compiled: tuple[str, ...] = ()
    compiled_mixed: tuple[str, ...] = ()
    fused_update: tuple[str, ...] = ()
    unfused_update: tuple[str, ...] = ()
    written_attention: bool = False
    update: Passes = ()
    binned: tuple[str, ...] = ()
    float32_norms: tuple[str, ...] = ()


@dataclass(frozen=True)
class Network:
    """A network of published trainings, one record per sequence length; 0 without sequences.

    `family` is left out as a whole when constants are fitted to judge it. The first of `lengths` is
    that of a row that gives none; memory is of the batch of `longest` where lengths vary. The
    optimizer runs once in `micro_batches`. The host takes `host_seconds` an example besides its
    launches. `data_bytes`: of a data set that lies on the device. `names` are other names of it, in
    which letters and digits count. `variants` are networks that scripts of this name train instead,
    by a word of their framework or source. `in_tokens`: published throughputs are of tokens, a
    row's length of them in each sample. `code` and `data` are the functions of a net of the user's.
    """

    name: str
    family: str
    lengths: tuple[int, ...] = (0,)
    optimizer: str = "momentum"
    micro_batches: int = 1
    host_seconds: float = 0.0
    longest: int = 0
    data_bytes: float = 0.0
    recipe: Recipe = Recipe()
    names: tuple[str, ...] = ()
    variants: tuple[tuple[str, str], ...] = ()
    in_tokens: bool = False
    code: str = ""
    data: str = ""

    @property
    def length(self) -> int:
        return self.lengths[0]


def _images(family: str, *names: str) -> tuple[Network, ...]:
    return tuple(Network(name, family) for name in names)


def _resnet(depth: int) -> Network:
    more = (f"resnet{depth} v1b",) if depth > 34 else ()
    return Network(f"resnet{depth}", "resnet", names=(f"resnet{depth} v1.5", *more))


def _transformer_xl(size: str, length: int) -> tuple[Network, Network]:
    """Return the network with adaptive softmax, and that of Lambda's runs, without (their logs)."""
    name = f"transformer-xl-{size}"
    full = Network(
        f"{name}-full", "transformer-xl", (length,), "lamb", recipe=PLAIN_UPDATE, in_tokens=True
    )
    return replace(full, name=name, variants=((LAMBDA, full.name),)), full


BERT_ADAM: Passes = (
    *(NORM, MULTIPLY, MULTIPLY, ADD, MULTIPLY, ADD, ROOT, MULTIPLY, ADD),
    *(MULTIPLY, ADD, MULTIPLY, MULTIPLY, ADD),
)
"""Of BertAdam, with which NVIDIA's script of SQuAD trains in float32 (DeepLearningExamples,
PyTorch/LanguageModeling/BERT/optimization.py): each gradient is clipped by a norm of its own, both
moments, their quotient, decay, learning rate, its sign, and the sum."""

LAMBDA = "deeplearning-benchmark"

OF_NVIDIA = ("DeepLearningExamples", LAMBDA)
"""Repositories of NVIDIA's scripts: its own, and Lambda's, which times them."""

XLA = Recipe(compiled=("tensorflow",))
WRITTEN = Recipe(written_attention=True)
PRETRAINED = Recipe(written_attention=True, compiled=("torch",), binned=("torch", "paddlepaddle"))
"""NVIDIA's script of 2022 is compiled by nvFuser, and its second phase has sequences in bins of 64
(DeepLearningExamples, PyTorch/LanguageModeling/BERT/README.md)."""
SQUAD = Recipe(written_attention=True, update=BERT_ADAM)
PROMOTED = Recipe(float32_norms=("torch",))
"""Frozen norms that take a root, which autocast and apex's O1 compute in float32: so is its product
with the map, and all up to the next convolution (DeepLearningExamples,
PyTorch/Segmentation/MaskRCNN, layers/batch_norm.py)."""
PLAIN_UPDATE = Recipe(unfused_update=("torch",), update=rules()["lamb"].fused)
"""LAMB is a function for TorchScript there, which joins the ops of one tensor."""

_ROWS = (
    *(_resnet(depth) for depth in (18, 34, 50, 101, 152)),
    *_images("resnet", "wide_resnet50_2", "wide_resnet101_2"),
    *_images("vgg", *(f"vgg{depth}{norm}" for depth in (11, 13, 16, 19) for norm in ("", "_bn"))),
    *_images("mnasnet", "mnasnet0_5", "mnasnet0_75", "mnasnet1_0", "mnasnet1_3"),
    *_images("squeezenet", "squeezenet1_0", "squeezenet1_1"),
    *_images("efficientnet", "efficientnet_v2_s", *(f"efficientnet-b{size}" for size in (0, 2, 4))),
    *_images("resnext", "se_resnext101_32x4d", "resnext50_32x4d", "resnext101_32x8d"),
    *_images("densenet", "densenet121", "densenet161", "densenet201"),
    *_images("regnet", *(f"regnet_y_{size}" for size in ("800mf", "8gf", "16gf"))),
    *_images("convnext", "convnext_tiny", "convnext_base"),
    *_images("alexnet", "alexnet"),
    Network("inception_v3", "inception", names=("inception3",)),
    Network("googlenet", "inception", names=("inception_v1",)),
    Network("mobilenet_v2", "mobilenet", names=("mobilenetv2_100",)),
    Network("mobilenet_v3_large", "mobilenet", names=("mobilenetv3_large_100",)),
    Network("shufflenet_v2_x1_0", "shufflenet"),
    Network("vit_b_16", "vit", names=("vit_base_patch16_224", "deit_base_patch16_224")),
    Network("vit_b_32", "vit", names=("vit_base_patch32_224",)),
    Network("vit_l_16", "vit", names=("vit_large_patch16_224",)),
    Network("swin_t", "swin", names=("swin_tiny_patch4_window7_224", "swin_tiny")),
    Network("swin_s", "swin", names=("swin_small_patch4_window7_224", "swin_small")),
    Network("swin_b", "swin", names=("swin_base_patch4_window7_224", "swin_base")),
    Network("bert-base", "bert", (128,), "adam", recipe=WRITTEN),
    Network("bert-large", "bert", (128, 512), "lamb", PRETRAINING_MICRO_BATCHES, recipe=PRETRAINED),
    Network("bert-large-uncased", "bert", (512,), "adam", recipe=WRITTEN),
    Network("bert-base-squad", "bert", (384,), "adam", recipe=SQUAD),
    Network("bert-large-squad", "bert", (384,), "adam", recipe=SQUAD),
    Network("electra-base", "electra", (128, 512), "adam", recipe=XLA),
    Network("electra-base-discriminator", "electra", (128, 512), "adam"),
    # its script compiles under mixed precision alone
    Network(
        "electra-base-squad",
        "electra",
        (384,),
        "adam",
        recipe=Recipe(compiled_mixed=("tensorflow",)),
    ),
    *_transformer_xl("base", 192),
    *_transformer_xl("large", 384),
    Network("bert-base-mlm", "bert", (128, 512), "adam", names=("bert base uncased",)),
    Network("roberta-base", "bert", (128, 512), "adam", names=("roberta",)),
    Network("distilbert", "bert", (128, 384), "adam", names=("distilbert base uncased",)),
    Network("electra-small", "electra", (128,), "adam"),
    Network("gpt2", "gpt2", (512, 1024), "adam", names=("gpt2 small", "gpt2 124m")),
    Network("gpt2-medium", "gpt2", (1024,), "adam", names=("gpt2 355m",)),
    Network("t5-small", "t5", (256, 512), "adam"),
    Network("bart-base", "bart", (256,), "adam"),
    Network("transformer-big", "transformer", (32,), "adam", names=("transformer",)),
    Network("ssd300", "ssd", names=("ssd300 resnet50", "ssd300 v1.1")),
    Network("yolov3", "yolo"),
    Network("unet", "unet2d", optimizer="adam", names=("u-net",)),
    Network("dlrm", "dlrm", optimizer="sgd"),
    Network("waveglow", "waveglow", optimizer="adam"),
    Network("gnmt", "gnmt", (28, 50), "adam", longest=50, names=("gnmt v2",)),
    Network(
        "ncf",
        "ncf",
        optimizer="adam",
        data_bytes=MOVIES_BYTES,
        recipe=Recipe(fused_update=("torch",)),
        names=("neumf",),
    ),
    Network("wide-and-deep", "wide-and-deep", optimizer="adam"),
    Network("vae-cf", "vae-cf", optimizer="adam"),
    Network("nnunet-2d", "unet2d", optimizer="adam", recipe=XLA),
    Network(
        "nnunet-3d",
        "unet3d",
        optimizer="adam",
        recipe=Recipe(channels_last=("torch",), compiled=("tensorflow",)),
    ),
    Network("unet3d-medical", "unet3d", optimizer="adam"),
    Network(
        "mask-rcnn-r50-fpn",
        "mask-rcnn",
        host_seconds=MATCHING_SECONDS,
        recipe=PROMOTED,
        variants=(("tensorflow", "mask-rcnn-r50-fpn-fixed"),),
        names=("maskrcnn_resnet50_fpn", "mask rcnn"),
    ),
    Network("mask-rcnn-r50-fpn-fixed", "mask-rcnn", host_seconds=MATCHING_SECONDS, recipe=XLA),
    Network("jasper", "jasper", (1600,), "adam"),
)

NETWORKS: Mapping[str, Network] = MappingProxyType({row.name: row for row in _ROWS})
"""Networks that are recorded as graphs, by name."""


def as_run_by(network: Network, framework: str, source: str = "") -> Network:
    """Return a network as a framework, and the scripts of the repository `source`, run it.

    Hugging Face's models call torch's attention.
    """
    for word, name in network.variants:
        if word in f"{framework} {source}".lower():
            network = NETWORKS[name]
    recipe = network.recipe
    if re.search(r"\bhf\b|hugging|transformers", framework.lower()):
        recipe = replace(recipe, written_attention=False, update=())
    if not any(name in source for name in OF_NVIDIA):
        recipe = replace(recipe, update=(), compiled=(), binned=())
    return replace(network, recipe=recipe)


def spelled_alike(name: str) -> str:
    """Return letters and digits, parted where two numbers meet."""
    apart = re.sub(r"(?<=\d)[^a-z0-9]+(?=\d)", "-", name.lower())
    return re.sub(r"[^a-z0-9-]|(?<!\d)-|-(?!\d)", "", apart)


_SPELLED = {spelled_alike(name): row for row in _ROWS for name in (*row.names, row.name)}


def network_named(name: str) -> Network:
    """Return a network; InputError where there is none.

    Letters and digits count, and that two numbers are parted, not by what. An owner before a slash
    is left out.
    """
    for given in (name, name.rpartition("/")[2]):
        if found := _SPELLED.get(spelled_alike(given)):
            return found
    expected = '; expected a recorded one, or a net of yours ("net.py:model")'
    raise InputError(f"unknown network {name!r}{near_miss(name, NETWORKS) or expected}")
