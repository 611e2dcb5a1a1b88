"""Export to PyTorch: one file that applies the policy to a module by layer name, call by call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from policysearch.export.torch_attention import attention_losses, kernels, text
from policysearch.export.torch_file.head import WRAPPERS
from policysearch.export.torch_file.reading import ABOUT, read
from policysearch.export.torch_file.template import REDUCTION, REGIONS, STORAGE, TF32, file_of
from policysearch.export.torch_runs import (
    DTYPE,
    DTYPES,
    FLOAT8,
    MOVES,
    draws_updates,
    folded,
    has_uncast_calls,
    holders,
    is_stored_wide,
    low_losses,
    offers,
    refused,
    runs,
    runs_in,
    strict_products,
    why_not,
    with_free_moves,
)
from policysearch.formats import Rounding, format_named
from policysearch.graph import Graph, Node
from policysearch.nn.chain import Chain
from policysearch.nn.model import Model
from policysearch.policy.policy import LayerPolicy, Policy, RoleRounding, uniform_layer
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.train.step import SMALLEST_BATCH, trace_forward

BARE = LayerPolicy()
_UNLESS_REDUCED = ", unless reduce_gradients(module) is called on a DistributedDataParallel"


def losses(policy: Policy, model: Model) -> tuple[str, ...]:
    """Return what the exported file does not do as the policy says, one line each."""
    policy.check_layers(model.layer_names)
    running, traced = runs(policy, model), trace_forward(model, SMALLEST_BATCH)
    lines: list[str] = []
    nodes, strict = _forward_nodes(traced), strict_products(policy, model)
    readers = _readers(traced)
    for layer in model.layer_names:
        lines += _layer_losses(policy, layer, nodes.get(layer, []), model, strict)
        if model.parameters_of(layer):
            lines += _storage_losses(policy, layer, readers.get(layer, []))
    if isinstance(model, Chain):  # those of an imported net are modules
        lines += _function_losses(apply_policy(traced, running), model)
    lines += _move_losses(traced, policy)
    lines += attention_losses(policy, model)
    lines += _bias_losses(policy, list(traced.nodes))
    return (*lines, *_whole_losses(policy, running, model))


def _forward_nodes(graph: Graph) -> dict[str, list[Node]]:
    """Return the nodes of the forward pass by their layer."""
    found: dict[str, list[Node]] = {}
    for node in graph.nodes:
        if node.role == "fprop":
            found.setdefault(node.layer, []).append(node)
    return found


def _layer_losses(
    policy: Policy, layer: str, nodes: list[Node], model: Model, strict: tuple[str, ...]
) -> Iterator[str]:
    """Only the ops in the low-precision list have the formats of their layer."""
    low = [n for n in nodes if n.source in policy.low_precision_ops and n.op.kind != "move"]
    if not low:
        return
    formats, multiplies = policy.layer(layer), any(n.op.kind == "gemm" for n in low)
    compute, output = formats.compute, formats.output
    runs = runs_in(formats, not strict) if multiplies else output
    own = [
        x for x in ("backward", "scaling", "products") if getattr(formats, x) != getattr(BARE, x)
    ]
    for part in own:
        given = " ".join(repr(getattr(formats, part)).split())
        yield f"layer {layer}: {part} of its own, {given}, is left out"
    if multiplies and compute == DTYPE and not why_not(policy, layer, model):
        return
    if multiplies and formats == uniform_layer("tfloat32"):
        if strict:
            yield (
                f"layer {layer}: TF32 is one switch of torch for all float32 products, and "
                f"{strict[0]} has strict ones; it runs in float32"
            )
        return
    if multiplies and compute != runs:
        why = f" ({why_not(policy, layer, model)})" if compute == DTYPE else ""
        yield f"layer {layer}: torch does not compute it in {compute}{why}; it runs in {runs}"
    if output not in DTYPES:
        yield f"layer {layer}: torch has no {output} result; it returns float32"
    elif output != runs:
        yield f"layer {layer}: its result is rounded to {runs} before it becomes {output}"
    if multiplies and formats.accumulator != LayerPolicy().accumulator:
        yield f"layer {layer}: the device accumulates in its own way, not as {formats.accumulator}"
    gradients = (formats.grad, formats.dgrad, formats.wgrad) if multiplies else (formats.dgrad,)
    if set(gradients) != {runs} and output in DTYPES:
        gradients_asked = (
            f"{formats.grad} (operand), {formats.dgrad} (input), {formats.wgrad} (weight)"
        )
        yield f"layer {layer}: gradients are {runs}, not {gradients_asked}"


def _move_losses(traced: Graph, policy: Policy) -> Iterator[str]:
    """Where a move rounds what it moves; it does not where its reader takes that format anyway."""
    before, after = (apply_policy(traced, moves) for moves in (policy, with_free_moves(policy)))
    if _paths(before) != _paths(after):
        listed = ", ".join(sorted(_rounding_moves(before)))
        yield f"{listed}: torch moves values in the dtype they have, without rounding them"


def _paths(graph: Graph) -> list[tuple[str, ...]]:
    """Return the formats that each operand of a forward op goes through since it was computed."""
    return [
        _path(graph, operand)
        for node in graph.nodes
        if node.role == "fprop" and not _passes(node)
        for operand in graph.inputs_of(node)
    ]


def _path(graph: Graph, node: Node) -> tuple[str, ...]:
    formats = [node.format]
    while _passes(node):
        node = graph.inputs_of(node)[0]
        if node.format != formats[-1]:
            formats.append(node.format)
    return tuple(formats)


def _passes(node: Node) -> bool:
    return node.op.name == "cast" or node.op.kind == "move"


def _rounding_moves(graph: Graph) -> set[str]:
    return {n.source for n in graph.nodes if n.op.name == "cast" and n.source in MOVES}


def _readers(graph: Graph) -> dict[str, list[Node]]:
    """Return the nodes that read a parameter of a layer, by the layer."""
    found: dict[str, list[Node]] = {}
    for node in graph.nodes:
        read = (other for other in graph.inputs_of(node) if other.op.name == "parameter")
        for layer in dict.fromkeys(other.layer for other in read):
            found.setdefault(layer, []).append(node)
    return found


def _storage_losses(policy: Policy, layer: str, readers: Sequence[Node]) -> Iterator[str]:
    formats, stored = policy.layer(layer), policy.stored(layer)
    if formats.gradient_sum not in (None, stored):
        given = formats.gradient_sum
        yield f"layer {layer}: gradients are summed as torch's .grad, in {stored}, not {given}"
    if formats.all_reduce not in (None, "float32"):
        yield f"layer {layer}: gradients are reduced as float32, not {formats.all_reduce}"
    if not policy.master_weights:
        if formats.param not in DTYPES:
            yield f"layer {layer}: parameters are stored in float32, not {formats.param}"
        return
    same = formats.param == formats.compute == formats.output
    low = all(n.source in policy.low_precision_ops for n in readers)
    if formats.param != "float32" and not (same and low):
        yield f"layer {layer}: parameters are read as float32, without a {formats.param} copy"


def _function_losses(graph: Graph, model: Model) -> Iterator[str]:
    """A function called in `forward` runs in the dtype of its input if no submodule owns it."""
    by_layer = _forward_nodes(graph)
    for layer in model.layer_names:
        nodes = by_layer.get(layer, [])
        computed = [n for n in nodes if n.op.name != "cast"]
        if model.parameters_of(layer) or not computed:
            continue  # nothing is left of a dropout in evaluation
        wanted, first = computed[-1].format, nodes[0]
        operand = graph.inputs_of(first)[0] if first.inputs else first
        if operand.format != wanted:
            yield (
                f"layer {layer}: runs in {wanted} only if the module has a submodule of this "
                f"name; a function there runs in {operand.format}, the dtype of its input"
            )


def _bias_losses(policy: Policy, nodes: list[Node]) -> Iterator[str]:
    biases = [n for n in nodes if n.op.name == "bias"]
    has_low_bias = any(format_named(policy.layer(n.layer).compute).bits < 32 for n in biases)
    if policy.casts != "op":
        yield f"casts: autocast casts what every op reads, not what enters a {policy.casts}"
    if policy.norm_inner != "float32":
        yield "norm_inner: torch's norms sum in float32, not in their format"
    if has_low_bias and policy.bias not in ("fused", "convolution_rounded"):
        yield f"bias: torch adds it before the one rounding of the result, not {policy.bias!r}"
    lists = (policy.low_precision_ops, policy.fp32_ops, policy.promote_ops)
    if biases and not any("bias" in ops and "matmul" in ops for ops in lists):
        yield "bias: torch adds it where its product runs"


def _whole_losses(policy: Policy, running: Policy, model: Model) -> Iterator[str]:
    for op in low_losses(policy):
        yield f"{op}: the module returns float32, so the loss is float32, not low precision"
    if policy.rounding != running.rounding:
        yield f"rounding: torch rounds as {Rounding()}{_but_updates(running)}"
    yield from _state_losses(policy, running, model)
    if not draws_updates(running):
        yield from _order_losses(policy)
    if policy.gradient_storage != running.gradient_storage:
        yield "gradient_storage: in torch a gradient has the dtype of its parameter, always"
    if policy.all_reduce != "float32":
        line = f"all_reduce: gradients are reduced as float32, not {policy.all_reduce}"
        yield line + _UNLESS_REDUCED * (policy.all_reduce in DTYPES)
    if policy.parallel.summary:
        yield f"parallel: the training script has to set up {policy.parallel.summary}"
    if policy.scaling.recipe != running.scaling.recipe:
        yield f"scaling: no tensor is scaled ({policy.scaling.recipe!r} asked)"
    if policy.phases:
        yield "phases: the formats of step 0 stay in force"
    yield from _scale_losses(policy, model)


def _but_updates(running: Policy) -> str:
    return ", but for what updates store" if running.rounding != RoleRounding() else ""


def _state_losses(policy: Policy, running: Policy, model: Model) -> Iterator[str]:
    for field in ("second_moment", "state_block", "compensation"):
        if getattr(policy, field) != getattr(running, field):
            yield f"{field}: {getattr(policy, field)!r} is for an optimizer of your own to keep"
    for layer in model.layer_names:
        state = running.state_of(layer)
        if model.parameters_of(layer) and policy.state_of(layer) != state:
            line = f"torch keeps {state}, as parameters are stored, not {policy.optimizer_state}"
            yield f"optimizer_state: {line}"
            return


def _order_losses(policy: Policy) -> Iterator[str]:
    """Both orders are torch's own; they differ where the parameters are stored low."""
    if is_stored_wide(policy):
        return
    if policy.optimizer_order == "fused":
        yield "optimizer_order: torch updates op by op unless its optimizer has fused=True"
    else:
        given = policy.optimizer_scalars
        device = "CUDA" if given == "float32" else "a CPU"
        yield f"optimizer_scalars: {given!r} is what torch does on {device} alone"


