"""What a training loop calls its parts, read without running it: how a reader is to be called."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

WRAPPERS = ("enumerate", "tqdm", "iter", "zip", "islice", "cycle")
"""Calls around a loader in the head of a loop."""

RANGES = ("range", "trange")
SCHEDULERS = ("LR", "Restarts", "schedule", "scheduler")
"""Ends of the names of what makes a scheduler."""

UNSEEN = ("val", "valid", "test", "eval", "dev")
"""Beginnings of the names of loaders of examples that are not trained on."""

PRECISIONS = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "bf16": "bf16", "fp16": "fp16"}


@dataclass(frozen=True)
class Loop:
    """The training of a script: the function it stands in, its first line, how it is read.

    `function` is "" at the top of the file, `call` is what reads it, with the script's own names.
    `more` is what its reader has to write besides.
    """

    function: str
    line: int
    call: str
    more: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """Return what to write, in one line."""
        lines = f"the lines of {self.function}()" if self.function else "the lines"
        before = f"{lines} before line {self.line}"
        said = f"a function script() of {before} that ends in `return {self.call}`"
        return ", and ".join([said, *self.more])


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    """Yield every call in a tree."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def last_name(call: ast.Call) -> str:
    """Return the last part of what is called: "AdamW" of torch.optim.AdamW(...)."""
    return ast.unparse(call.func).rpartition(".")[2]


def loop_of(tree: ast.Module, training: ast.Call) -> Loop:
    """Return the loop around the call that trains."""
    around = [node for node in ast.walk(tree) if any(n is training for n in ast.walk(node))]
    functions = [n.name for n in around if isinstance(n, ast.FunctionDef)]
    loops = [n for n in around if isinstance(n, ast.For | ast.While)]
    line = loops[0].lineno if loops else training.lineno
    call = f"policysearch.{_read(tree, training, loops)}"
    more = _more(tree, training, call) if "from_loader(" in call else ()
    return Loop(functions[0] if functions else "", line, call, tuple(more))


def _more(tree: ast.Module, training: ast.Call, call: str) -> Iterator[str]:
    """Yield what no name of the script stands for: a loss of several terms, rates set by hand."""
    if "loss=..." in call:
        trained = _trained_loss(tree, training)
        said = "what is trained" if trained is None else f"`{ast.unparse(trained)}`"
        yield f"`loss` a function of the net and a batch that returns {said}"
    targets = [t for n in ast.walk(tree) if isinstance(n, ast.Assign) for t in n.targets]
    rates = (t for t in targets if isinstance(t, ast.Subscript) and "'lr'" in ast.unparse(t.slice))
    if "scheduler=" not in call and next(rates, None) is not None:
        yield "`scheduler` a LambdaLR of the rates that the loop sets itself"


def _trained_loss(tree: ast.Module, training: ast.Call) -> ast.expr | None:
    """Return what the loop goes backward from, by what it is assigned; None where none is seen."""
    assert isinstance(training.func, ast.Attribute)
    value = training.args[0] if training.args else training.func.value
    while (inner := _inside(value)) is not None:
        value = inner
    if isinstance(value, ast.BinOp | ast.Call):
        return value
    name = ast.unparse(value)
    if any(isinstance(n, ast.AugAssign) and ast.unparse(n.target) == name for n in ast.walk(tree)):
        return value
    assigned = (n for n in ast.walk(tree) if isinstance(n, ast.Assign))
    values = [n.value for n in assigned if name in map(ast.unparse, n.targets)]
    terms = [v for v in values if not ast.unparse(v).startswith(f"{name} / ")]
    # what is added to it later on counts before what it began with
    further = (v for v in terms if name in map(ast.unparse, ast.walk(v)))
    return next(further, next(iter(terms), None))


