"""Nets of timm and transformers, in tiny configurations, none of them in the tests."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from benchmarks.census.net import Net, normal, whole
from tests.census import timm_models

CLASSES, TOKENS, TIME = 10, 37, 8
PATCHES: Mapping[str, Any] = MappingProxyType(
    {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 4}
)
SWIN: Mapping[str, Any] = MappingProxyType(
    {"img_size": 56, "embed_dim": 16, "depths": (1, 1), "num_heads": (2, 4)}
)

IMAGES: Mapping[str, tuple[int, Mapping[str, Any]]] = MappingProxyType(
    {
        **{name: (64, {}) for name in ("mobilenetv3_small_050", "regnety_002", "ghostnet_050")},
        **{name: (64, {}) for name in ("legacy_seresnet18", "poolformer_s12", "nf_resnet26")},
        **{name: (64, {}) for name in ("mobilevit_xxs", "mobilevitv2_050", "edgenext_xx_small")},
        **{name: (64, {}) for name in ("hrnet_w18_small", "dla34", "vovnet39a", "resnest14d")},
        **{name: (64, {}) for name in ("skresnet18", "cspresnet50", "repvgg_a0", "mnasnet_small")},
        **{name: (64, {}) for name in ("rexnet_100", "selecsls42", "fastvit_t8", "starnet_s1")},
        **{name: (64, {}) for name in ("efficientvit_b0", "focalnet_tiny_srf", "pvt_v2_b0")},
        **{name: (64, {}) for name in ("ecaresnet26t", "gcresnet33ts", "mambaout_femto")},
        "inception_v3": (96, {"aux_logits": False}),
        "xception41": (64, {}),
        "swin_tiny_patch4_window7_224": (56, SWIN),
        "swinv2_tiny_window8_256": (64, {**SWIN, "img_size": 64}),
        "convnextv2_atto": (64, {"depths": (1, 1, 1, 1), "dims": (8, 8, 16, 16)}),
        "beit_base_patch16_224": (32, PATCHES),
        "deit3_small_patch16_224": (32, PATCHES),
        "cait_xxs24_224": (32, PATCHES),
        "convit_tiny": (32, {**PATCHES, "depth": 3}),
        "levit_128s": (224, {}),
        "coat_tiny": (224, {}),
    }
)
"""Nets of timm: the side of the image and what their maker is told."""

SIZES: Mapping[str, Any] = MappingProxyType(
    {
        "vocab_size": TOKENS,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 32,
        "max_position_embeddings": 16,
    }
)
DRY: Mapping[str, Any] = MappingProxyType(
    {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
)
GROUPED: Mapping[str, Any] = MappingProxyType({"num_key_value_heads": 2, "use_cache": False})
SMALL_HEADS: Mapping[str, Any] = MappingProxyType({**GROUPED, "head_dim": 8})
OLD: Mapping[str, Any] = MappingProxyType(
    {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 16, "use_cache": False}
)

MASKED: Mapping[str, tuple[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "Roberta": ("MaskedLM", {**DRY, "max_position_embeddings": 20}),
        "Bert": ("SequenceClassification", DRY),
        "Electra": ("TokenClassification", {**DRY, "embedding_size": 16}),
        "Albert": ("MaskedLM", {"embedding_size": 8}),
        "ConvBert": ("MaskedLM", {**DRY, "embedding_size": 16}),
        "Nystromformer": ("MaskedLM", DRY),
        "MobileBert": (
            "MaskedLM",
            {**DRY, "embedding_size": 16, "intra_bottleneck_size": 16},
        ),
    }
)
"""Encoders of transformers, which read tokens and a mask of those that are no padding."""

CAUSAL: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "OPT": {"ffn_dim": 32, "word_embed_proj_dim": 16, "dropout": 0.0, "use_cache": False},
        "GPTNeoX": {"use_cache": False},
        "Bloom": {"n_layer": 2, "n_head": 4, "use_cache": False},
        "Falcon": {"use_cache": False},
        "Mistral": GROUPED,
        "Qwen2": GROUPED,
        "Qwen3": SMALL_HEADS,
        "Gemma": SMALL_HEADS,
        "Gemma2": SMALL_HEADS,
        "Phi": {"use_cache": False, "resid_pdrop": 0.0},
        "StableLm": GROUPED,
        "Olmo": {"use_cache": False},
        "Granite": GROUPED,
        "Cohere": GROUPED,
        "Mamba": {"state_size": 4, "use_cache": False},
    }
)
"""Decoders of transformers, which read tokens alone."""


class Masked(nn.Module):
    """An encoder of transformers as a user calls it: tokens and their mask go in, logits come."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> Any:
        return self.net(ids, attention_mask=mask, return_dict=False)[0]


class Decoder(nn.Module):
    """A decoder of transformers: tokens go in, logits come."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net

    def forward(self, ids: torch.Tensor) -> Any:
        return self.net(ids, return_dict=False)[0]


def _of_timm(name: str, options: Mapping[str, Any]) -> Callable[[], Any]:
    return lambda: timm_models()[0].create_model(name, num_classes=CLASSES, **options)


def _of_transformers(
    wrapper: Callable[[Any], Any], name: str, head: str, options: Mapping[str, Any]
) -> Callable[[], Any]:
    def make() -> Any:
        timm_models()  # transformers imports torchvision too
        library = importlib.import_module("transformers")
        config = getattr(library, f"{name}Config")(**{**SIZES, **options})
        return wrapper(getattr(library, f"{name}For{head}")(config))

    return make


def _tokens_and_mask(generator: torch.Generator, batch: int) -> tuple[torch.Tensor, ...]:
    ids = torch.randint(3, TOKENS, (batch, TIME), generator=generator)
    lengths = torch.randint(TIME // 2, TIME + 1, (batch, 1), generator=generator)
    return ids, (torch.arange(TIME) < lengths).long()


def nets_of(
    images: Mapping[str, tuple[int, Mapping[str, Any]]],
    masked: Mapping[str, tuple[str, Mapping[str, Any]]],
    causal: Mapping[str, Mapping[str, Any]],
) -> dict[str, Net]:
    """Return nets of timm, and of transformers with a mask and as decoders, by name."""
    return {
        **{
            f"timm {name}": Net(_of_timm(name, options), normal((3, side, side)))
            for name, (side, options) in images.items()
        },
        **{
            f"{name}For{head}": Net(_of_transformers(Masked, name, head, options), _tokens_and_mask)
            for name, (head, options) in masked.items()
        },
        **{
            f"{name}ForCausalLM": Net(
                _of_transformers(Decoder, name, "CausalLM", options), whole((TOKENS, (TIME,)))
            )
            for name, options in causal.items()
        },
    }


NETS: Mapping[str, Net] = MappingProxyType(nets_of(IMAGES, MASKED, CAUSAL))
