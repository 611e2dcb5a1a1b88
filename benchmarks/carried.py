"""Rules of the kind that everybody writes, seen on 6 blocks and put on 12 and on 32: which carry.

    python -m benchmarks.carried --seed 0

48 policies are drawn: one format, another for the first and last blocks, for one leaf or a group of
them, for every second or third block, or for what is outside the stack. `rules` sees each on a
small net of 6 blocks alone; what it says is applied to deeper ones, and compared with what was
meant. Exits with 1 where fewer than 45 of 48 carry, a policy takes more than 4 rules, or one is
longer than 80 characters.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from dataclasses import replace

from policysearch.nn.model import Model
from policysearch.nn.models import gpt
from policysearch.policy.policy import Policy, uniform_layer
from policysearch.policy.presets import preset
from policysearch.rewrite.stacks import stacks_of
from policysearch.space.rules_file import RulesFile, rules_file_of

SEEN, DEEPER = 6, (12, 32)
COUNT, MOST_RULES, LONGEST, CARRIED = 48, 4, 80, 45
FORMATS = ("float32", "float16", "bfloat16", "float8_e4m3fn")
LEAVES = (
    "attention.q",
    "attention.k",
    "attention.v",
    "attention.o",
    "fc1",
    "fc2",
    "norm1",
    "norm2",
)
GROUPS = (("attention.q", "attention.k", "attention.v"), ("fc1", "fc2"), ("norm1", "norm2"))

Chooses = Callable[[int, int, str], bool]
"""Of a block, their number and a leaf: whether a clause is for this layer."""


def net(blocks: int) -> Model:
    """Return a small GPT of so many blocks."""
    return gpt((8,), 10, 16, (32,) * blocks, 2)


def clause(rng: random.Random) -> Chooses:
    """Return one clause of a rule as people write them."""
    kind = rng.choice(("ends", "ends", "leaf", "leaf", "group", "every", "leaf at ends"))
    first, last = rng.choice(((1, 1), (1, 2), (2, 1), (2, 2), (1, 0), (2, 0), (0, 1), (0, 2)))
    leaf, group = rng.choice(LEAVES), rng.choice(GROUPS)
    step = rng.choice((2, 3))
    start = rng.randrange(step)
    if kind == "ends":
        return lambda block, count, name: block < first or block >= count - last
    if kind == "leaf":
        return lambda block, count, name: name == leaf
    if kind == "group":
        return lambda block, count, name: name in group
    if kind == "every":
        return lambda block, count, name: block % step == start
    return lambda block, count, name: name == leaf and (block < first or block >= count - last)


def drawn(rng: random.Random) -> Callable[[Model], Policy]:
    """Return one drawn rule: from a net to its policy."""
    formats = rng.sample(FORMATS, 3)
    clauses = [(clause(rng), rng.choice(formats[1:])) for _ in range(rng.choice((1, 1, 2)))]
    outside = rng.choice((None, formats[1]))

    def policy(model: Model) -> Policy:
        layers = dict.fromkeys(model.layer_names, formats[0])
        (stack,) = stacks_of(model.layer_names)
        inside = {name for block in stack.blocks for name in block.values()}
        layers |= {x: outside for x in layers if outside is not None and x not in inside}
        for number, block in enumerate(stack.blocks):
            for leaf, name in block.items():
                chosen = [to for fits, to in clauses if fits(number, len(stack.blocks), leaf)]
                layers[name] = (chosen or [layers[name]])[0]
        base = preset("bfloat16", model.layer_names)
        made = base.with_layers({name: uniform_layer(x) for name, x in layers.items()})
        return replace(made, name="drawn")

    return policy


def longest(file: RulesFile) -> int:
    """Return the length of the longest line of the rules."""
    return max((len(line) for line in file.text().splitlines() if "match" in line), default=0)


def main() -> None:
    """Print a row for every drawn policy, then how many carry."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--count", type=int, default=COUNT)
    given = options.parse_args()
    rng, seen = random.Random(given.seed), net(SEEN)
    deeper = {blocks: net(blocks) for blocks in DEEPER}
    right, most, widest, back = dict.fromkeys(DEEPER, 0), 0, 0, 0
    for number in range(given.count):
        policy = drawn(rng)
        file = rules_file_of(policy(seen), seen)
        back += file.policy(seen) == policy(seen)
        carried = {n: file.policy(m).layers == policy(m).layers for n, m in deeper.items()}
        for blocks, same in carried.items():
            right[blocks] += same
        rules = [rule for rule in file.rules if not rule.run]
        most, widest = max(most, len(rules)), max(widest, longest(file))
        if not all(carried.values()):
            print(f"{number:>3}  {carried}")
            print("\n".join(f"     {rule.formats} {rule.match}" for rule in rules))
    print(f"right on {SEEN} blocks: {back} of {given.count}")
    for blocks, count in right.items():
        print(f"right on {blocks} blocks: {count} of {given.count}")
    print(f"at most {most} rules, the longest match {widest} characters")
    enough = all(count * COUNT >= CARRIED * given.count for count in right.values())
    if most > MOST_RULES or widest > LONGEST or not enough or back < given.count:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
