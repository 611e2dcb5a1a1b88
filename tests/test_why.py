"""`why`: the neighbours of a policy in one layer, and what they are beside it by brute force."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.search.live import Live
from benchmarks.search.live import every as every_params
from benchmarks.search.tables import load
from benchmarks.search.why import Layer, shares, turned
from policysearch.cli import main
from policysearch.objective.score import DIVERGED_GAP, Measurement
from policysearch.policy.policy import Policy, uniform_layer
from policysearch.search.hypervolume import non_dominated
from policysearch.space.space import Space
from policysearch.study.journal.trials import Trial
from policysearch.study.opening import load_results
from policysearch.study.questions.why import neighbours, verdict, why
from policysearch.study.results.noise import change
from policysearch.study.results.results import Results
from policysearch.study.specification import StudySpec, load_spec, space_of
from policysearch.study.study import run_study
from policysearch.values import InputError
from tests.studies import replaced_training, write_study

ROOT = Path(__file__).parents[1]
CHANGES = (
    ('formats = ["float32", "bfloat16", "float8_e4m3fn"]',
     'formats = ["float32", "float16", "bfloat16", "float8_e4m3fn"]'),
    ('ops = ["tanh"]\nmaster_weights = [true, false]\nloss_scales = ["none", "fixed", "dynamic"]\n',
     'scalings = ["current"]\n'),
    ("growth_intervals = [10, 100]\n", ""),
    ('"mindspore.O0", ', ""),
    ('widths = [8]', 'widths = [512, 512]'),
    ("trials = 6", "trials = 64"),
)  # fmt: skip


def gap_by_bits(policy: Policy, seed: int) -> Measurement:
    """Return a training whose gap is what each layer's mantissa lacks, fc1 by far the most."""
    lost = 0.0
    for name, weight in (("fc1", 9.0), ("fc2", 1.0), ("fc3", 2.0)):
        compute = policy.layer(name).compute
        lost += weight * {"float32": 0.0, "float16": 1.0, "bfloat16": 8.0}.get(compute, 128.0)
    return Measurement(0.5 + 1e-5 * lost + 1e-7 * seed, 0.9, None, 0, (), ())


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> StudySpec:
    return load_spec(write_study(tmp_path_factory.mktemp("why"), *CHANGES))


@pytest.fixture(scope="module")
def space(spec: StudySpec) -> Space:
    return space_of(spec)


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("journal") / "why.journal"


