"""Reads a torch module, exported at three batch sizes, as a program and the arrays it works on."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch

from policysearch.graph import FloatArray
from policysearch.importers.aliases import AUTOCAST, in_place, op_of
from policysearch.importers.constants import (
    arguments_of,
    bag_sizes,
    check_lengths,
    copies_keys,
    format_of,
    growing_axes,
    growth,
    hides_rows,
    in_range,
    is_even,
    is_made_low,
    kind_of_constant,
    made_anew,
    rounded_products,
    value_of,
)
from policysearch.importers.decomposition import piece_of
from policysearch.importers.exported import (
    FLOAT_TYPES,
    adds_apart,
    array_names,
    draws,
    exports,
    extent_of,
    is_random,
    kind_of,
    like_of_draw,
    line_of,
    memory_order,
    number_of,
    path_of,
    read_by,
    rows_read,
    shape_at_first,
    shape_of,
    single_axes,
    way_of_cast,
)
from policysearch.importers.program import (
    COMPLEX,
    MEETING,
    TRUTHS,
    UNCAST,
    WHOLES,
    Call,
    Constant,
    Program,
    Ref,
)
from policysearch.importers.stand_ins import check_hooks, check_layouts, check_types
from policysearch.nn.model import Input, ParameterSpec
from policysearch.ops.source import own
from policysearch.values import InputError

LAYOUT = ("device", "pin_memory", "layout", "memory_format", "out")
"""Options that change no value; what `out` names is written into the graph (`aliases.py`)."""


class Reader:
    """Reads one module: exported at three batch sizes, so that what depends on them is seen."""

    def __init__(
        self,
        module: Any,
        example: tuple[Any, ...],
        *,
        training: bool = True,
        moved: Collection[str] = (),
    ) -> None:
        """Read the module as in `training` or in evaluation; `moved` buffers are no constants."""
        self.module, self._training = module, training
        check_hooks(module)
        check_layouts(module)
        read = exports(module, example, training)
        self._exports, self._casts_known = read.programs, read.casts_known
        self._aliases = read.aliases
        self._two = self._exports[0]
        self._arrays = array_names(module, self._two)
        self._known = dict(self._arrays)
        self.constants: dict[str, FloatArray] = {}
        self._made_low: dict[str, str] = {}
        self._ends: Mapping[str, Any] = {}
        self._rows: list[Constant] = []
        self._names = {node: nodes[0].name for nodes in self._nodes() for node in nodes}
        nodes = {node.name: node for node in self._two.graph.nodes}
        users = self._two.graph_signature.user_inputs
        self.inputs = tuple(
            Input(
                self.input_name(user),
                tuple(x.shape[1:]),
                x.dtype not in FLOAT_TYPES,
                rows_read(nodes[user]),
            )
            for user, x in zip(users, example, strict=True)
        )
        self._updated = self._moved_buffers()
        self._statistics = self._running_statistics() | set(self._updated) | set(moved)
        check_types({**dict(module.named_parameters()), **self._buffers(self._statistics)})

    def input_name(self, argument: str) -> str:
        """Return what an argument of the forward pass is called, apart from what the module holds.

        No path of a module ends with a dot.
        """
        return f"{argument}." if argument in self._known.values() else argument

    def _moved_buffers(self) -> dict[str, str]:
        """Return the buffers of floats that forward writes into, with the name of what they become.

        Counters are none; whoever reads one is refused.
        """
        lifted = self._two.graph_signature.inputs_to_lifted_tensor_constants
        for name in lifted.keys() & self._aliases.moved.keys():
            op = self._aliases.moved_by[name]
            raise InputError(
                f"tensor {lifted[name]}: {op} in forward moves it; expected a registered buffer"
            )
        buffers = dict(self.module.named_buffers())
        moved = {self._known[name]: name for name in self._aliases.moved if name in self._known}
        for full, name in moved.items():
            if full not in buffers:
                raise InputError(
                    f"parameter {full}: {self._aliases.moved_by[name]} in forward moves it; "
                    "expected only the optimizer to, or a buffer (an embedding has max_norm=None)"
                )
        floats = (full for full in moved if buffers[full].dtype in FLOAT_TYPES)
        return {full: self._aliases.moved[moved[full]].name for full in floats}

    @property
    def evaluates_otherwise(self) -> bool:
        """Return whether forward draws or moves buffers, which it may not do in evaluation."""
        return bool(self._updated) or any(draws(node) for node in self._two.graph.nodes)

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

    def _running_statistics(self) -> set[str]:
        """Return the buffers that batch norms read as running statistics."""
        names = set()
        for node in self._two.graph.nodes:
            if op_of(node) == "aten.batch_norm":
                names |= {self._known[x.name] for x in node.args[3:5] if x is not None}
        return names

    def program(self) -> Program:
        """Return the calls that depend on inputs or parameters; the others become constants.

        Calls that no result and no statistic depends on are left out.
        """
        calls, fixed, needed = [], self._fixed_values(), self._needed_nodes()
        paths = {path_of(n[0]) for n in self._nodes() if n[0].name in fixed}
        self._ends = dict(fixed)
        for name in self._growing_calls(fixed, needed):
            del fixed[name]
        for nodes in self._nodes():
            two = nodes[0]
            if two.op != "call_function" or two.name in fixed or two.name not in needed:
                continue
            try:
                calls.append(self._call(nodes, fixed))
            except InputError as error:
                shape = shape_at_first(two)
                place = two.name, op_of(two), path_of(two)
                faulty = Call(*place, (), (), shape, fault=str(error), line=line_of(two))
                calls.append(replace(faulty, piece=piece_of(two)))
        results = tuple(self._names[x] for x in self._results())
        if not results or results[0] in fixed:
            raise InputError("results: first none of inputs and parameters; expected one")
        arrays = [(n, full) for n, full in self._arrays if full not in self._plain]
        users = self._two.graph_signature.user_inputs
        arrays += [(user, item.name) for user, item in zip(users, self.inputs, strict=True)]
        named = tuple((n, full) for n, full in arrays if n != full)
        updated = tuple(self._updated.items()) if self._training else ()
        folded = tuple(sorted(paths - {call.path for call in calls} - {""}))
        return Program(named, tuple(self._rows), tuple(calls), results, updated, folded)

    def _results(self) -> list[Any]:
        (output,) = (nodes for nodes in self._nodes() if nodes[0].op == "output")
        outputs = self._version_with_casts(output).args[0]
        return [x for x in outputs if isinstance(x, torch.fx.Node)]

    def _needed_nodes(self) -> set[str]:
        """Return the nodes that results and statistics depend on, and those that write in vain."""
        wanted = {self._names[x] for x in self._results()} | set(self._updated.values())
        wanted |= self._aliases.faults
        for nodes in reversed(list(self._nodes())):
            if op_of(nodes[0]) == "aten.batch_norm":
                wanted.add(nodes[0].name)
            if nodes[0].name in wanted:
                read = read_by(self._version_with_casts(nodes))
                wanted |= {self._names[x] for x in read if x in self._names}
        return wanted

    def _growing_calls(self, fixed: Mapping[str, Any], needed: Collection[str]) -> set[str]:
        """Return the calls on constants whose values for more examples are not repetitions.

        They are made anew for every batch size, where what reads them needs that.
        """
        growing: set[str] = set()
        for nodes in reversed(list(self._nodes())):
            two = nodes[0]
            if two.name not in needed or (two.name in fixed and two.name not in growing):
                continue
            read = (x for x in made_anew(two) if x.op == "call_function" and x.name in fixed)
            growing |= {x.name for x in read if not is_even(*fixed[x.name])}
        return growing

    @cached_property
    def _plain(self) -> set[str]:
        """Return the buffers that nothing moves."""
        buffers = {name for name, _ in self.module.named_buffers()}
        return buffers - self._statistics

    def _fixed_values(self) -> dict[str, Any]:
        """Return the values, at the first and the last batch size, of what only constants enter."""
        values_by_name: dict[str, Any] = {}
        stored: set[str] = set()
        ends = (self._exports[0], self._exports[-1])
        rounding = rounded_products(self._two)
        for two, three, five in self._nodes():
            pairs = tuple(zip(ends, (two, five), strict=True))
            if two.op == "placeholder":
                values = tuple(self._held(program, node.name) for program, node in pairs)
                if values[0] is not None:
                    values_by_name[two.name] = values
                    stored |= {three.name} if two.name in self._known else set()
            elif two.op == "get_attr":
                parts = (program.graph_module.get_submodule(node.target) for program, node in pairs)
                values_by_name[two.name] = tuple(parts)
            elif two.op == "call_function":
                names = [x.name for x in two.all_input_nodes]
                changes = is_random(two) or two.name in rounding
                if not changes and all(name in values_by_name for name in names):
                    if is_made_low((two, three, five), stored, self._casts_known):
                        self._made_low[two.name] = format_of(three, self._names, self._made_low)
                    elif any(x.name in stored for x in three.all_input_nodes):
                        stored.add(three.name)
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
        full = self._known.get(name)
        if full in self._plain and name not in self._aliases.moved:
            return self._buffers((full,))[full].detach().clone()
        lifted = program.graph_signature.inputs_to_lifted_tensor_constants
        return program.constants[lifted[name]] if name in lifted else None

    def _call(self, nodes: Sequence[Any], fixed: Mapping[str, Any]) -> Call:
        two, op = nodes[0], op_of(nodes[0])
        self._check_call(two)

        def read(versions: Sequence[Any]) -> Any:
            first = versions[0]
            if isinstance(first, torch.fx.Node):
                name = self._names[self._version_with_casts(versions)]
                _check_value(first)
                return Ref(self._constant(name, fixed) if name in fixed else name)
            if isinstance(first, list | tuple):
                return tuple(read(parts) for parts in zip(*versions, strict=True))
            if isinstance(first, torch.dtype):
                return self._cast_to(first, versions[1], fixed)
            if isinstance(first, int) and not isinstance(first, bool):
                return extent_of(versions)
            known = isinstance(first, float | bool | str | complex | type(None))
            return number_of(versions) if known else str(first)

        arguments = tuple(map(read, zip(*map(arguments_of, nodes), strict=True)))
        options = tuple((key, read([n.kwargs[key] for n in nodes])) for key in two.kwargs)
        arguments, options = self._explicit(nodes, arguments, options, fixed)
        return Call(
            two.name,
            op,
            path_of(two),
            arguments,
            tuple((key, value) for key, value in options if key not in LAYOUT),
            shape_of(nodes),
            self._names[self._version_with_casts(nodes).args[0]] if in_place(two) else "",
            kind=kind_of(two),
            line=line_of(two),
            piece=piece_of(two),
        )

    def _explicit(
        self,
        nodes: Sequence[Any],
        arguments: tuple[Any, ...],
        options: tuple[tuple[str, Any], ...],
        fixed: Mapping[str, Any],
    ) -> Any:
        """Return arguments and options with what torch takes from values."""
        two, op = nodes[0], op_of(nodes[0])
        if op.removesuffix("_") == "aten.squeeze" and len(arguments) == 1:
            arguments = (*arguments, single_axes(two.args[0]))
        if op == "aten.index":
            arguments = (arguments[0], tuple(self._places(two.args[1], arguments[1], fixed)))
        check_lengths(two, self._ends)
        if UNCAST in two.meta:
            options = (*options, (UNCAST, True))
        if op == "aten.embedding_bag":
            options = (*options, ("bags", bag_sizes(two, self._ends)))
        if draws(two):
            arguments, options = self._draw(nodes, arguments, dict(options))
        if op == "aten.scaled_dot_product_attention":
            arguments, options = self._attention(two, arguments, dict(options), fixed)
        if op == "aten.as_strided" and (order := memory_order(two)):
            options = (*options, ("order", order))
        if apart := adds_apart(two):
            options = (*options, ("apart", apart))
        if self._casts_known and (way := way_of_cast(nodes[1])):
            options = (*options, (way, True))
        return arguments, options

    def _check_call(self, node: Any) -> None:
        """Raise InputError for a call that computes what no graph of one step says."""
        if op_of(node) == AUTOCAST:
            raise InputError("a region under autocast; leave it out: formats are the policy's")
        for name in {self._aliases.root(x).name for x in node.all_input_nodes}:
            if name in self._aliases.moved and self._known.get(name, "") not in self._updated:
                full = self._known.get(name)
                if full is not None:
                    raise InputError(
                        f"buffer {full}: whole numbers that forward itself moves; expected float32"
                    )
        if node.name in self._aliases.faults:
            raise InputError("changes what another view reads later; write it out of place")

    def _places(self, nodes: Any, arguments: Any, fixed: Mapping[str, Any]) -> Iterator[Any]:
        """Yield what a tensor is indexed by; for a constant mask, the places where it is true."""
        for node, argument in zip(nodes, arguments, strict=True):
            if node is None or node.meta["val"].dtype != torch.bool or node.name not in fixed:
                yield argument
                continue
            for axis, ends in enumerate(
                zip(*(m.nonzero().t() for m in fixed[node.name]), strict=True)
            ):
                name = own(own(f"{node.name} is true, axis {axis}"))
                yield Ref(self._kept_constant(name, *ends))

    def _draw(
        self, nodes: Sequence[Any], arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        """Say of a draw its shape and what value has its format; "follows" where no one says it."""
        two = nodes[0]
        made = two.args[0] if in_place(two) else two
        like = like_of_draw(two)
        if in_place(two) or op_of(two).endswith("_like"):
            arguments = arguments[1:]
        if like is not None:
            options["like"] = Ref(self._names[like])
        follows = like is None and made.kwargs.get("dtype") is not None
        size = shape_of(nodes)
        kept = {k: v for k, v in options.items() if k in ("low", "high", "p", "like")}
        return arguments, (*kept.items(), ("size", size), ("follows", follows))

    def _cast_to(self, wanted: Any, in_copy: Any, fixed: Mapping[str, Any]) -> Any:
        """Return what a cast is to: where the copy in another format casts to that, its input's.

        Or the value that the copy says.
        """
        if isinstance(in_copy, torch.fx.Node):
            name = self._names[in_copy]
            return "as its input" if name in fixed else Ref(name)
        if wanted.is_complex:
            return COMPLEX
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
        """Give the causal mask as a constant; say whether a mask may leave nothing of a row.

        And whether some values of a row do not lie side by side, which no kernel but one takes.
        """
        named = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        by_name = {**dict(zip(named, arguments, strict=False)), **options}
        if causal := by_name.pop("is_causal", False):
            rows, columns = (x.meta["val"].shape[-2] for x in node.args[:2])
            mask = torch.ones(rows, columns, dtype=torch.bool).tril()
            by_name["attn_mask"] = Ref(
                self._kept_constant(own(own(f"causal {rows} x {columns}")), mask, mask)
            )
        mask = {**dict(zip(named, node.args, strict=False)), **node.kwargs}.get("attn_mask")
        by_name["hides"] = causal or (mask is not None and mask.meta["val"].dtype == torch.bool)
        if mask is not None:
            by_name["empty_rows"] = mask.name not in fixed or hides_rows(fixed[mask.name][0])
            by_name["copied"] = copies_keys(node, fixed.get(mask.name, (None,))[0])
        if any(x.meta["val"].stride(-1) != 1 for x in node.args[:3]):
            by_name["strided"] = True
        return (), tuple(by_name.items())

    def _constant(self, name: str, fixed: Mapping[str, Any]) -> str:
        # What torch calls a node may be what the module calls a buffer.
        full = self._known.get(name, own(name))
        if name not in self._made_low:
            return self._kept_constant(own(full), *fixed[name])
        two, five = map(in_range, fixed[name])
        return self._kept_constant(own(full), two, five, self._made_low[name])

    def _kept_constant(self, name: str, two: Any, five: Any, of: str | None = None) -> str:
        """Keep an array, of extent 1 along a batch's axis, in the format `of` a value; name it."""
        if not (self._training or name.removeprefix(".") in self._plain):
            name = f"{name} in evaluation"
        if name in self.constants:
            return name
        kind = kind_of_constant(two) if of is None else MEETING
        if kind == COMPLEX:
            two, five = torch.view_as_real(two), torch.view_as_real(five)
        axes = growing_axes(two, five)
        value = two.narrow(axes[0], 0, 1) if axes else two
        if not is_even(two, five):
            raise InputError(
                f"constant {name.lstrip('.')}: differs from example to example, with their "
                "number or from run to run; feed it instead"
            )
        self.constants[name] = value.detach().to(torch.float32).numpy().copy()
        shape, grown = tuple(value.shape), growth(two, five)
        self._rows.append(Constant(name, shape, kind=kind, format_of=of or "", **grown))
        return name


def _check_value(node: Any) -> None:
    """Raise InputError for a number that is known only when the net runs."""
    value = node.meta.get("val")
    if isinstance(value, torch.SymInt | torch.SymBool):
        raise InputError(
            "a size that depends on values; keep all rows and multiply by the mask, or choose by "
            "torch.where"
        )
