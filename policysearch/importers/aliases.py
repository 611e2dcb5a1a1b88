"""Exported programs without regions and without views that an op in place changes.

Values here are nodes, not memory: what an op in place writes into a view is written into what it is
a view of, and other views of that are taken anew.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from policysearch.importers.program import UNCAST

aten = torch.ops.aten

RESHAPED = ("view", "reshape", "flatten", "unflatten", "unsqueeze", "squeeze", "alias", "detach")
EXCHANGED = ("transpose", "t", "mT", "numpy_T")
PARTED = ("split", "split_with_sizes", "chunk", "unbind")
"""Ops that give several views."""

VIEWS = frozenset(
    {
        *(*RESHAPED, *EXCHANGED, *PARTED, "permute", "select", "slice", "narrow", "getitem"),
        *("contiguous", "to", "expand", "expand_as", "view_as", "diagonal", "unfold", "as_strided"),
    }
)
"""Ops whose result may share the memory of what they read."""


def written(node: Any) -> Any:
    """Return what a call writes its result into, None where it has memory of its own."""
    out = node.kwargs.get("out") if node.op == "call_function" else None
    if out is None and in_place(node) and node.args:
        out = node.args[0]
    return out if isinstance(out, torch.fx.Node) else None


NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})

AUTOCAST = "wrap_with_autocast"
REGIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "wrap_with_set_grad_enabled": ("enabled",),
        AUTOCAST: ("device_type", "dtype", "enabled", "cache_enabled"),
    }
)
"""What torch.export makes of regions of calls, and what these say before the calls."""


def op_of(node: Any) -> str:
    """Return "aten.linear" for a call of aten.linear.default."""
    if node.op != "call_function":
        return ""
    return str(getattr(node.target, "overloadpacket", getattr(node.target, "__name__", "")))


def in_place(node: Any) -> bool:
    name = op_of(node)
    return name.endswith("_") and not name.endswith("__") and name != "aten.detach_"


def open_regions(module: Any) -> None:
    """Put the calls of a region into the graph around them.

    Results of `with torch.no_grad()` are detached, and calls of `with autocast(enabled=False)` say
    that they are UNCAST. Other regions stay.
    """
    graph = module.graph
    for node in list(graph.nodes):
        of = REGIONS.get(op_of(node))
        if of is None or node.args[of.index("enabled")]:
            continue
        holder, *operands = node.args[len(of) :]
        region = module.get_submodule(holder.target)
        open_regions(region)
        uncast = op_of(node) == AUTOCAST
        with graph.inserting_before(node):
            results = _region_copy(graph, region.graph, operands, {UNCAST: True} if uncast else {})
            for user in list(node.users):
                result = results[user.args[1]]
                user.replace_all_uses_with(result if uncast else _detached_node(graph, result))
                graph.erase_node(user)
        graph.erase_node(node)
        if not holder.users:
            graph.erase_node(holder)


def read_in_regions(program: Any) -> set[str]:
    """Return the parameters and buffers that calls under `autocast(enabled=False)` read."""
    signature = program.graph_signature
    held = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    calls = (node for node in program.graph.nodes if UNCAST in node.meta)
    return {held[x.name] for node in calls for x in node.all_input_nodes if x.name in held}


def _region_copy(graph: Any, region: Any, operands: list[Any], marks: Mapping[str, Any]) -> Any:
    """Copy the calls of a region, with marks; return its results."""
    inside: dict[Any, Any] = {}
    places = iter(operands)
    for node in region.nodes:
        if node.op == "output":
            return torch.fx.node.map_arg(node.args[0], inside.__getitem__)
        copied = node.op != "placeholder"
        inside[node] = graph.node_copy(node, inside.__getitem__) if copied else next(places)
        if copied:
            inside[node].meta.update(marks)
    raise AssertionError("a region without results")


def _detached_node(graph: Any, value: Any) -> Any:
    node = graph.call_function(aten.detach.default, (value,))
    node.meta = dict(value.meta)
    return node


Back = Callable[[Any, Any, Any], tuple[Any, tuple[Any, ...]]]
"""Of the value now of what a view is of, of the view, and the call that made it: the call whose
result is the first with the second written into it."""


def _reshape(parent: Any, value: Any, _: Any) -> tuple[Any, tuple[Any, ...]]:
    return aten.reshape.default, (value, list(parent.meta["val"].shape))


def _permutation(_: Any, value: Any, view: Any) -> tuple[Any, tuple[Any, ...]]:
    axes = [axis % len(view.args[1]) for axis in view.args[1]]
    return aten.permute.default, (value, [axes.index(axis) for axis in range(len(axes))])


BACK: Mapping[str, Back] = MappingProxyType(
    {
        **dict.fromkeys(RESHAPED, _reshape),
        **dict.fromkeys(EXCHANGED, lambda _, value, view: (view.target, (value, *view.args[1:]))),
        "permute": _permutation,
        "select": lambda parent, value, view: (
            aten.select_scatter.default,
            (parent, value, *view.args[1:]),
        ),
        "diagonal": lambda parent, value, view: (
            aten.diagonal_scatter.default,
            (parent, value, *view.args[1:]),
        ),
        "slice": lambda parent, value, view: (
            aten.slice_scatter.default,
            (parent, value, *view.args[1:]),
        ),
        "narrow": lambda parent, value, view: (
            aten.slice_scatter.default,
            (parent, value, view.args[1], view.args[2], view.args[2] + view.args[3]),
        ),
    }
)
"""By the view that is written into."""


class Aliases:
    """Goes through a graph once and has it read what memory holds at each place.

    `moved` are the last values of inputs of the graph that are written into, by their names, and
    `moved_by` the ops that wrote them;
    `faults` are the ops in place that cannot be written out.
    """

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self.moved: dict[str, Any] = {}
        self.moved_by: dict[str, str] = {}
        self.faults: set[str] = set()
        self._views: dict[Any, tuple[Any, ...]] = {}
        self._roots: dict[Any, Any] = {}
        self._writes: dict[Any, int] = {}
        self._taken_at: dict[Any, int] = {}
        self._now: dict[Any, Any] = {}
        self._last: dict[Any, str] = {}
        self._lost: dict[Any, str] = {}
        for node in list(graph.nodes):
            for operand in node.all_input_nodes:
                if (fresh := self._fresh(operand, node)) is not operand:
                    node.replace_input_with(operand, fresh)
            self._enter(node)
            if written(node) is not None:
                self._write(node)

    def root(self, node: Any) -> Any:
        """Return the node whose memory this one shares, itself where it has its own."""
        return self._roots.get(node, node)

    def _enter(self, node: Any) -> None:
        """Note what memory the result of a node shares."""
        views: tuple[Any, ...] = ()
        source = written(node)
        if source is not None:
            views = self._views[source]
        elif self._is_view(node):
            source = node.args[0]
            views = (*self._views[source], node)
        self._roots[node] = node if source is None else self._roots[source]
        self._views[node] = views
        self._taken_at[node] = self._writes.setdefault(self._roots[node], 0)
        self._now.setdefault(self._roots[node], self._roots[node])

    def _is_view(self, node: Any) -> bool:
        source = node.args[0] if node.args else None
        if not isinstance(source, torch.fx.Node):
            return False
        if node.target is operator.getitem:  # what a call gives several of lies apart, but views
            return self._name(source) in PARTED
        return self._name(node) in VIEWS

    def _write(self, node: Any) -> None:
        root = self._roots[node]
        self._writes[root] += 1
        self._taken_at[node] = self._writes[root]
        self._now[root], self._last[root] = self._root_with_write(node, root), node.name
        if self._now[root] is None:
            self._lost[root] = node.name
        if root.op == "placeholder":
            self.moved[root.name] = self._now[root] or node
            self.moved_by[root.name] = op_of(node)
            self.faults |= {self._lost[root]} if root in self._lost else set()

    def _root_with_write(self, node: Any, root: Any) -> Any:
        """Return the root with what an op in place gives written into it; None where it cannot."""
        views = self._views[node]
        if root in self._lost or any(self._name(view) not in BACK for view in views):
            return None
        value, place, parents = node, node.next, [self._now[root]]
        for view in views[:-1]:
            parents.append(self._again(view, parents[-1], place))
        for view, parent in zip(reversed(views), reversed(parents[: len(views)]), strict=True):
            target, arguments = BACK[self._name(view)](parent, value, view)
            value = self._call(target, arguments, node, place)
        return value

    @staticmethod
    def _name(view: Any) -> str:
        return op_of(view).removeprefix("aten.").removesuffix("_")

    def _fresh(self, operand: Any, reader: Any) -> Any:
        """Return what holds the value now that `operand` held when it was taken."""
        root = self._roots[operand]
        if self._taken_at[operand] == self._writes[root]:
            return operand
        value = self._now[root]
        if value is None or any(self._name(view) == "getitem" for view in self._views[operand]):
            self.faults.add(self._lost.get(root) or self._last[root])
            return operand
        for view in self._views[operand]:
            value = self._again(view, value, reader)
        self._roots[value], self._views[value] = root, self._views[operand]
        self._taken_at[value] = self._writes[root]
        return value

    def _again(self, view: Any, source: Any, place: Any) -> Any:
        """Take a view of another value of what it is of."""
        return self._call(view.target, (source, *view.args[1:]), view, place, view.kwargs)

    def _call(
        self, target: Any, arguments: Any, like: Any, place: Any, options: Any = NO_OPTIONS
    ) -> Any:
        with self.graph.inserting_before(place):
            node = self.graph.call_function(target, tuple(arguments), dict(options))
        node.meta = dict(like.meta)
        values = torch.fx.node.map_arg((node.args, node.kwargs), lambda x: x.meta["val"])
        with torch.no_grad():
            node.meta["val"] = target(*values[0], **values[1])
        return node
