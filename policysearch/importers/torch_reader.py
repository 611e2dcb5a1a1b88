"""Reads a torch module, exported at three batch sizes, as a program and the arrays it works on."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from policysearch.graph import FloatArray
from policysearch.importers.exported import (
    FLOAT_TYPES,
    BufferUpdates,
    adds_apart,
    array_names,
    changes_a_view,
    check_hooks,
    differs,
    exports,
    extent_of,
    hides_rows,
    in_place,
    is_random,
    kind_of,
    narrows,
    number_of,
    op_of,
    path_of,
    rows_read,
    shape_at_first,
    shape_of,
    single_axes,
    value_of,
)
from policysearch.importers.program import (
    COMPLEX,
    FLOATS,
    TRUTHS,
    WHOLES,
    Call,
    Constant,
    Program,
    Ref,
)
from policysearch.nn.model import Input, ParameterSpec
from policysearch.values import InputError

SKIPPED = ("_assert_tensor_metadata", "sym_constrain_range_for_size", "_assert_scalar")
"""Calls that compute nothing."""

REGIONS: Mapping[str, str] = MappingProxyType(
    {
        "wrap_with_set_grad_enabled": "without gradients; leave it out, and freeze parameters by "
        "requires_grad_(False)",
        "wrap_with_autocast": "under autocast; leave it out: formats are the policy's",
    }
)
"""What is wrong with a region of calls, by the op that torch.export makes of it."""


class Reader:
    """Reads one module: exported at three batch sizes, so that what depends on them is seen."""

    def __init__(self, module: Any, example: tuple[Any, ...]) -> None:
        self.module = module
        check_hooks(module)
        self._exports, self._casts_known = exports(module, example)
        self._two = self._exports[0]
        self._arrays = array_names(module, self._two)
        self._known = dict(self._arrays)
        self._taken = {name for name, _ in self._arrays}
        self.constants: dict[str, FloatArray] = {}
        self._rows: list[Constant] = []
        self._names = {node: nodes[0].name for nodes in self._nodes() for node in nodes}
        nodes = {node.name: node for node in self._two.graph.nodes}
        users = self._two.graph_signature.user_inputs
        self.inputs = tuple(
            Input(str(user), tuple(x.shape[1:]), x.dtype not in FLOAT_TYPES, rows_read(nodes[user]))
            for user, x in zip(users, example, strict=True)
        )
        self._statistics = self._running()
        plain = self._plain()
        self._buffer_updates = BufferUpdates(
            self._two, {name for name, full in self._arrays if full in plain}
        )
        _check_types({**dict(module.named_parameters()), **self._buffers(self._statistics)})

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
        return tuple(
            ParameterSpec(name, tuple(value.shape), name.rpartition(".")[0])
            for name, value in self._buffers(self._statistics).items()
        )

    def _buffers(self, names: Collection[str]) -> dict[str, Any]:
        return {name: value for name, value in self.module.named_buffers() if name in names}

    def _running(self) -> set[str]:
        """Return the buffers that batch norms read as running statistics."""
        names = set()
        for node in self._two.graph.nodes:
            if op_of(node) == "aten.batch_norm":
                names |= {self._known[x.name] for x in node.args[3:5] if x is not None}
        return names

    def program(self) -> Program:
        """Return the calls that depend on inputs or parameters; the others become constants."""
        calls, fixed = [], self._fixed()
        for nodes in self._nodes():
            two = nodes[0]
            if two.op != "call_function" or two.name in fixed or self._skipped(two):
                continue
            try:
                calls.append(self._call(nodes, fixed))
            except InputError as error:
                shape = shape_at_first(two)
                faulty = Call(two.name, op_of(two), path_of(two), (), (), shape, fault=str(error))
                calls.append(faulty)
        (output,) = (nodes for nodes in self._nodes() if nodes[0].op == "output")
        outputs = self._version_with_casts(output).args[0]
        results = tuple(self._names[x] for x in outputs if isinstance(x, torch.fx.Node))
        if not results or results[0] in fixed:
            raise InputError("results: first none of inputs and parameters; expected one")
        arrays = tuple((n, full) for n, full in self._arrays if full not in self._plain())
        return Program(arrays, tuple(self._rows), tuple(calls), results)

    def _plain(self) -> set[str]:
        """Return the buffers that nothing moves."""
        buffers = {name for name, _ in self.module.named_buffers()}
        return buffers - self._statistics

    def _fixed(self) -> dict[str, Any]:
        """Return the values, at the first and the last batch size, of what only constants enter."""
        values_by_name: dict[str, Any] = {}
        ends = (self._exports[0], self._exports[-1])
        for two, _, five in self._nodes():
            pairs = tuple(zip(ends, (two, five), strict=True))
            if two.op == "placeholder":
                values = tuple(self._held(program, node.name) for program, node in pairs)
                if values[0] is not None:
                    values_by_name[two.name] = values
            elif two.op == "get_attr":
                parts = (program.graph_module.get_submodule(node.target) for program, node in pairs)
                values_by_name[two.name] = tuple(parts)
            elif two.op == "call_function" and not self._skipped(two):
                names = [x.name for x in two.all_input_nodes]
                if all(name in values_by_name for name in names) and not is_random(two):
                    values_by_name[two.name] = tuple(
                        value_of(
                            node,
                            {
                                operand.name: values_by_name[name][end]
                                for operand, name in zip(node.all_input_nodes, names, strict=True)
                            },
                        )
                        for end, node in enumerate((two, five))
                    )
        return values_by_name

    def _nodes(self) -> Iterator[tuple[Any, ...]]:
        """Yield each node of the program, as it is in each export."""
        return zip(*(program.graph.nodes for program in self._exports), strict=True)

    def _version_with_casts(self, versions: Sequence[Any]) -> Any:
        """Return the one of what the exports have that tells a value from a cast of it.

        In float32 `x.float()` is x, and what reads x later seems to read the cast.
        """
        return versions[1] if self._casts_known else versions[0]

    def _held(self, program: Any, name: str) -> Any:
        """Return a tensor that nothing moves: a buffer, or one that forward has from elsewhere."""
        full = program.graph_signature.inputs_to_buffers.get(name)
        if full in self._plain() and name not in self._buffer_updates.buffers:
            return self._buffers((full,))[full].detach().clone()
        lifted = program.graph_signature.inputs_to_lifted_tensor_constants
        return program.constants[lifted[name]] if name in lifted else None

    def _skipped(self, node: Any) -> bool:
        """Return whether a call computes nothing that counts: a check, a counter of batches."""
        return (
            node.name in self._buffer_updates.nodes or op_of(node).removeprefix("aten.") in SKIPPED
        )

    def _call(self, nodes: Sequence[Any], fixed: Mapping[str, Any]) -> Call:
        two, op = nodes[0], op_of(nodes[0])
        self._check_call(two)

        def read(versions: Sequence[Any]) -> Any:
            first = versions[0]
            if isinstance(first, torch.fx.Node):
                name = self._names[self._version_with_casts(versions)]
                return Ref(self._constant(name, fixed) if name in fixed else name)
            if isinstance(first, list | tuple):
                return tuple(read(parts) for parts in zip(*versions, strict=True))
            if isinstance(first, torch.dtype):
                return self._cast_to(first, versions[1])
            if isinstance(first, int) and not isinstance(first, bool):
                return extent_of(versions)
            known = isinstance(first, float | bool | str | type(None))
            return number_of(versions) if known else str(first)

        arguments = tuple(read(versions) for versions in zip(*(n.args for n in nodes), strict=True))
        if op.removesuffix("_") == "aten.squeeze" and len(arguments) == 1:
            arguments = (*arguments, single_axes(two.args[0]))
        options = tuple((key, read([n.kwargs[key] for n in nodes])) for key in two.kwargs)
        if op == "aten.scaled_dot_product_attention":
            arguments, options = self._attention(two, arguments, dict(options), fixed)
        if op == "aten.linear" and adds_apart(two):
            options = (*options, ("apart", True))
        if self._casts_known and narrows(nodes[1]):
            options = (*options, ("back", True))
        return Call(
            two.name,
            op,
            path_of(two),
            arguments,
            tuple((key, value) for key, value in options if key not in ("device", "pin_memory")),
            shape_of(nodes),
            self._names[self._version_with_casts(nodes).args[0]] if in_place(two) else "",
            kind=kind_of(two),
        )

    def _check_call(self, node: Any) -> None:
        """Raise InputError for a call that computes what no graph of one step says."""
        if op_of(node) in REGIONS:
            raise InputError(f"a region {REGIONS[op_of(node)]}")
        if buffer := self._buffer_updates.read_by(node):
            raise InputError(
                f"buffer {self._known[buffer]}: moved by forward itself; expected one that stays, "
                "or running statistics of a batch norm"
            )
        if in_place(node) and changes_a_view(node):
            raise InputError("changes what another view reads later; write it out of place")

    def _cast_to(self, wanted: Any, in_copy: Any) -> str:
        """Return what a cast is to: where the copy in another format casts to that, its input's."""
        if wanted not in FLOAT_TYPES:
            return TRUTHS if wanted == torch.bool else WHOLES
        if self._casts_known and wanted != in_copy:
            return "as its input"
        if wanted in (torch.float16, torch.bfloat16):
            raise InputError(f"a cast to {wanted}; leave it out: formats are the policy's")
        return "float32"

    def _attention(
        self,
        node: Any,
        arguments: tuple[Any, ...],
        options: dict[str, Any],
        fixed: Mapping[str, Any],
    ) -> Any:
        """Give the causal mask as a constant; say whether a mask may leave nothing of a row."""
        named = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        by_name = {**dict(zip(named, arguments, strict=False)), **options}
        if causal := by_name.pop("is_causal", False):
            rows, columns = (x.meta["val"].shape[-2] for x in node.args[:2])
            mask = torch.ones(rows, columns, dtype=torch.bool).tril()
            by_name["attn_mask"] = Ref(
                self._kept_constant(f"causal {rows} x {columns}", mask, mask)
            )
        mask = {**dict(zip(named, node.args, strict=False)), **node.kwargs}.get("attn_mask")
        by_name["hides"] = causal or (mask is not None and mask.meta["val"].dtype == torch.bool)
        if mask is not None:
            by_name["empty_rows"] = mask.name not in fixed or hides_rows(fixed[mask.name][0])
        return (), tuple(by_name.items())

    def _constant(self, name: str, fixed: Mapping[str, Any]) -> str:
        return self._kept_constant(self._known.get(name, name), *fixed[name])

    def _kept_constant(self, name: str, two: Any, five: Any) -> str:
        """Keep an array, of extent 1 along the axis that grows with the batch; return its name."""
        if name in self.constants:
            return name
        if paired := two.is_complex():
            two, five = torch.view_as_real(two), torch.view_as_real(five)
        pairs = enumerate(zip(two.shape, five.shape, strict=True))
        axes = [axis for axis, (a, b) in pairs if a != b]
        value = two.narrow(axes[0], 0, 1) if axes else two
        if len(axes) > 1 or any(differs(value, other) for other in (two, five)):
            raise InputError(
                f"constant {name}: differs from example to example, with their number or from run "
                "to run; feed it instead"
            )
        self.constants[name] = value.detach().to(torch.float32).numpy().copy()
        kind = TRUTHS if two.dtype == torch.bool else FLOATS if two.is_floating_point() else WHOLES
        kind = COMPLEX if paired else kind
        self._rows.append(Constant(name, tuple(value.shape), axes[0] if axes else None, kind))
        return name


def _check_types(arrays: Mapping[str, Any]) -> None:
    """Raise InputError for parameters and statistics that are not float32."""
    for name, value in arrays.items():
        if value.dtype != torch.float32:
            remedy = "expected torch.float32, say by module.float(): formats are the policy's"
            raise InputError(f"{name}: {value.dtype}; {remedy}")
