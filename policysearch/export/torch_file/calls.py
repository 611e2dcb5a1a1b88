"""How calls of torch obey a layer's row, in an exported torch file."""

from __future__ import annotations

CALLS = '''\


class _Layer(TorchFunctionMode):
    """Calls functions of torch in the dtypes of a layer: None where the policy has none."""

    def __init__(self, compute, output, biases, device_type):
        super().__init__()
        self.compute, self.output, self.device_type = compute, output, device_type
        self.biases = biases

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function in WRITTEN_OUT:
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
        if function is torch.einsum and wanted == self.compute != torch.float32:
            # Of its pairs some are products, others multiplied place by place: these stay wide.
            with torch.autocast(self.device_type, wanted):
                made = function(*args, **kwargs)
            return made.to(result) if made.dtype == wanted else made
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
'''
