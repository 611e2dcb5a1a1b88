"""Trains with an exported Keras, flax or qwix file on jax: `python -m ... FOLDER`.

It runs in the interpreter that has them, beside a copy of `plain_steps.py` alone.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.interpreters import mlir

from policysearch.verify.plain_steps import (
    Places,
    Plan,
    clipped,
    forced,
    given_in,
    moved,
    parts_of,
    weights_in,
    write_result,
)

NAMES = {"weight": "kernel", "bias": "bias"}
"""What a parameter of a layer is called in flax."""


def main(folder: Path) -> None:
    """Train what the folder says and write the result beside it."""
    plan, arrays, space = given_in(folder)
    sum_as_a_gpu()
    train = in_keras if plan["target"] == "keras" else in_flax
    write_result(folder, *train(plan, arrays, space))


def sum_as_a_gpu() -> None:
    """Have sums in float32 and rounded once: a CPU sums gradients of a bias as they are."""

    def summed(x: Any, *, axes: Any, **_: Any) -> Any:
        wide = x.astype(jnp.float32) if x.dtype in (jnp.float16, jnp.bfloat16) else x
        # lax.add itself would be this primitive again
        total = lax.reduce(wide, np.zeros((), wide.dtype), lambda a, b: a + b, axes)
        return total.astype(x.dtype)

    def windowed(x: Any, **options: Any) -> Any:
        wide = x.astype(jnp.float32) if x.dtype in (jnp.float16, jnp.bfloat16) else x
        zero = np.zeros((), wide.dtype)
        return lax.reduce_window(wide, zero, lambda a, b: a + b, **options).astype(x.dtype)

    for primitive, made in ((lax.reduce_sum_p, summed), (lax.reduce_window_sum_p, windowed)):
        rule = mlir.lower_fun(made, multiple_results=False)
        mlir.register_lowering(primitive, rule, platform="cpu")


def equations(jaxpr: Any) -> Iterator[Any]:
    """Yield all equations, those inside others too, in order."""
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for part in value if isinstance(value, tuple | list) else [value]:
                inner = getattr(part, "jaxpr", part)
                if hasattr(inner, "eqns"):
                    yield from equations(inner)


def products(loss: Any, values: Any) -> list[list[str]]:
    """Return the dtypes of each product, forward then backward: of its operands, of its result."""
    found = []
    for equation in equations(jax.make_jaxpr(jax.grad(loss))(values).jaxpr):
        if equation.primitive.name in ("dot_general", "conv_general_dilated"):
            read = sorted({str(x.aval.dtype) for x in equation.invars})
            found.append(["/".join(read), str(equation.outvars[0].aval.dtype)])
    return found


FUNCTIONS: Mapping[str, Any] = MappingProxyType(
    {
        "relu": jax.nn.relu,
        "tanh": jnp.tanh,
        "sigmoid": jax.nn.sigmoid,
        "gelu": partial(jax.nn.gelu, approximate=False),
        "gelu_tanh": partial(jax.nn.gelu, approximate=True),
    }
)
SLOPES: Mapping[str, Any] = MappingProxyType(
    {"tanh": lambda y: 1.0 - y * y, "sigmoid": lambda y: y * (1.0 - y)}
)
"""By the function, its slope at what it gave, where that is what is kept for the backward pass."""


def function_of(name: str) -> Any:
    """Return a function that rounds once, forward and backward, as XLA's fusions on a GPU do."""

    @jax.custom_vjp
    def once(x: Any) -> Any:
        return FUNCTIONS[name](x.astype(jnp.float32)).astype(x.dtype)

    def forward(x: Any) -> Any:
        y = once(x)
        return y, (x, y)

    def backward(kept: Any, grad: Any) -> Any:
        x, y = (each.astype(jnp.float32) for each in kept)
        wide = grad.astype(jnp.float32)
        if name in SLOPES:
            return ((wide * SLOPES[name](y)).astype(grad.dtype),)
        return (jax.vjp(FUNCTIONS[name], x)[1](wide)[0].astype(grad.dtype),)

    once.defvjp(forward, backward)
    return once


def loss_of(logits: Any, labels: Any) -> Any:
    """Return the cross entropy in float32, the mean of the rows."""
    rows = jax.nn.log_softmax(logits.astype(jnp.float32))
    return -jnp.mean(jnp.take_along_axis(rows, labels[:, None], 1))


