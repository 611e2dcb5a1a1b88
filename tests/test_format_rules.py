"""Rules that say formats: which layers they are for, what they set, and who wins."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policysearch.nn.model import Model
from policysearch.nn.models import lenet5, mlp, resnet, transformer
from policysearch.optimizers.optimizer import Optimizer
from policysearch.policy.policy import LayerPolicy, Policy, uniform_layer
from policysearch.policy.presets import preset
from policysearch.rewrite.format_rules import (
    FormatRule,
    LayerMatch,
    PlacedRule,
    apply_format_rules,
    first_and_last,
    float32_gradients,
    float_function,
    half_function,
    norms_and_softmax_float32,
    overruled,
    placed_rules,
)
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.train.step import trace_forward, trace_step
from policysearch.values import InputError

GPT = transformer((4, 8), 3, 8, (16, 16), 2)
RESNET = resnet((3, 8, 8), 4, (4, 8))
FLOAT16, BFLOAT16 = uniform_layer("float16"), uniform_layer("bfloat16")


def placed(model: Model, *rules: FormatRule) -> tuple[PlacedRule, ...]:
    return placed_rules(rules, trace_forward(model, 2), model)


def ruled(model: Model, *rules: FormatRule, base: str = "float32") -> Policy:
    return apply_format_rules(preset(base, model.layer_names), placed(model, *rules))


def test_three_lines_say_dense_float16_norm_float32() -> None:
    policy = ruled(
        GPT,
        FormatRule(match=LayerMatch(layer_type=("Linear",)), formats=("float16",)),
        FormatRule(match=LayerMatch(layer_type=("SelfAttention",)), formats=("bfloat16",)),
        float_function("layer_norm"),
    )
    table = dict(policy.layers)
    dense = ["embed", "head", *(f"block{i}.fc{k}" for i in (1, 2) for k in (1, 2))]
    for name in GPT.layer_names:
        if name in dense or re.search(r"attention\.[qkvo]$", name):
            assert table[name] == FLOAT16
        elif name.endswith(".attention"):
            assert table[name] == BFLOAT16
        else:
            assert table[name] == LayerPolicy()
    assert "layer_norm" in policy.fp32_ops
    assert "layer_norm" not in policy.low_precision_ops


@pytest.mark.parametrize(
    ("match", "model", "layers"),
    [
        (LayerMatch(op=("conv2d",)), lenet5(), ["conv1", "conv2"]),
        (LayerMatch(kind=("gemm",), position="ends"), lenet5(), ["conv1", "fc3"]),
        (LayerMatch(position="last"), lenet5(), ["fc3"]),
        (LayerMatch(position="first"), lenet5(), ["conv1"]),
        (LayerMatch(layer_type=("BatchNorm",), block=r"layer2\..*"), RESNET, None),
        (LayerMatch(block="block2", layer_type=("LayerNorm",)), GPT, None),
        (LayerMatch(layer="fc[12]"), lenet5(), ["fc1", "fc2"]),
        (LayerMatch(), mlp((4, 4, 2)), ["fc1", "relu1", "fc2"]),
    ],
)
def test_the_layers_of_a_match(match: LayerMatch, model: Model, layers: list[str] | None) -> None:
    expected = {
        RESNET: [
            *("layer2.0.bn1", "layer2.0.bn2", "layer2.0.downsample.1"),
            *("layer2.1.bn1", "layer2.1.bn2"),
        ],
        GPT: ["block2.norm1", "block2.norm2"],
    }
    found = match.layers(trace_forward(model, 2), model)
    assert list(found) == (expected[model] if layers is None else layers)  # type: ignore[index]


def test_gradients_of_one_float16_layer_are_float32() -> None:
    net = mlp((8, 8, 8, 4))
    everything = FormatRule(formats=("float16",))
    policy = ruled(net, everything, float32_gradients("fc2"))
    assert policy.layer("fc2") == replace(FLOAT16, grad="float32", wgrad="float32")
    assert policy.layer("fc1") == FLOAT16
    step = trace_step(net, "softmax_cross_entropy", Optimizer("sgd"), 4)
    graph = apply_policy(step, policy)
    formats = {n.layer: n.format for n in graph.nodes if n.role == "wgrad" and n.op.kind == "gemm"}
    assert formats == {"fc1": "float16", "fc2": "float32", "fc3": "float16"}


def test_the_rules_that_are_often_wanted() -> None:
    policy = ruled(
        GPT,
        FormatRule(name="all", formats=("float16",)),
        norms_and_softmax_float32(),
        first_and_last("bfloat16"),
        half_function("gelu"),
        float_function("tanh", optional=True),
        base="torch.autocast.float16",
    )
    assert {"batch_norm", "layer_norm", "softmax", "tanh"} <= set(policy.fp32_ops)
    assert "gelu" in policy.low_precision_ops
    assert policy.layer("embed") == policy.layer("head") == BFLOAT16
    assert policy.layer("block1.fc1") == FLOAT16
    lists = (policy.low_precision_ops, policy.fp32_ops, policy.promote_ops)
    assert sorted(op for ops in lists for op in ops) == sorted(
        op
        for ops in ("low_precision_ops", "fp32_ops", "promote_ops")
        for op in getattr(preset("float32", ()), ops)
    )


def test_the_later_rule_wins_and_says_so() -> None:
    rules = placed(
        lenet5(),
        FormatRule(name="low", match=LayerMatch(kind=("gemm",)), formats=("float16",)),
        FormatRule(name="wide", match=LayerMatch(layer="fc3"), formats=("float32",)),
        FormatRule(name="sums", match=LayerMatch(layer="fc2"), accumulator="chunked:32:float16"),
        FormatRule(name="dgrad", match=LayerMatch(layer="fc1"), grad="float32"),
    )
    policy = apply_format_rules(preset("bfloat16", lenet5().layer_names), rules)
    assert policy.layer("fc3") == LayerPolicy()
    assert policy.layer("fc2") == replace(FLOAT16, accumulator="chunked:32:float16")
    assert overruled(rules) == (
        "rule 'wide' wins over rule 'low': fc3",
        "rule 'sums' wins over rule 'low': fc2",
        "rule 'dgrad' wins over rule 'low': fc1",
    )


def test_without_masters_parameters_are_stored_in_the_format_of_the_rule() -> None:
    base = replace(preset("bfloat16", lenet5().layer_names), master_weights=False)
    rules = placed(lenet5(), FormatRule(formats=("float8_e4m3fn",)))
    assert apply_format_rules(base, rules).layer("fc1").param == "bfloat16"
    rules = placed(lenet5(), FormatRule(formats=("float16",)))
    assert apply_format_rules(base, rules).layer("fc1").param == "float16"


FORMATS = ("float32", "float16", "bfloat16", "float8_e4m3fn")
PART_NAMES = ("compute", "output", "grad", "wgrad")


@st.composite
def random_rules(draw: st.DrawFn) -> tuple[FormatRule, ...]:
    rules = []
    for number in range(draw(st.integers(1, 5))):
        name = draw(st.sampled_from(["", "conv.", "fc[12]", ".*1", "pool.*"]))
        match = LayerMatch(layer=name, position=draw(st.sampled_from(["any", "any", "ends"])))
        said = {draw(st.sampled_from(PART_NAMES)): draw(st.sampled_from(FORMATS))}
        if draw(st.booleans()):
            rule = FormatRule(str(number), match, (draw(st.sampled_from(FORMATS)),), optional=True)
        else:
            rule = FormatRule(str(number), match, optional=True, **said)  # type: ignore[arg-type]
        rules.append(rule)
    return tuple(rules)


@settings(max_examples=60, deadline=None)
@given(random_rules())
def test_random_rules_set_what_reading_them_backwards_says(rules: tuple[FormatRule, ...]) -> None:
    """The oracle asks, per layer and part, for the last rule that speaks of it."""
    net = lenet5()
    policy = ruled(net, *rules)
    for layer in net.layer_names:
        for part in PART_NAMES:
            expected = "float32"
            for rule in reversed(rules):
                fits = not rule.match.layer or re.fullmatch(rule.match.layer, layer)
                ends = rule.match.position == "any" or layer in ("conv1", "fc3")
                if not (fits and ends):
                    continue
                if rule.formats:
                    expected = getattr(uniform_layer(rule.formats[0]), part)
                    break
                if getattr(rule, part):
                    expected = getattr(rule, part)
                    break
            assert getattr(policy.layer(layer), part) == expected


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (dict(), "name: '' says 0 things; expected formats"),
        (dict(formats=("float16",), function="a.py:f"), "says 2 things"),
        (dict(formats=("float99",)), "formats: .*'float99'"),
        (dict(grad="f16"), "grad: .*'f16'"),
        (dict(ops=("softmax",)), "run: '' with ops"),
        (dict(formats=("float16", "float16")), "expected different ones"),
    ],
)
def test_a_rule_that_says_nothing_sound_is_refused(rule: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        FormatRule(**rule)  # type: ignore[arg-type]


def test_a_rule_that_matches_nothing_is_an_error_unless_optional() -> None:
    lost = FormatRule(name="lost", match=LayerMatch(layer="fc4"), formats=("float16",))
    valid = "rules: rule 'lost': match layer 'fc4'.* fits no layer; expected a match, or optional"
    with pytest.raises(InputError, match=valid):
        placed(lenet5(), lost)
    assert placed(lenet5(), replace(lost, optional=True))[0].layers == ()
    with pytest.raises(InputError, match=r"rule '1': ops \['softmax'\] are not in the model"):
        placed(lenet5(), FormatRule(ops=("softmax",), run="fp32"))
    with pytest.raises(InputError, match="kind: 'gem'; expected one of gemm"):
        LayerMatch(kind=("gem",))
    with pytest.raises(InputError, match=r"block: '\('.*regular expression"):
        LayerMatch(block="(")
    with pytest.raises(InputError, match="the name is there twice"):
        placed(lenet5(), *[FormatRule(name="a", formats=("float16",))] * 2)
