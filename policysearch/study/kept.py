"""What is kept of a study's net beside its journal, so that views run none of the user's code.

One small file, `<journal>.graph`: the forward passes of the net that is trained and of the one that
is priced, the shapes of the data and, of a script, the recipe that was read. It is written by the
first run of a study whose net, data or recipe come from the user's own files, or whose data has
files. What it says of a study is used where the task is the one that the study file says.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from policysearch.data.datasets import Dataset
from policysearch.files import RESULTS_FOLDER, study_path, write_whole
from policysearch.nn.kept import KeptModel, kept_model, model_from_kept
from policysearch.objective.objective import Objective
from policysearch.objective.priced_net import PricedNet
from policysearch.rewrite.rules import RuledModel
from policysearch.study.specification import StudySpec, beside, load_spec, spec_from_data, tables_of
from policysearch.train.schedule import Schedule
from policysearch.train.scripts.script import KEY, Script
from policysearch.train.tasks import Task
from policysearch.train.user_code import is_user_code
from policysearch.values import from_plain, to_plain

VERSION = 2
PARTS = frozenset({"task", "model", "data", "net", "script"})
"""What a kept graph has beside its version."""

PACKAGED = ("digits", "digits32", "sums")
"""Data sets that need no file beside the package."""

MOST_ELEMENTS = 2**28
"""Numbers of one example: no net of a study is fed a gigabyte for each."""

Plain = dict[str, Any]


@dataclass(frozen=True)
class KeptNet(PricedNet):
    """A net that is priced of which the forward pass was kept; `said` is what prices depend on."""

    pass_kept: KeptModel | None = field(default=None, compare=False)
    said: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def plain(self) -> dict[str, Any]:
        return dict(self.said)

    def task(self, task: Task, dataset: Dataset) -> Task:
        assert self.pass_kept is not None
        return replace(task, model=self.pass_kept, data=self._examples(dataset), groups=())


def graph_place(storage: Path) -> Path:
    """Return where the graph of the study in the journal at `storage` is kept."""
    return storage.with_name(f"{storage.name}.graph")


def is_kept_of(spec: StudySpec) -> bool:
    """Return whether views of a study would run the user's files, or read files of data."""
    task, net = spec.task, spec.cost.net
    given = [task.model, task.data, task.metric, *task.graph_rules, net.model if net else ""]
    own = any(not isinstance(value, str) or is_user_code(value) for value in given)
    return own or task.data not in PACKAGED


def keep_graph(spec: StudySpec, objective: Objective, storage: Path) -> None:
    """Write what is kept of a study beside its journal, unless it is there or cannot be kept."""
    place = graph_place(storage)
    if not is_kept_of(spec):
        return
    known = _read(place)
    if known is not None and known["model"]["print_of_model"] == objective.model.fingerprint:
        return
    if (plain := _plain_of(spec, objective)) is not None:
        write_whole({place: sealed(plain)})


def sealed(plain: Plain) -> bytes:
    """Return the file that keeps `plain`: a line with its SHA-256, and itself, compressed.

    No one writes it by hand: one that was changed is not used, however well it was changed.
    """
    text = json.dumps(plain, separators=(",", ":")).encode()
    return gzip.compress(hashlib.sha256(text).hexdigest().encode() + b"\n" + text, mtime=0)


def load_to_view(path: Path, storage: Path | None = None) -> StudySpec:
    """Return the study of a file as `load_spec`, with what was kept in the place of its own code.

    `storage` is its journal, by default where `run` puts it. Where nothing fits that was kept, the
    study is that of the file, whose net is made when it is asked for.
    """
    file = study_path(path)
    data = tables_of(file, str(path))
    section, table = data.get("study"), data.get("task")
    name = section.get("name") if isinstance(section, Mapping) else None
    if storage is None and not isinstance(name, str):
        return load_spec(path)
    known = _read(graph_place(storage or RESULTS_FOLDER / f"{name}.journal"))
    scripted = isinstance(table, Mapping) and KEY in table
    try:
        kept = known and _viewed_study(known, data, str(path), file.parent, scripted)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        kept = None  # of another shape; what is wrong in the study file itself is said below
    return kept or load_spec(path)