# --- Keras


def keras_layer(part: Plan) -> Any:
    """Return the layer of Keras that a row of the plan describes; images are channels first."""
    from keras import layers

    first = {"name": part["name"], "data_format": "channels_first"}
    match part["type"]:
        case "Linear":
            return layers.Dense(part["n_out"], use_bias=part["bias"], name=part["name"])
        case "Conv2d":
            shape = part["c_out"], part["window"], part["stride"]
            return layers.Conv2D(*shape, use_bias=part["bias"], **first)
        case "Pool":
            kind = {"max": layers.MaxPooling2D, "average": layers.AveragePooling2D}
            return kind[part["function"]](part["window"], **first)
        case "Flatten":
            return layers.Flatten(data_format="channels_last", name=part["name"])
        case "Activation":
            return layers.Activation(function_of(part["function"]), name=part["name"])
    return layers.Add(name=part["name"])


def keras_net(plan: Plan) -> Any:
    """Return the net as a functional model."""
    import keras

    def through(chain: Sequence[Plan], x: Any) -> Any:
        for part in chain:
            layer = keras_layer(part)
            if "inner" in part:
                x = layer([through(part["inner"], x), through(part["shortcut"], x)])
                continue
            if part.get("padding"):
                x = keras.layers.ZeroPadding2D(part["padding"], data_format="channels_first")(x)
            x = layer(x)
        return x

    given = keras.Input(plan["input"])
    return keras.Model(given, through(plan["chain"], given))


def keras_update(plan: Plan) -> Any:
    """Return the optimizer of the plan as one of Keras."""
    import keras

    class Update(keras.optimizers.Optimizer):
        def __init__(self) -> None:
            clip = {"global_clipnorm": plan["clip_norm"], "clipvalue": plan["clip_value"]}
            super().__init__(learning_rate=1.0, **clip)

        def build(self, variables: Any) -> None:
            if not self.built:
                super().build(variables)
                self.kept = [
                    [self.add_variable_from_reference(v, f"state{i}") for i in range(2)]
                    for v in variables
                ]

        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            kept = self.kept[self._get_variable_index(variable)]
            step = jnp.asarray(self.iterations.value + 1, jnp.float32)
            given = variable.value, [x.value for x in kept], jnp.asarray(gradient)
            states, value = moved(plan, *given, jnp.asarray(learning_rate), step)
            for variable_of, made in zip((*kept, variable), (*states, value), strict=True):
                variable_of.assign(made)

    return Update()


def in_keras(plan: Plan, arrays: Mapping[str, Any], space: Any) -> tuple[Any, list[Any]]:
    """Return what a training in Keras tells, and the values around every step."""
    import keras

    net = keras_net(plan)
    before = [(v.path, v.shape) for v in net.variables]
    net = space["apply_policy"](net) or net
    keras_load(net, plan, arrays)
    fixed = [v.value for v in net.non_trainable_variables]
    x, y = arrays["x"], arrays["y"]

    def loss_at(values: Any) -> Any:
        return loss_of(net.stateless_call(values, fixed, x[0], training=True)[0], y[0])

    found = products(loss_at, [v.value for v in net.trainable_variables])
    optimizer = space["scaled"](keras_update(plan))
    net.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    optimizer.build(net.trainable_variables)
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    steps, values = [], [keras_values(net, arrays)]
    for batch, labels, rate in zip(x, y, plan["rates"], strict=True):
        inner.learning_rate = rate
        now, done = keras_scale(optimizer), int(inner.iterations)
        net.reset_metrics()
        loss = float(net.train_on_batch(batch, labels))
        steps.append([loss, now, int(inner.iterations) == done])
        values.append(keras_values(net, arrays))
    same = before == [(v.path, v.shape) for v in net.variables]
    told = {"version": f"keras {keras.__version__}, jax {jax.__version__}"}
    counts = {"state_keys": len(before), "same_keys": same, "products": found}
    return {"steps": steps, "events": keras_events(space), **counts, **told}, values


def keras_load(net: Any, plan: Plan, arrays: Mapping[str, Any]) -> None:
    """Give the layers their initial values."""
    for part in parts_of(plan["chain"]):
        owned = [arrays[f"{part['name']}.{x}"] for x in NAMES if f"{part['name']}.{x}" in arrays]
        if owned:
            net.get_layer(part["name"]).set_weights([turned(x) for x in owned])


