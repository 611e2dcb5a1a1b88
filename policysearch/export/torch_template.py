"""The text of an exported torch file; names after a dollar sign are filled in."""

from __future__ import annotations

TEMPLATE = '''\
"""A mixed-precision policy for a torch module, obeyed call by call.

    module = apply_policy(module, device_type="cuda")
    scaler = make_grad_scaler("cuda")
    loss = loss_function(module(inputs), targets)  # float32: the module returns float32
    scaler.scale(loss).backward()
    scaler.step(optimizer)  # an optimizer made after apply_policy$through
    scaler.update()

`remove_policy(module)` takes it off again; `check(module, inputs, targets)` tells whether a
gradient that torch.compile changes is changed without the policy too.
"""
# Written by policysearch from the policy $name with digest
# $digest
$notes# What this file does not do as the policy says:
$losses

import contextlib
import copy
import dataclasses
import inspect
import types

import torch
from torch.overrides import TorchFunctionMode

# layer: (dtype of the operands of products, dtype of results, dtype of stored parameters or None)
LAYERS = $layers

# Layers without parameters: obeyed where the module has a submodule of this name.
FUNCTIONS = $functions

# Layers that add a bias to something else than a product: there an addition is a bias.
BIASES = $biases

# The row of submodules that the policy does not know, with strict=False.
DEFAULT = ("float32", "float32", None)

# Where ops run: in the dtypes of their layer, in float32, or (all others) in the widest given.
LOW = $low
FLOAT32 = $wide

PRODUCTS = ("matmul", "conv2d", "conv3d", "conv_transpose2d", "conv_transpose3d")

# Functions of torch that are ops of the same name.
ALONE = (
    "add relu tanh sigmoid gelu silu mish prelu hardswish hardsigmoid glu softplus threshold "
    "hardshrink softshrink log_softmax exp exp2 expm1 log log1p log2 log10 sin cos tan erf "
    "maximum minimum addcmul addcdiv lerp sqrt sum logsumexp cumsum cumprod prod mean where "
    "masked_fill batch_norm conv3d conv_transpose3d"
)

# op: names of the functions of torch that are it
NAMES = {
    **{name: name for name in ALONE.split()},
    "matmul": "linear matmul mm bmm mv dot vdot inner outer addmm addmv addbmm baddbmm einsum "
    "bilinear tensordot scaled_dot_product_attention multi_head_attention_forward lstm gru "
    "rnn_tanh rnn_relu lstm_cell gru_cell",
    "conv2d": "conv1d conv2d", "conv_transpose2d": "conv_transpose1d conv_transpose2d",
    "subtract": "sub subtract", "multiply": "mul multiply",
    "divide": "div divide true_divide truediv",
    "scale": "neg negative",
    "hardtanh": "hardtanh relu6", "leaky_relu": "leaky_relu rrelu",
    "elu": "elu selu celu", "log_sigmoid": "logsigmoid",
    "softmax": "softmax softmin",
    "dropout": "dropout dropout1d dropout2d dropout3d",
    "atan": "atan arctan",
    "abs": "abs absolute",
    "clamp": "clamp clip clamp_min clamp_max",
    "remainder": "remainder fmod mod",
    "floor_divide": "floor_divide floordiv",
    "rsqrt": "rsqrt rms_norm",
    "pow": "pow square reciprocal",
    "vector_norm": "norm vector_norm pairwise_distance",
    "std": "std std_mean", "var": "var var_mean", "max": "max amax", "min": "min amin",
    "interpolate": "interpolate upsample",
    "concatenate": "cat concat concatenate stack",
    "embedding": "embedding embedding_bag",
    "index": "index_select",
    "gather": "gather take_along_dim",
    "scatter": "scatter scatter_add",
    "index_put": "index_put index_add index_copy index_fill",
    "max_pool": "max_pool1d max_pool2d max_pool3d adaptive_max_pool1d adaptive_max_pool2d "
    "adaptive_max_pool3d",
    "average_pool": "avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d "
    "adaptive_avg_pool3d",
    "layer_norm": "layer_norm group_norm instance_norm",
    "loss": "cross_entropy nll_loss mse_loss l1_loss smooth_l1_loss huber_loss kl_div ctc_loss "
    "binary_cross_entropy binary_cross_entropy_with_logits poisson_nll_loss soft_margin_loss "
    "gaussian_nll_loss hinge_embedding_loss margin_ranking_loss cosine_embedding_loss "
    "cosine_similarity triplet_margin_loss multi_margin_loss multilabel_margin_loss "
    "multilabel_soft_margin_loss",
}
PLACES = (torch, torch.Tensor, torch.nn.functional, torch._VF, torch.special, torch.linalg)


def _functions(pattern):
    """Return {function of torch: its op}; `pattern` makes a name of one in NAMES."""
    named = [(pattern.format(x), op) for op, names in NAMES.items() for x in names.split()]
    found = [(getattr(place, name, None), op) for name, op in named for place in PLACES]
    return {function: op for function, op in found if function is not None}


IN_PLACE = {**_functions("{}_"), **_functions("__i{}__")}
OP = {**_functions("{}"), **_functions("__{}__"), **_functions("__r{}__"), **IN_PLACE}

def _written_out(function):
    """Return a function of torch written in Python that does not hand its call to a mode."""
    asked = (x for x in function.__code__.co_names if x.startswith("has_torch_function"))
    seen = {**function.__globals__, **dict.fromkeys(asked, lambda *given: False)}
    defaults, closure = function.__defaults__, function.__closure__
    made = types.FunctionType(function.__code__, seen, None, defaults, closure)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


# Functions written in Python and no op, and attention with its weights, are several ops.
PYTHON = {x for x in vars(torch.nn.functional).values() if isinstance(x, types.FunctionType)}
PYTHON -= {*OP} - {torch.nn.functional.multi_head_attention_forward}
WRITTEN_OUT = {function: _written_out(function) for function in PYTHON}

# A number divided by a tensor, which torch computes as a reciprocal and a product.
QUOTIENTS = (torch.Tensor.__rtruediv__, torch.Tensor.__rdiv__)

# The op that one of two operands leaves, the other being a number.
WITH_A_NUMBER = {"add": "shift", "subtract": "shift", "multiply": "scale", "divide": "scale"}

# Functions that torch refuses to call with two dtypes.
ONE_DTYPE = (*PRODUCTS, "layer_norm", "prelu", "lerp", "scatter", "index_put")

# Names that wrappers of torch put into the names of submodules.
WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")

_MARK = "_replicate_for_data_parallel"  # set on submodules with a policy


def apply_policy(module, prefix="", strict=True, device_type="cpu"):
    """Make `module` compute as the policy says, in place, and return it; it returns float32.

    Parameters, their names, `state_dict`, types and copies of the module stay as they are. `prefix`
    is what submodules have in front of the names of the layers; that of a wrapper is found alone.
    Raises ValueError where a layer is missing, where submodules with parameters are no layers of
    the policy (unless not `strict`: they take the row DEFAULT), and on a second application.
    Inside, autocast for `device_type` is off.
    """
    if _applied(module):
        raise ValueError("a policy has already been applied to this module; remove it first")
    rows = _rows(module, prefix, strict)
    for part, row in rows.items():
        if "float8" in row[0] and (type(part) is not torch.nn.Linear or "forward" in vars(part)):
            raise ValueError(f"policy: a layer in {row[0]} is {part}; expected a torch.nn.Linear")
    rows.setdefault(module, (None, None, None, False))
    for part, row in rows.items():
        result = torch.float32 if part is module else None
        made = FORWARDS.get(row[0], _Forward)(part, row, device_type, result)
        part.forward = made.method()
        part._replicate_for_data_parallel = made.replica
    return module


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


def _rows(module, prefix, strict):
    """Return {submodule: row of its layer}; a submodule of two names is one layer."""
    names = {}
    for name, part in module.named_modules(remove_duplicate=False):
        names.setdefault(".".join(x for x in name.split(".") if x not in WRAPPERS), part)
    prefix = _prefix(names, prefix)
    rows, first = {}, {}
    for layer, row in {**FUNCTIONS, **LAYERS}.items():
        part, row = names.get((prefix + layer).rstrip(".")), (*row, layer in BIASES)
        if part is not None and rows.setdefault(part, row) != row:
            raise ValueError(
                f"policy: layers {first[part]!r} and {layer!r} are one submodule here; "
                "give them the same formats"
            )
        first.setdefault(part, layer)
    owners = {name: part for name, part in names.items() if list(part.parameters(False))}
    strangers = sorted(name for name, part in owners.items() if part not in rows)
    if strict and strangers:
        raise ValueError(
            f"module: {', '.join(map(repr, strangers))} with parameters, unknown to the policy; "
            f"expected {', '.join(map(repr, sorted(LAYERS)))}, or strict=False for DEFAULT"
        )
    return {**rows, **{owners[name]: (*DEFAULT, False) for name in strangers}}


def _prefix(names, prefix):
    """Return the prefix under which all layers with parameters are found."""
    def missing(prefix):
        return sorted(x for x in LAYERS if (prefix + x).rstrip(".") not in names)

    some = next(iter(LAYERS), "")
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


class _Forward:
    """The forward of one submodule, where calls of torch obey the row of its layer."""

    def __init__(self, part, row, device_type, result):
        compute, output, stored = (None if x is None else getattr(torch, x) for x in row[:3])
        self.part, self.result = part, result
        self.mode = _Layer(compute, output, row[3], device_type)
        self.before = part.__dict__.get("forward")
        recurrent = isinstance(part, torch.nn.RNNBase)  # wants one dtype, but under autocast
        self.allowing = torch.autocast(device_type, torch.bfloat16) if recurrent else _NOTHING
        self.dtypes = {}
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


class _Layer(TorchFunctionMode):
    """Calls functions of torch in the dtypes of a layer: None where the policy has none."""

    def __init__(self, compute, output, biases, device_type):
        super().__init__()
        self.compute, self.output, self.device_type = compute, output, device_type
        self.biases = biases

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function in WRITTEN_OUT and kwargs.get("need_weights", True):
            with self:
                return WRITTEN_OUT[function](*args, **kwargs)
        if function not in OP:
            return function(*args, **kwargs)
        # Not for the layers around this one, nor for an autocast around the module.
        with torch._C.DisableTorchFunction():
            if not torch.is_autocast_enabled(self.device_type):
                return self.call(function, args, kwargs)
            with torch.autocast(self.device_type, enabled=False):
                return self.call(function, args, kwargs)

    def call(self, function, args, kwargs):
        if function in QUOTIENTS and not isinstance(args[1], torch.Tensor):
            inverse = self.call(torch.reciprocal, args[:1], {})
            return self.call(torch.mul, (inverse, args[1]), {})
        op, given = OP[function], _floats((args, kwargs))
        if op == "add" and self.biases:
            op = "bias"
        if len(given) == 1:
            op = WITH_A_NUMBER.get(op, op)
        wanted, result = self.dtypes(op, given)
        if function is torch.nn.functional.batch_norm:
            return _batch_norm(function, args, kwargs, wanted, result)
        if wanted is None:
            return function(*args, **kwargs)
        cast, options = _cast(args, wanted), _cast(kwargs, wanted)
        if op == "embedding":  # its gradients are summed in float32 and rounded once
            cast, options = _cast(cast, torch.float32), _cast(options, torch.float32)
        made = _cast(function(*cast, **options), result)
        if function in IN_PLACE and cast[0] is not args[0]:  # it changed a copy
            args[0].copy_(made)
        return made

    def dtypes(self, op, given):
        """Return the dtypes of operands and of the result, None where they stay as they are."""
        if op in FLOAT32:
            return torch.float32, torch.float32
        if op in LOW and self.output is not None:
            return (self.compute if op in PRODUCTS else self.output), self.output
        if op not in ONE_DTYPE or not given:
            return None, None
        widest = given[0].dtype
        for value in given:
            widest = torch.promote_types(widest, value.dtype)
        return widest, widest

def _batch_norm(function, args, kwargs, wanted, result):
    """Call it with parameters and statistics in float32, and move the statistics where they lie."""
    names = "input running_mean running_var weight bias training momentum eps".split()
    given = {**dict(zip(names, args)), **kwargs}
    if wanted is not None:
        given["input"] = given["input"].to(wanted)
    given |= {name: _cast(given.get(name), torch.float32) for name in ("weight", "bias")}
    moved = {}
    for name in ("running_mean", "running_var"):
        statistics = given.get(name)
        if statistics is not None and statistics.dtype != torch.float32:  # of a module moved there
            moved[name] = statistics
            given[name] = statistics.float()
    made = function(**given)
    for name, statistics in moved.items():
        statistics.copy_(given[name])
    return made if result is None else made.to(result)


def _floats(value):
    """Return the floating tensors of an argument, inside containers too."""
    if isinstance(value, torch.Tensor):
        return [value] if value.is_floating_point() else []
    if isinstance(value, dict):
        value = tuple(value.values())
    return [x for item in value for x in _floats(item)] if isinstance(value, (tuple, list)) else []


def _cast(value, dtype):
    """Return `value` with its floating tensors as `dtype`, also those inside containers."""
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = (field.name for field in dataclasses.fields(value) if field.init)
        return dataclasses.replace(value, **{x: _cast(getattr(value, x), dtype) for x in fields})
    if type(value) is dict:  # torch.compile copies no dict
        return {key: _cast(item, dtype) for key, item in value.items()}
    if isinstance(value, dict):
        made = copy.copy(value)
        made.update({key: _cast(item, dtype) for key, item in value.items()})
        return made
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_cast(item, dtype) for item in value))
    if isinstance(value, (tuple, list)):
        return type(value)([_cast(item, dtype) for item in value])
    return value


class PolicyScaler(torch.amp.GradScaler):
    """The loss scale of the policy, with the number of steps taken and skipped.

    All of it is in `state_dict`.
    """

    kind = $kind
    schedule = $schedule
    lowest, highest = $lowest, $highest
    skips = $skips
    steps = skipped = 0

    def step(self, optimizer, *args, **kwargs):
        """Take the step, unless a gradient is not finite and the policy skips such steps."""
        if self.skips or not self.is_enabled():
            return super().step(optimizer, *args, **kwargs)
        state = self._per_optimizer_states[id(optimizer)]
        stepped = torch.amp.grad_scaler.OptState.STEPPED
        if state["stage"] is stepped:
            raise RuntimeError("step() has already been called since the last update().")
        if not state["found_inf_per_device"]:
            self.unscale_(optimizer)
        made = optimizer.step(*args, **kwargs)
        state["stage"] = stepped
        return made

    def update(self, new_scale=None):
        """Move the scale as the policy says, or set it to `new_scale`."""
        if not self.is_enabled():
            return
        states = self._per_optimizer_states.values()
        found = [float(x) for state in states for x in state["found_inf_per_device"].values()]
        self.steps += 1
        self.skipped += bool(self.skips and sum(found))
        if new_scale is not None or self.kind == "dynamic":
            super().update(new_scale)
        else:
            super().update(self.scale_at(self.steps))
        if new_scale is None and self.kind == "dynamic":
            scale = self.get_scale()
            bounded = min(max(scale, self.lowest), self.highest)
            if bounded != scale:
                super().update(bounded)

    def scale_at(self, step):
        """Return the scale of a step, counted from 0, that does not look at gradients."""
        begun = [scale for first, scale in self.schedule if first <= step]
        return begun[-1] if begun else $init_scale

    def state_dict(self):
        """Return what `load_state_dict` takes; empty where the policy scales nothing."""
        state = super().state_dict()
        own = ("schedule", "lowest", "highest", "steps", "skipped")
        return {**state, **{name: getattr(self, name) for name in own}} if state else state

    def load_state_dict(self, state):
        """Go on from a state; that of a plain GradScaler will do."""
        state = dict(state)
        for name in ("schedule", "lowest", "highest", "steps", "skipped"):
            setattr(self, name, state.pop(name, getattr(self, name)))
        super().load_state_dict(state)


def make_grad_scaler(device_type="cpu"):
    """Return the loss scale; where the policy has none it passes everything through."""
    return PolicyScaler(
        device_type,
        init_scale=$first_scale,
        growth_factor=$growth_factor,
        backoff_factor=$backoff_factor,
        growth_interval=$growth_interval,
        enabled=$enabled,
    )


def check(module, inputs, targets, loss_function=torch.nn.functional.cross_entropy):
    """Return {parameter: (with the policy, without)}: how far torch.compile moves its gradient.

    Each is the largest difference of the compiled from the eager gradient on one batch, as a share
    of the largest eager one. Where both are large, it is not the policy. `inputs` is a tensor or a
    tuple; `module` and the state of random numbers stay as they are.
    """
    bare = remove_policy(copy.deepcopy(module))
    pairs = [_moved(net, inputs, targets, loss_function) for net in (module, bare)]
    return {name: (share, pairs[1][name]) for name, share in pairs[0].items()}


def _moved(module, inputs, targets, loss_function):
    eager = _gradients(module, inputs, targets, loss_function, False)
    compiled = _gradients(module, inputs, targets, loss_function, True)
    shares = {}
    for name, expected in eager.items():
        largest = expected.abs().max().item()
        difference = (compiled[name] - expected).abs().max().item()
        shares[name] = difference / largest if largest else difference
    return shares


def _gradients(module, inputs, targets, loss_function, compiled):
    """Return the float32 gradients of a copy of the module, by parameter."""
    module = copy.deepcopy(module)
    module.zero_grad()
    # Compiled dropout draws as eager dropout does only if told so.
    run = torch.compile(module, options={"fallback_random": True}) if compiled else module
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = run(*(inputs if isinstance(inputs, tuple) else (inputs,)))
        loss_function(made, targets).backward()
    named = module.named_parameters()
    return {name: x.grad.float() for name, x in named if x.grad is not None}
'''
