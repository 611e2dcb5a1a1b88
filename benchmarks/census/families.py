"""More families of transformers, in tiny configurations."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from benchmarks.census.libraries import (
    CLASSES,
    DRY,
    GROUPED,
    OLD,
    SIZES,
    SMALL_HEADS,
    TIME,
    TOKENS,
    Decoder,
    Masked,
)
from benchmarks.census.net import Inputs, Net, both, normal, whole
from tests.census import timm_models

NO_DROPS: Mapping[str, Any] = MappingProxyType(
    {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
)
SPECIAL: Mapping[str, Any] = MappingProxyType(
    {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
)

ENCODERS: Mapping[str, tuple[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "DistilBert": (
            "MaskedLM",
            {"n_layers": 2, "n_heads": 4, "dim": 16, "hidden_dim": 32, "dropout": 0.0},
        ),
        "DebertaV2": (
            "MaskedLM",
            {**DRY, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
        ),
        "XLNet": (
            "LMHead",
            {"d_model": 16, "n_layer": 2, "n_head": 4, "d_inner": 32, "dropout": 0.0},
        ),
        "Longformer": ("MaskedLM", {**DRY, "attention_window": 4, "max_position_embeddings": 20}),
        "ModernBert": ("MaskedLM", {"local_attention": 4, **SPECIAL, "cls_token_id": 1}),
        "RoFormer": ("MaskedLM", {**DRY, "embedding_size": 16}),
        "MPNet": ("MaskedLM", {**DRY, "max_position_embeddings": 20}),
        "SqueezeBert": ("MaskedLM", {**DRY, "embedding_size": 16}),
        "LayoutLM": ("TokenClassification", DRY),
        "Funnel": (
            "MaskedLM",
            {"block_sizes": (1, 1), "d_model": 16, "n_head": 4, "d_head": 4, "d_inner": 32}
            | {"hidden_dropout": 0.0, "attention_dropout": 0.0},
        ),
    }
)
"""Encoders that read tokens and a mask of those that are no padding."""

DECODERS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "GPTNeo": {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]}
        | {"window_size": 4, "use_cache": False},
        "GPTBigCode": {**OLD, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0},
        "CodeGen": {**OLD, "n_ctx": 16, "rotary_dim": 4},
        "XGLM": {"d_model": 16, "ffn_dim": 32, "num_layers": 2, "attention_heads": 4, **NO_DROPS}
        | {"use_cache": False},
        "Phi3": {**GROUPED, **SPECIAL},
        "Gemma3Text": {**SMALL_HEADS, "sliding_window": 4, "query_pre_attn_scalar": 8},
        "Olmo2": GROUPED,
        "Starcoder2": {**GROUPED, "sliding_window": 4},
        "Nemotron": SMALL_HEADS,
        "DiffLlama": GROUPED,
        "MiniCPM3": {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 4}
        | {"qk_rope_head_dim": 4, "v_head_dim": 4, "use_cache": False},
        "RecurrentGemma": {"lru_width": 16, "attention_window_size": 4, "use_cache": False}
        | {"num_hidden_layers": 3},
        "Mamba2": {"num_heads": 4, "head_dim": 8, "state_size": 4, "n_groups": 1, "chunk_size": 4}
        | {"use_cache": False},
        "FalconMamba": {"state_size": 4, "use_cache": False, **SPECIAL},
        "Persimmon": {"use_cache": False, "hidden_dropout": 0.0, "attention_dropout": 0.0},
    }
)
"""Decoders that read tokens alone."""


class Called(nn.Module):
    """A model of transformers that is called with its arguments by name; its first result."""

    def __init__(self, net: Any, *names: str) -> None:
        super().__init__()
        self.net, self.names = net, names

    def forward(self, *values: torch.Tensor) -> Any:
        named = dict(zip(self.names, values, strict=True))
        return self.net(**named, return_dict=False)[0]


def _made(family: str, kind: str, options: Mapping[str, Any], *names: str) -> Callable[[], Any]:
    def make() -> Any:
        timm_models()  # transformers imports torchvision too
        library = importlib.import_module("transformers")
        config = getattr(library, f"{family}Config")(**options)
        net = getattr(library, kind)(config)
        if names == ("ids",):
            return Decoder(net)
        return Masked(net) if names == ("ids", "mask") else Called(net, *names)

    return make


def _tokens_and_mask(generator: torch.Generator, batch: int) -> tuple[torch.Tensor, ...]:
    ids = torch.randint(3, TOKENS, (batch, TIME), generator=generator)
    lengths = torch.randint(TIME // 2, TIME + 1, (batch, 1), generator=generator)
    return ids, (torch.arange(TIME) < lengths).long()


VIT: Mapping[str, Any] = MappingProxyType(
    {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
    | {"image_size": 16, "patch_size": 4, "num_labels": CLASSES}
)
BART: Mapping[str, Any] = MappingProxyType(
    {"vocab_size": TOKENS, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, **NO_DROPS}
    | {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 32}
    | {"decoder_ffn_dim": 32, "max_position_embeddings": 16, "use_cache": False, **SPECIAL}
)
WAV: Mapping[str, Any] = MappingProxyType(
    {**{k: SIZES[k] for k in SIZES if k != "max_position_embeddings"}, "layerdrop": 0.0}
    | {
        "conv_dim": (8, 8),
        "conv_kernel": (6, 3),
        "conv_stride": (3, 2),
        "apply_spec_augment": False,
    }
    | {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "hidden_dropout": 0.0}
    | {"num_feat_extract_layers": 2, "final_dropout": 0.0, **NO_DROPS}
)
pictures = normal((3, 16, 16))
seq2seq = whole((TOKENS, (TIME,)), (TOKENS, (6,)), lowest=3)
IDS = ("input_ids", "decoder_input_ids")
PIXELS = ("pixel_values",)

OTHERS: Mapping[str, tuple[str, Mapping[str, Any], tuple[str, ...], Inputs]] = MappingProxyType(
    {
        "BartForConditionalGeneration": ("Bart", BART, IDS, seq2seq),
        "WhisperForConditionalGeneration": (
            "Whisper",
            {**BART, "num_mel_bins": 8, "max_source_positions": 8, "max_target_positions": 16}
            | {"decoder_start_token_id": 1, "suppress_tokens": None, "begin_suppress_tokens": None},
            ("input_features", "decoder_input_ids"),
            both(normal((8, 16)), whole((TOKENS, (6,)))),
        ),
        "Wav2Vec2ForCTC": ("Wav2Vec2", WAV, ("input_values",), normal((120,))),
        "ASTForAudioClassification": (
            "AST",
            {**VIT, "frequency_stride": 4, "time_stride": 4, "max_length": 16, "num_mel_bins": 8},
            ("input_values",),
            normal((16, 8)),
        ),
        "ViTForImageClassification": ("ViT", VIT, PIXELS, pictures),
        "Dinov2ForImageClassification": ("Dinov2", VIT, PIXELS, pictures),
        "VideoMAEForVideoClassification": (
            "VideoMAE",
            {**VIT, "num_frames": 4, "patch_size": 8},
            PIXELS,
            normal((4, 3, 16, 16)),
        ),
        "PatchTSTForPrediction": (
            "PatchTST",
            {"num_input_channels": 3, "context_length": 16, "patch_length": 4, "patch_stride": 4}
            | {"d_model": 16, "ffn_dim": 32, "num_hidden_layers": 2, "prediction_length": CLASSES},
            ("past_values",),
            normal((16, 3)),
        ),
        "DecisionTransformerModel": (
            "DecisionTransformer",
            {"state_dim": 6, "act_dim": 3, "hidden_size": 16, "n_layer": 2, "n_head": 4}
            | {"max_ep_len": 16, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
            ("states", "actions", "rewards", "returns_to_go", "timesteps", "attention_mask"),
            both(
                normal((TIME, 6), (TIME, 3), (TIME, 1), (TIME, 1)),
                whole((16, (TIME,)), (2, (TIME,))),
            ),
        ),
    }
)
"""Other families: the name of the configuration, its values, arguments by name, and what is fed."""

NETS: Mapping[str, Net] = MappingProxyType(
    {
        **{
            f"{name}For{head}": Net(
                _made(
                    name,
                    f"{name}{head}Model" if head == "LMHead" else f"{name}For{head}",
                    {**({"vocab_size": TOKENS} if "d_model" in options else SIZES), **options},
                    "ids",
                    "mask",
                ),
                _tokens_and_mask,
            )
            for name, (head, options) in ENCODERS.items()
        },
        **{
            f"{name.removesuffix('Text')}ForCausalLM": Net(
                _made(
                    name,
                    f"{name.removesuffix('Text')}ForCausalLM",
                    {**SIZES, **options},
                    "ids",
                ),
                whole((TOKENS, (TIME,))),
            )
            for name, options in DECODERS.items()
        },
        **{
            name: Net(_made(family, name, options, *arguments), inputs)
            for name, (family, options, arguments, inputs) in OTHERS.items()
        },
    }
)
