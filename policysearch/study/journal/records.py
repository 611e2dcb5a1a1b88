"""The facts of a study, one record each: runs that ended, policies asked for, prices, identity.

A policy asked for becomes visible with everything it measured, in one record, an Optuna trial.
Its runs are recorded one by one as they end, so that nothing finished is lost before that. Facts
are read from the package's own lines only.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, json_to_distribution
from optuna.trial import TrialState

from policysearch.cost.price import PolicyCost
from policysearch.objective.score import Failure, Measurement, Outcome
from policysearch.policy.parallel import Parallel
from policysearch.policy.policy import Policy, from_json
from policysearch.search.objectives import DIRECTIONS
from policysearch.study.journal import shapes
from policysearch.study.journal.storage import Line, OpenJournal, not_replayed
from policysearch.train.constant import Constant
from policysearch.values import InputError, from_plain, to_plain

AGAIN = "identity_again"
"""The second record of each identity."""


@dataclass(frozen=True)
class RunKey:
    """Which training run: the policy's digest, the training seed, how far the start is jittered.

    `steps` None means those of the task; a run of low fidelity is stopped after `until` of them, or
    is of a net of `width` of the widths.
    """

    digest: str
    seed: int
    jitter: float = 0.0
    steps: int | None = None
    until: int | None = None
    width: float = 1.0

    def __str__(self) -> str:
        width = f":{self.width!r}" if self.width != 1.0 else ""
        until = f":{self.until or ''}" if self.until or width else ""
        return f"{self.digest}:{self.seed}:{self.jitter!r}:{self.steps or ''}{until}{width}"

    @staticmethod
    def read(text: str) -> RunKey:
        """Return the key that `str` gave as `text`."""
        digest, seed, jitter, steps, until, width, *_ = [*text.split(":"), "", ""]
        counts = (int(steps) if steps else None, int(until) if until else None)
        return RunKey(digest, int(seed), float(jitter), *counts, float(width or 1.0))


FORMAT = 1
"""Version of what the facts of a journal look like; what is added to them is optional on reading.

