"""Files for Keras and flax in the frameworks themselves, on jax: dtypes of products, and losses."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from policysearch.export import flax, keras, qwix
from policysearch.nn.models import mlp
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import Policy, uniform_layer
from policysearch.policy.presets import preset
from policysearch.train.tasks import Task
from policysearch.train.trainer import Trainer

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("XLA_FLAGS", "--xla_allow_excess_precision=false")
jax: Any = pytest.importorskip("jax")
jnp: Any = pytest.importorskip("jax.numpy")

pytestmark = pytest.mark.filterwarnings("ignore")
MODEL = mlp((16, 32, 24, 10), "tanh")
LAYERS = ("fc1", "fc2", "fc3")
STEPS, BATCH, RATE = 10, 32, 0.1


DTYPES = ("float32", "float16", "bfloat16")


def dealt(seed: int, dtypes: Sequence[str] = DTYPES) -> Policy:
    """One of the dtypes for every layer, with the function behind it."""
    rng, layers = random.Random(seed), {}
    for name in MODEL.layer_names:
        if name in LAYERS:
            row = uniform_layer(rng.choice(dtypes))
        layers[name] = row
    return preset("bfloat16", MODEL.layer_names).with_layers(layers)


def space_of(text: str) -> dict[str, Any]:
    space: dict[str, Any] = {"__name__": "file"}
    exec(compile(text, "file.py", "exec"), space)
    return space


def equations(jaxpr: Any) -> Iterator[Any]:
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for part in value if isinstance(value, tuple | list) else [value]:
                inner = getattr(part, "jaxpr", part)
                if hasattr(inner, "eqns"):
                    yield from equations(inner)


def products(jaxpr: Any) -> list[str]:
    """Return the dtype of each product, of both operands and the result."""
    found = []
    for equation in equations(jaxpr):
        if equation.primitive.name == "dot_general":
            dtypes = {str(v.aval.dtype) for v in (*equation.invars, *equation.outvars)}
            found.append("/".join(sorted(dtypes)))
    return found


def keras_net(built: str) -> Any:
    """Return an unbuilt net of Keras, in one of the three ways to make one."""
    kit = pytest.importorskip("keras")
    if kit.backend.backend() != "jax":
        pytest.skip("keras runs on another backend")

    def parts() -> list[Any]:
        dense = [kit.layers.Dense(n, name=f"fc{i}") for i, n in enumerate((32, 24, 10), 1)]
        acts = [kit.layers.Activation("tanh", name=f"tanh{i}") for i in (1, 2)]
        return [dense[0], acts[0], dense[1], acts[1], dense[2]]

    if built == "sequential":
        return kit.Sequential([kit.Input((16,)), *parts()])
    if built == "functional":
        x = given = kit.Input((16,))
        for part in parts():
            x = part(x)
        return kit.Model(given, x)

    class Own(kit.Model):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.parts = parts()

        def call(self, x: Any) -> Any:
            for part in self.parts:
                x = part(x)
            return x

    net = Own()
    net(np.zeros((1, 16), np.float32))
    return net


def flax_net() -> Any:
    nnx = pytest.importorskip("flax.nnx")

    class Tanh(nnx.Module):  # type: ignore[name-defined]
        dtype = None

        def __call__(self, x: Any) -> Any:
            return jnp.tanh(x.astype(self.dtype))

    class Net(nnx.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            rngs = nnx.Rngs(0)
            self.fc1, self.fc2 = nnx.Linear(16, 32, rngs=rngs), nnx.Linear(32, 24, rngs=rngs)
            self.fc3 = nnx.Linear(24, 10, rngs=rngs)
            self.tanh1, self.tanh2 = Tanh(), Tanh()

        def __call__(self, x: Any) -> Any:
            x = self.tanh1(self.fc1(x))
            return self.fc3(self.tanh2(self.fc2(x)))

    return Net()


def loss_of(logits: Any, labels: Any) -> Any:
    rows = jax.nn.log_softmax(logits.astype(jnp.float32))
    return -jnp.mean(jnp.take_along_axis(rows, labels[:, None], 1))


def expected(policy: Policy) -> list[str]:
    """One product forward for each layer; backward two, the input of the net has no gradient."""
    dtypes = [policy.layer(name).compute for name in LAYERS]
    return sorted([*dtypes, *dtypes, *dtypes[1:]])


X, Y = np.ones((4, 16), np.float32), np.zeros(4, np.int32)


@pytest.mark.parametrize("built", ["sequential", "functional", "own"])
def test_products_of_keras_are_in_the_dtypes_of_the_policy(built: str) -> None:
    for seed in range(20):
        policy, net = dealt(seed), keras_net(built)
        space_of(keras.export(policy, MODEL))["apply_policy"](net)
        fixed = [v.value for v in net.non_trainable_variables]

        def loss(values: Any, net: Any = net, fixed: Any = fixed) -> Any:
            return loss_of(net.stateless_call(values, fixed, X)[0], Y)

        made = jax.make_jaxpr(jax.grad(loss))([v.value for v in net.trainable_variables])
        assert sorted(products(made.jaxpr)) == expected(policy)


def test_products_of_flax_are_in_the_dtypes_of_the_policy() -> None:
    nnx = pytest.importorskip("flax.nnx")
    for seed in range(20):
        policy = dealt(seed)
        net = space_of(flax.export(policy, MODEL))["apply_policy"](flax_net())
        kind, state = nnx.split(net)
        made = jax.make_jaxpr(
            jax.grad(lambda state, kind=kind: loss_of(nnx.merge(kind, state)(X), Y))
        )(state)
        assert sorted(products(made.jaxpr)) == expected(policy)


def test_products_of_qwix_are_in_the_dtypes_of_the_policy() -> None:
    """FP8 forward with E4M3, backward with E5M2 by E4M3; a rule without a module is an error."""
    pytest.importorskip("qwix")
    nnx = pytest.importorskip("flax.nnx")
    low = ["float8_e4m3fn", "float8_e4m3fn/float8_e5m2", "float8_e4m3fn/float8_e5m2"]
    for seed in range(20):
        policy = qwix.runs(dealt(seed, (*DTYPES, "float8_e4m3fn", "float8_e4m3fn")), MODEL)
        net = space_of(qwix.export(policy, MODEL))["apply_policy"](flax_net(), X)
        kind, state, rest = nnx.split(net, nnx.Param, ...)

        def loss(state: Any, kind: Any = kind, rest: Any = rest) -> Any:
            return loss_of(nnx.merge(kind, state, rest)(X), Y)

        made = jax.make_jaxpr(jax.grad(loss))(state)
        found = [
            dtypes.removeprefix("float32/") if "float8" in dtypes else dtypes
            for dtypes in products(made.jaxpr)
        ]
        wanted = []
        for name in LAYERS:
            dtype = policy.layer(name).compute
            # qwix writes both backward products of a linear, read or not
            wide = [dtype] * (2 if name == "fc1" else 3)
            wanted += low if dtype == "float8_e4m3fn" else wide
        assert sorted(found) == sorted(wanted)
    text = qwix.export(qwix.runs(dealt(0, ("float8_e4m3fn",)), MODEL), MODEL)
    named = text.replace("'fc1': (", "'fc9': (")
    renamed = space_of(named.replace("LAYERS = {", "LAYERS = {'fc1': ('float32', 'float32'), "))
    with pytest.raises(ValueError, match=r"layers \['fc9'\] are of the policy and not in it"):
        renamed["apply_policy"](flax_net(), X)
    with pytest.raises(ValueError, match=r"\['fc9'\] match nothing"):
        renamed["apply_policy"](flax_net(), X, strict=False)


@pytest.mark.parametrize(("target", "made"), [(keras, keras_net), (flax, flax_net)])
def test_a_layer_of_the_policy_that_is_not_there_is_an_error(target: Any, made: Any) -> None:
    """A function without a module runs in what it is given, which may be narrower than asked."""
    other = mlp((16, 32, 24, 10), "gelu")
    low = preset("bfloat16", other.layer_names)
    wide = low.with_layers(dict.fromkeys(("gelu1", "fc3"), uniform_layer("float32")))
    options = ("functional",) if target is keras else ()
    apply = space_of(target.export(wide, other))["apply_policy"]
    with pytest.raises(ValueError, match=r"layers \['gelu1'\] are of the policy and not .* strict"):
        apply(made(*options))
    apply(made(*options), strict=False)
    space_of(target.export(low, other))["apply_policy"](made(*options))


def test_functions_that_run_as_asked_need_no_module() -> None:
    nnx = pytest.importorskip("flax.nnx")

    class Inline(type(flax_net())):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            del self.tanh1, self.tanh2

        def __call__(self, x: Any) -> Any:
            return self.fc3(jnp.tanh(self.fc2(jnp.tanh(self.fc1(x)))))

    for seed in range(6):
        policy = dealt(seed)
        kind, state = nnx.split(space_of(flax.export(policy, MODEL))["apply_policy"](Inline()))
        made = jax.make_jaxpr(lambda state, kind=kind: nnx.merge(kind, state)(X))(state)
        found = [
            str(x.outvars[0].aval.dtype)
            for x in equations(made.jaxpr)
            if x.primitive.name == "tanh"
        ]
        assert found == [policy.layer(name).compute for name in ("tanh1", "tanh2")]


def test_a_floor_of_jmp_is_lost_by_a_tree_map() -> None:
    pytest.importorskip("jmp")
    asked = replace(dealt(0), loss_scale=LossScale("dynamic", 2.0**10, min_scale=32.0))
    scale = space_of(flax.export(asked, MODEL))["loss_scale"]()
    again = jax.tree.map(lambda leaf: leaf, scale)
    assert (float(scale.min_loss_scale), float(again.min_loss_scale)) == (32.0, 1.0)


def by_largest(x: Any, kind: Any, shift: float = 1.0) -> tuple[Any, Any]:
    """Return x on the grid of a dtype, and its scale, in the steps that XLA compiles.

    Both quotients are products with reciprocals, and x times `shift` is what is rounded.
    """
    x, one = x * np.float32(shift), np.float32(1)
    scale = np.abs(x).max() * (one / np.float32(jnp.finfo(kind).max))
    return (x * (one / scale)).astype(kind).astype(np.float32), scale


@pytest.mark.parametrize("seed", range(6))
def test_what_qwix_makes_of_a_tie(seed: int) -> None:
    """It multiplies gradients by the scale of what they meet, and rounds them after that."""
    pytest.importorskip("qwix")
    nnx, model = pytest.importorskip("flax.nnx"), mlp((16, 24))
    low = preset("bfloat16", ("fc1",)).with_layers({"fc1": uniform_layer("float8_e4m3fn")})

    class Net(nnx.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            self.fc1 = nnx.Linear(16, 24, use_bias=False, rngs=nnx.Rngs(seed))

        def __call__(self, x: Any) -> Any:
            return self.fc1(x)

    rng, net = np.random.default_rng(seed), Net()
    x, kernel = rng.standard_normal((8, 16)).astype(np.float32), np.asarray(net.fc1.kernel.value)
    ties = rng.choice([1.125, 1.375, 1.625], (8, 24)) * 2.0 ** -rng.integers(0, 3, (8, 24))
    ties[0, 0] = 1.75  # lies at the largest number, and all others halfway between two
    grad = (ties * rng.choice([-1, 1], (8, 24))).astype(np.float32)
    made = space_of(qwix.export(qwix.runs(low, model), model))["apply_policy"](net, x)
    kind, state, rest = nnx.split(made, nnx.Param, ...)

    def loss(state: Any, x: Any) -> Any:
        return (nnx.merge(kind, state, rest)(x) * grad).sum()

    of_kernel, of_input = jax.jit(jax.grad(loss, argnums=(0, 1)))(state, x)
    (given, x_scale), (weight, scale) = (by_largest(v, jnp.float8_e4m3fn) for v in (x, kernel))
    read, its = by_largest(grad, jnp.float8_e5m2, scale)
    np.testing.assert_allclose(of_input, read @ weight.T * its, rtol=1e-5, atol=1e-6)
    read, its = by_largest(grad, jnp.float8_e5m2, x_scale)
    (found,) = jax.tree.leaves(of_kernel)
    np.testing.assert_allclose(found, given.T @ read * its, rtol=1e-5, atol=1e-5)


def data() -> tuple[Any, Any]:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((STEPS, BATCH, 16)).astype(np.float32)
    return x, rng.integers(0, 10, (STEPS, BATCH)).astype(np.int32)


def emulated(policy: Policy, jitter: float = 0.0) -> tuple[Any, Any, Any]:
    """Return initial values, losses and scales of the emulator."""
    values = MODEL.init(np.random.default_rng(0))
    rng = np.random.default_rng(1)
    moved = {n: v * (1 + jitter * rng.standard_normal(v.shape)) for n, v in values.items()}
    task = Task(
        model="mlp", optimizer="sgd", learning_rate=RATE, batch_size=BATCH, steps=STEPS,
        tail_steps=STEPS,
    )  # fmt: skip
    trainer = Trainer(MODEL, task, policy, 0)
    trainer.load({name: v.astype(np.float32) for name, v in moved.items()})
    taken = [trainer.step([x], y) for x, y in zip(*data(), strict=True)]
    return values, np.array([row[0] for row in taken]), [row[1] for row in taken]


def in_keras(policy: Policy, values: Any) -> tuple[Any, Any]:
    kit, net = pytest.importorskip("keras"), keras_net("functional")
    space = space_of(keras.export(policy, MODEL))
    space["apply_policy"](net)
    for name in LAYERS:
        kernel, bias = values[f"{name}.weight"].T, values[f"{name}.bias"]
        net.get_layer(name).set_weights([kernel, bias])
    optimizer = space["scaled"](kit.optimizers.SGD(RATE))
    net.compile(optimizer, kit.losses.SparseCategoricalCrossentropy(from_logits=True))
    losses, scales = [], []
    for x, y in zip(*data(), strict=True):
        scales.append(float(optimizer.dynamic_scale) if optimizer.built else None)
        net.reset_metrics()
        losses.append(float(net.train_on_batch(x, y)))
    return np.array(losses), scales


def in_flax(policy: Policy, values: Any) -> tuple[Any, Any]:
    nnx = pytest.importorskip("flax.nnx")
    jmp = pytest.importorskip("jmp")
    space, net = space_of(flax.export(policy, MODEL)), flax_net()
    for name in LAYERS:
        part = getattr(net, name)
        part.kernel.value = jnp.asarray(values[f"{name}.weight"].T)
        part.bias.value = jnp.asarray(values[f"{name}.bias"])
    kind, state = nnx.split(space["apply_policy"](net))
    scale, losses, scales = space["loss_scale"](), [], []
    for x, y in zip(*data(), strict=True):
        scales.append(float(scale.loss_scale))

        def scaled(state: Any, x: Any = x, y: Any = y, scale: Any = scale) -> Any:
            loss = loss_of(nnx.merge(kind, state)(x), y)
            return scale.scale(loss), loss

        grads, loss = jax.grad(scaled, has_aux=True)(state)
        grads = scale.unscale(jax.tree.map(lambda g: g.astype(jnp.float32), grads))
        finite = jmp.all_finite(grads)
        moved = jax.tree.map(lambda p, g: p - RATE * g, state, grads)
        state = jmp.select_tree(finite, moved, state)
        scale = scale.adjust(finite)
        losses.append(float(loss))
    return np.array(losses), scales


over_both = pytest.mark.parametrize(("target", "train"), [(keras, in_keras), (flax, in_flax)])


@over_both
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_losses_and_scales_are_those_of_the_emulator(target: Any, train: Any, seed: int) -> None:
    scale = LossScale("dynamic", 2.0**24, growth_interval=3, min_scale=1.0)
    policy = target.runs(replace(dealt(seed, DTYPES[:2]), loss_scale=scale), MODEL)
    values, losses, scales = emulated(policy)
    own = np.abs(emulated(policy, 1e-7)[1] - losses).max()
    there, moved = train(policy, values)
    assert moved[1:] == scales[1:] and len(set(scales)) > 1
    assert np.abs(there - losses).max() <= max(5e-5, 2 * own)


@over_both
def test_the_forward_pass_rounds_before_it_adds_a_bias(target: Any, train: Any) -> None:
    """Later steps of bfloat16 are not compared: a CPU sums gradients of a bias in bfloat16."""
    scale = LossScale("dynamic", 2.0**10, growth_interval=3, min_scale=1.0)
    policy = target.runs(replace(dealt(3, DTYPES[2:]), loss_scale=scale), MODEL)
    values, losses, _ = emulated(policy)
    fused = emulated(replace(policy, bias="fused"))[1]
    there, _ = train(policy, values)
    assert abs(there[0] - losses[0]) < 1e-6 < abs(fused[0] - losses[0])
