"""Writing in place, as torch exports it: what else would have to change with a tensor."""

from __future__ import annotations

from typing import Any

from policysearch.importers.exported import in_place, op_of

VIEWS = frozenset(
    f"aten.{name}"
    for name in (
        *("view", "reshape", "_unsafe_view", "flatten", "unflatten", "unsqueeze", "squeeze"),
        *("permute", "transpose", "t", "numpy_T", "movedim", "expand", "expand_as", "diagonal"),
        *("slice", "narrow", "select", "unbind", "split", "split_with_sizes", "chunk"),
        *("alias", "detach", "contiguous", "view_as", "chunk", "tensor_split"),
    )
) | {"getitem"}
"""Calls whose result may share memory with their first argument."""


def shared_writes(program: Any) -> set[str]:
    """Return the names of calls that write into memory that a later call reads otherwise.

    The importer puts the result in the place of the tensor that is written to; what is read under
    another name, as the whole of which a part was written to, would keep its old values.
    """
    nodes = list(program.graph.nodes)
    base: dict[Any, Any] = {}
    found = set()
    for place, node in enumerate(nodes):
        shares = node.args and (op_of(node) in VIEWS or in_place(node))
        base[node] = base.get(node.args[0], node) if shares else node
        if not in_place(node):
            continue
        written = node.args[0]
        others = {n for n in nodes[:place] if base[n] is base[node] and n is not written}
        if any(others & set(later.all_input_nodes) for later in nodes[place + 1 :]):
            found.add(node.name)
    return found
