"""Functions of the user's own files, "file.py:function" in a study: nets, data and metrics."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import importlib.util
import inspect
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from numbers import Real
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from policysearch.data.datasets import Dataset
from policysearch.graph import Shape
from policysearch.nn.model import OWN_LOSS, Model, emit_arrays
from policysearch.ops.builder import Builder
from policysearch.ops.loss import IGNORED
from policysearch.values import USER_FAULTS, InputError, shown

T = TypeVar("T")
Check = Callable[[Path], None]
_CHECK: ContextVar[Check | None] = ContextVar("check", default=None)
ENDING = ".py:"

VALIDATION_SHARE = 0.2
"""The share of examples that validates where arrays are given alone."""

ROWS, PLANES = "token_cross_entropy", "cross_entropy"
"""Losses of outputs whose classes are along the last axis, and along axis 1, as of pictures."""

LABELS = ("targets", "labels", "target", "label", "y")
"""What arguments of `forward` are called that take labels."""

MOST_EXAMPLES = 100_000
"""So many examples of a torch data set are held in memory."""

ORDINARY = inspect.Parameter.POSITIONAL_OR_KEYWORD

MODEL = "a torch.nn.Module, or a Model as policysearch.from_torch gives it"
DATA = "a policysearch.Dataset, a torch data set, or arrays or tensors (inputs..., labels)"


@contextlib.contextmanager
def guarded(check: Check) -> Iterator[None]:
    """Have `check` called with every file of the user's before it is run, in this context."""
    token = _CHECK.set(check)
    try:
        yield
    finally:
        _CHECK.reset(token)


def is_user_code(name: str) -> bool:
    """Return whether a name of a study says where the user's own function is."""
    return ENDING in name


def found_from(folder: Path, name: str) -> str:
    """Return "file.py:function" with the file where it is: from here, or else from `folder`."""
    if not is_user_code(name):
        return name
    path, _, function = name.rpartition(":")
    beside = folder / path
    return f"{beside}:{function}" if not Path(path).is_file() and beside.is_file() else name


def said_without_folder(name: str) -> str:
    """Return "file.py:function" without the folder, which changes nothing of what is trained."""
    path, _, function = name.rpartition(":")
    return f"{Path(path).name}:{function}" if is_user_code(name) else name


def result_of(where: str, name: str) -> Any:
    """Call the function "file.py:function", which runs the file, and return what it gives.

    Raises InputError, in one line that begins with `where`, for a file or function that is not
    there, and one that fails.
    """
    path, _, function = name.rpartition(":")
    call = function_of(where, path, function)
    with _beside(Path(path)):
        return _run(f"{where}: {name}", functools.partial(_call_with_seed, call))


def function_of(where: str, path: str, function: str) -> Callable[[], Any]:
    """Return the function of the file at `path`."""
    member: Callable[[], Any] = _member(where, path, function, "function", callable)
    return member


def functions_of(where: str, path: str) -> tuple[list[str], list[str]]:
    """Return the public functions and classes of the file at `path`: its own, and imported ones."""
    module = _module_at(where, path)
    kinds = (inspect.isroutine, inspect.isclass, lambda value: isinstance(value, functools.partial))
    members = [(name, value) for name, value in vars(module).items() if name[0] != "_"]
    names = [name for name, value in members if any(fits(value) for fits in kinds)]
    own = [n for n in names if getattr(vars(module)[n], "__module__", "") == module.__name__]
    return own, [name for name in names if name not in own]


def value_of(where: str, name: str, wanted: type[T]) -> T:
    """Return the value "file.py:name", a `wanted`, which runs the file; errors as of `called`."""
    path, _, own = name.rpartition(":")
    kind = wanted.__name__.lower()
    member: T = _member(where, path, own, kind, lambda value: isinstance(value, wanted))
    return member


def _member(where: str, path: str, name: str, kind: str, fits: Callable[[Any], bool]) -> Any:
    module = _module_at(where, path)
    member = getattr(module, name, None)
    if not fits(member):
        names = [n for n, value in vars(module).items() if fits(value) and n[0] != "_"]
        raise InputError(f"{where}: {path}: no {kind} {name!r}; expected one of {', '.join(names)}")
    return member


