"""The export targets: every module of this package that defines `export` and `losses`."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any, Protocol, cast

import policysearch.export
from policysearch.export.plain_script import script_reading
from policysearch.export.reading import About, Reading
from policysearch.export.whole_run import WHOLE, whole_run_reading
from policysearch.nn.model import Model
from policysearch.policy.policy import LayerPolicy, Policy
from policysearch.values import InputError, one_of

SCRIPTED = ("torch", "torchao")
"""The targets whose own calls are read in a training script."""


class Target(Protocol):
    """What a target module offers; its name is the module's name."""

    SUFFIX: str
    """File name ending of what `export` returns."""

    ABOUT: About
    """What the file is, what it can say, and what lies beside it."""

    def export(self, policy: Policy, model: Model, notes: Sequence[str] = ()) -> str:
        """Return one self-contained file that applies the policy.

        Its head says the notes, and lists the losses. Where names depend on a stage of a pipeline
        (`ABOUT.staged`) it takes their number too, as `pipeline`.
        """
        ...

    def losses(self, policy: Policy, model: Model) -> tuple[str, ...]:
        """Return one line for each part of the policy the target cannot express."""
        ...

    def offers(self, formats: LayerPolicy, layer_type: str) -> bool:
        """Return whether a layer of this type, "" if not known, can run in these formats."""
        ...

    def runs(self, policy: Policy, model: Model) -> Policy:
        """Return the policy that the target obeys when it is given this one."""
        ...

    def read(self, text: str, model: Model, where: str) -> Reading:
        """Return what a file of the target gives the layers of `model`.

        Raises InputError, beginning with `where`, for what is no such file.
        """
        ...


def targets() -> dict[str, Target]:
    """Return the target modules by name; a new file in this package is found on its own."""
    by_name: dict[str, Target] = {}
    for info in pkgutil.iter_modules(policysearch.export.__path__):
        module = importlib.import_module(f"{policysearch.export.__name__}.{info.name}")
        if hasattr(module, "export") and hasattr(module, "losses"):
            by_name[info.name] = cast(Target, module)
    return by_name


def target_named(name: str) -> Target:
    """Return the target called `name`; InputError where there is none."""
    known = targets()
    return known[one_of("export target", name, known)]


def files_of(
    target: str, policy: Policy, model: Model, name: str, notes: Sequence[str], pipeline: int = 1
) -> dict[str, str]:
    """Return the files of a target by their names: its own, and the modules that it names.

    InputError where it has no stages of a `pipeline`, or the policy is another on some of them.
    """
    exporter: Any = target_named(target)
    if pipeline != 1 and not exporter.ABOUT.staged:
        given = f"pipeline: {pipeline} with target {target!r}"
        raise InputError(f"{given}; expected 1: its names do not depend on a stage")
    options = {"pipeline": pipeline} if exporter.ABOUT.staged else {}
    return {
        f"{name}-{target}{exporter.SUFFIX}": exporter.export(policy, model, notes, **options),
        **exporter.ABOUT.beside(policy, model),
    }


def read_file(target: str, text: str, model: Model, where: str) -> Reading:
    """Return what a file of the trainer `target` gives the layers of `model`.

    A training script that applies no exported file is read too where the target is SCRIPTED, or is
    one of WHOLE. Such
    files are written by hand, too: InputError, beginning with `where`, for one of any other shape
    than the trainer's.
    """
    reader = target_named(target)
    try:
        if target in WHOLE and not re.search(r"^LAYERS = ", text, re.MULTILINE):
            return whole_run_reading(target, text, model, where)
        script = script_reading(text, model, where) if target in SCRIPTED else None
        return script or reader.read(text, model, where)
    except InputError as error:
        raise InputError(f"{error}{_others(target, where)}") from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise InputError(f"{where}: {error!r}; expected a file as {target} has it") from None
    except RecursionError:
        raise InputError(f"{where}: nested too deep; expected a file as {target} has it") from None


def _others(target: str, where: str) -> str:
    """Return which targets have files called so, where this one has others."""
    there, suffix = targets(), PurePath(where).suffix
    names = [name for name in there if suffix == there[name].SUFFIX]
    if not names or suffix == there[target].SUFFIX:
        return ""
    return f"; a file *{suffix} may be one for --target {' or '.join(names)}"