@pytest.fixture(autouse=True)
def _no_training(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.node.get_closest_marker("slow"):
        yield
        return
    with replaced_training(gap_by_bits):
        yield


@pytest.fixture(scope="module")
def every(spec: StudySpec, storage: Path) -> Results:
    """Every policy of the space, 64, tried exhaustively."""
    with replaced_training(gap_by_bits):
        return run_study(spec, storage, processes=0)


def test_the_neighbours_are_the_next_formats_offered(space: Space) -> None:
    policy = space.policy({f"format.{g.name}": "bfloat16" for g in space.groups})
    found = {(n.step, n.format): n.policy for n in neighbours(policy, "tanh1", space)}
    steps = [("wider", "float32"), ("beside", "float16"), ("narrower", "float8_e4m3fn")]
    assert list(found) == steps
    for (_, name), other in found.items():
        changed = {layer for layer, row in other.layers if row != policy.layer(layer)}
        assert changed == {"flatten", "fc1", "tanh1"}  # decided together
        assert other.layer("fc1") == uniform_layer(name)
    narrow = found["narrower", "float8_e4m3fn"]
    back = [(n.step, n.format) for n in neighbours(narrow, "fc1", space)]
    assert back == [("wider", "float16"), ("wider", "bfloat16")]


def test_a_neighbour_in_the_space_is_the_policy_there_with_one_decision_changed() -> None:
    """A policy of 16 bits scales nothing; in 8 bits the layer is scaled, and roles stay."""
    space = space_of(load_spec(ROOT / "benchmarks" / "search" / "tanh-mlp-roles.toml"))
    half = {f"format.fc{n}": "bfloat16" for n in (1, 2, 3)} | {"grad.fc2": "float8_e4m3fn"}
    for params in (half, half | {"grad.fc2": "same"}):
        policy = space.policy(params)
        assert {n.format for n in neighbours(policy, "fc2", space)} == {"float32", "float8_e4m3fn"}
        for found in neighbours(policy, "fc2", space):
            assert found.policy == space.policy(params | {"format.fc2": found.format})
    narrow = next(n.policy for n in neighbours(policy, "fc2", space) if n.step == "narrower")
    assert policy.scaling.recipe == "none" and narrow.scaling.recipe == "delayed"


def test_without_masters_storage_follows(space: Space) -> None:
    policy = replace(space.policy({}), master_weights=False)
    (half, *_) = neighbours(policy, "fc2", space)
    assert [half.step, half.format] == ["narrower", "float16"]
    assert half.policy.layer("fc2").param == "float16"


def test_it_names_what_the_exhaustive_table_names(
    spec: StudySpec, space: Space, storage: Path, every: Results
) -> None:
    """For every layer of two members of the front, by the digests of all policies trained."""
    table = {trial.digest: trial for trial in every.trials}
    assert len(table) >= 64
    asked = agreed = 0
    verdicts = set()
    for member in every.front[:2]:
        for layer in ("fc1", "fc2", "fc3"):
            found = why(spec, storage, member.policy, layer, processes=0)
            for each in found.tried:
                params = space.project(member.policy) | {f"format.{layer}": each.neighbour.format}
                exhaustive = table[space.policy(params).digest]
                said = verdict(every, table[member.digest], exhaustive)
                asked, agreed = asked + 1, agreed + (each.verdict == said)
                verdicts.add(said)
    assert asked > 15 and agreed == asked
    assert {"worse", "trade"} <= verdicts


def test_a_dominated_policy_has_a_better_neighbour(
    spec: StudySpec, space: Space, storage: Path, every: Results
) -> None:
    """float16 throughout takes less time, without casts, and has less of a gap.

    So has float32 in that layer, which reads a float32 input: bfloat16 beside float16 casts most.
    """
    half = {f"format.{g.name}": "float16" for g in space.groups}
    policy = space.policy(half | {"format.fc1": "bfloat16"})
    found = why(spec, storage, policy, "fc1", processes=0)
    said = {each.neighbour.format: each.verdict for each in found.tried}
    assert said == {"float16": "better", "float32": "better", "float8_e4m3fn": "worse"}
    gaps = {each.neighbour.format: each.trial.loss_gap for each in found.tried}  # type: ignore[union-attr]
    assert gaps["float16"] - found.trial.loss_gap == pytest.approx(-63e-5)  # type: ignore[union-attr]


def gapped(trial: Trial, *gaps: float) -> Trial:
    """Return the trial with other gaps by seed; it costs what it did."""
    assert len(gaps) == len(trial.scores) > 1
    pairs = zip(trial.scores, gaps, strict=True)
    return replace(trial, scores=tuple(replace(score, loss_gap=gap) for score, gap in pairs))


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ((1e-3, 5e-3), (1.2e-3, 5.21e-3), "worse"),  # by seed they vary by far more
        ((1.2e-3, 5.21e-3), (1e-3, 5e-3), "better"),
        ((1e-3, 5e-3), (1.2e-3, 5.4e-3), "alike"),  # t is 3 at one degree of freedom
        ((1e-3, 1e-3), (1e-3, 1e-3), "alike"),
        ((1e-3, 1e-3), (2e-3, 2e-3), "worse"),
    ],
)
def test_gaps_are_told_apart_seed_by_seed(
    every: Results, before: tuple[float, ...], after: tuple[float, ...], said: str
) -> None:
    trial = every.front[0]
    one, other = gapped(trial, *before), gapped(trial, *after)
    assert verdict(every, one, other) == said
    alone = replace(every, trials=(one, other))  # whatever else was trained
    assert verdict(alone, one, other) == said


def test_who_looks_better_than_float32_gains_nothing_by_that(every: Results) -> None:
    """What the front counts of such a gap is its error, which may move the other way."""
    trial = every.front[0]
    one, other = gapped(trial, -1.1e-3, -1.2e-3), gapped(trial, -6.1e-3, -6.3e-3)
    assert every.counted_gap(other) > every.counted_gap(one)
    assert verdict(every, one, other) == verdict(every, other, one) == "alike"
    above = gapped(trial, 3e-3, 3.1e-3)
    assert [verdict(every, one, above), verdict(every, above, one)] == ["worse", "better"]


def test_what_diverges_is_worse(every: Results) -> None:
    trial = every.front[0]
    first, second = gapped(trial, 1e-3, DIVERGED_GAP).scores
    lost = replace(trial, scores=(first, replace(second, diverged=True)))
    assert verdict(every, trial, lost) == "worse" and verdict(every, lost, trial) == "better"
    assert verdict(every, lost, lost) == "alike"