def _viewed_study(
    known: Plain, data: dict[str, Any], where: str, folder: Path, scripted: bool
) -> StudySpec | None:
    script = _script_of(known) if scripted else None
    if scripted and script is None:
        return None
    return _study_with_net(known, beside(spec_from_data(data, where, folder, script), folder))


def _study_with_net(known: Plain, spec: StudySpec) -> StudySpec | None:
    """Return the study with the kept net and shapes; None where they are of another task."""
    if known["task"] != json.loads(json.dumps(spec.task.to_plain())):
        return None
    net = spec.cost.net
    if net is not None:
        kept = known["net"]
        if kept is None or kept["keys"] != to_plain(net) | {"model": kept["keys"]["model"]}:
            return None
        given = {name: getattr(net, name) for name in ("model", "widths", "inputs", "classes")}
        net = KeptNet(**given, pass_kept=model_from_kept(kept["model"]), said=kept["plain"])
    model, data = model_from_kept(known["model"]), _examples(known["data"])
    task = replace(spec.task, model=model, data=data)
    return replace(spec, task=task, cost=replace(spec.cost, net=net))


def _plain_of(spec: StudySpec, objective: Objective) -> Plain | None:
    model = _kept(objective, spec.task.model_name)
    net = spec.cost.net
    priced = None if net is None else kept_model(objective.priced_model, "priced")
    if model is None or (net is not None and priced is None):
        return None
    data, labels = objective.dataset, objective.dataset.labels
    return {
        "version": VERSION,
        "task": spec.task.to_plain(),
        "model": model,
        "data": {
            "name": spec.task.data_name,
            "inputs": [[list(array.shape[1:]), str(array.dtype)] for array in data.inputs],
            "labels": [list(labels.shape[1:]), str(labels.dtype)],
            "classes": data.classes,
        },
        "net": net and {"keys": to_plain(net), "plain": net.plain, "model": priced},
        "script": _recipe(spec) if not isinstance(spec.task.model, str) else None,
    }


def _kept(objective: Objective, name: str) -> Plain | None:
    model = objective.model
    if isinstance(model, RuledModel) and any(rule.stage == "step" for rule in model.rules):
        return None  # they change what comes after the forward pass
    return kept_model(model, name)


def _recipe(spec: StudySpec) -> Plain:
    task = replace(spec.task, model="lenet5", data="digits32", graph_rules=(), metric="")
    recipe = to_plain(task)
    for name in ("model", "data", "graph_rules", "metric", "script", "data_folder"):
        del recipe[name]
    return {"recipe": recipe, "baseline": spec.study.baseline}


def _script_of(known: Plain) -> Script | None:
    if known["script"] is None:
        return None
    recipe = dict(known["script"]["recipe"])
    recipe["schedule"] = from_plain(Schedule, recipe["schedule"], "schedule")
    model, data = model_from_kept(known["model"]), _examples(known["data"])
    return Script(model, data, recipe, known["script"]["baseline"] or "float32")


def _examples(plain: Plain) -> Dataset:
    """Return data of the kept shapes that says nothing; raise ValueError where it has no end."""
    parts = (*plain["inputs"], plain["labels"])
    if max(math.prod(shape) for shape, _ in parts) > MOST_ELEMENTS:
        raise ValueError("examples without end")
    *inputs, labels = (np.zeros((2, *shape), dtype) for shape, dtype in parts)
    return Dataset(plain["name"], tuple(inputs), labels, 1, 1, plain["classes"])


def _read(place: Path) -> Plain | None:
    """Return what was kept; None where there is nothing, or nothing whole and of this version."""
    try:
        seal, _, text = gzip.decompress(place.read_bytes()).partition(b"\n")
        if hashlib.sha256(text).hexdigest().encode() != seal:
            return None
        plain: Plain = json.loads(text)
        whole = plain["version"] == VERSION and plain.keys() >= PARTS
        model_from_kept(plain["model"])
        _examples(plain["data"])
    except (OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, zlib.error):
        return None
    return plain if whole else None
