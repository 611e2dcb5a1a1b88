"""The text of an exported torch file that casts what functions of torch are given."""

from __future__ import annotations

CASTS = '''\
def _batch_norm(function, args, kwargs, wanted, result):
    """Call it with parameters and statistics in float32, and move the statistics where they lie."""
    names = "input running_mean running_var weight bias training momentum eps".split()
    given = {**dict(zip(names, args)), **kwargs}
    if wanted is not None:
        given["input"] = given["input"].to(wanted)
    for name in ("weight", "bias"):
        given[name] = _cast(given.get(name), torch.float32)
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
    if type(value) is dict:
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
