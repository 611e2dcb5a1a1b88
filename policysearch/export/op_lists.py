"""Targets whose files give every layer one dtype and choose among ops: what they run and lose."""

from __future__ import annotations

import pprint
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from string import Template
from typing import Any

from policysearch.export.levels import (
    LISTS,
    constants,
    field_losses,
    head,
    one_dtype,
    plain,
    scale_traps,
)
from policysearch.export.reading import DEFAULT_RULE, Given, Reading, policy_of
from policysearch.nn.model import Model
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import LayerPolicy, Policy, uniform_layer
from policysearch.policy.presets import preset
from policysearch.values import InputError, one_of

TABLES_OF_FILE = """\
# layer: the one dtype of all of them
LAYERS = $layers

# op: the $named that run in the low dtype, in float32, or in the widest dtype they read
LOW = $low
WIDE = $wide
PROMOTE = $promote

LOSS_SCALE = $loss_scale
"""
"""What all such files say, in the place of $tables."""

TABLES = {"low_precision_ops": "LOW", "fp32_ops": "WIDE", "promote_ops": "PROMOTE"}
"""The table of a file by the list of a policy."""


@dataclass(frozen=True)
class OpLists:
    """A target of one dtype and three lists of ops.

    `names` are what it calls an op, which may be several; ops without a name are in the lists of
    the preset `base`. `template` is its file: a dollar sign marks what `export` fills in, `named`
    says what its names are. `dtypes` are those of a run, `scale` returns the loss scale that it has
    of one that is asked.
    """

    name: str
    template: str
    named: str
    base: str
    names: Mapping[str, tuple[str, ...]]
    dtypes: tuple[str, ...]
    scale: Callable[[LossScale], LossScale]

    def runs(self, policy: Policy, model: Model) -> Policy:
        """Return the policy that a run with the file obeys when it is given this one."""
        dtype = one_dtype(policy)
        dtype = dtype if dtype in self.dtypes else "float32"
        asked = {op: name for name in LISTS for op in getattr(policy, name) if op in self.names}
        usual = {op: name for name in LISTS for op in getattr(preset(self.base, ()), name)}
        placed = usual | asked
        lists: dict[str, Any] = {n: tuple(op for op in placed if placed[op] == n) for n in LISTS}
        return replace(
            plain(policy),
            layers=tuple((name, uniform_layer(dtype)) for name, _ in policy.layers),
            **lists,
            master_weights=True,
            optimizer_state="float32",
            loss_scale=self.scale(policy.loss_scale) if dtype == "float16" else LossScale(),
        )

    def losses(self, policy: Policy, model: Model) -> tuple[str, ...]:
        """Return what a run with the file does not do as the policy says, one line each."""
        policy.check_layers(model.layer_names)
        return tuple(field_losses(policy, self.runs(policy, model), self.name))

    def offers(self, formats: LayerPolicy, layer_type: str) -> bool:
        """Return whether a layer runs in these formats, where all others do as well."""
        return formats in [uniform_layer(name) for name in self.dtypes]

    def export(self, policy: Policy, model: Model, notes: Sequence[str] = ()) -> str:
        """Return a Python file: the dtype of the run, its loss scale, and the lists by op."""
        running = self.runs(policy, model)
        lists = {
            table: {op: self.names[op] for op in getattr(running, name) if op in self.names}
            for name, table in TABLES.items()
        }
        layers = {name: row.compute for name, row in running.layers}
        shown = {"LAYERS": layers, **lists, "LOSS_SCALE": asdict(running.loss_scale)}
        said = head(policy, notes, self.losses(policy, model), self.name)
        printed = {k: pprint.pformat(v, sort_dicts=False, width=96) for k, v in shown.items()}
        named = {name.lower(): text for name, text in printed.items()}
        tables = Template(TABLES_OF_FILE).substitute(named=self.named, **named)
        return Template(self.template).substitute(head=said, tables=tables.rstrip())

    def read(self, text: str, model: Model, where: str) -> Reading:
        """Return what such a file gives the layers of `model`: one dtype."""
        tables = constants(text, where, ("LAYERS", *TABLES.values(), "LOSS_SCALE"))
        dtypes = sorted({*tables["LAYERS"].values()} or {"float32"})
        if len(dtypes) > 1:
            raise InputError(f"{where}: LAYERS: {', '.join(dtypes)}; expected one dtype of a run")
        dtype = one_of(f"{where}: LAYERS", dtypes[0], self.dtypes)
        usual = {op: name for name in LISTS for op in getattr(preset(self.base, ()), name)}
        for name, table in TABLES.items():
            for op in tables[table]:
                one_of(f"{where}: {table}: op", op, self.names)
                usual[op] = name
        rule = "LAYERS" if tables["LAYERS"] else DEFAULT_RULE
        given = tuple(Given(name, name, rule, uniform_layer(dtype)) for name in model.layer_names)
        policy = policy_of(
            given,
            model,
            f"imported from {where}",
            self.base,
            **{name: tuple(op for op in usual if usual[op] == name) for name in LISTS},
            loss_scale=LossScale(**tables["LOSS_SCALE"]),
        )
        strangers = (name for name in tables["LAYERS"] if name not in model.layer_names)
        unused = tuple(f"{name}: never matches: no layer of the model" for name in strangers)
        return Reading(policy, given, unused, tuple(scale_traps(given, policy.loss_scale)))