def keras_scale(optimizer: Any) -> float:
    """Return the loss scale of now."""
    if hasattr(optimizer, "dynamic_scale"):
        return float(optimizer.dynamic_scale)
    return float(optimizer.loss_scale_factor or 1.0)


def keras_values(net: Any, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of all parameters, as they are here."""
    return {
        name: turned_back(getattr(net.get_layer(layer), NAMES[word]).numpy())
        for name, layer, word in weights_in(arrays)
    }


def keras_events(space: Any) -> list[float]:
    """Return the scales of forced steps of one number, none where the scale does not move."""
    import keras

    variable = keras.Variable(np.zeros(1, np.float32))
    optimizer = space["scaled"](keras.optimizers.SGD(1.0))
    if not hasattr(optimizer, "inner_optimizer"):
        return []
    optimizer.build([variable])

    def step(finite: bool) -> None:
        grads = [jnp.full(1, 1.0 if finite else jnp.inf)]
        held = [x.value for x in optimizer.variables]
        _, after = optimizer.stateless_apply(held, grads, [variable.value])
        for each, value in zip(optimizer.variables, after, strict=True):
            each.assign(value)

    return forced(
        lambda: float(optimizer.dynamic_scale),
        step,
        lambda count: optimizer.step_counter.assign(count),
        int(optimizer.dynamic_growth_steps),
    )


# --- flax and qwix


def flax_layer(part: Plan) -> Any:
    """Return the module of flax that a row of the plan describes; images are channels last."""
    from flax import nnx

    class Step(nnx.Module):
        """A function without parameters, in the dtype that it is told."""

        dtype = None

        def __call__(self, *given: Any) -> Any:
            return stepped(part, *(x.astype(self.dtype) for x in given))

    rngs = nnx.Rngs(0)
    if part["type"] == "Linear":
        return nnx.Linear(part["n_in"], part["n_out"], use_bias=part["bias"], rngs=rngs)
    if part["type"] == "Conv2d":
        return nnx.Conv(
            part["c_in"],
            part["c_out"],
            (part["window"], part["window"]),
            part["stride"],
            padding=[(part["padding"], part["padding"])] * 2,
            use_bias=part["bias"],
            rngs=rngs,
        )
    return Step()


def stepped(part: Plan, x: Any, *others: Any) -> Any:
    """Return what a layer without parameters gives."""
    from flax import nnx

    match part["type"]:
        case "Activation":
            return function_of(part["function"])(x)
        case "Pool":
            pool = {"max": nnx.max_pool, "average": nnx.avg_pool}[part["function"]]
            window = (part["window"], part["window"])
            return pool(x, window, strides=window)
        case "Flatten":
            return jnp.moveaxis(x, -1, 1).reshape(len(x), -1) if x.ndim == 4 else x
    return sum(others, x)


def flax_net(plan: Plan, arrays: Mapping[str, Any]) -> Any:
    """Return the net: a module at the place of its name for every layer, with its values."""
    from flax import nnx

    class Net(nnx.Module):
        """The chain of the plan."""

        def through(self, chain: Sequence[Plan], x: Any) -> Any:
            for part in chain:
                module = places.of(self, part["name"])
                if "inner" in part:
                    x = module(self.through(part["inner"], x), self.through(part["shortcut"], x))
                else:
                    x = module(x)
            return x

        def __call__(self, x: Any) -> Any:
            return self.through(plan["chain"], jnp.moveaxis(x, 1, -1) if x.ndim == 4 else x)

    net, places = Net(), flax_places()
    places.fill(net, plan["chain"], flax_layer)
    for name, layer, word in weights_in(arrays):
        getattr(places.of(net, layer), NAMES[word]).value = jnp.asarray(turned(arrays[name]))
    return net


def flax_places() -> Places:
    """Return how modules of flax lie in one another."""
    from flax import nnx

    class Group(nnx.Module):
        """What names with dots lie in."""

    return Places(lambda place, word: getattr(place, word, None), setattr, Group)


def turned(array: Any) -> Any:
    """Return a value in the order of axes that jax's libraries have."""
    return array.transpose(2, 3, 1, 0) if array.ndim == 4 else array.T


def turned_back(array: Any) -> Any:
    """Return a value of jax's libraries in the order of axes that it has here."""
    return array.transpose(3, 2, 0, 1) if array.ndim == 4 else array.T


def in_flax(plan: Plan, arrays: Mapping[str, Any], space: Any) -> tuple[Any, list[Any]]:
    """Return what a training in flax or qwix tells, and the values around every step."""
    import flax
    from flax import nnx

    net, x, y = flax_net(plan, arrays), arrays["x"], arrays["y"]
    before = flax_keys(net)
    net = space["apply_policy"](net, *([x[0]] if plan["target"] == "qwix" else []))
    kind, state, rest = nnx.split(net, nnx.Param, ...)

    def loss_at(state: Any, batch: Any, labels: Any) -> Any:
        return loss_of(nnx.merge(kind, state, rest)(batch), labels)

    found = products(lambda state: loss_at(state, x[0], y[0]), state)

    def scaled(state: Any, now: Any, *given: Any) -> Any:
        loss = loss_at(state, *given)
        return loss * now, loss

    gradients = jax.jit(jax.grad(scaled, has_aux=True))

    def values_of(state: Any) -> dict[str, Any]:
        return flax_values(nnx.merge(kind, state, rest), arrays)

    scale, steps, updates = flax_scale(space), [], Updates(plan, state)
    values = [values_of(state)]
    for batch, labels, rate in zip(x, y, plan["rates"], strict=True):
        now = jnp.float32(scale.loss_scale)
        grads, loss = gradients(state, now, batch, labels)
        grads = scale.unscale(jax.tree.map(lambda g: g.astype(jnp.float32), grads))
        finite = jnp.all(jnp.array([jnp.isfinite(g).all() for g in jax.tree.leaves(grads)]))
        skipped = not bool(finite) and hasattr(scale, "counter")
        state = state if skipped else updates.taken(state, grads, rate)
        scale = scale.adjust(finite)
        steps.append([float(loss), float(now), skipped])
        values.append(values_of(state))
    same = before == flax_keys(nnx.merge(kind, state, rest))
    counts = {"state_keys": len(before), "same_keys": same, "products": found}
    told = {"version": f"flax {flax.__version__}, jax {jax.__version__}"}
    return {"steps": steps, "events": flax_events(space), **counts, **told}, values


def flax_values(net: Any, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of all parameters, as they are here."""
    places = flax_places()
    return {
        name: turned_back(np.asarray(getattr(places.of(net, layer), NAMES[word]).value))
        for name, layer, word in weights_in(arrays)
    }


def flax_keys(net: Any) -> list[str]:
    """Return the paths of what is trained."""
    from flax import nnx

    return sorted(str(path) for path, _ in nnx.to_flat_state(nnx.state(net, nnx.Param)))


class Updates:
    """The updates of a state, with what the optimizer keeps."""

    def __init__(self, plan: Plan, state: Any) -> None:
        self.plan, self.count = plan, 0
        self.kept = [(jnp.zeros(p.shape, jnp.float32),) * 2 for p in jax.tree.leaves(state)]

    def taken(self, state: Any, grads: Any, rate: float) -> Any:
        """Return the state after an update."""
        self.count += 1
        leaves, shape = jax.tree.flatten(state)
        given = zip(leaves, self.kept, clipped(self.plan, jax.tree.leaves(grads)), strict=True)
        made = [moved(self.plan, *row, rate, float(self.count)) for row in given]
        self.kept = [states for states, _ in made]
        values = [x.astype(p.dtype) for (_, x), p in zip(made, leaves, strict=True)]
        return jax.tree.unflatten(shape, values)


def flax_scale(space: Any) -> Any:
    """Return the loss scale of the file: jmp's, a fixed one where it leaves that to the script."""
    import jmp

    if "loss_scale" in space:
        return space["loss_scale"]() or jmp.NoOpLossScale()
    if space["LOSS_SCALE"]["kind"] == "fixed":
        return jmp.StaticLossScale(jnp.float32(space["LOSS_SCALE"]["init_scale"]))
    return jmp.NoOpLossScale()


def flax_events(space: Any) -> list[float]:
    """Return the scales of forced steps, none where the scale does not move."""
    scale = [flax_scale(space)]
    if not hasattr(scale[0], "counter"):
        return []

    def step(finite: bool) -> None:
        scale[0] = scale[0].adjust(jnp.asarray(finite))

    def set_counter(count: int) -> None:
        scale[0] = replace(scale[0], counter=jnp.int32(count))

    return forced(lambda: float(scale[0].loss_scale), step, set_counter, scale[0].period)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
