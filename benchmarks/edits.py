"""Edits of an exported torch file: which `verify FILE` catches, and which it leaves alone.

    python -m benchmarks.edits --seed 0

64 edits that change values (a dtype of a layer, a number of the loss scale, the list of an op, a
line of the code) and 20 that change none (comments, order of rows, other words for the same). Each
file runs three steps of a small GPT and the forced steps of its loss scale in this process, as
`verify` has them in a process of its own. Exits with 1 where an edit passes, or one that changes
nothing fails.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import types
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.nn import functional

from policysearch.export.targets import target_named
from policysearch.nn.models import gpt
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import LayerPolicy, Policy, uniform_layer
from policysearch.policy.presets import preset
from policysearch.train.feeding import initial_parameters
from policysearch.verify.shipped import edits
from policysearch.verify.torch_trace import Trace, scale_events
from policysearch.verify.torch_training import loaded
from policysearch.verify.torch_twin import Twin

MODEL = gpt((8,), 10, 16, (32, 32), 2)
PRODUCTS = [name for name, kind in MODEL.layer_types.items() if kind == "Linear"]
DTYPES = ("float32", "float16", "bfloat16")
LISTS = ("low_precision_ops", "fp32_ops", "promote_ops")
STEPS = 3


def policy() -> Policy:
    """Return a mixed policy with a bounded loss scale, so that every part of a file matters."""
    base = preset("torch.autocast.float16", MODEL.layer_names)
    mixed = {
        "block1.fc1": uniform_layer("bfloat16"),
        "block2.fc2": LayerPolicy("float16", "bfloat16", "float16", "float16"),
    }
    scale = LossScale("dynamic", 2.0**10, 2.0, 0.5, 2000, 2.0**-4, 2.0**18)
    made = base.with_layers(mixed)
    low = ("gelu", "embedding", "add")
    kept = {name: tuple(op for op in getattr(made, name) if op not in low) for name in LISTS}
    kept["low_precision_ops"] += low
    return replace(made, loss_scale=scale, **kept)  # type: ignore[arg-type]


def result(text: str) -> dict[str, Any]:
    """Return what a file does: its calls, its losses, and what its loss scale does when forced."""
    exported = types.ModuleType("edited")
    sys.modules["edited"] = exported
    exec(compile(text, "edited.py", "exec"), vars(exported))
    torch.manual_seed(0)
    module: Any = Twin(MODEL)
    loaded(module, initial_parameters(MODEL, 0))
    module = exported.apply_policy(module.train())
    scaler, trace, steps = exported.make_grad_scaler(), Trace(), []
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    generator = torch.Generator().manual_seed(1)
    for step in range(STEPS):
        tokens = torch.randint(10, (4, 8), generator=generator)
        optimizer.zero_grad()
        with trace if step == 0 else torch.enable_grad():
            loss = functional.cross_entropy(module(tokens).flatten(0, -2), tokens.flatten())
            scaler.scale(loss).backward()
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        steps.append([loss.item(), scale, float(scaler.skipped)])
    return {"calls": trace.calls, "steps": steps, "events": scale_events(exported, "cpu")}


def _rows(text: str, rng: random.Random) -> Iterator[tuple[str, str]]:
    """Yield files with another dtype in the row of one layer."""
    for layer in rng.sample(PRODUCTS, 12):
        found = re.search(rf"    '{re.escape(layer)}': \('(\w+)', '(\w+)', None\)", text)
        assert found is not None
        for place in (1, 2):
            others = [dtype for dtype in DTYPES if dtype != found[place]]
            if place == 2:  # what a product gives in float16 is the same number in float32
                others = [dtype for dtype in others if found[1] == "float16" and dtype[0] != "f"]
            if not others:
                continue
            other = rng.choice(others)
            start, end = found.span(place)
            yield (
                f"{layer} {'operands' if place == 1 else 'results'}",
                text[:start] + other + text[end:],
            )


NUMBERS = (
    ("init_scale=1024.0", ("init_scale=2048.0", "init_scale=512.0", "init_scale=1025.0")),
    ("growth_factor=2.0", ("growth_factor=4.0", "growth_factor=1.5", "growth_factor=2.0001")),
    ("backoff_factor=0.5", ("backoff_factor=0.25", "backoff_factor=0.9", "backoff_factor=0.51")),
    ("growth_interval=2000", ("growth_interval=100", "growth_interval=2001")),
    ("lowest, highest = 0.0625, 262144.0", ("lowest, highest = 0.0, 262144.0",
     "lowest, highest = 0.0625, 524288.0", "lowest, highest = 0.125, 262144.0")),
    ("skips = True", ("skips = False",)),
    ("kind = 'dynamic'", ("kind = 'fixed'",)),
    ("enabled=True", ("enabled=False",)),
)  # fmt: skip

LISTED = ("matmul", "layer_norm", "softmax")

CODE = (
    ("return torch.float32, torch.float32", "return torch.float32, torch.float16"),
    ("return torch.float32, torch.float32", "return torch.float16, torch.float16"),
    ("(self.compute if op in PRODUCTS else self.output), self.output",
     "self.output, self.output"),
    ("(self.compute if op in PRODUCTS else self.output), self.output",
     "self.compute, self.compute"),
    ("result = torch.float32 if part is module else None", "result = None"),
    ("result = torch.float32 if part is module else None",
     "result = torch.bfloat16 if part is module else None"),
    ("        if op == \"embedding\":", "        if op == \"nothing\":"),
    ("made = _cast(function(*cast, **options), result)", "made = function(*cast, **options)"),
    ("cast, options = _cast(args, wanted), _cast(kwargs, wanted)",
     "cast, options = _cast(args, result), _cast(kwargs, wanted)"),
    ("if function not in OP:", "if function not in OP or OP[function] == 'gelu':"),
    ("if function not in OP:", "if function not in OP or OP[function] == 'matmul':"),
    ("if function not in OP:", "if function not in OP or OP[function] == 'add':"),
    ("bounded = min(max(scale, self.lowest), self.highest)",
     "bounded = min(max(scale, self.lowest), 2 * self.highest)"),
    ("bounded = min(max(scale, self.lowest), self.highest)",
     "bounded = min(scale, self.highest)"),
    ("            return super().step(optimizer, *args, **kwargs)",
     "            return optimizer.step(*args, **kwargs)"),
    ("        if bounded != scale:", "        if bounded < scale:"),
    ("            parameter.data = parameter.data.to(dtype)", ""),
    ("        with self.allowing, self.mode:", "        with self.allowing:"),
)  # fmt: skip


def changing(text: str, rng: random.Random) -> Iterator[tuple[str, str]]:
    """Yield what is edited and the edited file, for edits that change values of this net."""
    yield from _rows(text, rng)
    for old, others in NUMBERS:
        for new in others:
            yield new, _replaced(text, old, new)
    for op in LISTED:
        yield f"{op} in no list", _replaced(text, f"    '{op}',\n", "")
    for old, new in CODE[:-2]:
        yield new.strip(), _replaced(text, old, new)
    yield CODE[-1][1].strip(), _replaced(text, *CODE[-1])
    for layer in rng.sample(PRODUCTS, 4):
        row = re.search(rf"    '{re.escape(layer)}': .*\n", text)
        assert row is not None
        half = row[0].replace("float16", "x").replace("float32", "float16").replace("x", "float32")
        other = half if half != row[0] else row[0].replace("bfloat16", "float32")
        yield f"row of {layer}", _replaced(text, row[0], other)


def neutral(text: str, rng: random.Random) -> Iterator[tuple[str, str]]:
    """Yield what is edited and the edited file, for edits that change nothing."""
    lines = text.splitlines(keepends=True)
    for number in rng.sample(range(len(lines)), 5):
        if lines[number].startswith(("def ", "class ", "import ")):
            yield (
                f"a comment at line {number}",
                "".join([*lines[:number], "# mine\n", *lines[number:]]),
            )
    yield "a comment at the end", text + "\n# reviewed\n"
    yield "another title", _replaced(text, "A mixed-precision policy for a torch module", "Ours")
    yield "blank lines", _replaced(text, "\n\n\nclass _Forward", "\n\n\n\n\nclass _Forward")
    yield "a constant", text + "\nREVIEWED = True\n"
    for word, other in (("made", "product"), ("wanted", "dtype_wanted"), ("given", "handed"),
                        ("held", "kept"), ("found", "seen_here")):  # fmt: skip
        yield f"{word} is {other}", re.sub(rf"(?<![.\w]){word}(?![\w=])", other, text)
    for old, new in (
        ("init_scale=1024.0", "init_scale=2.0**10"),
        ("growth_interval=2000", "growth_interval=2 * 1000"),
        ("backoff_factor=0.5", "backoff_factor=1 / 2"),
        ("262144.0", "2.0**18"),
        ("bounded != scale", "not bounded == scale"),
        ("import copy\nimport dataclasses", "import dataclasses\nimport copy"),
        ("return torch.float32, torch.float32", "return (torch.float32,) * 2"),
    ):
        yield new, _replaced(text, old, new)
    rows = re.findall(r"    'block\d\.\S+': \(.*\n", text)
    for first, second in (rng.sample(rows, 2) for _ in range(3)):
        swapped = text.replace(first, "\0").replace(second, first).replace("\0", second)
        yield "two rows change places", swapped
    yield (
        "float16 by its other name",
        _replaced(text, "getattr(torch, x)", "getattr(torch, str(x))"),
    )


def _replaced(text: str, old: str, new: str) -> str:
    if old not in text:
        raise SystemExit(f"not in the file: {old}")
    return text.replace(old, new)


def verdicts(seed: int) -> tuple[dict[str, bool], dict[str, bool]]:
    """Return whether each edit that changes values, and each that does not, is called one."""
    text = target_named("torch").export(policy(), MODEL)
    fresh, rng = result(text), random.Random(seed)
    made = []
    for kind in (changing, neutral):
        made.append(
            {f"{n} {name}": _differs(new, fresh) for n, (name, new) in enumerate(kind(text, rng))}
        )
    return made[0], made[1]


def _differs(text: str, fresh: dict[str, Any]) -> bool:
    try:
        return bool([*edits(result(text), fresh)])
    except Exception:  # a file that does not train is no file that passes
        return True


def main() -> None:
    """Print what passes that should not, and what fails that should not."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--seed", type=int, default=0)
    changed, same = verdicts(options.parse_args().seed)
    missed, wrong = [n for n, x in changed.items() if not x], [n for n, x in same.items() if x]
    print("\n".join([*(f"passes: {name}" for name in missed), *(f"fails: {n}" for n in wrong)]))
    print(f"{len(missed)} of {len(changed)} edits that change values pass")
    print(f"{len(wrong)} of {len(same)} edits that change nothing fail")
    raise SystemExit(bool(missed or wrong))


if __name__ == "__main__":
    main()
