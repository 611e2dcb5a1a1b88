"""What a plain training script gives each layer: autocast, GradScaler, torchao's FP8, Accelerate.

It is parsed; nothing in it is run. What says more than is followed here is told as not read.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from policysearch.export.filters import Filter, Unread, filter_of
from policysearch.export.reading import DEFAULT_RULE, Given, Reading, literal, policy_of
from policysearch.files import syntax_of
from policysearch.formats import format_named
from policysearch.nn.model import Model
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import LayerPolicy, uniform_layer
from policysearch.policy.presets import PRESETS
from policysearch.policy.scaling import Scaling
from policysearch.values import InputError

SCALERS = ("GradScaler", "GradScalerKwargs")
CONVERTED = {
    "convert_to_float8_training": "module_filter_fn",
    "AORecipeKwargs": "module_filter_func",
}
"""What converts linears to FP8, and what it calls its filter."""
CALLS = ("autocast", "Accelerator", *SCALERS, *CONVERTED)
"""What is read, by the last of its names."""

ACCELERATE = {"fp16": "float16", "bf16": "bfloat16", "fp8": "bfloat16"}
"""What autocast is in by the `mixed_precision` of Accelerate."""
SAME = ("enable_fsdp_float8_all_gather", "force_recompute_fp8_weight_in_bwd", "pad_inner_dim")
"""Settings of torchao's config that change no format."""
ENDS = "filter_first_and_last_linear_layers"

USUAL = {"cuda": "float16", "cpu": "bfloat16"}
"""The dtype of autocast where none is said, by device."""

NUMBERS = ("init_scale", "growth_factor", "backoff_factor", "growth_interval")
RECIPES = ("tensorwise", "rowwise", "rowwise_with_gw_hp")
EXPORTED = ("LAYERS", "FUNCTIONS", "RECIPE", "apply_policy", "is_low")
"""What exported files define, one or the other."""
CASTS = ("half", "bfloat16", "float16")
"""Methods that store a module low, and dtypes."""
LOADERS = ("to", "from_config", "from_pretrained")
"""Methods that take a dtype to store a module in."""


def script_reading(text: str, model: Model, where: str) -> Reading | None:
    """Return what a script gives the layers of `model`, None for an exported file.

    Raises InputError, beginning with `where`, for a script that calls none of CALLS.
    """
    tree = syntax_of(text, where, "a Python file")
    if not {*_definitions(tree)}.isdisjoint(EXPORTED):
        return None
    found = _Script(tree)
    if not any(found.calls.values()):
        said = f"{where}: no table LAYERS, and no call of {', '.join(CALLS)}"
        raise InputError(f"{said}; expected an exported torch file, or a script that trains so")
    return found.reading(model, where)


