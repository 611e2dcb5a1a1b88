"""Nets of timm and transformers that no part before has, in tiny configurations."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from benchmarks.census.libraries import (
    DRY,
    GROUPED,
    SMALL_HEADS,
    nets_of,
)
from benchmarks.census.net import Net

IMAGES: Mapping[str, tuple[int, Mapping[str, Any]]] = MappingProxyType(
    {
        **{
            name: (64, {}) for name in ("gernet_s", "mobileone_s0", "repghostnet_050", "hgnet_tiny")
        },
        **{name: (64, {}) for name in ("tinynet_e", "lcnet_035", "fbnetc_100", "mixnet_s")},
        **{name: (256, {}) for name in ("eca_halonext26ts", "bat_resnext26ts")},
        **{name: (224, {}) for name in ("efficientformer_l1", "tiny_vit_5m_224")},
        **{name: (64, {}) for name in ("inception_next_atto", "fasternet_t0", "repvit_m0_9")},
        **{name: (64, {}) for name in ("swiftformer_xs", "shvit_s1", "ghostnetv2_100", "dpn68")},
        **{
            name: (64, {})
            for name in ("mobilenetv4_conv_small_035", "regnetv_040", "res2net50_48w_2s")
        },
        **{name: (64, {}) for name in ("davit_tiny", "caformer_s18", "tresnet_m", "cspdarknet53")},
        **{name: (64, {}) for name in ("ese_vovnet19b_slim_dw", "semnasnet_075", "resnetv2_18")},
        "botnet26t_256": (64, {"img_size": 64}),
        "visformer_tiny": (64, {"img_size": 64}),
        "twins_pcpvt_small": (64, {"img_size": 64}),
        "pit_ti_224": (64, {"img_size": 64}),
        "sequencer2d_s": (64, {"img_size": 64}),
        "nest_tiny": (64, {"img_size": 64}),
        "mvitv2_tiny": (64, {"img_size": 64}),
        "eva02_tiny_patch14_224": (28, {"img_size": 28, "depth": 2}),
        "gcvit_xxtiny": (224, {}),
        "efficientnet_lite0": (64, {}),
        "deit_tiny_distilled_patch16_224": (32, {"img_size": 32, "depth": 2}),
    }
)
"""Nets of timm: the side of the image and what their maker is told."""

MASKED: Mapping[str, tuple[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "Ernie": ("MaskedLM", DRY),
        "BigBird": ("MaskedLM", {**DRY, "attention_type": "original_full"}),
        "MegatronBert": ("MaskedLM", DRY),
        "RemBert": ("MaskedLM", {**DRY, "input_embedding_size": 16, "output_embedding_size": 16}),
        "IBert": ("MaskedLM", {**DRY, "max_position_embeddings": 20}),
        "Data2VecText": ("MaskedLM", {**DRY, "max_position_embeddings": 20}),
        "Yoso": ("MaskedLM", {**DRY, "use_expectation": True}),
    }
)
"""Encoders of transformers, which read tokens and a mask of those that are no padding."""

EXPERTS: Mapping[str, Any] = MappingProxyType(
    {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
)
CAUSAL: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "BioGpt": {
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
            "activation_dropout": 0.0,
            "use_cache": False,
        },
        "Mpt": {"d_model": 16, "n_heads": 4, "n_layers": 2, "use_cache": False},
        "GPTJ": {
            "n_embd": 16,
            "n_layer": 2,
            "n_head": 2,
            "rotary_dim": 4,
            "n_positions": 16,
            "use_cache": False,
        },
        "Glm": {**SMALL_HEADS, "pad_token_id": 0},
        "Glm4": {**SMALL_HEADS, "pad_token_id": 0},
        "SmolLM3": {**GROUPED, "pad_token_id": 0},
        "Helium": {**GROUPED, "head_dim": 4, "pad_token_id": 0},
        "Cohere2": {**GROUPED, "head_dim": 4},
        "Arcee": GROUPED,
        "Olmo3": {**GROUPED, "pad_token_id": 0},
        "Apertus": {**GROUPED, "pad_token_id": 0},
        "SeedOss": {**SMALL_HEADS, "pad_token_id": 0, "residual_dropout": 0.0}
        | {"attention_dropout": 0.0},
        "Exaone4": {**GROUPED, "sliding_window": 4, "sliding_window_pattern": 2},
        "Lfm2": {**GROUPED, "full_attn_idxs": [1], "pad_token_id": 0, "block_multiple_of": 8},
        "Rwkv": {"attention_hidden_size": 16, "context_length": 16, "use_cache": False},
        "xLSTM": {"num_heads": 2, "num_blocks": 2, "use_cache": False, "return_last_states": False},
        "Qwen2Moe": {**GROUPED, **EXPERTS, "shared_expert_intermediate_size": 16},
        "Olmoe": {**GROUPED, **EXPERTS, "pad_token_id": 0},
        "Qwen3Moe": {**SMALL_HEADS, **EXPERTS},
        "BitNet": {**GROUPED, "pad_token_id": 0},
        "Zamba2": {
            **GROUPED,
            "mamba_d_state": 4,
            "mamba_headdim": 8,
            "n_mamba_heads": 4,
            "mamba_ngroups": 1,
            "layers_block_type": ["mamba", "hybrid"],
            "hybrid_layer_ids": [1],
            "pad_token_id": 0,
        },
        "Bamba": {
            **GROUPED,
            "mamba_d_state": 4,
            "mamba_d_head": 8,
            "mamba_n_heads": 4,
            "mamba_n_groups": 1,
            "attn_layer_indices": [1],
            "pad_token_id": 0,
        },
    }
)
"""Decoders of transformers, which read tokens alone."""

NETS: Mapping[str, Net] = MappingProxyType(nets_of(IMAGES, MASKED, CAUSAL))
