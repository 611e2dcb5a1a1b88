"""Repeated stacks: how their blocks are said, and rules that mean the same in a deeper net."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.carried import drawn, longest, net
from policysearch.cli import main
from policysearch.nn.models import gpt
from policysearch.policy.policy import Policy, uniform_layer
from policysearch.policy.presets import preset
from policysearch.rewrite.format_rules import LayerMatch
from policysearch.rewrite.stacks import fits, placed, short_leaves, stacks_of, ways
from policysearch.space.rules_file import read_rules, rules_file_of
from policysearch.values import InputError


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("all", [0, 1, 2, 3, 4, 5]),
        ("first 2", [0, 1]),
        ("last 1", [5]),
        ("first 1, last 2", [0, 4, 5]),
        ("every 2 from 1", [1, 3, 5]),
        ("every 3", [0, 3]),
        ("from 4", [4, 5]),
        ("to -3", [0, 1, 2, 3]),
        ("from 1 to -2", [1, 2, 3, 4]),
        ("from 2 to 2", [2]),
    ],
)
def test_blocks_are_counted_from_both_ends(text: str, blocks: list[int]) -> None:
    assert sorted(placed(text, 6)) == blocks


@pytest.mark.parametrize(
    "text", ["", "first", "first 0", "first 7", "last 7", "from 6", "every 0", "from 4 to 2", "2"]
)
def test_what_is_no_block_of_the_net_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"blocks: .*; expected"):
        placed(text, 6)


@given(st.integers(2, 12))
def test_every_way_means_other_blocks(count: int) -> None:
    found = [*ways(count)]
    assert len({blocks for _, blocks in found}) == len(found)
    assert all(placed(text, count) == blocks for text, blocks in found)
    assert dict(found)["all"] == frozenset(range(count))
    every = frozenset(range(count))
    for first, last in combinations(range(1, count), 2):  # what lies between is left out
        assert every - frozenset(range(first, last)) in dict(found).values()


def test_stacks_are_names_but_for_one_number() -> None:
    (stack,) = stacks_of(net(3).layer_names)
    assert stack.name == "block" and len(stack.blocks) == 3
    assert stack.blocks[2]["attention.q"] == "block3.attention.q"
    several = stacks_of(f"layer{stage}.{n}.conv1" for stage in (1, 2) for n in (0, 1))
    assert [each.name for each in several] == ["layer1", "layer2"]
    names = ["model.layers.0.mlp.up_proj", "model.layers.1.mlp.up_proj", "lm_head", "one.0.x"]
    (stack,) = stacks_of(names)
    assert stack.name == "model.layers" and stack.leaves == ("mlp.up_proj",)


def test_leaves_are_said_by_their_ends_or_what_they_are_inside() -> None:
    leaves = ["attn.q", "attn.k", "attn", "mlp.q", "mlp.up"]
    assert fits("attn.q", ["q"]) and fits("mlp.q", ["q"]) and not fits("attn", ["q"])
    assert fits("attn.q", ["attn."]) and not fits("attn", ["attn."]) and fits("attn", ["attn"])
    assert short_leaves(leaves, {"attn.q", "attn.k"}) == ("attn.",)
    assert short_leaves(leaves, {"attn.q", "mlp.q"}) == ("q",)
    assert short_leaves(leaves, {"attn"}) == ("attn",)
    assert short_leaves(leaves, {"mlp.q"}) == ("mlp.q",)


def policy_of(blocks: int, low: str = "bfloat16") -> Policy:
    """First and last two blocks, and every second product of the feed-forward, wide."""
    model = net(blocks)
    (stack,) = stacks_of(model.layer_names)
    ends = [0, blocks - 2, blocks - 1]
    wide = [name for n in ends for name in stack.blocks[n].values()]
    wide += [block["fc2"] for block in stack.blocks]
    return preset(low, model.layer_names).with_layers(dict.fromkeys(wide, uniform_layer("float32")))


def test_ends_and_a_leaf_carry_and_the_short_net_is_said_to_be_blind() -> None:
    file = rules_file_of(policy_of(6), net(6))
    assert [rule.match for rule in file.rules] == [
        LayerMatch(leaf=("fc2",)),
        LayerMatch(blocks="first 1, last 2"),
    ]
    assert "block (6 blocks) cannot tell blocks at the end from their numbers" in file.text()
    for blocks in (6, 12, 32):
        assert replace(file.policy(net(blocks)), name="") == replace(policy_of(blocks), name="")


@pytest.mark.parametrize("number", range(0, 48, 6))
def test_drawn_rules_carry(number: int) -> None:
    rng = random.Random(number + 1000)
    policy = drawn(rng)
    file = rules_file_of(policy(net(6)), net(6))
    assert file.policy(net(6)) == policy(net(6))
    assert len(file.rules) <= 4 and longest(file) <= 80


def test_layers_that_no_rule_reaches_are_named_and_blocks_beyond_the_net_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.toml"
    path.write_text(
        'base = "bfloat16"\n[[rules]]\nmatch = { leaf = ["fc1"], blocks = "first 2" }\n'
        'formats = ["float16"]\n'
    )
    assert main(["apply", str(path), "--model", "gpt"]) == 0
    said = capsys.readouterr().err
    assert "no rule reaches embed, position, " in said and "more: as in bfloat16" in said
    path.write_text(path.read_text().replace("first 2", "first 9"))
    assert main(["apply", str(path), "--model", "gpt"]) == 2
    assert "rule '1': blocks: 'first 9' of 2 blocks; expected 1 to 2" in capsys.readouterr().err
    path.write_text(path.read_text().replace("first 9", "second 1"))
    assert main(["apply", str(path), "--model", "gpt"]) == 2
    assert "expected first N, last N" in capsys.readouterr().err


def test_an_unknown_stack_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_text(
        'base = "bfloat16"\n[[rules]]\nmatch = { stack = "layer" }\nformats = ["float16"]\n'
    )
    with pytest.raises(InputError, match="stack: 'layer'; expected one of 'block'"):
        read_rules(path).policy(gpt((8,), 10, 16, (32, 32), 2))


def test_all_but_every_third_block_is_said_by_steps() -> None:
    said = {blocks: text for text, blocks in ways(6)}
    for left in range(3):
        text = said[frozenset(n for n in range(6) if n % 3 != left)]
        assert placed(text, 32) == {n for n in range(32) if n % 3 != left}
    assert said[frozenset({0, 1, 4, 5})] == "first 2, last 2"


@pytest.mark.parametrize("count", range(2, 9))
def test_all_but_a_middle_are_said_by_their_ends(count: int) -> None:
    """By brute force: every first and last few that are not all of the blocks."""
    texts = {text for text, _ in ways(count)}
    meant = dict(ways(count)).values()
    for first, last in ((a, b) for a in range(1, count) for b in range(1, count - a)):
        assert frozenset({*range(first), *range(count - last, count)}) in meant
        if first + last > count // 2 + 1 and first > 1 and last > 1:
            assert f"first {first}, last {last}" in texts