def _definitions(tree: ast.Module) -> Iterator[str]:
    """Yield what the top of a file defines."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (x.id for x in node.targets if isinstance(x, ast.Name))


class _Script:
    """The calls of a script by their last name, and what it assigns to names."""

    def __init__(self, tree: ast.Module) -> None:
        self.calls: dict[str, list[ast.Call]] = {name: [] for name in CALLS}
        self.assigned: dict[str, ast.expr] = {}
        self.unread: list[str] = []
        self.traps: list[str] = []
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self.assigned[node.targets[0].id] = node.value
            elif isinstance(node, ast.Call):
                name = ast.unparse(node.func).rpartition(".")[2]
                self.calls.get(name, []).append(node)
                if _stores_low(name, node):
                    said = f"{ast.unparse(node)} stores what it is called on in 16 bits"
                    self.unread.append(f"line {node.lineno}: {said}")
        self.tree = tree

    def reading(self, model: Model, where: str) -> Reading:
        autocast, wide = self._autocast()
        base = f"torch.autocast.{autocast}" if autocast else "float32"
        rows = {name: (wide, uniform_layer(autocast or "float32")) for name in model.layer_names}
        recipe = self._float8(rows, model)
        given = tuple(Given(n, n, rule, formats) for n, (rule, formats) in rows.items())
        scale = self._scale()
        low = any(format_named(row.formats.compute).bits < 16 for row in given)
        kind = "rowwise" if recipe.startswith("rowwise") else "current"
        scaling = Scaling(kind, power_of_two=kind == "rowwise") if low else Scaling()  # type: ignore[arg-type]
        name, traps = f"imported from {where}", (*self.traps, *self._traps(autocast, scale))
        policy = policy_of(given, model, name, base, loss_scale=scale, scaling=scaling)
        return Reading(policy, given, traps=traps, unread=tuple(self.unread))

    def _autocast(self) -> tuple[str, str]:
        """Return the dtype of the first autocast that is on, "" without one, and its place."""
        for call in self.calls["autocast"]:
            said = {x.arg: x.value for x in call.keywords if x.arg}
            device = literal(said.get("device_type", call.args[0] if call.args else _NONE))
            dtype = said.get("dtype", call.args[1] if len(call.args) > 1 else None)
            if literal(said.get("enabled", _NONE)) is False:
                continue
            name = USUAL.get(str(device), "float16") if dtype is None else self._dtype(dtype)
            if name in USUAL.values():
                return name, f"autocast, line {call.lineno}"
            self.unread.append(f"line {call.lineno}: dtype of {ast.unparse(call)}")
        return self._accelerate_dtype()

    def _accelerate_dtype(self) -> tuple[str, str]:
        """Return the dtype of Accelerate's autocast, "" without one, and its place."""
        for call in self.calls["Accelerator"]:
            said = {x.arg: self._meant(x.value) for x in call.keywords}
            kind = literal(said.get("mixed_precision", _NONE))
            if kind in ACCELERATE:
                return ACCELERATE[kind], f"Accelerator, line {call.lineno}"
            if kind != "no":
                given = ast.unparse(call)
                self.unread.append(f"line {call.lineno}: mixed_precision of {given}")
        for call in self.calls["AORecipeKwargs"]:
            return ACCELERATE["fp8"], f"AORecipeKwargs, line {call.lineno}"
        return "", DEFAULT_RULE

    def _dtype(self, node: ast.expr) -> str:
        node = self._meant(node)
        return node.attr if isinstance(node, ast.Attribute) else ""

    def _meant(self, node: ast.expr) -> ast.expr:
        """Return what a name was given."""
        return self.assigned.get(node.id, node) if isinstance(node, ast.Name) else node

    def _scale(self) -> LossScale:
        for call in (call for name in SCALERS for call in self.calls[name]):
            said = {x.arg: _number(self._meant(x.value)) for x in call.keywords if x.arg}
            if said.get("enabled") is False:
                continue
            numbers: dict[str, Any] = {name: said[name] for name in NUMBERS if name in said}
            for name in [name for name, value in numbers.items() if value is None]:
                self.unread.append(f"line {call.lineno}: {name} of {ast.unparse(call)}")
                del numbers[name]
            return LossScale("dynamic", **{"init_scale": 2.0**16, **numbers})
        kinds = [literal(x.value) for c in self.calls["Accelerator"] for x in c.keywords]
        return LossScale("dynamic", 2.0**16) if "fp16" in kinds else LossScale()

    def _float8(self, rows: dict[str, tuple[str, LayerPolicy]], model: Model) -> str:
        """Put the linears that are converted into their formats; return the recipe."""
        recipe = ""
        linears = {name: shape for name in rows if (shape := _linear(name, model))}
        for what, call in ((name, call) for name in CONVERTED for call in self.calls[name]):
            said = {x.arg: x.value for x in call.keywords if x.arg}
            recipe = self._recipe(said.get("config"), call.lineno)
            formats = _formats(recipe)
            own = ast.unparse(self._meant(said.get("config", _NONE)))
            if what == "AORecipeKwargs" and own != "None" and "pad_inner_dim" not in own:
                at = f"line {call.lineno}: a config of your own"
                self.traps.append(f"{at} has no pad_inner_dim=True, which Accelerate's has")
            chosen = self._filter(said.get(CONVERTED[what]), call, [*linears])
            for name, shape in linears.items():
                try:
                    if chosen(name, *shape):
                        rows[name] = f"{what}, line {call.lineno}", formats
                except Unread as error:
                    self.unread.append(f"line {call.lineno}: {CONVERTED[what]}: {error}")
                    break
        return recipe

    def _recipe(self, node: ast.expr | None, line: int) -> str:
        """Return the recipe of a config, tensorwise as torchao has it where none is given."""
        made = None if node is None else self._meant(node)
        if made is None:
            return RECIPES[0]
        if isinstance(made, ast.Call) and "from_recipe_name" in ast.unparse(made.func):
            given = self._meant(made.args[0] if made.args else _NONE)
            name = literal(given) or ast.unparse(given).rpartition(".")[2].lower()
            if name in RECIPES:
                return str(name)
        elif isinstance(made, ast.Call) and not made.args and _changes_no_format(made):
            return RECIPES[0]
        self.unread.append(f"line {line}: config {ast.unparse(made)}; taken as {RECIPES[0]}")
        return RECIPES[0]

    def _filter(self, node: ast.expr | None, call: ast.Call, linears: Sequence[str]) -> Filter:
        if node is None and ast.unparse(call.func).endswith("AORecipeKwargs"):
            return lambda name, n_out, n_in: (
                name not in (linears[0], linears[-1]) and not (n_out % 16 or n_in % 16)
            )
        if node is None:
            return lambda name, n_out, n_in: True
        if ast.unparse(node).endswith(ENDS):
            said = (
                f"line {call.lineno}: {ENDS} looks for them inside each linear: it leaves none out"
            )
            self.traps.append(said)
            return lambda name, n_out, n_in: not (n_out % 16 or n_in % 16)
        constants = {name: literal(value) for name, value in self.assigned.items()}
        return filter_of(self._meant(node), self.tree, constants)

    def _traps(self, autocast: str, scale: LossScale) -> Iterator[str]:
        if autocast == "float16" and scale.kind == "none":
            yield "float16 and no loss scale: gradients underflow"


