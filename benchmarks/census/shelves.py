"""Nets of timm, torchvision and transformers that no other file has, in tiny configurations."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn

from benchmarks.census.families import _made
from benchmarks.census.libraries import CLASSES, TOKENS, _of_timm
from benchmarks.census.net import Net, normal
from tests.census import timm_models


def _of_torchvision(name: str, **options: Any) -> Callable[[], Any]:
    def make() -> Any:
        timm_models()  # what torchvision is to find
        return getattr(importlib.import_module("torchvision.models"), name)(**options)

    return make


WAVLM: Mapping[str, Any] = MappingProxyType(
    {"vocab_size": TOKENS, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
    | {"intermediate_size": 32, "conv_dim": (8, 8), "conv_kernel": (6, 3), "conv_stride": (3, 2)}
    | {"num_feat_extract_layers": 2, "num_conv_pos_embeddings": 4, "layerdrop": 0.0}
    | {"num_conv_pos_embedding_groups": 2, "apply_spec_augment": False, "final_dropout": 0.0}
    | {"hidden_dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
    | {"num_buckets": 8, "max_bucket_distance": 16}
)
SEGFORMER: Mapping[str, Any] = MappingProxyType(
    {"num_encoder_blocks": 2, "depths": (1, 1), "sr_ratios": (2, 1), "hidden_sizes": (8, 16)}
    | {
        "patch_sizes": (7, 3),
        "strides": (4, 2),
        "num_attention_heads": (1, 2),
        "mlp_ratios": (2, 2),
    }
    | {"decoder_hidden_size": 16, "num_labels": CLASSES, "classifier_dropout_prob": 0.0}
    | {"drop_path_rate": 0.0, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
)


class LastAxis(nn.Module):
    """Maps of classes with the classes last."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Any:
        return self.net(x).permute(0, 2, 3, 1)


NETS: Mapping[str, Net] = MappingProxyType(
    {
        "timm hiera_tiny_224": Net(
            _of_timm(
                "hiera_tiny_224",
                {"img_size": 64, "embed_dim": 16, "num_heads": 1} | {"stages": (1, 1, 1, 1)},
            ),
            normal((3, 64, 64)),
        ),
        "timm resmlp_12_224": Net(_of_timm("resmlp_12_224", {"img_size": 32}), normal((3, 32, 32))),
        "timm lambda_resnet26rpt_256": Net(
            _of_timm("lambda_resnet26rpt_256", {"img_size": 64}), normal((3, 64, 64))
        ),
        "torchvision vit_b_16": Net(
            _of_torchvision(
                "VisionTransformer",
                **{"image_size": 16, "patch_size": 4, "num_layers": 2, "num_heads": 4},
                **{"hidden_dim": 16, "mlp_dim": 32, "num_classes": CLASSES},
            ),
            normal((3, 16, 16)),
        ),
        "WavLMForCTC": Net(_made("WavLM", "WavLMForCTC", WAVLM, "input_values"), normal((120,))),
        "SegformerForSemanticSegmentation": Net(
            lambda: LastAxis(
                _made("Segformer", "SegformerForSemanticSegmentation", SEGFORMER, "pixel_values")()
            ),
            normal((3, 32, 32)),
        ),
    }
)
