"""The pages of the export targets: what each says, its traps, and a file it writes."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from types import MappingProxyType

from policysearch.export.reading import grouped
from policysearch.export.targets import Target, targets
from policysearch.files import write_files
from policysearch.nn.models import gpt
from policysearch.policy.presets import preset

POLICIES = ("te.mxfp8", "mindspore.O2")
"""The preset on a page is the first of these whose products the target runs."""

STUDY = "studies/gpt-sums.toml"
KINDS = {".py": "python", ".json": "text"}
SCRIPTS = ("cann",)
"""Targets whose file is run, not imported."""

USE = {
    "deepspeed": (
        "engine, optimizer, *_ = deepspeed.initialize(model=model, config=THIS_FILE, ...)",
    ),
    "te_debug": (
        "debug_api.initialize(config_file=THIS_FILE, feature_dirs=[...])",
        "debug_api.infer_and_assign_layer_names(model)",
        "with autocast(recipe=MXFP8BlockScaling()):  # the recipe in the head of the file",
        "    loss = model(x)",
    ),
}
"""How a file is used that does not say it itself."""

LONGEST = 60
"""Lines of a file that are shown; an exported torch file has some 600."""

TRAPS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "torch": (
            "Accelerate, HF Trainer and Lightning need their one line (`use_in_accelerate`, "
            "`PolicyTrainer`, `lightning_plugin`), or gradients are clipped while scaled.",
            "Make the optimizer after `apply_policy`, and replace layers before it.",
        ),
        "transformer_engine": (
            "In plain Transformer Engine every linear needs a `name=`; a nameless one raises.",
            "Megatron-LM passes no names: its file says `custom_recipe_factory: module.recipe_1` "
            "by glob, and each `recipe_N` looks at the role alone.",
            "`NVTE_NVFP4_DISABLE_*` in the environment changes recipes, not these factories.",
            "Every linear in its autocast, wide or not, has outputs in multiples of 8 and inputs "
            "of 16; in FP8 and NVFP4 both of 16, in MXFP8 of 32. Others stay wide: leave them "
            "`torch.nn.Linear`, or it raises.",
        ),
        "megatron": (
            "The flags in the head are part of the policy: without them a matched recipe does "
            "nothing.",
            "Names are local to the stage of a pipeline: first and last blocks go by flags, and "
            "`--pipeline P` refuses a name that means two formats on P stages.",
            "`--grad-reduce-in-bf16` sums over micro-batches in bfloat16 as well.",
            "Where products differ within a linear, `te_recipes.py` beside the YAML has their "
            "factories: put it on the path of the run.",
            "A file of your own is read with the flags of its run in its first line: "
            "`# flags: --bf16 --fp8-format e4m3 --fp8-recipe mxfp8`.",
            "A matcher without `enabled: true` is dropped, two of one name are one, and an unknown "
            "recipe fails at the first step: `inspect` says so before.",
        ),
        "te_debug": (
            "The recipe around it is the script's, and part of the policy: the head says which.",
            "Patterns are looked for anywhere in a name, a layer in two sections raises, and one "
            "that matches nothing is silent: `inspect` names it.",
            "Debug mode is slow: for a run take the factories of `transformer_engine`.",
        ),
        "torchtitan": (
            "A text is looked for anywhere in a name: `layers.1` takes layers.10, `layers.1.` not.",
            "`emulate=True` drops the recipe, and MXFP8 with an empty list takes every linear.",
            "Products of one linear cannot differ but by `rowwise_with_gw_hp`: `torchao` has all.",
        ),
        "torchao": (
            "A second `convert_to_float8_training` without an exact filter converts again.",
            "torchao converts sizes that are no multiples of 16, and a GPU refuses them: `is_low` "
            "does before.",
        ),
        "qwix": (
            "A path is matched whole, joined by slashes, and the first rule wins; one that matches "
            "nothing is silent there: the file raises.",
            "With `scan_layers` of MaxText all blocks are one path: nothing differs by block.",
            "qwix multiplies a gradient by the scale of what it meets before rounding it, and XLA "
            "by reciprocals: recipe `shifted`.",
        ),
        "fsdp2": (
            "Without `output_dtype` on the root the loss is in the dtype of the last wrap.",
            "A `param_dtype` on the root rounds the input before a float32 first child reads it.",
            "Its wrap is a block: one wide layer with parameters in it makes all of it wide.",
        ),
        "apex": (
            "Functions registered after `amp.initialize`, or with another level than O1, do "
            "nothing; the file registers them before.",
            "A static scale never looks for an overflow, and there is no format by layer.",
        ),
        "cann": (
            "Lists speak of operator types, forward and backward, never of layers, and count "
            "beside `precision_mode_v2` alone.",
            "A type under `to-remove` has to be on that list of the chip already: the file only "
            "adds.",
        ),
        "deepspeed": (
            "`fp16` and `bf16` cast the whole module, norms too; nothing differs by layer. With "
            "both off, the torch file keeps layers apart.",
            "A typing mistake in `torch_autocast`, or of a block's name, is silent there.",
            '`"enabled": "auto"` is filled in by the Trainer of Hugging Face: read as off.',
        ),
        "keras": (
            "Paths of a `DTypePolicyMap` depend on how a model was built, so the file sets each "
            "layer's own policy.",
            "`compile` adds a loss scale for a global mixed_float16 only: use `scaled`.",
            "XLA leaves roundings out between 16-bit ops that it fuses, but with "
            "`XLA_FLAGS=--xla_allow_excess_precision=false`.",
            "On a CPU XLA sums the gradient of a bias in bfloat16, rounding every addition.",
        ),
        "flax": (
            "linen modules take their dtype in the constructor; nnx modules may be set later.",
            "`jax.tree.map` over jmp's loss scale resets its floor.",
            "XLA leaves roundings out between 16-bit ops that it fuses, but with "
            "`XLA_FLAGS=--xla_allow_excess_precision=false`.",
            "On a CPU XLA sums the gradient of a bias in bfloat16, rounding every addition.",
        ),
        "mindspore": (
            "A float16 cell before one without `to_float` fails: float32 cells get one as well.",
            "bfloat16 does not run on a CPU there.",
        ),
    }
)
"""What goes wrong in silence, by target: tried or read, as `targets` says."""


def page_of(name: str, target: Target) -> str:
    """Return the page of a target as Markdown: what to type, what it gives, what it loses."""
    model = gpt((8,), 23, 32, (128, 128), 2)  # that of the study in the command
    policies = {name: preset(name, model.layer_names) for name in POLICIES}
    shown = next(n for n, p in policies.items() if target.offers(p.layer("head"), "Linear"))
    about, text = target.ABOUT, target.export(policies[shown], model)
    file = f"gpt-sums-{name}{target.SUFFIX}"
    called = "precision.py" if target.SUFFIX == ".py" and name not in SCRIPTS else file
    options = f"--target {name} --study {STUDY}"
    command = [f"policysearch export preset:{shown} {options} --out ."]
    command += [f"cp {file} {called}"] * (called != file)
    command += [f"policysearch inspect {called} {options}"]
    lines = grouped(target.losses(policies[shown], model))
    lost = [x for line in lines for x in wrap(f"- {line}", 100, subsequent_indent="  ")]
    return "\n".join(
        (
            f"# Export to {name}",
            "",
            f"- Its file: {about.file}.",
            f"- What it can say: {about.says}.",
            f"- Looked at: {about.checked}; checked by: {about.how}.",
            "",
            "Type this, with a policy file in place of `preset:...`, or a study alone for the pick "
            "of its verdict. `inspect` says what each layer gets, of a file of your own too.",
            "",
            *_block("sh", command),
            "Then, in your script or run:",
            "",
            *_block(*_use(name, text, called)),
            f"What `preset:{shown}` asks for and this file does not do:",
            "",
            *_block("text", lost),
            "Mind:\n",
            *(f"- {trap}" for trap in TRAPS.get(name, ())),
            "\nThe file:\n",
            # JSON that is cut is none, and no highlighter takes it
            *_block(KINDS.get(target.SUFFIX, target.SUFFIX.removeprefix(".")), _shown(text)),
        )
    )


def _block(kind: str, lines: Sequence[str]) -> list[str]:
    return [f"```{kind}", *(lines or ["nothing"]), "```", ""]


def _use(name: str, text: str, called: str) -> tuple[str, list[str]]:
    """Return how a file is used, as its own head says, and the language of that."""
    if flags := re.search(r"^# flags: (.*)$", text, re.MULTILINE):
        return "sh", [f"python pretrain_gpt.py --te-precision-config-file {called} {flags[1]} ..."]
    if name in USE:
        return "python", [line.replace("THIS_FILE", repr(called)) for line in USE[name]]
    documented = text.startswith('"""')
    head = text.split('"""')[1] if documented else text.partition("\n\n")[0]
    said = re.findall(r"^    (.*)$" if documented else r"^#     (.*)$", head, re.MULTILINE)
    if name in SCRIPTS:
        return "sh", [said[0].replace("THIS_FILE", called)]
    defined = re.findall(r"^(?:def )?(\w+)(?:\(| = )", text, re.MULTILINE)
    used = [x for x in defined if re.search(rf"\b{x}\b", "\n".join(said))]
    return "python", [f"from precision import {', '.join(used)}", "", *said]


def _shown(text: str) -> list[str]:
    """Return the lines of the file, cut where it is long."""
    lines = text.splitlines()
    short = [line if len(line) <= 110 else f"{line[:107]}..." for line in lines]
    return short if len(short) <= LONGEST else [*short[:LONGEST], "..."]


def pages() -> dict[str, str]:
    """Return the text of each page by the name of its file."""
    return {f"target-{name}.md": page_of(name, target) for name, target in targets().items()}


if __name__ == "__main__":
    write_files({name: text.encode() for name, text in pages().items()}, Path(sys.argv[1]))
