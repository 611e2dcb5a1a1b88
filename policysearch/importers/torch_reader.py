"""Reads a torch module, exported at two batch sizes, as a program and the arrays it works on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from policysearch.graph import FloatArray
from policysearch.importers.exported import (
    FLOATS,
    exported,
    in_place,
    op_of,
    path_of,
    rows_read,
    second_export,
    seen_elsewhere,
    shape_of,
    value_of,
    with_batch,
)
from policysearch.importers.program import Call, Constant, Program, Ref, extent
from policysearch.nn.model import Input, ParameterSpec
from policysearch.values import InputError

SKIPPED = ("_assert_tensor_metadata", "sym_constrain_range_for_size", "_assert_scalar")
"""Calls that compute nothing."""


class Reader:
    """Reads one module: exported at two batch sizes, so that what depends on them is seen."""

    def __init__(self, module: Any, example: tuple[Any, ...]) -> None:
        self.module = module
        self._two = exported(module, with_batch(example, 2))
        self._three, self._casts_known = second_export(module, example, self._two)
        self._arrays = _array_names(module, self._two)
        self._known = dict(self._arrays)
        self._taken = {name for name, _ in self._arrays}
        self.constants: dict[str, FloatArray] = {}
        self._rows: list[Constant] = []
        nodes = {node.name: node for node in self._two.graph.nodes}
        users = self._two.graph_signature.user_inputs
        self.inputs = tuple(
            Input(str(user), tuple(x.shape[1:]), x.dtype not in FLOATS, rows_read(nodes[user]))
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
            if op_of(node) == "aten.batch_norm":
                found |= {self._known[x.name] for x in node.args[3:5] if x is not None}
        return found

    def program(self) -> Program:
        """Return the calls that depend on inputs or parameters; the others become constants."""
        calls, fixed = [], self._fixed()
        for two, three in zip(self._two.graph.nodes, self._three.graph.nodes, strict=True):
            if two.op != "call_function" or two.name in fixed or self._skipped(two):
                continue
            try:
                calls.append(self._call(two, three, fixed))
            except InputError as error:
                shape = shape_of(two, three)
                faulty = Call(two.name, op_of(two), path_of(two), (), (), shape, fault=str(error))
                calls.append(faulty)
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
                value = self._held(two.name)
                if value is not None:
                    found[two.name] = (value, value.to(three.meta["val"].dtype))
            elif two.op == "get_attr":
                found[two.name] = tuple(
                    program.graph_module.get_submodule(node.target)
                    for program, node in ((self._two, two), (self._three, three))
                )
            elif two.op == "call_function" and not self._skipped(two):
                inputs = {x.name for x in two.all_input_nodes}
                if inputs <= found.keys() and op_of(two) != "aten.dropout":
                    found[two.name] = tuple(
                        value_of(node, {n: found[n][which] for n in inputs})
                        for which, node in enumerate((two, three))
                    )
        return found

    def _held(self, name: str) -> Any:
        """Return a tensor that nothing moves: a buffer, or one that forward has from elsewhere."""
        full = self._known.get(name)
        if full in self._plain():
            return dict(self.module.named_buffers())[full].detach()
        lifted = self._two.graph_signature.inputs_to_lifted_tensor_constants
        return self._two.constants[lifted[name]] if name in lifted else None

    def _skipped(self, node: Any) -> bool:
        """Return whether a call computes nothing that counts: a check, a counter of batches."""
        moves = in_place(node) and self._known.get(node.args[0].name) in self._plain()
        return moves or op_of(node).removeprefix("aten.") in SKIPPED

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
        if in_place(two) and seen_elsewhere(two):
            raise InputError("changes what another view reads later; write it out of place")
        op = op_of(two)
        if op == "aten.scaled_dot_product_attention":
            arguments, options = self._attention(two, arguments, dict(options), fixed)
        return Call(
            two.name,
            op,
            path_of(two),
            arguments,
            tuple((key, value) for key, value in options if key not in ("device", "pin_memory")),
            shape_of(two, three),
            two.args[0].name if in_place(two) else "",
        )

    def _attention(
        self,
        node: Any,
        arguments: tuple[Any, ...],
        options: dict[str, Any],
        fixed: Mapping[str, Any],
    ) -> Any:
        """Give the causal mask as a constant, and say what a mask of truth values holds."""
        named = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        given = {**dict(zip(named, arguments, strict=False)), **options}
        mask = dict(zip(named, node.args, strict=False)).get("attn_mask")
        mask = node.kwargs.get("attn_mask", mask)
        if given.pop("is_causal", False):
            rows, columns = (x.meta["val"].shape[-2] for x in node.args[:2])
            kept = torch.ones(rows, columns, dtype=torch.bool).tril()
            given["attn_mask"] = Ref(self._kept_constant(f"causal {rows} x {columns}", kept, kept))
            given["keeps"] = "some"
        elif mask is not None and mask.meta["val"].dtype == torch.bool:
            full = mask.name in fixed and bool(fixed[mask.name][0].any(-1).all())
            given["keeps"] = "some" if full else "some or none"
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
        self._rows.append(Constant(name, tuple(value.shape), axes[0] if axes else None))
        return name


def _array_names(module: Any, program: Any) -> tuple[tuple[str, str], ...]:
    """Return (placeholder, full name) pairs; a tied parameter has its first name."""
    first = {id(p): name for name, p in module.named_parameters()}
    every = dict(module.named_parameters(remove_duplicate=False))
    signature = program.graph_signature
    parameters = ((n, first[id(every[full])]) for n, full in signature.inputs_to_parameters.items())
    return (*parameters, *signature.inputs_to_buffers.items())
