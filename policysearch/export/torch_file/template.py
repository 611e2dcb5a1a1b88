"""The whole text of an exported torch file, whose end checks what torch.compile changes."""

from __future__ import annotations

from collections.abc import Sequence
from string import Template

from policysearch.export.levels import head
from policysearch.export.torch_file.applying import APPLYING
from policysearch.export.torch_file.calls import CALLS
from policysearch.export.torch_file.head import HEAD, WRAPPERS
from policysearch.export.torch_file.loops import LOOPS
from policysearch.export.torch_file.scaler import SCALER, scaler_values
from policysearch.policy.policy import Policy

CHECKING = '''\


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

TEMPLATE = "".join((HEAD, APPLYING, CALLS, SCALER, LOOPS, CHECKING))
"""A file that needs torch alone; what else a policy needs comes behind it."""

TF32 = '''\

class _TF32Forward(_Forward):
    """The forward of a layer whose float32 products are TF32 on a GPU that has them.

    That is one switch of torch for all products, which backward reads too: it stays on until
    `remove_policy`.
    """

    def __init__(self, part, row, device_type, result):
        super().__init__(part, ("float32", *row[1:]), device_type, result)
        self.switches = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True

    def put_back(self):
        super().put_back()
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = self.switches


FORWARDS["tfloat32"] = _TF32Forward
'''
"""The text of the file in which float32 products are TF32."""

REGIONS = '''\


class _LayerWithRegions(_Layer):
    """Leaves products in float32 inside the module's own `with autocast(enabled=False)`.

    Autocasts around the module are none of its own.
    """

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.depths = []

    def __enter__(self):
        modes = torch.overrides._get_current_function_mode_stack()
        around = [mode for mode in modes if isinstance(mode, _LayerWithRegions)]
        self.depths.append(around[0].depths[-1] if around else _autocast_depth())
        return super().__enter__()

    def __exit__(self, *raised):
        self.depths.pop()
        return super().__exit__(*raised)

    def __torch_function__(self, function, types, args=(), kwargs=None):
        given = args, kwargs or {}
        if (
            OP.get(function) not in PRODUCTS
            or torch.is_autocast_enabled(self.device_type)
            or _autocast_depth() <= self.depths[-1]
            or all(x.dtype != torch.float32 for x in _floats(given))
        ):
            return super().__torch_function__(function, types, *given)
        args, options = (_cast(each, torch.float32) for each in given)
        return function(*args, **options)


def _autocast_depth():
    """Return how many autocasts are around the caller, enabled or not."""
    depth = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return depth


_Layer = _LayerWithRegions
'''
"""The text of the file of a module with products under `autocast(enabled=False)`."""

STORAGE = '''\

STATE = "$state"  # the dtype of an optimizer's state; "param": that of its parameter


def store_updates(optimizer):
    """Have `optimizer` update in float32 and round what it stores by chance; return it.

        optimizer = store_updates(torch.optim.AdamW(module.parameters()))

    Call it once, on an optimizer made after `apply_policy`. A parameter at a time is in float32
    while it is updated, so that only its own copy is held.
    """
    if getattr(optimizer.step, "stores_updates", False):
        raise ValueError("optimizer: its updates are stored so already")
    step = optimizer.step

    def run(optimizer, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        groups = optimizer.param_groups
        try:
            for group in groups:
                _step_group(optimizer, step, group)
        finally:
            optimizer.param_groups = groups
        return loss

    run.__dict__.update(step.__dict__, stores_updates=True)  # what a scheduler has marked, too
    optimizer.step = types.MethodType(run, optimizer)  # one that is made later reads its function
    return optimizer


def _step_group(optimizer, step, group):
    parameters = group["params"]
    try:
        for parameter in parameters:
            if parameter.grad is not None:
                group["params"], optimizer.param_groups = [parameter], [group]
                _step_one(optimizer, step, parameter)
    finally:
        group["params"] = parameters


def _step_one(optimizer, step, parameter):
    gradient, stored = parameter.grad, parameter.dtype
    dtype = stored if STATE == "param" else getattr(torch, STATE)
    state = optimizer.state.get(parameter, {})
    for name in _kept(state, parameter):
        state[name] = state[name].float()
    parameter.grad = None
    parameter.data = parameter.data.float()
    parameter.grad = gradient.float()
    step()
    parameter.grad = None
    state = optimizer.state.get(parameter, {})
    for place, name in enumerate(_kept(state, parameter)):
        state[name] = _rounded(state[name], dtype, parameter, place)
    parameter.data = _rounded(parameter.data, stored, parameter, None)
    parameter.grad = gradient


def _kept(state, parameter):
    """Return the names of the tensors with as many axes as the parameter; a step has none."""
    alike = (n for n, x in state.items() if isinstance(x, torch.Tensor) and x.is_floating_point())
    return [name for name in alike if state[name].dim() == parameter.dim() and name != "step"]


def _rounded(values, dtype, parameter, place):
    """Return float32 values in a dtype, moved to either neighbour so that the mean stays."""
    if dtype != torch.bfloat16:
        return values.to(dtype)
    bits = values.view(torch.int32)
    moved = (bits + random_bits(values, parameter, place)) & -65536
    finite = torch.isfinite(values)
    return torch.where(finite, moved, bits).view(torch.float32).to(dtype)


def random_bits(values, parameter, place):
    """Return 16 random bits for each value of a new parameter (place None), or of a state."""
    return torch.randint(65536, values.shape, dtype=torch.int32, device=values.device)
'''
"""The text of a file that rounds what an optimizer stores by chance, `random_bits` alone drawing.

It does as torchao's `_AdamW(bf16_stochastic_round=True)`, of any optimizer of torch: an update in
float32 whose new parameter is moved to one of its two neighbours in bfloat16, to the nearer one
more often. Here the optimizer's state, where it is bfloat16 too, is rounded so as well.
"""


REDUCTION = '''\


def reduce_gradients(module):
    """Have a DistributedDataParallel reduce gradients in $reduced, as the policy does; return it.

        module = reduce_gradients(DistributedDataParallel(apply_policy(module)))
    """
    module.register_comm_hook(None, _reduced)
    return module


def _reduced(group, bucket):
    group = torch.distributed.group.WORLD if group is None else group
    whole = bucket.buffer()
    part = whole.to(torch.$reduced).div_(group.size())
    work = torch.distributed.all_reduce(part, group=group, async_op=True)
    return work.get_future().then(lambda made: whole.copy_(made.value()[0]))
'''
"""The text of a file that reduces gradients in 16 bits, as torch's `bf16_compress_hook` does."""


def file_of(
    running: Policy,
    asked: Policy,
    notes: Sequence[str],
    losses: Sequence[str],
    parts: Sequence[str],
    **given: object,
) -> str:
    """Return the text of the file of a running policy: the parts that it needs more, filled in."""
    return Template("".join((TEMPLATE, *parts))).substitute(
        head=head(asked, notes, losses, "torch"),
        power_of_two=running.scaling.power_of_two,
        state=running.optimizer_state,
        wrappers=WRAPPERS,
        **scaler_values(running.loss_scale),
        **given,
    )
