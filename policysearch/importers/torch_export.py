"""From a torch module to a model, over torch.export before decomposition."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from policysearch.graph import FloatArray
from policysearch.importers.program import Call, Constant, Extent, Program, Ref, extent
from policysearch.importers.torch_model import TorchModel
from policysearch.nn.model import OWN_LOSS, Input, ParameterSpec
from policysearch.values import InputError

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
SKIPPED = ("_assert_tensor_metadata", "sym_constrain_range_for_size", "_assert_scalar")
"""Calls that compute nothing."""


def from_torch(
    module: Any,
    example_inputs: Any,
    *,
    loss: str = "token_cross_entropy",
    labels: str = "",
    name: str = "",
) -> TorchModel:
    """Return a torch module as a model that studies train, price and search policies for.

    `module` is an nn.Module, whose values every seed starts from, or a function without arguments
    that makes one: it is called anew for every seed. `example_inputs` is a tensor or a tuple of
    them, as `forward` takes them, the batch along axis 0. `loss` is an op of `ops/` that reads the
    module's first result, or "own" where the module returns its loss; `labels` is then the
    argument that takes the labels of the data set. Layers are called as in `named_modules()`,
    parameters as in `named_parameters()`. Raises InputError that names every call of the module
    that has no rule, at once.
    """
    draw = None if isinstance(module, torch.nn.Module) else _Draw(module)
    net = module if draw is None else draw.module(0)
    given = example_inputs if isinstance(example_inputs, tuple) else (example_inputs,)
    reader = _Reader(net, given)
    model = TorchModel(
        name=name or type(net).__name__,
        inputs=reader.inputs,
        program=reader.program(),
        specs=reader.parameters(),
        kept=reader.statistics(),
        initial=arrays_of(net, reader.kept_names()),
        fixed=reader.constants,
        loss=loss,
        labels=labels,
        draw=draw and draw.of(reader.kept_names()),
    )
    if loss == OWN_LOSS and labels and labels not in [item.name for item in model.inputs]:
        valid = ", ".join(item.name for item in model.inputs)
        raise InputError(f"labels: {labels!r}; expected one of {valid}")
    _ = model.layer_names  # traces, so that what cannot be imported is said now
    return model


class _Draw:
    """Makes a module anew for a seed; kept apart from the model so that it can be pickled."""

    def __init__(self, make: Callable[[], Any], kept: Sequence[str] = ()) -> None:
        self._make, self._kept = make, tuple(kept)

    def of(self, kept: Sequence[str]) -> _Draw:
        return _Draw(self._make, kept)

    def module(self, seed: int) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            made = self._make()
        if not isinstance(made, torch.nn.Module):
            raise InputError(f"module: {type(made).__name__}; expected an nn.Module or its maker")
        return made

    def __call__(self, seed: int) -> Mapping[str, FloatArray]:
        return arrays_of(self.module(seed), self._kept)


def arrays_of(module: Any, names: Sequence[str]) -> dict[str, FloatArray]:
    """Return copies of the parameters and buffers called `names`."""
    there = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {n: there[n].detach().to(torch.float32).cpu().numpy().copy() for n in names}


class _Reader:
    """Reads one module: exported at two batch sizes, so that what depends on them is seen."""

    def __init__(self, module: Any, example: tuple[Any, ...]) -> None:
        self.module = module
        self._two = _exported(module, _batch(example, 2))
        self._three, self._casts_known = _second(module, example, self._two)
        self._arrays = _array_names(module, self._two)
        self._known = dict(self._arrays)
        self._taken = {name for name, _ in self._arrays}
        self.constants: dict[str, FloatArray] = {}
        self._rows: list[Constant] = []
        users = self._two.graph_signature.user_inputs
        self.inputs = tuple(
            Input(str(user), tuple(x.shape[1:]), x.dtype not in FLOATS)
            for user, x in zip(users, example, strict=True)
        )
        self._statistics = self._running()

    def kept_names(self) -> list[str]:
        return [spec.name for spec in (*self.parameters(), *self.statistics())]

    def parameters(self) -> tuple[ParameterSpec, ...]:
        """Return every parameter once, with all the modules that hold it."""
        owners: dict[str, list[str]] = {}
        first = {id(p): name for name, p in self.module.named_parameters()}
        for name, parameter in self.module.named_parameters(remove_duplicate=False):
            owners.setdefault(first[id(parameter)], []).append(name.rpartition(".")[0])
        return tuple(
            ParameterSpec(
                name,
                tuple(parameter.shape),
                owners[name][0],
                others=tuple(owners[name][1:]),
                trained=parameter.requires_grad,
            )
            for name, parameter in self.module.named_parameters()
        )

    def statistics(self) -> tuple[ParameterSpec, ...]:
        shapes = {name: tuple(b.shape) for name, b in self.module.named_buffers()}
        return tuple(
            ParameterSpec(name, shapes[name], name.rpartition(".")[0])
            for name in dict(self.module.named_buffers())
            if name in self._statistics
        )

    def _running(self) -> set[str]:
        """Return the buffers that batch norms read as running statistics."""
        found = set()
        for node in self._two.graph.nodes:
            if _op(node) == "aten.batch_norm":
                found |= {self._known[x.name] for x in node.args[3:5] if x is not None}
        return found

    def program(self) -> Program:
        """Return the calls that depend on inputs or parameters; the others become constants."""
        calls, fixed = [], self._fixed()
        for two, three in zip(self._two.graph.nodes, self._three.graph.nodes, strict=True):
            if two.op != "call_function" or two.name in fixed or self._skipped(two):
                continue
            calls.append(self._call(two, three, fixed))
        (output,) = (node for node in self._two.graph.nodes if node.op == "output")
        results = tuple(x.name for x in output.args[0] if isinstance(x, torch.fx.Node))
        arrays = tuple((n, full) for n, full in self._arrays if full not in self._plain())
        return Program(arrays, tuple(self._rows), tuple(calls), results)

    def _plain(self) -> set[str]:
        """Return the buffers that nothing moves."""
        buffers = {name for name, _ in self.module.named_buffers()}
        return buffers - self._statistics

    def _fixed(self) -> dict[str, Any]:
        """Return the values, at batch sizes 2 and 3, of what no input and no parameter enters."""
        found: dict[str, Any] = {}
        for two, three in zip(self._two.graph.nodes, self._three.graph.nodes, strict=True):
            if two.op == "placeholder":
                full = self._known.get(two.name)
                if full in self._plain():
                    value = dict(self.module.named_buffers())[full].detach()
                    found[two.name] = (value, value)
            elif two.op == "call_function" and not self._skipped(two):
                inputs = {x.name for x in two.all_input_nodes}
                if inputs <= found.keys() and _op(two) != "aten.dropout":
                    found[two.name] = tuple(
                        _run(node, {n: found[n][which] for n in inputs})
                        for which, node in enumerate((two, three))
                    )
        return found

    def _skipped(self, node: Any) -> bool:
        """Return whether a call computes nothing that counts: a check, a counter of batches."""
        moves = _in_place(node) and self._known.get(node.args[0].name) in self._plain()
        return moves or _op(node).removeprefix("aten.") in SKIPPED

    def _call(self, two: Any, three: Any, fixed: Mapping[str, Any]) -> Call:
        def read(a: Any, b: Any) -> Any:
            if isinstance(a, torch.fx.Node):
                return Ref(self._constant(a.name, fixed) if a.name in fixed else a.name)
            if isinstance(a, list | tuple):
                return tuple(read(x, y) for x, y in zip(a, b, strict=True))
            if isinstance(a, int) and not isinstance(a, bool):
                return extent(a, b)
            if isinstance(a, torch.dtype):
                # where the copy in another format casts back to it, the cast follows its input
                return "float32" if self._casts_known is False or a == b else "as its input"
            return a if isinstance(a, float | bool | str | type(None)) else str(a)

        arguments = tuple(read(a, b) for a, b in zip(two.args, three.args, strict=True))
        options = tuple((key, read(a, three.kwargs[key])) for key, a in two.kwargs.items())
        op = _op(two)
        if op == "aten.scaled_dot_product_attention":
            arguments, options = self._attention(two, arguments, dict(options))
        return Call(
            two.name,
            op,
            _path(two),
            arguments,
            tuple((key, value) for key, value in options if key not in ("device", "pin_memory")),
            _shape(two, three),
            two.args[0].name if _in_place(two) else "",
        )

    def _attention(self, node: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Give the causal mask as a constant."""
        named = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        given = {**dict(zip(named, arguments, strict=False)), **options}
        if given.pop("is_causal", False):
            rows, columns = (x.meta["val"].shape[-2] for x in node.args[:2])
            mask = torch.ones(rows, columns, dtype=torch.bool).tril()
            given["attn_mask"] = Ref(self._kept_constant(f"causal {rows} x {columns}", mask, mask))
        return (), tuple(given.items())

    def _constant(self, name: str, fixed: Mapping[str, Any]) -> str:
        return self._kept_constant(self._known.get(name, name), *fixed[name])

    def _kept_constant(self, name: str, two: Any, three: Any) -> str:
        """Keep an array, of extent 1 along the axis that grows with the batch; return its name."""
        if name in self.constants:
            return name
        pairs = enumerate(zip(two.shape, three.shape, strict=True))
        axes = [axis for axis, (a, b) in pairs if a != b]
        if len(axes) > 1 or (axes and not bool((two == two.narrow(axes[0], 0, 1)).all())):
            raise InputError(f"constant {name}: differs from example to example; feed it instead")
        value = two.narrow(axes[0], 0, 1) if axes else two
        self.constants[name] = value.detach().to(torch.float32).numpy().copy()
        row = Constant(name, tuple(value.shape), axes[0] if axes else None, two.dtype == torch.bool)
        self._rows.append(row)
        return name