@pytest.mark.usefixtures("one_process")
def test_the_command_prints_it(
    spec: StudySpec,
    storage: Path,
    every: Results,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    study = write_study(tmp_path, *CHANGES)
    given = ["--study", str(study), "--storage", str(storage)]
    assert main(["why", str(every.front[0].number), "fc2", *given]) == 0
    text = capsys.readouterr().out
    assert f"trial {every.front[0].number}: " in text and "; fc2 (fc2, tanh2) one step away" in text
    assert "wider" in text and "as it is" in text and "trade" in text
    (head,) = (line.split() for line in text.splitlines() if line.startswith("step "))
    assert " ".join(head) == "step format trial loss gap more gap speed memory beside it"
    (wider,) = (line.split() for line in text.splitlines() if line.startswith("wider "))
    trained, here = load_results(load_spec(study), storage).trial(int(wider[2])), every.front[0]
    speed = trained.cost.speedup / here.cost.speedup
    memory = trained.cost.memory_ratio / here.cost.memory_ratio
    assert wider[5:7] == [f"{speed:.3f}x", f"{memory:.3f}x"] and speed != pytest.approx(memory)
    assert main(["why", "preset:bfloat16", "fc9", *given]) == 2
    assert "layer: 'fc9'; expected one of" in capsys.readouterr().err


@pytest.mark.usefixtures("one_process")
def test_a_format_that_the_target_does_not_run_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """torch has no float8 parameters: without masters the layer runs as its 16-bit neighbour."""
    torch = ('name = "tiny"', 'name = "tiny"\ntarget = "torch"')
    study = write_study(tmp_path, *CHANGES, torch)
    given = ["--study", str(study), "--storage", str(tmp_path / "t.journal"), "--processes", "1"]
    assert main(["why", "preset:apex.O3", "fc2", *given]) == 0
    rows = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    beside, narrower = (
        [cell.strip() for cell in row if cell.strip()]
        for row in rows
        if row[0] in ("beside", "narrower")
    )
    assert beside[1] == "bfloat16"
    assert narrower[1] == "float8_e4m3fn, which runs as bfloat16"
    assert narrower[2:] == beside[2:]


def test_a_layer_there_is_not_trains_nothing(space: Space) -> None:
    with pytest.raises(InputError, match="layer: 'fc9'"):
        neighbours(space.policy({}), "fc9", space)


def test_layers_are_told_apart_from_a_table() -> None:
    said: dict[str, str | None] = {"float16": "better", "float32": "trade"}
    same = Layer("m", "fc1", said, dict(said), True)
    unsure = Layer("m", "fc2", said, said | {"float32": "worse"}, True)
    against = Layer("m", "fc3", said, said | {"float16": "worse"}, False)
    found = [(each.alike, each.contradicted) for each in (same, unsure, against)]
    assert found == [(True, False), (False, False), (False, True)]
    assert not Layer("m", "fc4", {}, {}, True).alike
    assert shares([same, unsure, against]) == (
        "of 3 layers 1 named alike, 1 contradicted, 2 ordered alike"
    )


def test_gaps_told_apart_are_counted_where_other_seeds_reverse_them(spec: StudySpec) -> None:
    """Seed 1000 has the first layer the other way round, seed 1001 not."""
    task = Live(spec)
    names = "float16", "bfloat16"
    one, other = (task.space.policy({"format.fc1": name, "format.fc2": name}) for name in names)

    def upset(policy: Policy, seed: int) -> Measurement:
        found = gap_by_bits(policy, seed)
        return replace(found, tail_loss=1.0 - (found.tail_loss or 0.0)) if seed == 1000 else found

    with replaced_training(upset):
        gaps = [
            [task.objective.measure(p, s).tail_loss or 0.0 for s in (0, 1)] for p in (one, other)
        ]
        moved = change(*gaps)
        assert moved is not None and moved.low > 0.0
        pairs = [(one, other, moved.mean), (other, one, -moved.mean)]
        assert [turned(task, pairs, seeds) for seeds in ([1001], [1000], [1000, 1001, 1002])] == [
            0,
            2,
            0,
        ]


@pytest.mark.slow
def test_real_trainings_name_what_a_table_of_all_policies_names(tmp_path: Path) -> None:
    """Each layer of a mixed front member of a study of which all 1,024 policies were trained."""
    spec = load_spec(ROOT / "benchmarks" / "search" / "mlp-digits-0.1.0.toml")
    table, space = load(spec.study.name), space_of(spec)
    params = every_params(space)
    gaps = table.gaps.mean(axis=0)
    masters = [i for i, p in enumerate(params) if p["master_weights"] and p["loss_scale"] == "none"]
    points = [(gaps[i], *table.costs[i]) for i in masters]
    front = [masters[i] for i in non_dominated(points)]
    names = [f"format.fc{n}" for n in (1, 2, 3, 4)]
    member = max(front, key=lambda i: len({params[i][name] for name in names}))
    assert len({params[member][name] for name in names}) > 2
    agreed = []
    for name in names:
        found = why(spec, tmp_path / "w.journal", space.policy(params[member]), name[7:])
        there = {t.neighbour.format: t.trial.loss_gap for t in found.tried}  # type: ignore[union-attr]
        same = {p: gaps[params.index(params[member] | {name: p})] for p in there}
        here = found.trial.loss_gap  # type: ignore[union-attr]
        said = [(there[p] < here) == (same[p] < gaps[member]) for p in there]
        agreed.append(all(said) and sorted(there, key=there.get) == sorted(same, key=same.get))  # type: ignore[arg-type]
    assert agreed == [True] * 4