def _module_at(where: str, path: str) -> ModuleType:
    if not Path(path).is_file():
        raise InputError(f"{where}: {shown(path)}: no such file; expected a Python file")
    if (check := _CHECK.get()) is not None:
        check(Path(path))
    with _beside(Path(path)):
        return _run(f"{where}: {path}", functools.partial(_module, str(Path(path).resolve())))


@contextlib.contextmanager
def _beside(path: Path) -> Iterator[None]:
    """Let code import what lies beside its file, before all else, as Python lets a script.

    It runs as without arguments: those of this process are not meant for it. The folder stays the
    last place to look in: functions import when they are called, and new processes begin with the
    places of this one.
    """
    folder, given = str(path.resolve().parent), sys.argv
    sys.path.insert(0, folder)
    sys.argv = [str(path)]
    try:
        yield
    finally:
        sys.argv = given
        sys.path.remove(folder)
        if folder not in sys.path:
            sys.path.append(folder)


MODULE = "policysearch_user_code"
"""What the names of modules of users' files begin with: other processes have none of these."""


@functools.lru_cache(maxsize=64)
def _module(path: str) -> ModuleType:
    """Return the module of a file, run once; it has a name, so that what it makes can be sent."""
    name = f"{MODULE}_{abs(hash(path)):x}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    text = Path(path).read_bytes()
    if b"torch" in text and importlib.util.find_spec("torch"):
        importlib.import_module("torch")  # So that it is seeded before the file draws from it.
    code = compile(text, path, "exec", dont_inherit=True)
    _call_with_seed(functools.partial(exec, code, vars(module)))
    return module


def _call_with_seed(call: Callable[[], T]) -> T:
    """Return what `call` gives; each process has the same of torch's own generator."""
    torch = sys.modules.get("torch")
    if torch is None:
        return call()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return call()


def _run(where: str, call: Callable[[], T]) -> T:
    try:
        return call()
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    except USER_FAULTS as error:  # Whatever the user's own code does is said so.
        reason = " ".join(str(error).split())
        raise InputError(
            f"{where}: {type(error).__name__}: {reason}; expected it to run"
        ) from error


def own_model(name: str, dataset: Dataset, loss: str) -> Model:
    """Return the model of the function "file.py:function".

    A torch module is imported with examples of `dataset` as inputs, and `loss`; without one it is
    cross entropy where labels are classes, of the axis of the outputs that the labels lack, and the
    mean square error where they are values. Where the labels fit no axis and `forward` takes
    labels next, as of LABELS, the loss is the module's own. The function is called anew for every
    seed. InputError where it gives something else.
    """
    given = result_of("model", name)
    if isinstance(given, Model):
        return given
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(given, torch.nn.Module):
        returned = type(given).__name__
        raise InputError(f"model: {name} returned {returned}; expected {MODEL}")
    path, _, function = name.rpartition(":")
    make = function_of("model", path, function)
    fed = [array[:2] for array in (*dataset.inputs, dataset.labels)]
    known = _imported_before(str(Path(path).resolve()))
    key = function, loss, *((array.shape, array.dtype.str, array.tobytes()) for array in fed)
    if key not in known or known[key][0] is not make:  # the file was run anew
        known[key] = make, _imported_model(make, given, fed, loss)
    return known[key][1]


@functools.lru_cache(maxsize=64)
def _imported_before(path: str) -> dict[Any, tuple[Any, Model]]:
    """Return functions of a file and what was imported of them, by name, loss and examples.

    An estimate, a search and its longer runs make the same model in one process, and to export a
    torch module takes seconds.
    """
    return {}


