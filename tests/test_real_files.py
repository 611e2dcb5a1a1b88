"""Files that people have for their trainers: what each gives a net, its traps, and written back."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from policysearch.export.targets import read_file, target_named
from policysearch.policy.normal_forms import in_full, normal
from policysearch.policy.policy import Policy
from policysearch.values import InputError

FILES = Path(__file__).parent / "data" / "trainers"
SHORT = {
    "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2", "float4_e2m1fn": "e2m1",
    "bfloat16": "bf16", "float16": "f16", "float32": "f32",
}  # fmt: skip


class Net:
    """A net of so many linears: its names alone, and sides that every target takes."""

    def __init__(self, linears: list[str], others: list[str]) -> None:
        self.layer_types = dict.fromkeys(linears, "Linear") | dict.fromkeys(others, "Norm")
        self.layer_names = tuple(self.layer_types)
        self.name = "net"

    def parameters_of(self, layer: str) -> list[Any]:
        return [SimpleNamespace(shape=(64, 128) if self.layer_types[layer] == "Linear" else (64,))]


def stack(prefix: str, leaves: str, blocks: int = 3) -> list[str]:
    return [f"{prefix}.{i}.{leaf}" for i in range(blocks) for leaf in leaves.split()]


LATENT = "q_a_proj q_b_proj kv_a_proj_with_mqa kv_b_proj o_proj"
GATED = "gate_proj up_proj down_proj"
PARTS = [
    *(f"self_attn.{x}" for x in LATENT.split()),
    "mlp.gate",
    *(f"mlp.experts.{i}.{x}" for i in range(2) for x in GATED.split()),
    *(f"mlp.shared_experts.{x}" for x in GATED.split()),
]
HYBRID = [
    *stack("backbone.layers", "mixer.in_proj mixer.out_proj", 2),
    "backbone.layers.2.mixer.q_proj",
    "backbone.layers.2.mixer.k_proj",
    "backbone.layers.2.mixer.v_proj",
    "backbone.layers.2.mixer.o_proj",
    "backbone.layers.3.mixer.up_proj",
    "backbone.layers.3.mixer.down_proj",
]
LLAMA = "attention.wq attention.wk attention.wv attention.wo feed_forward.w1 feed_forward.w2"
NETS: dict[str, Any] = {
    "experts": Net([*stack("model.layers", " ".join(PARTS)), "lm_head"], ["model.norm"]),
    "hybrid": Net([*HYBRID, "lm_head"], ["backbone.norm_f"]),
    "llama": Net([*stack("layers", f"{LLAMA} router.gate"), "output", "lm_head"], ["norm"]),
    "decoder": Net(["decoder.layers_0.mlp.wi", "decoder.layers_1.mlp.wo", "logits"], ["norm"]),
    "fused": Net(stack("decoder", "attn.qkv attn.proj mlp.fc1 mlp.fc2"), ["norm"]),
}


def word(policy: Policy, layer: str) -> str:
    """Return what a layer's products read, and the recipes of what is narrow."""
    rows = in_full(policy, layer).values()
    read = [f"{SHORT[x.first.format]}x{SHORT[x.second.format]}" for x in rows]
    recipes = {o.scaling.recipe for x in rows for o in x.operands if o.scaling is not None}
    said = read[0].partition("x")[0] if len({*read}) == 1 and not recipes else " ".join(read)
    return " ".join((said, *sorted(recipes)))


MX = "e4m3xe4m3 e4m3xe4m3 e4m3xe4m3 mx_rceil"
BLOCKS = "e4m3xe4m3 e4m3xe4m3 e4m3xe4m3 blocks"
NV = "e2m1xe2m1 e2m1xe2m1 e2m1xe2m1 nvfp4"
ROWS = "e4m3xe4m3 e4m3xe4m3 e4m3xe4m3 rowwise"
WHOLE = "e4m3xe4m3 e5m2xe4m3 e5m2xe4m3 current"
EXPERT = r"mlp\.experts"
SHARED, LATENT_UP = r"shared_experts", r"kv_b_proj"
ENDS = r"layers\.0\.attention\.wq|lm_head|norm"
"""Of the net of linears: the first and the last, which Accelerate leaves wide."""
NOT_THERE = r"lm_head|mlp\.gate$|norm"
"""Of the net of experts: what Megatron-LM's file cannot speak of."""


@dataclass(frozen=True)
class Case:
    """What a file gives the linears of a net: by patterns of names, the first that fits."""

    net: str
    gives: tuple[tuple[str, str], ...]
    traps: tuple[str, ...] = ()
    unused: int = 0
    unread: int = 0
    lossless: bool = True