def _exported(module: Any, inputs: tuple[Any, ...]) -> Any:
    training = module.training
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.export(module.train(), inputs, strict=False)
    except Exception as error:
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"module {type(module).__name__}: torch.export: {said}") from error
    finally:
        module.train(training)


def _second(module: Any, example: tuple[Any, ...], first: Any) -> tuple[Any, bool]:
    """Return the export at batch size 3, of a bfloat16 copy where there are casts to tell apart."""
    inputs = _batch(example, 3)
    if any(_op(node) in ("aten.to", "aten._to_copy") for node in first.graph.nodes):
        low = tuple(x.to(torch.bfloat16) if x.dtype in FLOATS else x for x in inputs)
        try:
            second = _exported(copy.deepcopy(module).to(torch.bfloat16), low)
        except InputError:
            second = None
        if second is not None and _calls(second) == _calls(first):
            return second, True
    second = _exported(module, inputs)
    if _calls(second) != _calls(first):
        raise InputError(
            f"module {type(module).__name__}: other calls for other batch sizes; "
            "expected the same for all"
        )
    return second, False


def _batch(example: tuple[Any, ...], count: int) -> tuple[Any, ...]:
    """Return the example inputs with `count` examples, the first one repeated."""
    for index, x in enumerate(example):
        if not isinstance(x, torch.Tensor) or not x.ndim:
            raise InputError(f"example_inputs[{index}]: {type(x).__name__}; expected a tensor")
    return tuple(x[:1].expand(count, *x.shape[1:]).clone() for x in example)


