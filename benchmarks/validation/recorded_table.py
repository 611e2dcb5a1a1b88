"""Which networks are recorded as graphs: who makes them, their lengths, loss and optimizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

IMAGES = (
    *("resnet18", "resnet34", "resnet50", "resnet101", "resnet152"),
    *("vgg11", "vgg11_bn", "vgg13", "vgg13_bn", "vgg16", "vgg16_bn", "vgg19", "vgg19_bn"),
    *("mnasnet0_5", "mnasnet0_75", "mnasnet1_0", "mnasnet1_3"),
    *("wide_resnet50_2", "wide_resnet101_2", "squeezenet1_0", "squeezenet1_1"),
    "efficientnet_v2_s",
)
"""Networks whose names are those of torchvision."""

PRETRAINING_MICRO_BATCHES = 16
"""Micro-batches of a step of BERT's pretraining with LAMB on one device; assumed."""

MATCHING_SECONDS = 0.05
"""Host seconds per image for masks of polygons, matching and suppression; assumed, with the two
published rows of this network in view."""


@dataclass(frozen=True)
class Recorded:
    """A network that is recorded, one file per sequence length; 0 where there are no sequences.

    `maker` names a function of `benchmarks/validation/modules` as "file.function", called with
    `arguments` and, where there are sequences, the length; the first length is that of a row that
    gives none. `loss` is one of those that `from_torch` takes. The optimizer runs once in
    `micro_batches`. For `host_seconds` an example the device waits for its host.
    """

    maker: str
    arguments: tuple[str | int, ...] = ()
    lengths: tuple[int, ...] = (0,)
    loss: str = "softmax_cross_entropy"
    optimizer: str = "momentum"
    micro_batches: int = 1
    host_seconds: float = 0.0


def _tokens(
    maker: str, arguments: tuple[str, ...], lengths: tuple[int, ...], **rest: object
) -> Recorded:
    told = {"loss": "token_cross_entropy", "optimizer": "adam"} | rest
    return Recorded(maker, arguments, lengths, **told)  # type: ignore[arg-type]


_BINARY = "binary_cross_entropy_with_logits"

RECORDED: Mapping[str, Recorded] = MappingProxyType(
    {name: Recorded("images.image_net", (name,)) for name in IMAGES}
    | {
        "efficientnet-b0": Recorded("images.image_net", ("efficientnet_b0",)),
        "efficientnet-b4": Recorded("images.image_net", ("efficientnet_b4",)),
        "se_resnext101_32x4d": Recorded("images.se_resnext", (101,)),
        "bert-base": _tokens("texts.bert", ("base", "masked"), (128,)),
        "bert-large": _tokens(
            "texts.bert",
            ("large", "masked"),
            (128, 512),
            optimizer="lamb",
            micro_batches=PRETRAINING_MICRO_BATCHES,
        ),
        "bert-large-uncased": _tokens("texts.bert", ("large", "masked"), (512,)),
        "bert-base-squad": _tokens("texts.bert", ("base", "squad"), (384,)),
        "bert-large-squad": _tokens("texts.bert", ("large", "squad"), (384,)),
        "electra-base": _tokens("texts.bert", ("base", "electra"), (128, 512), loss=_BINARY),
        "electra-base-squad": _tokens("texts.bert", ("base", "squad"), (384,)),
        "transformer-xl-base": _tokens(
            "memories.transformer_xl", ("base",), (192,), loss="own", optimizer="lamb"
        ),
        "transformer-xl-large": _tokens(
            "memories.transformer_xl", ("large",), (384,), loss="own", optimizer="lamb"
        ),
        "gnmt": _tokens("texts.gnmt", (), (28,)),
        "ncf": Recorded("tables.ncf", loss=_BINARY, optimizer="adam"),
        "wide-and-deep": Recorded("tables.wide_and_deep", loss=_BINARY, optimizer="adam"),
        "vae-cf": Recorded("tables.vae_cf", loss="own", optimizer="adam"),
        "nnunet-2d": Recorded("volumes.unet", (2,), loss="token_cross_entropy", optimizer="adam"),
        "nnunet-3d": Recorded("volumes.unet", (3,), loss="token_cross_entropy", optimizer="adam"),
        "unet3d-medical": Recorded(
            "volumes.unet", (3,), loss="token_cross_entropy", optimizer="adam"
        ),
        "mask-rcnn-r50-fpn": Recorded(
            "detectors.mask_rcnn", loss="own", host_seconds=MATCHING_SECONDS
        ),
        "jasper": _tokens("frames.jasper", (), (1600,)),
    }
)
"""By the name of the network in the catalogue, or in published rows where it has none there."""


def records() -> Iterator[tuple[str, int]]:
    """Yield the name and length of every record."""
    for name, row in RECORDED.items():
        for length in row.lengths:
            yield name, length
