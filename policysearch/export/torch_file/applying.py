"""How an exported torch file puts a policy on a module, and takes it off again."""

from __future__ import annotations

APPLYING = '''\

_MARK = "_replicate_for_data_parallel"  # set on submodules with a policy


def apply_policy(module, prefix="", strict=True, device_type="cpu", strip="", adapters="layer"):
    """Make `module` compute as the policy says, in place, and return it; it returns float32.

    Parameters, their names, `state_dict`, types and copies of the module stay as they are. `prefix`
    is what submodules have in front of the names of the layers; that of a wrapper is found alone.
    `strip` is what the names of the layers have in front that this module has not. What a layer
    became with a `base_layer` inside (LoRA) is followed: the base has the row of the layer, what
    was put beside it too with `adapters` "layer", or float32 with "float32".
    A layer that is replaced later is an error of the next call.
    Raises ValueError where a layer is missing, where submodules with parameters are no layers of
    the policy (unless not `strict`: they take the row DEFAULT), and on a second application.
    Inside, autocast for `device_type` is off.
    """
    if _applied(module):
        raise ValueError("a policy has already been applied to this module; remove it first")
    rows = _rows(module, prefix, strict, strip, adapters)
    for part, row in rows.items():
        plain = type(part) is torch.nn.Linear and "forward" not in vars(part)
        if row[0] and "float8" in row[0] and not plain:
            raise ValueError(f"policy: a layer in {row[0]} is {part}; expected a torch.nn.Linear")
    rows.setdefault(module, (None, None, None, False))
    held = _held(module, rows)
    for part, row in rows.items():
        result = torch.float32 if part is module else None
        made = FORWARDS.get(row[0], _Forward)(part, row, device_type, result)
        part.forward = made.method()
        part._replicate_for_data_parallel = made.replica
        made.held = held if part is module else ()
    return module


def _held(module, rows):
    """Return where each submodule with a row lies: (its name, what holds it, its name there)."""
    return [
        (f"{name}.{key}".lstrip("."), holder, key, part)
        for name, holder in module.named_modules()
        for key, part in holder._modules.items()
        if part in rows
    ]


def _check_held(held):
    """Raise RuntimeError where a submodule with a row is no longer there, nor inside a wrapper."""
    for name, holder, key, part in held:
        there = holder._modules.get(key)
        if there is part or (there is not None and any(x is part for x in there.modules())):
            continue
        raise RuntimeError(
            f"policy: layer {name!r} was replaced by {type(there).__name__} after apply_policy; "
            "call remove_policy before, and apply_policy again"
        )


def remove_policy(module):
    """Take the policy off `module` again and return it.

    Parameters that it stored low get their old dtype back, not the bits they lost. Raises
    ValueError where something else has replaced a `forward` since.
    """
    parts = _applied(module)[::-1]
    for part in parts:
        if not hasattr(getattr(vars(part).get("forward"), "__self__", None), "put_back"):
            raise ValueError(f"forward of {type(part).__name__} was replaced; put it back first")
    for part in parts:
        part.__dict__.pop(_MARK)
        part.__dict__.pop("forward").__self__.put_back()
    return module


def _applied(module):
    """Return the submodules that have a policy, from whichever file it is."""
    def is_ours(part):
        return hasattr(getattr(vars(part).get(_MARK), "__self__", None), "put_back")

    return [part for part in module.modules() if is_ours(part)]


def _names(module):
    """Return {name without those of wrappers: submodule}: what a checkpoint runs again, inside."""
    names = {}
    for name, part in module.named_modules(remove_duplicate=False):
        bare = ".".join(x for x in name.split(".") if x not in WRAPPERS)
        if name.endswith("_checkpoint_wrapped_module"):
            names[bare] = part
        names.setdefault(bare, part)
    return names


def _stripped(table, strip):
    """Return the table with `strip` taken off the names, which all of them must have."""
    if strip and not strip.endswith("."):
        strip += "."
    for name in table:
        if not name.startswith(strip):
            raise ValueError(f"strip: {strip!r}; expected what {name!r} begins with")
    return {name[len(strip):]: row for name, row in table.items()}


def _rows(module, prefix, strict, strip, adapters):
    """Return {submodule: row of its layer}; a submodule of two names is one layer."""
    if adapters not in ("layer", "float32"):
        raise ValueError(f"adapters: {adapters!r}; expected 'layer' or 'float32'")
    names, layers = _names(module), _stripped(LAYERS, strip)
    functions = {x[len(strip):]: FUNCTIONS[x] for x in FUNCTIONS if x.startswith(strip)}
    prefix = _prefix(names, prefix, layers)
    rows, first, followed = {}, {}, {}
    for layer, row in {**functions, **layers}.items():
        part, row = names.get((prefix + layer).rstrip(".")), (*row, strip + layer in BIASES)
        base = getattr(part, "base_layer", None)
        if isinstance(base, torch.nn.Module):
            beside = "float32" if adapters == "float32" else row[1]
            wide = (beside, beside, None, row[3])
            followed.update({x: wide for x in part.modules() if x not in rows})
            part = base
        if part is not None and rows.setdefault(part, row) != row:
            raise ValueError(
                f"policy: layers {first[part]!r} and {layer!r} are one submodule here; "
                "give them the same formats"
            )
        first.setdefault(part, layer)
    bare = {names.get((prefix + x[len(strip):]).rstrip(".")): (None,) * 3 for x in CONSTANT}
    rows = {**{part: (*row, False) for part, row in bare.items() if part}, **followed, **rows}
    owners = {name: part for name, part in names.items() if list(part.parameters(False))}
    strangers = sorted(name for name, part in owners.items() if part not in rows)
    if strict and strangers:
        raise ValueError(
            f"module: {', '.join(map(repr, strangers))} with parameters, unknown to the policy; "
            f"expected {', '.join(map(repr, sorted(layers)))}, or strict=False for DEFAULT"
        )
    return {**rows, **{owners[name]: (*DEFAULT, False) for name in strangers}}


def _prefix(names, prefix, layers):
    """Return the prefix under which all layers with parameters are found."""
    def missing(prefix):
        return sorted(x for x in layers if (prefix + x).rstrip(".") not in names)

    some = next(iter(layers), "")
    found = [name[: -len(some)] for name in names if some and name.endswith("." + some)]
    for given in (prefix, *sorted(found, key=len)):
        if not missing(given):
            return given
    raise ValueError(
        f"policy: layers {', '.join(map(repr, missing(prefix)))} have no counterpart; "
        f"expected them in the module, which has {', '.join(repr(x) for x in sorted(names) if x)}"
    )


_NOTHING = contextlib.nullcontext()
FORWARDS = {}  # dtype of operands: class, where _Forward will not do


def _own(bound):
    """Return what a forward belongs to, also where its function was bound to the module itself.

    accelerate does so with what it wraps in an autocast.
    """
    return bound if isinstance(bound, _Forward) else vars(bound)[_MARK].__self__


class _Forward:
    """The forward of one submodule, where calls of torch obey the row of its layer."""

    def __init__(self, part, row, device_type, result):
        compute, output, stored = (None if x is None else getattr(torch, x) for x in row[:3])
        self.part, self.result = part, result
        self.mode = _Layer(compute, output, row[3], device_type)
        self.before = part.__dict__.get("forward")
        recurrent = isinstance(part, torch.nn.RNNBase)  # wants one dtype, but under autocast
        self.allowing = torch.autocast(device_type, torch.bfloat16) if recurrent else _NOTHING
        self.dtypes, self.held = {}, ()
        for name, parameter in part.named_parameters(recurse=False):
            if stored is not None:
                self.dtypes[name] = parameter.dtype
                parameter.data = parameter.data.to(stored)

    def method(self):
        """Return `run` with the signature of the forward it replaces, which callers may read."""
        own = inspect.signature(self.part.forward)
        first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        run = type(self).run
        made = types.FunctionType(
            run.__code__, run.__globals__, run.__name__, run.__defaults__, run.__closure__
        )
        made.__signature__ = own.replace(parameters=[first, *own.parameters.values()])
        return types.MethodType(made, self)  # torch.export wants a method

    def run(self, *inputs, **options):
        self = _own(self)
        if self.held and not torch.compiler.is_compiling():
            _check_held(self.held)
        with self.allowing, self.mode:
            if self.before is None:
                made = type(self.part).forward(self.part, *inputs, **options)
            else:
                made = self.before(*inputs, **options)
        return made if self.result is None else _cast(made, self.result)

    def replica(self):
        """Return what torch.nn.DataParallel copies the submodule to, with a forward of its own."""
        other = copy.copy(self)
        other.part = type(self.part)._replicate_for_data_parallel(self.part)
        other.part.forward = other.run
        return other.part

    def put_back(self):
        if self.before is not None:
            self.part.forward = self.before
        for name, dtype in self.dtypes.items():
            parameter = self.part.get_parameter(name)
            parameter.data = parameter.data.to(dtype)
'''