def _array_names(module: Any, program: Any) -> tuple[tuple[str, str], ...]:
    """Return (placeholder, full name) pairs; a tied parameter has its first name."""
    first = {id(p): name for name, p in module.named_parameters()}
    every = dict(module.named_parameters(remove_duplicate=False))
    signature = program.graph_signature
    parameters = ((n, first[id(every[full])]) for n, full in signature.inputs_to_parameters.items())
    return (*parameters, *signature.inputs_to_buffers.items())


def _calls(program: Any) -> list[str]:
    return [str(node.target) for node in program.graph.nodes if node.op == "call_function"]


def _op(node: Any) -> str:
    """Return "aten.linear" for a call of aten.linear.default."""
    if node.op != "call_function":
        return ""
    return str(getattr(node.target, "overloadpacket", getattr(node.target, "__name__", "")))


def _in_place(node: Any) -> bool:
    name = _op(node)
    return name.endswith("_") and not name.endswith("__")


def _path(node: Any) -> str:
    stack = node.meta.get("nn_module_stack") or {}
    paths = [path for path, _ in stack.values()]
    return str(paths[-1]) if paths else ""


def _shape(two: Any, three: Any) -> tuple[int | Extent, ...] | None:
    a, b = two.meta.get("val"), three.meta.get("val")
    if not isinstance(a, torch.Tensor):
        return None
    return tuple(extent(int(x), int(y)) for x, y in zip(a.shape, b.shape, strict=True))


def _run(node: Any, values: Mapping[str, Any]) -> Any:
    """Return what a call gives on real values."""

    def real(x: Any) -> Any:
        return values[x.name]

    arguments = torch.fx.node.map_arg(node.args, real)
    options = torch.fx.node.map_arg(node.kwargs, real)
    return node.target(*arguments, **options)
