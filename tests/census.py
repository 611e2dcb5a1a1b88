"""Tiny configurations of nets that people train, by the libraries that have them."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
import transformers
from torch import nn

from tests import nets_of_torch
from tests.image_nets_of_torch import CLASSES
from tests.nets_of_torch import TOKENS, Inputs, images, tokens

HEADS: Mapping[str, Any] = MappingProxyType(
    {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "use_cache": False}
)


@functools.cache
def timm_models() -> tuple[Any, Any]:
    """Return timm's models, and what torchvision, which they import, is to find.

    Its wheels are built for torch with CUDA and miss their own operators beside another torch. No
    net here uses them; the names are enough, for as long as the library that has them is kept.
    """
    library = torch.library.Library("torchvision", "FRAGMENT")
    try:
        importlib.import_module("torchvision")
    except (RuntimeError, AttributeError):  # an operator does not exist
        for name in ("nms", "qnms"):
            if not hasattr(torch.ops.torchvision, name):
                library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return importlib.import_module("timm").models, library


def _mlp() -> Any:
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.ReLU(), nn.Linear(16, CLASSES))


def _lenet() -> Any:
    return nn.Sequential(
        *(nn.Conv2d(3, 6, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2)),
        *(nn.Conv2d(6, 8, 5), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(32, 16), nn.Sigmoid(), nn.Linear(16, CLASSES)),
    )


def _timm(name: str, **options: Any) -> Callable[[], Any]:
    return lambda: timm_models()[0].create_model(name, num_classes=CLASSES, **options)


def _resnet(block: str, *layers: int) -> Callable[[], Any]:
    def make() -> Any:
        found = timm_models()[0].resnet
        widths = {"channels": (8, 16, 32, 64), "stem_width": 8}
        return found.ResNet(getattr(found, block), layers, num_classes=CLASSES, **widths)

    return make


def _vgg() -> Any:
    return timm_models()[0].vgg.VGG(
        [8, "M", 8, "M", 16, 16, "M", 16, "M"],
        num_classes=CLASSES,
        norm_layer=nn.BatchNorm2d,
        mlp_ratio=0.01,
        drop_rate=0.0,
    )


def _mixer() -> Any:
    make = timm_models()[0].mlp_mixer.MlpMixer
    return make(CLASSES, img_size=32, patch_size=8, num_blocks=2, embed_dim=16)


def _efficientnet() -> Any:
    make = timm_models()[0].efficientnet._gen_efficientnet
    scales = {"channel_multiplier": 0.25, "depth_multiplier": 0.5}
    return make("efficientnet_b0", num_classes=CLASSES, **scales)


class FirstOf(nn.Module):
    """A Hugging Face net that returns its logits alone."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net

    def forward(self, ids: torch.Tensor) -> Any:
        return self.net(input_ids=ids, return_dict=False)[0]


class FirstOfPair(FirstOf):
    """T5: the same tokens go in and come out."""

    def forward(self, ids: torch.Tensor) -> Any:
        return self.net(input_ids=ids, decoder_input_ids=ids, return_dict=False)[0]


def _gpt2() -> Any:
    config = transformers.GPT2Config(
        vocab_size=TOKENS, n_positions=8, n_embd=16, n_layer=2, n_head=4, **HEADS
    )
    return FirstOf(transformers.GPT2LMHeadModel(config))


def _bert() -> Any:
    config = transformers.BertConfig(
        vocab_size=TOKENS,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=32,
        max_position_embeddings=8,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return FirstOf(transformers.BertForMaskedLM(config))


def _t5() -> Any:
    config = transformers.T5Config(
        vocab_size=TOKENS,
        d_model=16,
        d_kv=4,
        d_ff=32,
        num_layers=2,
        num_heads=4,
        dropout_rate=0.0,
        use_cache=False,
    )
    return FirstOfPair(transformers.T5ForConditionalGeneration(config))


def _llama_like(name: str, **options: Any) -> Callable[[], Any]:
    def make() -> Any:
        config = getattr(transformers, f"{name}Config")(
            vocab_size=TOKENS,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=8,
            use_cache=False,
            **options,
        )
        return FirstOf(getattr(transformers, f"{name}ForCausalLM")(config))

    return make


CENSUS: Mapping[str, tuple[Callable[[], Any], Inputs]] = MappingProxyType(
    {
        "mlp": (_mlp, images(8)),
        "lenet": (_lenet, images(16)),
        "resnet18": (_resnet("BasicBlock", 2, 2, 2, 2), images(64)),
        "resnet50": (_resnet("Bottleneck", 3, 4, 6, 3), images(64)),
        "vgg_bn": (_vgg, images(112)),
        "mobilenet_v2": (_timm("mobilenetv2_035"), images(64)),
        "efficientnet": (_efficientnet, images(64)),
        "densenet": (
            _timm("densenet121", growth_rate=4, block_config=(2, 2, 2, 2)),
            images(64),
        ),
        "convnext": (_timm("convnext_atto", depths=(1, 1, 2, 1), dims=(8, 8, 16, 16)), images(64)),
        "mixer": (_mixer, images(32)),
        "vit": (
            _timm(
                "vit_tiny_patch16_224",
                **{"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 4},
            ),
            images(32),
        ),
        "unet": nets_of_torch.NETS["unet"],
        "lstm": nets_of_torch.NETS["lstm"],
        "nanogpt": nets_of_torch.NETS["nanogpt"],
        "gpt2": (_gpt2, tokens),
        "bert": (_bert, tokens),
        "t5": (_t5, tokens),
        "llama": (_llama_like("Llama"), tokens),
        "mixture": (
            _llama_like("Mixtral", num_local_experts=4, num_experts_per_tok=2),
            tokens,
        ),
    }
)
"""The 19 nets of the census: makers of nets and of their inputs."""