def _imported_model(
    make: Callable[[], Any], given: Any, fed: Sequence[NDArray[Any]], loss: str
) -> Model:
    """Return the model of torch modules like `given`, `fed` with examples and their labels."""
    importer = importlib.import_module("policysearch.importers.torch_export")
    *examples, labels = (sys.modules["torch"].from_numpy(array.copy()) for array in fed)
    argument = "" if loss else _required_argument(given, len(examples))
    if not argument:
        values, places = fed[-1].dtype == np.float32, fed[-1].shape[1:]
        usual = "mean_squared_error" if values else ROWS
        imported: Any = importer.from_torch(make, tuple(examples), loss=loss or usual)
        if not (loss or values) and (outputs := _outputs(imported))[:-1] != places:
            if outputs[1:] == places:
                imported = replace(imported, loss=PLANES)
            else:
                argument = _label_argument(given, len(examples))
    if argument:
        every = (*examples, labels)
        imported = importer.from_torch(make, every, loss=OWN_LOSS, labels=argument)
    own: Model = imported
    return own


def _outputs(model: Model) -> Shape:
    """Return the shape of what a model gives for one example."""
    b = Builder()
    fed = model.emit_inputs(b, 2) | emit_arrays(b, model.parameters())
    traced = model.trace(b, fed | model.emit_statistics(b), training=False)
    return b.shape(traced.output)[1:]  # the batch is along axis 0


def _required_argument(module: Any, place: int) -> str:
    """Return the argument of `forward` at a place, where it is the only one needed from there on.

    Without the labels such a net cannot run. "" for any other argument, and where there is none.
    """
    arguments = list(inspect.signature(module.forward).parameters.values())[place:]
    needed = [x.name for x in arguments if x.default is x.empty and x.kind == ORDINARY]
    return needed[0] if arguments and needed == [arguments[0].name] else ""


def _label_argument(module: Any, place: int) -> str:
    """Return the argument of `forward` at a place, where it is called as those of labels are.

    A net that takes its labels returns its loss, and without them often less than it trains on:
    nanoGPT's gives the last position alone. "" for any other argument, and where there is none.
    """
    names = list(inspect.signature(module.forward).parameters)[place : place + 1]
    return names[0] if names and names[0] in LABELS else ""


def own_dataset(name: str) -> Dataset:
    """Return the data of the function "file.py:function".

    Arrays are shuffled once, always alike, and the last fifth of them validates; classes are as
    many as the largest label says. InputError where they are none, or the function gives
    something else.
    """
    return dataset_of(name, result_of("data", name))


def dataset_of(name: str, given: Any) -> Dataset:
    """Return what the function `name` gave as the data it is; see `own_dataset`."""
    if isinstance(given, Dataset):
        return given
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(given, torch.utils.data.Dataset):
        given = _collated_examples(name, given)
    if isinstance(given, Mapping):
        given = tuple(given.values())
    if not isinstance(given, list | tuple) or len(given) < 2:
        returned = type(given).__name__
        raise InputError(f"data: {name} returned {returned}; expected {DATA}")
    arrays = [_array(f"data: {name}, value {i}", value) for i, value in enumerate(given)]
    counts = {len(array) for array in arrays}
    if len(counts) > 1 or min(counts) < 2:
        sizes = ", ".join(str(len(array)) for array in arrays)
        raise InputError(f"data: {name}: {sizes} examples; expected as many of each, 2 or more")
    order = np.random.default_rng(0).permutation(len(arrays[0]))
    *inputs, labels = (np.ascontiguousarray(array[order]) for array in arrays)
    validation = max(1, round(VALIDATION_SHARE * len(order)))
    counted = labels[labels != IGNORED] if labels.dtype == np.int64 else labels[:0]
    classes = int(counted.max()) + 1 if counted.size else 1
    return Dataset(name, tuple(inputs), labels, len(order) - validation, validation, classes)


def _collated_examples(name: str, given: Any) -> Any:
    """Return all examples of a torch data set, as its default collate function puts them."""
    count = len(given) if hasattr(given, "__len__") else math.inf
    if not count <= MOST_EXAMPLES:
        said = f"{count} examples" if math.isfinite(count) else "examples without an end"
        raise InputError(
            f"data: {name}: {said}; expected at most {MOST_EXAMPLES}, or a loader, which is "
            "spooled (policysearch.from_loader)"
        )
    collate = importlib.import_module("torch.utils.data").default_collate
    return _run(
        f"data: {name}",
        lambda: _call_with_seed(lambda: collate([*map(given.__getitem__, range(int(count)))])),
    )


