"""`init`: the first study of a user's own net, or an example of one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from policysearch.commands.registry import Command
from policysearch.commands.shared import DEVICE, STACK, source
from policysearch.commands.trust import trust_place
from policysearch.files import make_folder, shipped_study, write_files
from policysearch.train.scripts.outline import outline_of
from policysearch.values import InputError, one_of

if TYPE_CHECKING:
    from policysearch.study.first_study import FirstStudy
    from policysearch.train.scripts.script import Script

BATCH = 64
MODELS = ("model", "net", "Net", "Model", "build_model", "make_model", "get_model")
DATA = ("data", "dataset", "load_data", "build_data", "make_data", "get_data")
"""What the functions of a file are called, where nobody says it."""

GUARD = 'it under `if __name__ == "__main__":`, or in a function'

EXAMPLE = ("own_net.py", "own-net.toml")
"""The shipped study of an own net, and its file."""

SAID: Mapping[str, str] = MappingProxyType(
    {
        "device": "where it will run, see `policysearch hardware`",
        "batch": "the batch as you train it",
        "baseline": "the preset that you run today, see `policysearch presets`",
    }
)
"""What is asked for on a terminal where no option says it."""


def _arguments(init: argparse.ArgumentParser) -> None:
    net = "a Python file with a function that returns the net, and one that returns data"
    init.add_argument("net", type=source, nargs="?", metavar="NET.py[:model]", help=net)
    init.add_argument("--example", action="store_true", help="write a net and its study instead")
    init.add_argument("--data", metavar="NAME", help=f"the function of the data ({DATA[0]})")
    init.add_argument("--device", metavar="NAME", help=f"{SAID['device']} ({DEVICE})")
    init.add_argument("--stack", default=STACK, metavar="NAME", help="software, as `hardware` says")
    init.add_argument("--batch", type=int, metavar="N", help=f"{SAID['batch']} ({BATCH})")
    usual = f"{SAID['baseline']} (autocast of 16 bits, or mindspore.O2)"
    init.add_argument("--baseline", metavar="PRESET", help=usual)
    init.add_argument("--steps", type=int, metavar="N", help="steps of a training")
    init.add_argument("--out", type=Path, metavar="FILE", help="the study (beside the net)")


def _init(options: argparse.Namespace) -> None:
    if options.example:
        _write_example(options)
        return
    if options.net is None:
        raise InputError("init: no net; expected NET.py[:model], or --example")
    path, _, function = str(options.net).rpartition(":")
    if not path or not path.endswith(".py"):
        path, function = str(options.net), ""
    out = options.out or Path(path).with_suffix(".toml")
    if out.exists():
        raise InputError(f"{out}: exists; expected a new file, or another with --out")
    for file in (path, (options.data or "").rpartition(":")[0]):
        if Path(file).is_file():
            trust_place(Path(file))  # who gives a file to a command means it to run
    outline = outline_of(Path(path))
    if outline and outline.at_import:
        raise InputError(f"{path}: line {outline.at_import} trains on import; expected {GUARD}")
    scripts = [name for name in outline.scripts if function in ("", name)] if outline else []
    if scripts and options.data:
        raise InputError(f"--data: beside {scripts[0]}, which has its own; expected it left out")
    if scripts:
        study, script = _study_of(options, path, f"{path}:{scripts[0]}")
    else:
        study, script = _study_of(
            options, path, "", _function_name(path, function, MODELS, "model")
        )
    text, lines = _text_and_lines(study, script)
    write_files({out.name: text.encode()}, out.parent)
    if script is None and outline and outline.trains:
        unread = f"the training in line {outline.trains} is not read: its recipe goes in by"
        lines.append(f"{unread} {outline.words}, see docs/own-script.md")
    print("\n".join([f"wrote {out}: {lines[0]}", *lines[1:]]))
    print(f"next: policysearch run {out}")


def _study_of(
    options: argparse.Namespace, path: str, place: str, model: str = ""
) -> tuple[FirstStudy, Script | None]:
    """Return the study of a script, which is run once, and the script; or that of a model."""
    from policysearch.cost.device_file import device_at
    from policysearch.policy.presets import PRESETS
    from policysearch.study.cost_section import CostSection
    from policysearch.study.first_study import STEPS, FirstStudy, usual_baseline
    from policysearch.train.scripts.named import script_at

    device_name = str(_answer(options, "device", DEVICE))
    device = device_at(CostSection(device_name, options.stack).device)
    script = script_at(place, Path()) if place else None
    usual_batch = script.task.batch_size if script else BATCH
    batch = _batch(_answer(options, "batch", usual_batch, asks=script is None))
    usual = usual_baseline(device, options.stack, *([script.baseline] if script else []))
    baseline = str(_answer(options, "baseline", usual, asks=script is None))
    one_of("--baseline", baseline, PRESETS)
    study = FirstStudy(
        net=path,
        name=(options.out or Path(path)).stem,
        model=f"{path}:{model}",
        data="" if script else _data_of(options, path),
        device_name=device_name,
        device=device,
        stack=options.stack,
        baseline=baseline,
        batch=batch,
        steps=options.steps or (0 if script else STEPS),
        assumed=tuple(name for name in (*SAID, "steps") if getattr(options, name) is None),
        script=place,
        loss_scale=script.loss_scale if script else None,
    )
    return study, script


def _batch(given: object) -> int:
    if not isinstance(given, int) or not 1 <= given <= 2**30:
        raise InputError(f"--batch: {given!r}; expected a number of examples, 1 or more")
    return given


def _answer(options: argparse.Namespace, name: str, usual: object, asks: bool = True) -> object:
    """Return what an option says, or an answer on a terminal, or what is usual."""
    if asks and getattr(options, name) is None and sys.stdin.isatty() and sys.stdout.isatty():
        answer = input(f"{name}: {SAID[name]} [{usual}] ").strip()
        digits = answer.isdecimal()
        setattr(options, name, (int(answer) if digits else answer) if answer else None)
    said = getattr(options, name)
    return usual if said is None else said


def _data_of(options: argparse.Namespace, path: str) -> str:
    from policysearch.train.user_code import is_user_code

    said = options.data or ""
    return said if is_user_code(said) else f"{path}:{_function_name(path, said, DATA, 'data')}"


def _function_name(path: str, said: str, usual: Sequence[str], what: str) -> str:
    """Return the function of a file that was said, or the first that has a usual name."""
    from policysearch.train.user_code import functions_of

    own, imported = functions_of(what, path)
    if said in (*own, *imported):
        return said
    known = [name for name in usual if name in (*own, *imported)]
    if said or not known:
        given = f"no function {said!r}" if said else f"no function called {', '.join(usual)}"
        option = f"{path}:NAME" if what == "model" else "--data NAME"
        expected = f"{option}, one of {', '.join(own) or 'none'}"
        outline = outline_of(Path(path))
        if outline and outline.trains and not said:  # not a net alone
            given = f"a script that trains (line {outline.trains})"
            expected = f"{outline.words}, see docs/own-script.md, or {expected}"
        raise InputError(f"{what}: {path}: {given}; expected {expected}")
    return known[0]


def _text_and_lines(study: FirstStudy, script: Script | None) -> tuple[str, list[str]]:
    """Return the study in TOML, and what it says in words; it is checked as `run` will."""
    from policysearch.study.specification import spec_from_text
    from policysearch.train.user_code import own_dataset, own_model

    if script is not None:
        text = study.text(script.model, script.data, script.task.batch_size)
        spec = spec_from_text(text, "init", script=script)
        return text, [*study.words(script.model, script.data), *study.limits(spec), *script.taken]
    dataset = own_dataset(study.data)
    model = own_model(study.model, dataset, "")
    text = study.text(model, dataset)
    spec = spec_from_text(text, "init")
    spec = replace(spec, task=replace(spec.task, model=model, data=dataset))
    spec.task.build_model(dataset)
    return text, [*study.words(model, dataset), *study.limits(spec)]


def _write_example(options: argparse.Namespace) -> None:
    folder = options.out or Path()
    make_folder(folder)
    taken = [folder / name for name in EXAMPLE if (folder / name).exists()]
    if taken:
        raise InputError(f"{taken[0]}: exists; expected a folder without it, by --out")
    study = shipped_study(EXAMPLE[1].removesuffix(".toml"))
    write_files({name: study.with_name(name).read_bytes() for name in EXAMPLE}, folder)
    trust_place(folder / EXAMPLE[0])
    print(f"wrote {' and '.join(str(folder / name) for name in EXAMPLE)}")
    print(f"next: {'' if folder == Path() else f'cd {folder} && '}policysearch run {EXAMPLE[1]}")


COMMANDS = (
    Command(
        5,
        "init",
        "write the first study of a net of your own",
        _init,
        _arguments,
        example="init net.py",
    ),
)
