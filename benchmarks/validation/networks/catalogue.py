"""All networks of the catalogue by the names that published rows use."""

from __future__ import annotations

from benchmarks.validation.networks import (
    causal,
    darknet,
    detectors,
    encoders,
    inception,
    inverted,
    mobile,
    patches,
    plain,
    recommenders,
    regnet,
    residual,
    segmentation,
    sequences,
    small,
    speech,
    transformers,
    translators,
    volumes,
)
from benchmarks.validation.networks.network import Network, spelled_alike
from benchmarks.validation.networks.recorded_only import RECORDED_ONLY
from policysearch.values import InputError, near_miss

NETWORKS: dict[str, Network] = {
    name: network
    for family in (
        residual,
        plain,
        inception,
        regnet,
        mobile,
        inverted,
        patches,
        segmentation,
        detectors,
        darknet,
        volumes,
        transformers,
        encoders,
        translators,
        causal,
        sequences,
        speech,
        recommenders,
        small,
    )
    for name, network in family.NETWORKS.items()
}


SAME: dict[str, tuple[str, ...]] = {
    "resnet18": ("resnet18 v1.5",),
    "resnet34": ("resnet34 v1.5",),
    "resnet50": ("resnet50 v1.5", "resnet50 v1b"),
    "resnet101": ("resnet101 v1.5", "resnet101 v1b"),
    "resnet152": ("resnet152 v1.5", "resnet152 v1b"),
    "inception_v3": ("inception3",),
    "inception_v4": ("inception4",),
    "mobilenet_v2": ("mobilenetv2_100",),
    "mobilenet_v3_large": ("mobilenetv3_large_100",),
    "mobilenet_v3_small": ("mobilenetv3_small_100",),
    "regnet_y_400mf": ("regnety_004",),
    "regnet_y_800mf": ("regnety_008",),
    "regnet_y_1_6gf": ("regnety_016",),
    "regnet_y_3_2gf": ("regnety_032",),
    "regnet_y_8gf": ("regnety_080",),
    "regnet_y_16gf": ("regnety_160",),
    "regnet_y_32gf": ("regnety_320",),
    "vit_b_16": ("vit_base_patch16_224", "deit_base_patch16_224"),
    "vit_b_32": ("vit_base_patch32_224",),
    "vit_l_16": ("vit_large_patch16_224",),
    "vit_l_32": ("vit_large_patch32_224",),
    "vit_h_14": ("vit_huge_patch14_224",),
    "swin_t": ("swin_tiny_patch4_window7_224", "swin_tiny"),
    "swin_s": ("swin_small_patch4_window7_224", "swin_small"),
    "swin_b": ("swin_base_patch4_window7_224", "swin_base"),
    "swin_l": ("swin_large_patch4_window7_224", "swin_large"),
    "ssd300-resnet50": ("ssd300 v1.1", "ssd"),
    "mask-rcnn-r50-fpn": ("maskrcnn_resnet50_fpn", "mask rcnn"),
    "faster-rcnn-r50-fpn": ("fasterrcnn_resnet50_fpn", "faster rcnn"),
    "retinanet-r50-fpn": ("retinanet_resnet50_fpn", "retinanet"),
    "transformer": ("transformer-big",),
    "distilbert-base": ("distilbert", "distilbert-base-uncased"),
    "distilroberta-base": ("distilroberta",),
    "electra-small": ("electra-small-discriminator",),
    "electra-base": ("electra-base-discriminator",),
    "electra-large": ("electra-large-discriminator",),
    "gpt2": ("gpt2-small", "gpt2-124m"),
    "llama 2 7b": ("llama-2-7b-hf",),
    "llama 2 13b": ("llama-2-13b-hf",),
    "llama3 8b": ("llama 3.1 8b", "meta-llama-3-8b"),
    "mistral-7b": ("mistral-7b-v0.1",),
    "gnmt": ("gnmt v2",),
    "ncf": ("neumf",),
    "quartznet15x5": ("quartznet",),
    "wav2vec2-base": ("wav2vec2",),
}
"""Other names of the same layers."""


def network_named(name: str) -> Network:
    """Return a network; InputError where there is none.

    Letters and digits count, and that two numbers are parted, not by what. An owner before a slash
    is left out.
    """
    networks = NETWORKS | RECORDED_ONLY
    spelled = {spelled_alike(key): key for key in networks}
    spelled |= {spelled_alike(other): key for key, others in SAME.items() for other in others}
    for given in (name, name.rpartition("/")[2]):
        if found := spelled.get(spelled_alike(given)):
            return networks[found]
    raise InputError(f"unknown network {name!r}{near_miss(name, networks)}")
