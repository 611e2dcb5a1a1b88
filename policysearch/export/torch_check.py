"""The text of the self-check in an exported torch file."""

from __future__ import annotations

CHECK = '''\

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
