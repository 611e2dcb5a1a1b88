"""What policies cost on the device of a study: modeled once, recorded, and looked up after that."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from policysearch.cost.price import PolicyCost
from policysearch.objective.objective import Objective
from policysearch.policy.policy import from_json, with_accumulator
from policysearch.policy.presets import TF32, preset
from policysearch.space.target import as_run
from policysearch.study.journal.identity import check_part, code_fingerprints
from policysearch.study.journal.records import Asked, Records, compact
from policysearch.values import InputError, to_plain

# What no price depends on.
_ELSEWHERE = ("commands", "search", "space", "study", "report", "export", "verify")


@dataclass(frozen=True)
class References:
    """What speedups are given against beside float32: the preset `baseline`, if there is one.

    References are summed in `accumulator`, and are as the export target `target` runs them.
    """

    baseline: str | None
    accumulator: str
    target: str | None


class Prices:
    """The modeled cost of a study's policies; training and its results play no part in it.

    `key` is a digest of what a price depends on beside the policy: device, stack, batch, how
    float32 is spread, what is computed again, task and the code of the cost model. With another
    key every policy is priced anew.
    """

    def __init__(self, objective: Objective, records: Records, references: References) -> None:
        self._objective, self._records, self._against = objective, records, references
        self._new: dict[str, PolicyCost | None] = {}
        plain = {
            "device": repr(objective.device),
            "stack": to_plain(objective.stack),
            "batch_size": objective.cost_batch_size,
            "parallel": to_plain(objective.parallel),
            "recompute": list(objective.recompute),
            **({} if objective.net is None else {"net": objective.net.plain}),
            "task": objective.task.to_plain(),
            # as recorded: results are shown without making the model
            "model": [identity.get("model", "") for identity in records.identities[-1:]],
            "code": code_fingerprints(_ELSEWHERE),
        }
        self.key = hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]

    def __call__(self, asked: Asked) -> PolicyCost | None:
        """Return the modeled cost of a policy; None where the model has no price for it.

        InputError where it has none for float32 either.
        """
        known = self._records.prices.get((self.key, asked.digest))
        if known is not None:
            return known
        if asked.digest not in self._new:
            objective = self._checked_objective
            try:
                self._new[asked.digest] = objective.price(asked.policy)
            except InputError:
                self._objective.check_price()
                self._new[asked.digest] = None
        return self._new[asked.digest]

    @cached_property
    def _checked_objective(self) -> Objective:
        """What prices policies; InputError where its model is not the one that was trained."""
        for identity in self._records.identities[-1:]:
            check_part("model", identity, self._objective.model.fingerprint, "results")
        return self._objective

    @property
    def references(self) -> tuple[tuple[str, PolicyCost], ...]:
        """What speedups are given against, by preset: strict float32, TF32, and the baseline.

        TF32 where the device has it, the baseline where the study names one; none of them before
        there is a trial.
        """
        known = self._records.references.get(self._reference_key, {})
        recorded = {n: self._records.prices.get((self.key, digest)) for n, digest in known.items()}
        if recorded and None not in recorded.values():  # so a view makes no model
            return tuple((name, cost) for name, cost in recorded.items() if cost is not None)
        priced = ((asked.presets[0], self(asked)) for asked in self._reference_policies())
        return tuple((name, cost) for name, cost in priced if cost is not None)

    @property
    def _reference_key(self) -> str:
        """What the references depend on: prices, and what they are in this study."""
        plain = json.dumps([self.key, to_plain(self._against)])
        return hashlib.sha256(plain.encode()).hexdigest()[:16]

    def _reference_policies(self) -> list[Asked]:
        """The references as policies: their layers are those of the trials."""
        trials = self._records.trials
        layers = [name for name, _ in from_json(trials[0].text).layers] if trials else []
        tf32 = [TF32] if "tfloat32" in self._objective.device.formats else []
        names = dict.fromkeys(("float32", *tf32, self._against.baseline or "float32"))
        summed = self._against.accumulator
        policies = [with_accumulator(preset(name, layers), summed) for name in names]
        model, target = self._objective.model, self._against.target
        policies = [as_run(policy, model, target) for policy in policies]
        if (parallel := self._objective.parallel).devices > 1:
            policies = [replace(policy, parallel=parallel) for policy in policies]
        named = zip(names, policies, strict=True) if layers else ()
        return [Asked(-1, p.digest, compact(p), (name,), {}) for name, p in named]

    def record(self, trials: Iterable[Asked]) -> None:
        """Record the prices of `trials` and of the references that were made for another key."""
        references = self._reference_policies()
        for asked in (*trials, *references):
            if (self.key, asked.digest) not in self._records.prices:
                cost = self(asked)
                if cost is not None:
                    self._records.add_price(self.key, asked.digest, cost)
        priced = {r.presets[0]: r.digest for r in references if self(r) is not None}
        if priced:
            self._records.add_references(self._reference_key, priced)