It is raised where an older version of the package would read a journal wrongly. Journals from
before it was recorded are read like those of format 1.
"""

PREFIX = "policysearch:"
_SET_STUDY_SYSTEM_ATTR = 3
_CREATE_TRIAL = 4

# What reading a record of another shape than ours raises, beside InputError.
_OTHER_SHAPE = (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError)

Params = dict[str, Any]


@dataclass(frozen=True)
class Asked:
    """A policy that was asked for.

    `number`: its Optuna trial, -1 while its runs are outstanding. `text`: the policy as JSON.
    `presets`: the presets of the ladder that are this policy. `params`: the decisions that make it,
    or, for a preset, the nearest ones. `place`: how many were asked for before it; `told`: how many
    trials, the first of them, the search had been told then. `start`: it is of the ladder.
    `by_hand`: it was named by the user, so it has no place and no sampler is shown it. `expected`:
    the gap that the sampler expected of it in nats, and the ends of an interval for four in five.
    """

    number: int
    digest: str
    text: str
    presets: tuple[str, ...]
    params: Params
    place: int = -1
    told: int = 0
    start: bool = False
    by_hand: bool = False
    expected: tuple[float, ...] | None = None

    @property
    def policy(self) -> Policy:
        """The policy as a value."""
        return stored_policy(self.text)

    @property
    def trained(self) -> str:
        """The digest of the policy that trains: equal where policies are only spread otherwise."""
        return digest_of_runs(self.text, self.digest)


@functools.lru_cache(maxsize=512)
def stored_policy(text: str) -> Policy:
    """Return the policy that a journal has as `text`; the latest ones are read once."""
    return from_json(text, "stored policy")


def trained_digest(policy: Policy) -> str:
    """Return the digest of the policy without how it is spread, which changes no training."""
    return replace(policy, parallel=Parallel()).digest


@functools.lru_cache(maxsize=65536)
def digest_of_runs(text: str, digest: str) -> str:
    """Return `trained_digest` of the policy written as `text`, whose own digest is known."""
    devices = json.loads(text).get("parallel", {}).get("devices", 1)
    return digest if devices == 1 else trained_digest(stored_policy(text))


class Records:
    """The facts of a study so far and, with an open journal, the place to add to them."""

    def __init__(self, lines: Iterable[Line], journal: OpenJournal | None = None) -> None:
        if journal is not None:
            shapes.check_metrics(journal.study, DIRECTIONS, "storage")
        self._journal = journal
        self._trials_made = 0
        self.runs: dict[RunKey, Outcome] = {}
        self.trials: list[Asked] = []
        self.outstanding: dict[str, Asked] = {}
        self.low_fidelity: dict[str, Asked] = {}
        self.weighed: list[Asked] = []
        self.finalists: list[str] = []
        self.stops: list[str] = []
        self.stopped = ""  # Why the search has ended; nothing once it asks for more again.
        self.prices: dict[tuple[str, str], PolicyCost] = {}
        self.format: int | None = None
        self.identities: list[dict[str, Any]] = []
        self.constant: Constant | None = None  # Journals of before have none.
        self.makers: list[dict[str, str]] = []
        self.times: list[tuple[str, str]] = []  # When trials started and ended.
        self.references: dict[str, dict[str, str]] = {}
        for number, line in enumerate(lines, 1):
            try:
                self._read(line)
            except NewerFormatError:
                raise
            except _OTHER_SHAPE as error:
                raise InputError(_misshapen(number, error)) from None

    @property
    def searched(self) -> list[Asked]:
        """The policies that the search asked for: all but those tried by hand."""
        return [asked for asked in self.trials if not asked.by_hand]

    def _read(self, line: Line) -> None:
        record = line.record
        if record.get("study_id") != 0:
            return
        if record["op_code"] == _CREATE_TRIAL:
            if line.place is not None:
                self._read_trial(record)
            self._trials_made += 1
        elif record["op_code"] == _SET_STUDY_SYSTEM_ATTR and line.place is not None:
            for key, value in record["system_attr"].items():
                if key.startswith(PREFIX):
                    self._read_fact(key.removeprefix(PREFIX), value)

    def _read_fact(self, key: str, value: Any) -> None:
        kind, _, rest = key.partition(":")
        if kind == "run":
            self.runs[RunKey.read(rest)] = _outcome(value)
        elif kind == "price":
            priced_on, _, digest = rest.partition(":")
            self.prices[priced_on, digest] = from_plain(PolicyCost, value, key)
        elif kind in ("asked", "look"):
            where = self.outstanding if kind == "asked" else self.low_fidelity
            where[rest] = _asked_record(rest, value)
            self.stopped = ""
        elif kind == "weighed":
            self.weighed = [_asked_record(digest, each) for digest, each in value.items()]
        elif kind == "finalists":
            self.finalists += shapes.texts(value, key)
        elif kind == "stop":
            self.stopped = shapes.text(value, key)
            self.stops.append(value)
        elif kind in ("identity", AGAIN):
            self._read_identity(int(rest), shapes.identity(value, key))
        elif kind == "format":
            self.format = _known_format(value)
        elif kind == "made":
            self.makers.append(shapes.text_table(value, key))
        elif kind == "references":
            self.references[rest] = shapes.text_table(value, key)
        elif kind == "constant":
            self.constant = from_plain(Constant, value, key)

    def _read_identity(self, place: int, identity: dict[str, Any]) -> None:
        """Take one of the two records of an identity; the other says the same, or is lost."""
        if place >= len(self.identities):
            self.identities.append(identity)
        elif self.identities[place] != identity:
            raise InputError(f"identity {place}; expected the same of what made it, twice")

    def _read_trial(self, record: Mapping[str, Any]) -> None:
        attrs = record["user_attrs"]
        digest = shapes.text(attrs["digest"], "digest")
        text = shapes.policy_text(attrs["policy"], "policy")
        kinds = {k: json_to_distribution(d) for k, d in record["distributions"].items()}
        params = {k: kinds[k].to_external_repr(v) for k, v in record["params"].items()}
        self.trials.append(
            Asked(
                number=self._trials_made,
                digest=digest,
                text=text,
                presets=tuple(shapes.texts(attrs["presets"], "presets")),
                params=params,
                place=shapes.count(attrs.get("place", len(self.trials)), "place"),
                told=shapes.count(attrs.get("told", 0), "told", 0),
                start=shapes.truth(attrs.get("start", bool(attrs["presets"])), "start"),
                by_hand=shapes.truth(attrs.get("by_hand", False), "by_hand"),
                expected=shapes.expected(attrs.get("expected"), "expected"),
            )
        )
        self._end(self.trials[-1])
        self.times.append((str(record["datetime_start"]), str(record["datetime_complete"])))
        for seed, plain in attrs["runs"].items():
            key = RunKey(digest_of_runs(text, digest), int(seed))
            self.runs.setdefault(key, _outcome(plain))
        if attrs["cost"] is not None:
            cost = from_plain(PolicyCost, attrs["cost"], f"trial {self._trials_made} cost")
            self.prices[shapes.text(attrs["priced_on"], "priced_on"), digest] = cost

    def add_identity(self, identity: dict[str, Any]) -> None:
        """Record what the runs from here on belong to, in a new journal after its format.

        It is recorded twice: nothing else in a journal says it, so that damage to one record would
        cost what made all of them.
        """
        if self.format is None and not self.identities:
            self._add_fact("format", FORMAT)
            self.format = FORMAT
        for kind in ("identity", AGAIN):
            self._add_fact(f"{kind}:{len(self.identities)}", identity)
        self.identities.append(identity)

    def add_maker(self, made: dict[str, str]) -> None:
        """Record which versions and machine add from here on, unless they were the last to."""
        if self.makers[-1:] != [made]:
            self._add_fact(f"made:{len(self.makers)}", made)
            self.makers.append(made)

    def add_references(self, key: str, digests: Mapping[str, str]) -> None:
        """Record which policies speedups are given against, by name: no view makes the model."""
        if self.references.get(key) != digests:
            self._add_fact(f"references:{key}", dict(digests))
            self.references[key] = dict(digests)

    def add_constant(self, constant: Constant | None) -> None:
        """Record what the best constant predictor gets of the data, unless that is known."""
        if constant is not None and self.constant is None:
            self._add_fact("constant", to_plain(constant))
            self.constant = constant

    def add_asked(self, asked: Asked) -> None:
        """Record that a policy was asked for, before its runs."""
        self._add_fact(f"asked:{asked.digest}", _plain_asked(asked))
        self.outstanding[asked.digest] = asked
        self.stopped = ""

    def add_low_fidelity(self, asked: Asked) -> None:
        """Record that a policy is to be evaluated at low fidelity, before its run."""
        self._add_fact(f"look:{asked.digest}", _plain_asked(asked))
        self.low_fidelity[asked.digest] = asked

    def add_weighed(self, ladder: Sequence[Asked]) -> None:
        """Record what of the ladder need not be trained, unless that is what was said last."""
        if [asked.digest for asked in ladder] != [asked.digest for asked in self.weighed]:
            self._add_fact("weighed", {asked.digest: _plain_asked(asked) for asked in ladder})
            self.weighed = list(ladder)

    def add_finalists(self, digests: Sequence[str]) -> None:
        """Record which policies are to be trained with all seeds, before their runs."""
        self._add_fact(f"finalists:{len(self.finalists)}", list(digests))
        self.finalists += digests

    def add_stop(self, reason: str) -> None:
        """Record why the search asks for no more, unless that is what it said last."""
        if self.stopped != reason:
            self._add_fact(f"stop:{len(self.stops)}", reason)
            self.stops.append(reason)
            self.stopped = reason

    def _end(self, asked: Asked) -> None:
        if not asked.by_hand:
            self.outstanding.pop(asked.digest, None)

    def add_run(self, key: RunKey, outcome: Outcome) -> None:
        """Record how a training run ended."""
        self._add_fact(f"run:{key}", _plain(outcome))
        self.runs[key] = outcome

    def add_price(self, priced_on: str, digest: str, cost: PolicyCost) -> None:
        """Record the modeled cost of a policy; `priced_on` is `identity.pricing_key`."""
        self._add_fact(f"price:{priced_on}:{digest}", to_plain(cost))
        self.prices[priced_on, digest] = cost

    def _add_fact(self, key: str, value: Any) -> None:
        journal = self._writable()
        journal.storage.set_study_system_attr(journal.study_id, PREFIX + key, value)

    def _writable(self) -> OpenJournal:
        if self._journal is None:
            raise TypeError("records opened for reading only")
        return self._journal

    def add_trial(
        self,
        asked: Asked,
        distributions: Mapping[str, BaseDistribution],
        outcomes: Mapping[int, Outcome],
        priced_on: str,
        cost: PolicyCost | None,
        values: Mapping[str, float] | None,
        readable: Mapping[str, Any],
    ) -> None:
        """Record a policy with all it measured, `outcomes` by seed.

        The journal takes of `values`, by objective in their own units and None where a run failed,
        those it was made with. Optuna's tools show `readable` too.
        """
        study = self._writable().study
        lost = any(isinstance(run, Measurement) and run.diverged for run in outcomes.values())
        trial = optuna.trial.create_trial(
            state=TrialState.FAIL if values is None else TrialState.COMPLETE,
            values=None if values is None else [values[n] for n in study.metric_names or ()],
            params=dict(asked.params),
            distributions=dict(distributions),
            user_attrs={
                **readable,
                **({"by_hand": True} if asked.by_hand else {}),
                **({"expected": list(asked.expected)} if asked.expected else {}),
                "policy": asked.text,
                "digest": asked.digest,
                **{"place": asked.place, "told": asked.told, "start": asked.start},
                "presets": list(asked.presets),
                "runs": {str(seed): _plain(run) for seed, run in outcomes.items()},
                "priced_on": priced_on,
                "cost": None if cost is None else to_plain(cost),
            },
            constraints={"diverged": float(lost)},
        )
        study.add_trial(_trial_with_start(trial, outcomes.values()))
        self.trials.append(replace(asked, number=self._trials_made))
        self._trials_made += 1
        self._end(self.trials[-1])


def _trial_with_start(
    trial: optuna.trial.FrozenTrial, outcomes: Iterable[Outcome]
) -> optuna.trial.FrozenTrial:
    """Return the trial with a start, so that Optuna's tools show how long its runs trained."""
    seconds = sum(run.wall_seconds for run in outcomes if isinstance(run, Measurement))
    if trial.datetime_complete is not None:
        trial.datetime_start = trial.datetime_complete - timedelta(seconds=seconds)
    return trial


