"""Every scaling recipe to the bit of Transformer Engine's own references, which were run.

The digests are those of what `tests.record_te` had of them at d0067d0d; it prints how many values
differ. Over a million values each, in bfloat16 and in float32.
"""

from __future__ import annotations

import json

import pytest

from tests.quantised import CASES, FILE, digests

RECORDED = json.loads(FILE.read_text())


def test_every_case_is_recorded() -> None:
    assert list(RECORDED) == list(CASES)
    recipes = {case.scaling.recipe for case in CASES.values()}
    assert recipes == {"delayed", "current", "blocks", "mx_rceil", "nvfp4"}


@pytest.mark.parametrize("name", CASES)
def test_bits_of_transformer_engine(name: str) -> None:
    given = CASES[name].given()
    recorded = RECORDED[name]
    assert given.size >= 10**6
    # other values were quantised then: record anew
    assert digests({"given": given})["given"] == recorded["given"]
    found = CASES[name].found()
    assert found["values"].size == given.size
    assert {"given": recorded["given"], **digests(found)} == recorded
