"""The whole text of an exported torch file, whose end checks what torch.compile changes."""

from __future__ import annotations

from policysearch.export.torch_file.applying import APPLYING
from policysearch.export.torch_file.calls import CALLS
from policysearch.export.torch_file.head import HEAD
from policysearch.export.torch_file.scaler import SCALER

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

TEMPLATE = "".join((HEAD, APPLYING, CALLS, SCALER, CHECKING))
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