_NONE = ast.Constant(None)


def _stores_low(name: str, call: ast.Call) -> bool:
    if not isinstance(call.func, ast.Attribute):
        return False
    given = [*call.args, *(x.value for x in call.keywords)] if name in LOADERS else []
    low = any(isinstance(x, ast.Attribute) and x.attr in CASTS for x in given)
    return low or (name in CASTS and not call.args)


def _changes_no_format(config: ast.Call) -> bool:
    return all(setting.arg in SAME for setting in config.keywords)


def _number(node: ast.expr) -> object:
    """Return a constant, or the power of one, as scales are written."""
    match node:
        case ast.BinOp(left=ast.Constant(value=int() | float() as base), op=ast.Pow(), right=power):
            exponent = literal(power)
            if isinstance(exponent, int | float) and abs(base) <= 16 and abs(exponent) <= 31:
                return base**exponent
    return literal(node)


def _linear(name: str, model: Model) -> tuple[int, int] | None:
    """Return the outputs and inputs of a linear; None of another layer."""
    shapes = [spec.shape for spec in model.parameters_of(name) if len(spec.shape) == 2]
    return shapes[0] if model.layer_types.get(name) == "Linear" and shapes else None


def _formats(recipe: str) -> LayerPolicy:
    if recipe == RECIPES[2]:
        return PRESETS[f"torchao.{recipe}"].layer
    low = uniform_layer("float8_e4m3fn")
    return low if recipe == RECIPES[0] else replace(low, grad="float8_e4m3fn")