def _known_format(value: Any) -> int:
    if shapes.count(value, "format", 1) > FORMAT:
        raise NewerFormatError(
            f"storage: a journal of format {value!r}; expected 1 to {FORMAT}, which this version "
            f"of policysearch reads (it was made by a newer version)"
        )
    return int(value)


class NewerFormatError(InputError):
    """A journal that a newer version of the package made: nothing in it is taken for a fault."""


def _misshapen(number: int, error: Exception) -> str:
    said = str(error) if isinstance(error, InputError) else "another shape"
    return (
        f"storage: record {number}: {said} (`policysearch repair STUDY.toml` keeps what can be "
        "read and a copy of the file)"
    )


def unreadable(lines: Sequence[Line]) -> list[int]:
    """Return the places, from 0, of the lines that cannot be read as records, here or by Optuna.

    Raises NewerFormatError for a journal of a newer version.
    """
    places = set(not_replayed(line.record for line in lines))
    for place, line in enumerate(lines):
        try:
            Records([line])
        except NewerFormatError:
            raise
        except InputError:
            places.add(place)
    return sorted(places | _contradictions(lines, places))


def _contradictions(lines: Sequence[Line], left_out: set[int]) -> set[int]:
    """Return the places of second records of an identity that say another one."""
    found, known = set(), Records([])
    for place, line in enumerate(lines):
        if place in left_out or f'"{PREFIX}identity' not in json.dumps(line.record):
            continue
        try:
            known._read(line)
        except InputError:
            found.add(place)
    return found


def compact(policy: Policy) -> str:
    """Return the policy as JSON on one line, as trials keep it."""
    return json.dumps(json.loads(policy.to_json()), separators=(",", ":"))


def _plain_asked(asked: Asked) -> dict[str, Any]:
    names = ("text", "presets", "params", "place", "told", "start")
    plain = {name: getattr(asked, name) for name in names}
    return plain | ({"expected": asked.expected} if asked.expected else {})


def _asked_record(digest: str, plain: Mapping[str, Any]) -> Asked:
    return Asked(-1, digest, **shapes.asked(plain, "asked"))


def _plain(outcome: Outcome) -> dict[str, Any]:
    kind = "failed" if isinstance(outcome, Failure) else "measured"
    return {kind: to_plain(outcome)}


def _outcome(plain: Mapping[str, Any]) -> Outcome:
    if "failed" in plain:
        return from_plain(Failure, plain["failed"], "run")
    return from_plain(Measurement, plain["measured"], "run")