def _scale_losses(policy: Policy, model: Model) -> Iterator[str]:
    scale = policy.loss_scale
    if scale.kind == "none":
        return
    if layers := refused(policy, model):
        given = f"float16 gradients, as {layers[0]} has ({len(layers)} such layers)"
        yield f"loss_scale: nothing is scaled: GradScaler refuses {given}"
        return
    if scale.rule != "torch.GradScaler":
        yield f"loss_scale: events follow the order of GradScaler, not of {scale.rule}"


__all__ = ["ABOUT", "SUFFIX", "export", "losses", "offers", "read", "runs"]

SUFFIX = ".py"


def export(policy: Policy, model: Model, notes: Sequence[str] = ()) -> str:
    """Return a Python file with `apply_policy`, `remove_policy`, `make_grad_scaler` and `check`.

    It needs torch alone, and torchao where a linear is in float8. InputError where the policy does
    not fit the model.
    """
    policy.check_layers(model.layer_names)
    running, lines = runs(policy, model), losses(policy, model)
    rows = {name: _row(running, name) for name in model.layer_names}
    owners = {name: row for name, row in rows.items() if model.parameters_of(name)}
    owners |= {name: rows.get(held, UNREAD) for name, held in holders(model) if name not in rows}
    computed = {row[0] for row in rows.values()}
    own = (x for name, x in ((DTYPE, FLOAT8), ("tfloat32", TF32)) if name in computed)
    stored = (STORAGE,) if draws_updates(running) else ()
    reduced = (REDUCTION,) if policy.all_reduce in {*DTYPES} - {"float32"} else ()
    regions = (REGIONS,) if has_uncast_calls(model) else ()
    return file_of(
        running,
        policy,
        notes,
        lines,
        (text(model.attention), *own, *stored, *reduced, *regions),
        kernels=kernels(model.attention),
        layers=_table(owners),
        functions=_table({name: row for name, row in rows.items() if name not in owners}),
        biases=tuple(map(_bare, _biases(model))),
        folded=tuple(map(_bare, folded(model))),
        through=", through store_updates" if stored else "",
        reduced=policy.all_reduce,
        low=_lines(running.low_precision_ops),
        wide=_lines((*running.fp32_ops, "loss")),
    )


