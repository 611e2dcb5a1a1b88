"""The goal of a study in words, as a command line has it.

The words are what is wanted ("fastest", "smallest", "closest" or "any"), then limits without
spaces, each as the key of [goal] has it: `gap<=0.01`, `accuracy>=0.97`, `metric>=0.8` or
`metric<=12`, `speedup>=1.2`, `over=float32`, `memory<=0.6`, `fits=RTX-4090`, `trainings<=40`,
`hours<=2`, `left<=0.05`. Numbers are plain: a gap in nats, shares and ratios without a percent
sign.
"""

from __future__ import annotations

import json
import re
import typing
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from policysearch.study.sections import LIMITS, GoalSection, Want
from policysearch.study.specification import StudySpec
from policysearch.values import InputError, from_plain, one_of, shown

_LIMIT = re.compile(r"([a-z_]+)(<=|>=|=)(\S+)")


def with_goal(spec: StudySpec, words: str) -> StudySpec:
    """Return a study with the goal in words (`goal_from_words`), whatever its file says."""
    study = replace(spec.study, goal_gap=None, goal_speedup=None, least_gain=None)
    return replace(spec, study=study, goal=goal_from_words(words))


def goal_table(goal: GoalSection) -> str:
    """Return the goal as a study file has it."""
    default, named = GoalSection(), {row.name: getattr(goal, row.name) for row in fields(goal)}
    said = {k: v for k, v in named.items() if k == "want" or v != getattr(default, k)}
    return "\n".join(["[goal]", *(f"{key} = {json.dumps(value)}" for key, value in said.items())])


def goal_from_words(text: str, where: str = "--goal") -> GoalSection:
    """Return the goal in words: what is wanted, then limits ("fastest gap<=0.01 memory<=0.6").

    Raises InputError, one line that begins with `where`.
    """
    want, *limits = text.split() or [""]
    one_of(where, want, typing.get_args(Want))
    data: dict[str, Any] = {"want": want}
    for limit in limits:
        data |= _limit(limit, where, data)
    return from_plain(GoalSection, data, where)


def _limit(text: str, where: str, before: Mapping[str, Any]) -> dict[str, Any]:
    """Return the key and the value of one limit."""
    match = _LIMIT.fullmatch(text)
    if match is None:
        raise InputError(f"{where}: {shown(text)}; expected a limit as gap<=0.01, without spaces")
    name, sign, said = match.groups()
    one_of(f"{where}: {text}", name, LIMITS)
    if sign != LIMITS[name] and LIMITS[name]:
        raise InputError(f"{where}: {shown(text)}; expected {name}{LIMITS[name]}{said}")
    if name in before:
        raise InputError(f"{where}: {name}: given twice; expected one limit of each")
    if not LIMITS[name]:
        return {name: sign + said}
    if sign == "=":
        return {name: said}
    try:
        return {name: int(said) if name == "trainings" else float(said)}
    except ValueError:
        kind = "a whole number" if name == "trainings" else "a number"
        raise InputError(f"{where}: {shown(text)}; expected {kind} after {name}{sign}") from None
