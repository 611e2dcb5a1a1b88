"""Who makes the networks that are recorded as graphs: torch modules, own ones and libraries'."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from policysearch.objective.published.networks import NETWORKS

IMAGES = (
    *("resnet18", "resnet34", "resnet50", "resnet101", "resnet152"),
    *("vgg11", "vgg11_bn", "vgg13", "vgg13_bn", "vgg16", "vgg16_bn", "vgg19", "vgg19_bn"),
    *("mnasnet0_5", "mnasnet0_75", "mnasnet1_0", "mnasnet1_3"),
    *("wide_resnet50_2", "wide_resnet101_2", "squeezenet1_0", "squeezenet1_1"),
    *("resnext50_32x4d", "resnext101_32x8d", "densenet121", "densenet161", "densenet201"),
    *("regnet_y_800mf", "regnet_y_8gf", "regnet_y_16gf", "convnext_tiny", "convnext_base"),
    *("alexnet", "inception_v3", "googlenet", "mobilenet_v2", "mobilenet_v3_large"),
    *("shufflenet_v2_x1_0", "vit_b_16", "vit_b_32", "vit_l_16", "swin_t", "swin_s", "swin_b"),
    "efficientnet_v2_s",
)
"""Networks whose names are those of torchvision."""

TOKENS, BINARY = "token_cross_entropy", "binary_cross_entropy_with_logits"


@dataclass(frozen=True)
class Maker:
    """How a network is made: `function` of a file of `benchmarks/validation/modules`.

    It is "file.function", called with `arguments` and, where there are sequences, the length.
    `loss` is one of those that `from_torch` takes.
    """

    function: str
    arguments: tuple[str | int | bool, ...] = ()
    loss: str = "softmax_cross_entropy"


MAKERS: Mapping[str, Maker] = MappingProxyType(
    {name: Maker("images.image_net", (name,)) for name in IMAGES}
    | {
        "efficientnet-b0": Maker("images.image_net", ("efficientnet_b0",)),
        "efficientnet-b2": Maker("images.image_net", ("efficientnet_b2",)),
        "efficientnet-b4": Maker("images.image_net", ("efficientnet_b4",)),
        "se_resnext101_32x4d": Maker("images.se_resnext", (101,)),
        "bert-base": Maker("texts.bert", ("base", "masked"), TOKENS),
        "bert-large": Maker("texts.bert", ("large", "masked"), TOKENS),
        "bert-large-uncased": Maker("texts.bert", ("large", "masked"), TOKENS),
        "bert-base-squad": Maker("texts.bert", ("base", "squad"), TOKENS),
        "bert-large-squad": Maker("texts.bert", ("large", "squad"), TOKENS),
        "electra-base": Maker("texts.electra", (), "own"),
        "electra-base-discriminator": Maker("texts.bert", ("base", "electra"), BINARY),
        "electra-base-squad": Maker("texts.bert", ("base", "squad"), TOKENS),
        **{
            f"transformer-xl-{size}{end}": Maker("memories.transformer_xl", (size, adaptive), "own")
            for size in ("base", "large")
            for end, adaptive in (("", True), ("-full", False))
        },
        **{
            name: Maker("words.encoder", (name,), TOKENS)
            for name in (
                "bert-base-mlm",
                "roberta-base",
                "distilbert",
                "electra-small",
            )
        },
        **{
            name: Maker("words.decoder", (name,), TOKENS)
            for name in (
                "gpt2",
                "gpt2-medium",
            )
        },
        **{
            name: Maker("words.pair", (name,), TOKENS)
            for name in (
                "transformer-big",
                "bart-base",
                "t5-small",
            )
        },
        "ssd300": Maker("detectors.ssd", (), "own"),
        "yolov3": Maker("detectors.yolo", (), "own"),
        "unet": Maker("volumes.plain_unet", (), TOKENS),
        "dlrm": Maker("tables.dlrm", (), BINARY),
        "waveglow": Maker("frames.waveglow", (), "own"),
        "gnmt": Maker("texts.gnmt", (), TOKENS),
        "ncf": Maker("tables.ncf", (), BINARY),
        "wide-and-deep": Maker("tables.wide_and_deep", (), BINARY),
        "vae-cf": Maker("tables.vae_cf", (), "own"),
        "nnunet-2d": Maker("volumes.unet", (2,), TOKENS),
        "nnunet-3d": Maker("volumes.unet", (3,), TOKENS),
        "unet3d-medical": Maker("volumes.unet", (3,), TOKENS),
        "mask-rcnn-r50-fpn": Maker("detectors.mask_rcnn", (), "own"),
        "mask-rcnn-r50-fpn-fixed": Maker("detectors.fixed_mask_rcnn", (), "own"),
        "jasper": Maker("frames.jasper", (), TOKENS),
    }
)
"""By the name of the network."""


def records() -> Iterator[tuple[str, int]]:
    """Yield the name and length of every record."""
    for name, row in NETWORKS.items():
        for length in row.lengths:
            yield name, length