CASES = {
    "megatron-nemotron-h.yaml": Case(
        "hybrid",
        ((r"lm_head|norm", "bf16"), (r"[qkvo]_proj", "bf16"), (r"out_proj", MX), (r"", NV)),
        unused=2,
    ),
    "megatron-manual.yaml": Case(
        "hybrid", ((r"lm_head|norm", "bf16"), (r"\.[qkvo]_proj", "bf16"), (r"", MX))
    ),
    "megatron-latent-attention.yaml": Case(
        "experts",
        ((NOT_THERE, "bf16"), (SHARED, "bf16"), (LATENT_UP, "bf16"), (r"", MX)),
        unused=2,
    ),
    "megatron-latent-attention-ends.yaml": Case(
        "experts",
        (
            (NOT_THERE, "bf16"),
            (r"layers\.[02]\.", "bf16"),
            (SHARED, "bf16"),
            (LATENT_UP, "bf16"),
            (r"", MX),
        ),
        unused=4,
    ),
    "megatron-routed-experts.yaml": Case(
        "experts", ((EXPERT, NV), (r"", "bf16")), ("takes grouped experts",) * 2
    ),
    "megatron-routed-experts-ends.yaml": Case(
        "experts",
        ((r"layers\.2\.", "bf16"), (EXPERT, NV), (r"", "bf16")),
        ("takes grouped experts",) * 2,
    ),
    "megatron-two-recipes.yaml": Case(
        "experts",
        ((NOT_THERE, "bf16"), (EXPERT, NV), (r"", BLOCKS)),
        ("takes grouped experts",) * 2,
        unused=1,
    ),
    "deepspeed-hf-zero2.json": Case("llama", ((r"", "f32"),), ("enabled is 'auto'",)),
    "deepspeed-axolotl-zero1.json": Case("llama", ((r"", "f32"),), ("enabled is 'auto'",)),
    "deepspeed-axolotl-zero3-bf16.json": Case("llama", ((r"", "bf16"),), ("casts the whole",)),
    "deepspeed-fp8-block.json": Case("llama", ((r"", "f32"),), ("fp8: not read",)),
    "deepspeed-fp16-zero2.json": Case(
        "llama", ((r"", "f16"),), ("hysteresis: 2", "min_loss_scale", "casts the whole")
    ),
    "deepspeed-low-masters.json": Case(
        "llama", ((r"", "bf16"),), ("casts the whole module", "masters and states are kept low")
    ),
    "deepspeed-autocast.json": Case(
        "llama", ((r"", "bf16"),), ("lower_precision_safe_modules: classes",)
    ),
    "torchtitan-llama3-405b.toml": Case(
        "llama", ((r"output|norm", "bf16"), (r"", WHOLE)), lossless=False
    ),
    "torchtitan-llama4.toml": Case("llama", ((r"", "bf16"),), unused=2),
    "torchtitan-guide.toml": Case(
        "llama",
        ((r"output|norm", "bf16"), (r"", WHOLE)),
        ("auto_filter_small_kn: small linears",),
        lossless=False,
    ),
    "torchtitan-guide-mx.toml": Case("llama", ((r"output|norm", "bf16"), (r"", MX))),
    "torchtitan-llama3-debug.txt": Case(
        "llama", ((r"norm", "bf16"), (r"", WHOLE)), lossless=False
    ),
    "torchtitan-deepseek-v3.txt": Case(
        "llama", ((r"lm_head|router\.gate|norm", "bf16"), (r"", ROWS))
    ),
    "torchtitan-qwen3-14b.txt": Case(
        "llama",
        ((r"lm_head|norm", "bf16"), (r"", ROWS)),
        ("auto_filter_small_kn: small linears",),
        unused=1,
    ),
    "torchtitan-world-model.txt": Case(
        "llama", ((r"output|norm", "bf16"), (r"", WHOLE)), unused=4, lossless=False
    ),
    "qwix-maxtext.txt": Case(
        "decoder",
        ((r"^decoder", "e4m3xe4m3 e5m2xe4m3 e5m2xe4m3 rowwise"), (r"", "f32")),
        ("no dtypes of modules",),
        lossless=False,
    ),
    "qwix-maxtext-int8.txt": Case(
        "decoder", ((r"", "f32"),), ("no dtypes of modules", "no such product here")
    ),
    "qwix-tiles.txt": Case(
        "decoder",
        ((r"norm", "f32"), (r"", "e4m3xe4m3 e4m3xe4m3 e4m3xe4m3 blocks")),
        ("no dtypes of modules",),
        lossless=False,
    ),
    "cann-reduce-sum.json": Case("llama", ((r"", "f16"),), ("no dtype in the lists",)),
    "cann-qwen3.json": Case(
        "llama", ((r"", "f16"),), ("no dtype in the lists", "SquareSumV1: no op", "Square: no op")
    ),
    "cann-manual.json": Case(
        "llama",
        ((r"", "f16"),),
        ("no dtype in the lists", "Xlog1py: no op", "Cast: no op", "Bias: no op"),
    ),
    "te_debug-fc1-fc2.yaml": Case(
        "fused",
        (
            (r"norm", "bf16"),
            (r"fc1", "e4m3xe4m3 e5m2xe4m3 e5m2xe4m3 current delayed"),
            (r"fc2", "e4m3xe4m3 e5m2xe5m2 e5m2xe4m3 current"),
            (r"", "e4m3xe4m3 e5m2xe4m3 e5m2xe4m3 delayed"),
        ),
        ("DisableFP8GEMM is an old name",),
        lossless=False,
    ),
    "te_debug-backward.yaml": Case(
        "fused",
        (
            (r"norm", "bf16"),
            (r"qkv|fc2", "e4m3xe4m3 bf16xbf16 bf16xbf16 current"),
            (r"", WHOLE),
        ),
        ("no line # recipe", "DisableFP8GEMM is an old name"),
    ),
    "megatron-mtp.yaml": Case("experts", ((NOT_THERE, "bf16"), (r"", MX)), unused=1),
    "deepspeed-zero3-probe.json": Case(
        "llama", ((r"", "f16"),), ("hysteresis: 2", "min_loss_scale", "casts the whole module")
    ),
    "deepspeed-autocast-owner.json": Case("llama", ((r"", "bf16"),)),
    "qwix-ltx2.txt": Case("decoder", ((r"", "f32"),), ("no dtypes of modules",), unread=1),
    "qwix-omegalax.txt": Case(
        "decoder", ((r"", "f32"),), ("no dtypes of modules", "tiles of tile_size"), unread=2
    ),
    "torchtitan-grouped.txt": Case(
        "llama", ((r"output|router\.gate|norm", "bf16"), (r"", ROWS))
    ),
    "torchtitan-llama3-emulate.txt": Case(
        "llama", ((r"norm", "bf16"), (r"", WHOLE)), ("emulate: true drops",), lossless=False
    ),
    "te_debug-bridge.yaml": Case(
        "fused", ((r"norm", "bf16"), (r"", WHOLE)), ("no line # recipe",)
    ),
    "torchao-lerobot.txt": Case("llama", ((r"norm", "f32"), (r"", WHOLE)), lossless=False),
    "torchao-output.txt": Case(
        "llama", ((r"output|norm", "f32"), (r"", WHOLE)), unread=1, lossless=False
    ),
    "torchao-tinystories.txt": Case(
        "llama", ((r"norm", "f32"), (r"", WHOLE)), unread=1, lossless=False
    ),
    "torchao-birefnet.txt": Case("llama", ((ENDS, "bf16"), (r"", WHOLE)), unread=1),
    "torchao-clm.txt": Case("llama", ((ENDS, "bf16"), (r"", WHOLE))),
    "torchao-trl.txt": Case("llama", ((ENDS, "bf16"), (r"", WHOLE)), ("no pad_inner_dim",)),
    "apex-events.txt": Case("llama", ((r"", "f16"),), unread=1),
    "mindspore-densenet.txt": Case("llama", ((r"", "f16"),)),
    "keras-training.txt": Case("llama", ((r"", "f16"),)),
    "fsdp2-llama.txt": Case("llama", ((r"", "bf16"),)),
    "te_debug-statistics.yaml": Case(
        "fused",
        ((r"norm", "bf16"), (r"", WHOLE)),
        ("no line # recipe", "takes every number that begins so"),
    ),
}  # fmt: skip


