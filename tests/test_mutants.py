"""The mutants themselves: drawn again alike, known when lines move, never where nothing runs."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cosmic_ray")
code: Any = importlib.import_module("benchmarks.mutants.code")
operators: Any = importlib.import_module("benchmarks.mutants.operators")
cosmic: Any = importlib.import_module("cosmic_ray.mutating")

MODULE = '''"""Doc with 1 + 1."""

from __future__ import annotations

Kind = int | None


def f(x: int | None = 3, *, low: float = 0.5) -> tuple[int, int] | None:
    """Return x + 1."""
    if x is None:
        return None
    kept = g(x, low=low)
    kept.total += 1
    return max(kept.dgrad, 2), x - 1
'''


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "m.py").write_text(MODULE)
    return tmp_path


def test_a_draw_is_repeated_by_its_seed_and_grows(root: Path) -> None:
    few, many, other = (code.drawn(root, ["m.py"], s, n) for s, n in ((0, 5), (0, 9), (1, 9)))
    assert [m.key for m in many[:5]] == [m.key for m in few]
    assert [m.key for m in other] != [m.key for m in many]
    assert len({m.key for m in many}) == 9
    for mutant in many:
        ast.parse(mutant.after)
        assert mutant.before == MODULE != mutant.after


def test_keys_and_draw_stay_when_lines_move(root: Path) -> None:
    before = code.drawn(root, ["m.py"], 0, 9)
    (root / "m.py").write_text(MODULE.replace("\n\ndef f", "\n\nOTHER: int\n\n\ndef f"))
    after = code.drawn(root, ["m.py"], 0, 9)
    assert [m.key for m in after] == [m.key for m in before]
    assert [m.place.lines for m in after] != [m.place.lines for m in before]


def test_nothing_is_changed_that_does_not_run(root: Path) -> None:
    every = code.drawn(root, ["m.py"], 0, 1000)
    assert len(every) > 9
    for mutant in every:
        assert "tuple[int, int] | None:" in mutant.after
        assert "x: int | None" in mutant.after and "Kind = int | None" in mutant.after
        assert '"""Doc with 1 + 1."""' in mutant.after and '"""Return x + 1."""' in mutant.after


OP = """
def _values(rng, *shape):
    return rng.random((2, 3))

op = Op(forward=lambda x: x + 1, example=lambda rng: Example((_values(rng), 2.5), {"axis": 1}))
other = unary(example=_values, attrs={"width": 7})
"""


@pytest.mark.parametrize(("room", "kept"), [("ops", False), ("nn", True)])
def test_of_an_ops_example_nothing_is_changed_and_all_else_is(
    room: str, kept: bool, tmp_path: Path
) -> None:
    module = f"policysearch/{room}/m.py"
    (tmp_path / module).parent.mkdir(parents=True)
    (tmp_path / module).write_text(OP)
    every = [mutant.after for mutant in code.drawn(tmp_path, [module], 0, 1000)]
    assert any('"_axis"' in text for text in every) == kept
    assert any("random((2, 3))" not in text for text in every) == kept
    assert any('"_width"' in text for text in every)
    assert any("x + 1" not in text for text in every)
    assert any("example=lambda" not in text for text in every)  # the example as such


@pytest.mark.parametrize("operator", operators.OWN, ids=lambda operator: operator.__name__)
def test_our_operators_do_what_their_examples_say(operator: Any) -> None:
    for example in operator.examples():
        made = cosmic.mutate_code(example.pre_mutation_code, operator(), example.occurrence)
        assert made == example.post_mutation_code


def test_the_slips_that_are_looked_for_are_among_them(root: Path) -> None:
    made = {mutant.key[3] for mutant in code.drawn(root, ["m.py"], 0, 1000)}
    assert "kept = g(x)" in made  # an argument left out
    assert "pass" in made  # a statement left out
    assert "return max(kept.wgrad, 2), x - 1" in made  # a neighbour read instead


def test_every_module_and_test_that_is_named_is_there() -> None:
    asked: Any = importlib.import_module("benchmarks.mutants.__main__")
    root = Path(__file__).parents[1]
    files = [*asked.ALWAYS, *(module for module, *_ in asked.equivalent())]
    assert set(asked.modules(root)) >= {"policysearch/cli.py", "policysearch/ops/update.py"}
    assert [name for name in files if not (root / name).is_file()] == []