def _array(where: str, value: Any) -> NDArray[Any]:
    """Return an array or tensor as float32 or int64."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    array = np.asarray(value)
    if array.ndim and array.dtype.kind == "f":
        return array.astype(np.float32)
    if array.ndim and array.dtype.kind in "iub":
        return array.astype(np.int64)
    given = f"{type(value).__name__} of {array.dtype}"
    raise InputError(f"{where}: {given}; expected an array or tensor of numbers, examples first")


SAMPLE = 8
"""Examples that a metric is tried on."""

Metric = Callable[[NDArray[Any], NDArray[Any]], float]
"""Of the outputs of the validation part, float32 [count, ...], and its labels: one number.

Numpy arrays, or tensors where a function cannot take these.
"""


def metric_in_file(given: str | Metric) -> str | Metric:
    """Return "file.py:function" for a function of a user's file, which other processes find so.

    InputError for one that is made inside another, or has no name.
    """
    module = sys.modules.get(getattr(given, "__module__", ""))
    if isinstance(given, str) or module is None or not module.__name__.startswith(MODULE):
        return given
    name = metric_name(given)
    if getattr(module, name, None) is not given:
        raise InputError(f"metric: {shown(given)}; expected a function that the file defines")
    return f"{module.__spec__.origin if module.__spec__ else ''}:{name}"


def metric_name(given: str | Metric) -> str:
    """Return what a metric is called: "file.py:function" without the folder, or its own name."""
    if isinstance(given, str):
        return said_without_folder(given)
    return str(getattr(given, "__name__", type(given).__name__))


def described(given: str | Metric) -> dict[str, str]:
    """Return what a record says of a metric: its name and, of one in a file, the text's SHA-256."""
    fields = {"metric": metric_name(given)}
    path = Path(given.rpartition(":")[0]) if isinstance(given, str) else None
    if path is not None and path.is_file():
        fields["metric_source"] = hashlib.sha256(path.read_bytes()).hexdigest()
    return fields


def check_metric_name(given: str | Metric) -> None:
    """Raise InputError for what is neither a function of the user's nor the name of one."""
    if not callable(given) and given and not is_user_code(given):
        raise InputError(f"metric: {shown(given)}; expected file.py:function")


def metric_of(given: str | Metric, outputs: NDArray[Any], labels: NDArray[Any]) -> float | None:
    """Return the metric of these outputs and labels; None where it is not finite.

    InputError, in one line, for a function that is not there, fails, or returns no number.
    """
    where = f"metric: {metric_name(given)}"
    function: Any = given
    if isinstance(given, str):
        path, _, name = given.rpartition(":")
        function = function_of("metric", path, name)
    try:
        value: Any = function(outputs, labels)
    except USER_FAULTS as error:  # whatever it does is said so
        value = _of_tensors(function, outputs, labels)
        if value is None:
            said = " ".join(str(error).split()) or type(error).__name__
            expected = "a number of outputs and labels, numpy arrays or tensors"
            raise InputError(f"{where}: {said}; expected {expected}") from None
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, Real):
        kind = type(value).__name__
        raise InputError(f"{where} returned {kind} {shown(value)}; expected a number")
    return float(value) if math.isfinite(value) else None


def _of_tensors(function: Any, *arrays: NDArray[Any]) -> Any:
    """Return what a function that cannot take arrays gives of tensors, None where it cannot too.

    The metric of a training script is written for what the net gives there.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return None
    try:
        return function(*(torch.from_numpy(np.array(array)) for array in arrays))
    except USER_FAULTS:
        return None


def check_metric(given: str | Metric, outputs: Shape, labels: NDArray[Any]) -> None:
    """Raise InputError where a metric cannot be had of zeros, outputs [shape of one], and labels.

    So it is said before anything is trained.
    """
    if not given:
        return
    few = labels[:SAMPLE]
    zeros = np.zeros((len(few), *outputs), np.float32)
    metric_of(given, zeros, few)
