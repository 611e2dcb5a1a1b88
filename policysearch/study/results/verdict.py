"""What a study comes to, in one sentence: take a policy, keep what you run, or why neither."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Protocol

from policysearch.cost.price import MODEL_RESOLUTION, PolicyCost, Speedup, speedup_over
from policysearch.nn.model import OWN_LOSS
from policysearch.policy.presets import TF32, TF32_SWITCHES
from policysearch.study.journal.trials import Confirmation, FailedTrial, Trial
from policysearch.study.results.difference import Difference, difference
from policysearch.study.results.learning import Learned
from policysearch.study.results.noise import MOST_SEEDS
from policysearch.study.results.reached import accepts, best_for, limits_loss, within
from policysearch.study.sections import GoalSection, ObjectivesSection, StudySection
from policysearch.train.losses import unit_of
from policysearch.train.tasks import Task

Kind = Literal[
    "take",
    "keep",
    "at a cost",
    "not learned",
    "cannot rank",
    "nothing works",
    "undecided",
    "trains",
    "trains, but",
    "does not train",
]

FLOAT32 = "float32"
SWITCH = "TF32, one switch"
OPEN = "not decided yet: "

Row = tuple[Trial, Speedup, Difference]
"""A policy, how fast it is over what is run, and how much worse it trains."""


class Question(Protocol):
    """What of a study file a verdict answers; `StudySpec` has it all."""

    @property
    def study(self) -> StudySection: ...
    @property
    def task(self) -> Task: ...
    @property
    def objectives(self) -> ObjectivesSection: ...
    @property
    def goal(self) -> GoalSection | None: ...


class Evidence(Protocol):
    """What a verdict rests on; `Results` has it all."""

    @property
    def spec(self) -> Question: ...
    @property
    def trials(self) -> tuple[Trial, ...]: ...
    @property
    def failed(self) -> tuple[FailedTrial, ...]: ...
    @property
    def references(self) -> tuple[tuple[str, PolicyCost], ...]: ...
    @property
    def learned(self) -> Learned | None: ...
    @property
    def stopped(self) -> str: ...
    @property
    def float32_fault(self) -> str: ...
    @property
    def cannot_rank(self) -> str: ...
    @property
    def matters_gap(self) -> float: ...
    @property
    def front(self) -> tuple[Trial, ...]: ...
    def sound_front(self) -> list[Trial]: ...
    def ranked_gap(self, trial: Trial) -> float: ...
    def fault(self, trial: Trial) -> str: ...
    def confirmation(self, trial: Trial) -> Confirmation | None: ...


@dataclass(frozen=True)
class Verdict:
    """What a study comes to: `text`, one sentence, and the numbers in it.

    Of the kinds "take" and "at a cost" `trial` is the policy's, and the modeled `speedup` with its
    interval is over `over`, the baseline of the study or float32; `loss_gap` is how much more its
    mean loss is than that one's, in nats, `accuracy` how much more of the validation labels it gets
    right. "trains", "trains, but" and "does not train" are said of one policy, beside float32.
    Of "keep" `trial` is that of the baseline, if it is one. `confirmed_steps`: the longer
    run that it was sound over. `tf32_speedup`: that of TF32 over float32, where the device has it.
    `switch`: the line that turns TF32 on, where that is what is taken, and `passed_over` the trial
    that is not surely faster. `trials_left`: of the budget, when the search has not
    ended. `learning_checked`: whether records say that float32 learned or not.
    """

    kind: Kind
    text: str
    trial: int | None = None
    policy: str = ""
    over: str = FLOAT32
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    loss_gap: float | None = None
    accuracy: float | None = None
    confirmed_steps: int | None = None
    tf32_speedup: float | None = None
    switch: str = ""
    passed_over: int | None = None
    trials_left: int = 0
    learning_checked: bool = False

    def __str__(self) -> str:
        return self.text

    def as_dict(self) -> dict[str, Any]:
        """Return every field as plain data, which is JSON as it is."""
        return asdict(self)


def _not_checked(learned: Learned | None) -> str:
    own = learned is not None and learned.unit == unit_of(OWN_LOSS)
    why = "a net's own loss has no constant to beat" if own else "its records are older"
    return f"; that float32 beats a constant is not checked: {why}"


def verdict_of(results: Evidence) -> Verdict:
    """Return what the results come to."""
    left = _left(results)
    checked = bool(results.learned and results.learned.checked)
    found = replace(_found(results), tf32_speedup=_tf32(results), learning_checked=checked)
    text = found.text
    if found.kind in ("take", "keep", "at a cost"):
        text += _tf32_words(results, found)
        text += "" if checked else _not_checked(results.learned)
    if left:
        text = text.removeprefix(OPEN)
        text = f"{OPEN}{left} of {results.spec.study.trials} trials left; so far: {text}"
        return replace(found, kind="undecided", text=text, trials_left=left)
    return replace(found, text=text)


def training_verdict(results: Evidence, trial: Trial) -> Verdict:
    """Return whether one policy trains, beside float32; what the study comes to is another thing.

    Of the kind "not learned" where float32 does not, so that nothing can be said of it.
    """
    if trial.diverged:
        text = f"does not train: {trial.divergence}"
        return Verdict("does not train", text, trial.number, trial.label)
    study = _found(results)
    if study.kind == "not learned":
        return replace(study, trial=trial.number, policy=trial.label)
    speed = _over(results, trial, None, FLOAT32)
    beside = _beside(results, trial, _float32(results))
    faults = [f"its loss is worse: {beside.cost}{_share(results, beside)}"] * beside.worse
    confirmed = results.confirmation(trial)
    if fault := _doubt(results, trial):
        faults.append(f"it fails later: {fault}" if confirmed else fault)
    faults += [beside.said] * (not beside.worse and not beside.loss_told)
    faults += [results.cannot_rank] * bool(results.cannot_rank)
    sure = "; ".join(faults) or f"{beside.said}; {_later(results, trial)}"
    kind: Kind = "trains, but" if faults else "trains"
    faster = f"{_times_baseline(results, trial)}{_faster(speed, FLOAT32)}"
    text = f"{kind}{' ' if faults else ': '}{sure}; {faster}"
    switch = None if results.cannot_rank else _switch_row(results, None, FLOAT32)
    told = switch is not None and switch[2].loss_told
    if switch and told and switch[0] is not trial and _as_fast(switch, (trial, speed, beside)):
        text += f"; {SWITCH}, loses nothing that matters: this is {_than_switch(trial, switch)}"
    return _verdict(kind, text, results, trial, speed, beside)


def _float32(results: Evidence) -> Trial | None:
    return next((trial for trial in results.trials if FLOAT32 in trial.presets), None)


def _left(results: Evidence) -> int:
    """Return how many trials the search has left, 0 once it has ended."""
    searched = sum(not trial.by_hand for trial in results.trials) + len(results.failed)
    return 0 if results.stopped else max(0, results.spec.study.trials - searched)


def _found(results: Evidence) -> Verdict:
    """Return what the trials so far come to."""
    if results.float32_fault or (results.learned and results.learned.fault):
        fault = results.float32_fault or (results.learned.fault if results.learned else "")
        said = "float32 has not learned here"
        return Verdict("not learned", fault if fault.startswith(said) else f"{said}: {fault}")
    if results.cannot_rank:
        return Verdict("cannot rank", f"the seeds cannot rank these: {results.cannot_rank}")
    if not results.front or _all_lost(results):
        return _nothing(results)
    rival, over, note = _rival(results)
    goal, switch = results.spec.goal, _switch_row(results, rival, over)
    sound = [trial for trial in results.sound_front() if not _doubt(results, trial)]
    new = [t for t in sound if t is not rival and FLOAT32 not in t.presets]
    others = [_row(results, trial, rival, over) for trial in new]
    # The front leaves out what is equal and, once any was, what was not trained longer.
    if switch and all(row[0] is not switch[0] for row in others):
        others.append(switch)
    if goal is not None and goal.want != "fastest":
        return _goal_verdict(results, goal, others, note)
    others = [row for row in others if goal is None or within(goal, row)]
    switch = switch if switch and any(row[0] is switch[0] for row in others) else None
    return _fastest(results, others, switch)


def _fastest(results: Evidence, others: Sequence[Row], switch: Row | None) -> Verdict:
    """Return the fastest at no loss that matters, or that the goal allows, beside what is run."""
    (rival, over, note), goal = _rival(results), results.spec.goal
    faster = [row for row in others if row[1].value >= 1.0 + MODEL_RESOLUTION["speedup"]]
    free = [row for row in faster if accepts(goal, row[2])]
    told = [row for row in free if row[2].loss_told or limits_loss(goal)]
    pick = _pick(told or free, faster)
    if switch and switch[2].loss_told and pick and _as_fast(switch, pick):
        return _take_switch(results, switch, pick[0], over, note, others)
    if free and pick:
        if not told:
            return _more_seeds(results, pick, over, note)
        return _take(results, pick, _pick(free, faster), over, note)
    if pick:
        trial, speed, lost_by = pick
        text = f"faster only at a cost: {_name(trial)} is {_faster(speed, over)}, {lost_by.cost}"
        share = _share(results, lost_by)
        text = f"{text}{share}; {_later(results, trial)}; otherwise keep {_rival_words(over)}"
        return _verdict("at a cost", text + note, results, trial, speed, lost_by)
    return _keep(results, rival, over, note, others)


def _goal_verdict(
    results: Evidence, goal: GoalSection, others: Sequence[Row], note: str
) -> Verdict:
    """Return what a goal wants that is not the fastest, of what was tried and what is run."""
    rival, over, _ = _rival(results)
    own = None if rival is None else _row(results, rival, rival, over)
    told = [row for row in others if row[2].loss_told or limits_loss(goal)]
    found, untold = best_for(goal, told, own), best_for(goal, others, own)
    if (found is None or found is own) and untold is not None and untold is not own:
        return _more_seeds(results, untold, over, note)
    if found is None or found is own:
        why = "meets the goal" if found is None else "is nearer to the goal"
        text = f"keep {_rival_words(over)}: nothing tried {why} ({goal.words})"
        number = rival.number if rival else None
        return Verdict("keep", text + note, number, rival.label if rival else over, over)
    trial, speed, lost = found
    sure = f"{lost.cost if lost.worse else lost.said}; {_later(results, trial)}"
    text = f"take {_name(trial)}, for the goal ({goal.words}): in {trial.cost.memory_ratio:.2f} "
    text += f"of {FLOAT32}'s memory, {_faster(speed, over)}; {sure}"
    return _verdict("take", text + note, results, *found)


def _tried_policies(results: Evidence) -> list[Trial]:
    return [trial for trial in results.trials if FLOAT32 not in trial.presets]


def _all_lost(results: Evidence) -> bool:
    """Return whether something but float32 was tried, and none of it trained to its end."""
    tried = _tried_policies(results)
    return bool(tried or results.failed) and all(trial.diverged for trial in tried)


def _nothing(results: Evidence) -> Verdict:
    """Return that nothing trained, or that nothing was tried."""
    if not _all_lost(results):
        return Verdict("undecided", "nothing was trained to its end")
    count = len(_tried_policies(results)) + len(results.failed)
    text = f"nothing works: of {count} tried beside float32 all diverged or failed; keep float32"
    return Verdict("nothing works", text)


def _doubt(results: Evidence, trial: Trial) -> str:
    """Return why a policy fails later, or will by an early sign; the front may hold no other."""
    return results.fault(trial) if results.confirmation(trial) else trial.early_sign


def _pick(free: Sequence[Row], faster: Sequence[Row]) -> Row | None:
    """Return the fastest at no loss that matters, else of what is faster that of least loss."""
    if free:
        return max(free, key=lambda row: (row[1].value, -row[0].number))
    return min(faster, key=lambda row: (row[2].gap, -row[1].value), default=None)


def _switch_row(results: Evidence, rival: Trial | None, over: str) -> Row | None:
    """Return TF32 as a row, where the device has it and it was seen to lose nothing that matters.

    None where it is what is run, where no run of it is known, and where it fails later. Seeds may
    be too few to judge it.
    """
    trial = next((t for t in results.trials if TF32 in t.presets), None)
    if trial is None or trial is rival or trial.diverged or _tf32(results) is None:
        return None
    beside = _beside(results, trial, rival or _float32(results))
    if beside.worse or _doubt(results, trial):
        return None
    return trial, _over(results, trial, rival, over), beside


def _as_fast(switch: Row, pick: Row) -> bool:
    """Return whether the pick is not surely faster than TF32, which costs nothing.

    The interval of its modeled speed over TF32's reaches 1, and TF32 brings at least half of its
    gain, by factors: a switch that does nothing is not taken for a pick that may do nothing.
    """
    beyond = speedup_over(pick[0].cost, switch[0].cost, TF32)
    return switch[0] is pick[0] or (beyond.low <= 1.0 and beyond.value <= switch[1].value)


def _than_switch(trial: Trial, switch: Row) -> str:
    beyond = speedup_over(trial.cost, switch[0].cost, TF32)
    return f"{beyond.value:.2f}x its speed, modeled {beyond.low:.2f} to {beyond.high:.2f}"


def _take_switch(
    results: Evidence, switch: Row, pick: Trial, over: str, note: str, others: Sequence[Row]
) -> Verdict:
    """Return that TF32 is to be taken, what it makes needless, and what needs less memory."""
    trial, speed, lost_by = switch
    sure = f"{lost_by.said}; {_later(results, trial)}"
    saved = _memory_words(trial, _rival(results)[0])
    named = f"trial {trial.number}, {TF32}"
    text = f"take {SWITCH} ({named}: {_faster(speed, over)}{saved}; {sure})"
    if pick is not trial:
        text += f"; {_name(pick)}, is not surely faster: {_than_switch(pick, switch)}"
    text += _smaller(others, trial.cost.memory_ratio, speed.value)
    if over != FLOAT32 and (tf32 := _tf32(results)):
        text += f"; float32 without it is modeled at {1.0 / tf32:.2f} of its speed"
    line = TF32_SWITCHES.get(results.spec.study.target or "", TF32_SWITCHES["torch"])
    found = _verdict(
        "take", f"{text}; switch it on by {line}{note}", results, trial, speed, lost_by
    )
    return replace(found, switch=line, passed_over=None if pick is trial else pick.number)


def _smaller(others: Sequence[Row], memory: float, speed: float = 1.0) -> str:
    """Say what needs less memory than such a policy at no loss that matters; "" for nothing."""
    free = [row for row in others if not row[2].worse]
    least = min(free, key=lambda row: row[0].cost.memory_ratio, default=None)
    ratio = least[0].cost.memory_ratio / memory if least else 1.0
    if least is None or ratio > 1.0 / (1.0 + MODEL_RESOLUTION["memory_ratio"]):
        return ""
    pace, told = least[1].value / speed, 1.0 + MODEL_RESOLUTION["speedup"]
    alike = 1.0 / told < pace < told
    words = f"about the same speed ({pace:.2f})" if alike else f"{pace:.2f} of the speed"
    return f"; {_name(least[0])} needs {ratio:.2f} of the memory, at {words}"


def _take(results: Evidence, best: Row, ahead: Row | None, over: str, note: str) -> Verdict:
    """Return that the best is to be taken, and what is `ahead` of it but cannot be judged."""
    trial, speed, lost_by = best
    saved = _memory_words(trial, _rival(results)[0])
    sure = f"{lost_by.cost if lost_by.worse else lost_by.said}; {_later(results, trial)}"
    text = f"take {_name(trial)} ({_faster(speed, over)}{saved}; {sure})"
    if ahead and ahead is not best and TF32 not in ahead[0].presets:  # else it is said anyway
        text += f"; {_untold(*ahead, over)}"
    return _verdict("take", text + note, results, *best)


def _untold(trial: Trial, speed: Speedup, lost_by: Difference, over: str) -> str:
    return f"{_name(trial)}, is {_faster(speed, over)}, but {lost_by.said}"


def _more_seeds(results: Evidence, best: Row, over: str, note: str) -> Verdict:
    """Return that the seeds cannot judge what is faster, and what would."""
    seeds = max(best[2].seeds_needed, len(results.spec.study.seeds) + 1)
    then = f"study.seeds of {seeds} seeds and `policysearch run` again decide"
    if seeds > MOST_SEEDS:
        then = f"over {MOST_SEEDS} seeds would be needed: `policysearch noise` says what else helps"
    text = f"{OPEN}{_untold(*best, over)}; {then}; until then keep {_rival_words(over)}"
    return _verdict("undecided", text + note, results, *best)


def _keep(
    results: Evidence, rival: Trial | None, over: str, note: str, others: Sequence[Row]
) -> Verdict:
    """Return that nothing is faster, and what needs less memory at no loss that matters."""
    text = f"keep {_rival_words(over)}: nothing tried is faster at no more loss"
    text += _smaller(others, rival.cost.memory_ratio if rival else 1.0)
    number = rival.number if rival else None
    return Verdict("keep", text + note, number, rival.label if rival else over, over)


def _verdict(
    kind: Kind, text: str, results: Evidence, trial: Trial, speed: Speedup, lost_by: Difference
) -> Verdict:
    confirmed = results.confirmation(trial)
    steps = confirmed.steps if confirmed and not results.fault(trial) else None
    speeds = speed.over, speed.value, speed.low, speed.high
    lost = lost_by.gap, lost_by.accuracy
    return Verdict(kind, text, trial.number, trial.label, *speeds, *lost, steps)


def _rival(results: Evidence) -> tuple[Trial | None, str, str]:
    """Return what is run today, its name, and why it is not the baseline where that fails."""
    name = results.spec.study.baseline or FLOAT32
    base = next((trial for trial in results.trials if name in trial.presets), None)
    float32 = _float32(results)
    if name == FLOAT32:
        return float32, FLOAT32, ""
    if base is None:
        return float32, FLOAT32, f"; your baseline {name} was not trained to its end"
    why = base.divergence or results.fault(base)
    if base.diverged or why:
        return float32, FLOAT32, f"; your baseline {name} fails here: {why}"
    return base, name, ""


def _over(results: Evidence, trial: Trial, rival: Trial | None, over: str) -> Speedup:
    if rival is not None:
        return speedup_over(trial.cost, rival.cost, over)
    cost = trial.cost
    return Speedup(over, cost.speedup, cost.speedup_low, cost.speedup_high)


def _row(results: Evidence, trial: Trial, rival: Trial | None, over: str) -> Row:
    return trial, _over(results, trial, rival, over), _beside(results, trial, rival)


def _beside(results: Evidence, trial: Trial, rival: Trial | None) -> Difference:
    beside = results.learned.beside if results.learned else None
    if beside is None or beside.constant.accuracy is None or not beside.accuracies:
        return difference(trial, rival, results.matters_gap)
    gained = sum(beside.accuracies) / len(beside.accuracies) - beside.constant.accuracy
    least = results.spec.objectives.matters * max(0.0, gained)
    return difference(trial, rival, results.matters_gap, least, beside.constant.validation_labels)


def _share(results: Evidence, lost_by: Difference) -> str:
    drop = results.learned.drop if results.learned else 0.0
    return f" ({lost_by.gap / drop:.1%} of what float32 learns)" if drop > 0.0 else ""


def _name(trial: Trial) -> str:
    return f"trial {trial.number}, {trial.label}"


def _rival_words(over: str) -> str:
    return f"what you run, {over}"


def _faster(speed: Speedup, over: str) -> str:
    whom = FLOAT32 if over == FLOAT32 else f"your baseline {over}"
    return f"{speed.value:.2f}x {whom}, modeled {speed.low:.2f} to {speed.high:.2f}"


def _times_baseline(results: Evidence, trial: Trial) -> str:
    """Say how fast a policy is over what is run today, where that is another; with a comma."""
    rival, over, _ = _rival(results)
    if over == FLOAT32 or rival is trial:
        return ""
    return f"{_over(results, trial, rival, over).value:.2f}x your baseline {over}, "


def _memory_words(trial: Trial, rival: Trial | None) -> str:
    """Say what a policy takes of the memory of what it is faster than, where that is less."""
    share = trial.cost.memory_ratio / (rival.cost.memory_ratio if rival else 1.0)
    least = MODEL_RESOLUTION["memory_ratio"]
    return "" if share > 1.0 - least else f", in {share:.2f} of its memory"


def _later(results: Evidence, trial: Trial) -> str:
    """Say how the policy does in longer training."""
    confirmed = results.confirmation(trial)
    if confirmed is None:
        return "not trained longer yet"
    times = confirmed.steps / results.spec.task.steps
    return results.fault(trial) or f"holds at {times:.3g}x the steps"


def _tf32(results: Evidence) -> float | None:
    costs = dict(results.references)
    known = TF32 in costs and FLOAT32 in costs
    return speedup_over(costs[TF32], costs[FLOAT32], FLOAT32).value if known else None


def _tf32_words(results: Evidence, found: Verdict) -> str:
    """Say how fast one switch is, where it is not what is taken or kept."""
    speed, taken = _tf32(results), TF32 in found.policy.split()
    if speed is None or taken or found.over == TF32:
        return ""
    text = f"; {SWITCH}, is modeled at {speed:.2f}x float32"
    mine = next((t for t in results.trials if t.number == found.trial), None)
    trained = next((t for t in results.trials if TF32 in t.presets), None)
    if mine is not None and speed > mine.cost.speedup:
        text += f", faster than that, {_tf32_fault(results, trained)}"
    return text


def _tf32_fault(results: Evidence, trained: Trial | None) -> str:
    """Say why TF32 is not taken though it is faster."""
    if trained is None:
        return "at a gap that was not trained"
    if trained.diverged or (fault := _doubt(results, trained)):
        return f"but it fails: {trained.divergence or fault}"
    beside = _beside(results, trained, _rival(results)[0])
    return f"but its loss is worse: {beside.cost}" if beside.worse else f"and {beside.said}"