Row = tuple[str, str, str | None]

UNREAD: Row = ("float32", "float32", None)
"""Of parameters that no result reads, which stay as they are: no layer of the policy has them."""


def _row(policy: Policy, layer: str) -> Row:
    """Return the formats of operands, results and stored parameters; None for float32 ones."""
    formats = policy.layer(layer)
    stored = None if policy.master_weights or formats.param == "float32" else formats.param
    return formats.compute, formats.output, stored


def _biases(model: Model) -> Iterator[str]:
    """Yield the layers that add a bias and have no product."""
    nodes = trace_forward(model, SMALLEST_BATCH).nodes
    products = {node.layer for node in nodes if node.op.kind == "gemm"}
    for layer in model.layer_names:
        if layer not in products and any(n.op.name == "bias" and n.layer == layer for n in nodes):
            yield layer


def _lines(names: Sequence[str]) -> str:
    return "\n".join(["(", *(f"    {name!a}," for name in names), ")"])


def _table(rows: Mapping[str, object]) -> str:
    named = {_bare(name): row for name, row in rows.items()}
    return "\n".join(["{", *(f"    {name!a}: {row!a}," for name, row in named.items()), "}"])


def _bare(layer: str) -> str:
    """Return the name of a layer without those of torch's wrappers, as of what is compiled."""
    return ".".join(part for part in layer.split(".") if part not in WRAPPERS)