def _inside(value: ast.expr) -> ast.expr | None:
    """Return what is divided, or scaled by a GradScaler; None for anything else."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Div):
        return value.left
    if isinstance(value, ast.Call) and last_name(value) == "scale":
        return next(iter(value.args), None)
    return None


def _read(tree: ast.Module, training: ast.Call, loops: Sequence[ast.For | ast.While]) -> str:
    assert isinstance(training.func, ast.Attribute)
    trainer, given = ast.unparse(training.func.value), [ast.unparse(a) for a in training.args]
    named = {keyword.arg: ast.unparse(keyword.value) for keyword in training.keywords}
    if training.func.attr == "train":
        return f"from_trainer({trainer})"
    if training.func.attr == "fit":
        loaders = [named[key] for key in ("datamodule", "train_dataloaders") if key in named]
        given = [*given, *([named["model"]] if "model" in named else []), *loaders]
        return f"from_lightning({', '.join([*given[:2], trainer])})"
    heads = [loop for loop in loops if isinstance(loop, ast.For)]
    length = _length(heads, [loop.test for loop in loops if isinstance(loop, ast.While)])
    parts = [*_net_and_loader(tree, training, heads), *_recipe(tree, training), length]
    return f"from_loader({', '.join(parts)})"


def _net_and_loader(
    tree: ast.Module, training: ast.Call, loops: Sequence[ast.For]
) -> Iterator[str]:
    net = _net(tree)
    yield net
    heads = [_inner_text(loop.iter) for loop in loops if not _is_range(_inner(loop.iter))]
    drawn = [_inner_text(call.args[0]) for call in calls(tree) if last_name(call) == "next"]
    made = _assigned_names(tree, lambda call: last_name(call).endswith("DataLoader"))
    loader = [*heads, *made, *drawn, "loader"][0]
    yield loader
    yield f"loss={_loss(tree, net, _trained_loss(tree, training))}"
    unseen = (name for name in made if name != loader and name.startswith(UNSEEN))
    yield from (f"validation={name}" for name in [*unseen][:1])


def _net(tree: ast.Module) -> str:
    """Return what has the parameters that are trained."""
    for call in calls(tree):
        if last_name(call) in ("parameters", "named_parameters"):
            owner = ast.unparse(call.func).rpartition(".")[0]
            if not owner.startswith("self"):
                return owner
    return "net"


def _inner(value: ast.expr) -> ast.expr:
    """Return what a loop goes over, beside a range where it goes over both."""
    while isinstance(value, ast.Call) and value.args and last_name(value) in WRAPPERS:
        value = next((arg for arg in value.args if not _is_range(arg)), value.args[0])
    return value


def _inner_text(value: ast.expr) -> str:
    return ast.unparse(_inner(value))


def _is_range(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and bool(value.args) and last_name(value) in RANGES


def _loss(tree: ast.Module, net: str, trained: ast.expr | None) -> str:
    """Return the loss: a module by its name, or a function of the file of net and batch.

    "..." where what is `trained` is more than one of these.
    """
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    for call in calls(tree):
        taken = len(call.args) == 2 and ast.unparse(call.args[0]) == net
        if taken and "loss" in last_name(call) and last_name(call) in own:
            return ast.unparse(call.func) if _is_call(trained, last_name(call)) else "..."
    if direct := _of_outputs(tree, net, trained):
        return direct
    modules = _assigned_names(tree, lambda call: last_name(call).endswith("Loss"))
    named = (name for name in modules if _is_call(trained, name.rpartition(".")[2]))
    return next(named, "...")


def _of_outputs(tree: ast.Module, net: str, trained: ast.expr | None) -> str:
    """Return what is trained on: a function of what `net` gives of a batch, and its last part."""
    if not isinstance(trained, ast.Call) or len(trained.args) != 2 or trained.keywords:
        return ""
    outputs, labels = trained.args
    if isinstance(outputs, ast.Name):
        lines = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
        values = [node.value for node in lines if ast.unparse(node.targets[0]) == outputs.id]
        same = {ast.unparse(value) for value in values}
        outputs = values[0] if len(same) == 1 else outputs
    if not isinstance(outputs, ast.Call) or ast.unparse(outputs.func) != net or outputs.keywords:
        return ""
    parts = [ast.unparse(part) for part in (*outputs.args, labels)]
    loops = [node.target for node in ast.walk(tree) if isinstance(node, ast.For)]
    tuples = [t for target in loops for t in ast.walk(target) if isinstance(t, ast.Tuple)]
    batches = [[*map(ast.unparse, t.elts)] for t in tuples]
    return ast.unparse(trained.func) if parts in batches else ""


def _is_call(trained: ast.expr | None, name: str) -> bool:
    """Return whether what is trained is a call of `name` alone, or may be."""
    return trained is None or (isinstance(trained, ast.Call) and last_name(trained) == name)


def _recipe(tree: ast.Module, training: ast.Call) -> Iterator[str]:
    made = _assigned_names(tree, lambda call: last_name(call).endswith(SCHEDULERS))
    scalers = _assigned_names(tree, lambda call: last_name(call) == "GradScaler")
    steps = [call for call in calls(tree) if last_name(call) == "step"]
    owners = [ast.unparse(s.args[0]) if s.args else ast.unparse(s.func)[:-5] for s in steps]
    schedulers = [name for name in owners if name in made or "sched" in name]
    yield f"optimizer={next((name for name in owners if name not in schedulers), 'optimizer')}"
    yield from (f"scheduler={name}" for name in schedulers[:1])
    yield from (f"scaler={name}" for name in scalers[:1])
    yield from _numbers(tree, training)


def _numbers(tree: ast.Module, training: ast.Call) -> Iterator[str]:
    found: dict[str, str] = {}
    for call in calls(tree):
        named = {keyword.arg: keyword.value for keyword in call.keywords}
        clips = {"clip_grad_norm_": "max_norm", "clip_grad_value_": "clip_value"}
        if (name := last_name(call)) in clips and (len(call.args) > 1 or clips[name] in named):
            value = call.args[1] if len(call.args) > 1 else named[clips[name]]
            found["clip_norm" if "norm" in name else "clip_value"] = ast.unparse(value)
        kinds = [named[key] for key in ("dtype", "mixed_precision") if key in named]
        kinds += call.args[1:2]  # autocast("cuda", torch.bfloat16)
        if name in ("autocast", "Accelerator") and kinds:
            said = ast.unparse(kinds[0]).strip("'\"").rpartition(".")[2]
            found |= {"precision": f'"{PRECISIONS[said]}"'} if said in PRECISIONS else {}
        if name == "Accelerator" and "gradient_accumulation_steps" in named:
            found["accumulation_steps"] = ast.unparse(named["gradient_accumulation_steps"])
        if name == "get_ema_multi_avg_fn" and call.args:
            found["ema_decay"] = ast.unparse(call.args[0])
    divided = training.func.value if isinstance(training.func, ast.Attribute) else None
    for node in [divided, *(n.value for n in ast.walk(tree) if isinstance(n, ast.Assign))]:
        if isinstance(node, ast.BinOp) and ast.unparse(node).startswith("loss / "):
            found.setdefault("accumulation_steps", ast.unparse(node.right))
    yield from (f"{name}={value}" for name, value in found.items())


def _length(loops: Sequence[ast.For], tests: Sequence[ast.expr]) -> str:
    """Return epochs where a loop over batches stands in one over a range, steps where it is one.

    Or steps where the loop goes on while their number is below another.
    """
    counted = [count for loop in loops if (count := _range(loop.iter))]
    if counted:
        inner = any(not _range(loop.iter) for loop in loops)
        return f"{'epochs' if inner else 'steps'}={counted[0]}"
    below = (t for t in tests if isinstance(t, ast.Compare) and isinstance(t.ops[0], ast.Lt))
    ends = (t.comparators[0] for t in below if "step" in ast.unparse(t.left))
    return f"steps={next(map(ast.unparse, ends), '...')}"


def _range(head: ast.expr) -> str:
    """Return how often a loop over a range runs; "" where it goes over something else alone."""
    while isinstance(head, ast.Call) and head.args and last_name(head) in ("tqdm", "zip"):
        head = next(filter(_is_range, head.args), head.args[0])
    if not isinstance(head, ast.Call) or not _is_range(head):
        return ""
    if len(head.args) == 1:
        return ast.unparse(head.args[0])
    first, end = map(ast.unparse, head.args[:2])
    both = first.isdecimal() and end.isdecimal()
    return str(int(end) - int(first)) if both else f"{end} - {first}"


def _assigned_names(tree: ast.Module, makes: Callable[[ast.Call], bool]) -> list[str]:
    """Return the names that such a call is assigned to."""
    return [
        ast.unparse(node.targets[0])
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and makes(node.value)
    ]