def test_every_file_has_its_case() -> None:
    assert {path.name for path in FILES.iterdir()} == {*CASES, "README.md"}
    assert len(CASES) >= 20 and len({name.partition("-")[0] for name in CASES}) >= 5
    listed = (FILES / "README.md").read_text(encoding="utf-8")
    patterns = [re.escape(x).replace(r"\*", r".*") for x in re.findall(r"`([\w*.-]+)`", listed)]
    for name in CASES:
        assert any(re.match(pattern, name) for pattern in patterns), name


@pytest.mark.parametrize("name", CASES)
def test_a_real_file_is_read_and_written_back(name: str) -> None:
    case, target = CASES[name], target_named(name.partition("-")[0])
    net = NETS[case.net]
    text = (FILES / name).read_text(encoding="utf-8")
    reading = read_file(name.partition("-")[0], text, net, name)
    for layer in net.layer_names:
        wanted = next(text for pattern, text in case.gives if re.search(pattern, layer))
        assert word(reading.policy, layer) == wanted, layer
    assert len(reading.traps) == len(case.traps), reading.traps
    for said, line in zip(case.traps, reading.traps, strict=True):
        assert said in line
    assert len(reading.unused) == case.unused, reading.unused
    assert len(reading.unread) == case.unread, reading.unread
    running = target.runs(reading.policy, net)
    again = target.read(target.export(reading.policy, net), net, "again").policy
    assert replace(normal(again), name="") == replace(normal(running), name="")
    same = all(word(running, x) == word(reading.policy, x) for x in net.layer_names)
    assert same == case.lossless
    assert same or target.losses(reading.policy, net)


def test_a_path_of_qwix_that_is_no_pattern_is_one_line() -> None:
    """qwix fails at the first module; what is read here names the rule."""
    rule = 'qwix.QtRule(module_path="blocks/(.*", weight_qtype="float8_e4m3fn")'
    with pytest.raises(InputError, match=r"rules\.py: rule 0 .*unterminated.*; expected a regular"):
        target_named("qwix").read(f"import qwix\nrules = [{rule}]\n", NETS["fused"], "rules.py")
