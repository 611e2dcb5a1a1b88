"""What others recorded of a training: a dump that msprobe 26.2 wrote, lines of nvdlfw-inspect."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from policysearch.diagnose.recordings import log_page, read_recording
from policysearch.values import InputError

DATA = Path(__file__).parent / "data"
DUMP, ENGINE = DATA / "msprobe", DATA / "engine-statistics.log"
"""Two steps of a net that multiplies by 3e4 between two layers: in float32, then in float16."""


def test_the_first_overflow_of_a_dump_is_the_one_that_ran_first() -> None:
    rows = read_recording(DUMP, "float16").findings
    assert (rows[0].op, rows[0].layer, rows[0].direction, rows[0].step) == (
        "__mul__",
        "",
        "fprop",
        0,
    )
    places = [(row.direction, row.layer or row.op) for row in rows]
    assert ("fprop", "fc2") in places and len(places) == len(set(places))
    assert "up to 4.28e+06: overflow in float16, which ends at 65504" in rows[0].words
    assert all(row.share is None for row in rows)


def test_what_a_format_holds_is_not_named_and_no_more_is_claimed() -> None:
    page = log_page(DUMP / "step0" / "rank0" / "dump.json", "bfloat16")
    assert page == (
        "verdict: nothing beyond bfloat16; a dump shows neither what is too small nor the loop"
    )
    broken = read_recording(DUMP / "step1", "bfloat16").findings
    assert broken[0].kind == "overflow" and broken[0].layer == "fc1"
    assert broken[0].words == "linear of fc1 (fprop, step 1) gives inf: overflow"
    assert {row.kind for row in broken[1:]} == {"not a number"}


def test_a_tensor_below_a_format_is_lost_whole(tmp_path: Path) -> None:
    tensor = {"type": "torch.Tensor", "dtype": "torch.float32", "Max": 1e-9, "Min": -2e-9}
    row = {"Module.head.Linear.backward.3": {"input": [], "output": [tensor]}}
    file = tmp_path / "dump.json"
    file.write_text(json.dumps({"data": row}))
    (only,) = read_recording(file, "float16").findings
    assert (only.kind, only.layer, only.direction, only.share) == (
        "underflow",
        "head",
        "dgrad",
        1.0,
    )
    assert not read_recording(file, "bfloat16").findings


def test_a_dump_without_sizes_cannot_tell(tmp_path: Path) -> None:
    tensor = {"type": "torch.Tensor", "dtype": "torch.float32", "md5": "0a"}
    file = tmp_path / "dump.json"
    file.write_text(json.dumps({"data": {"Tensor.add.0.forward": {"output": [tensor]}}}))
    assert log_page(file, "float16").startswith("verdict: cannot tell: no Max and Min")


def test_statistics_of_transformer_engine_name_what_is_lost() -> None:
    rows = read_recording(ENGINE, "float16").findings
    found = [(row.kind, row.op, row.layer, row.step, row.share) for row in rows]
    assert found == [
        ("overflow", "output", "decoder.0.mlp.fc2", 4, None),
        ("overflow", "dgrad", "decoder.0.mlp.fc2", 4, 0.002),
        ("underflow", "gradient", "decoder.1.mlp.fc1", 0, 0.4125),
    ]
    assert "underflow in fp8_current_scaling, columnwise" in rows[2].words
    assert len(read_recording(ENGINE, "bfloat16").findings) == 2


@pytest.mark.parametrize("named, says", [("max", "nothing lost in max"), ("std", "cannot tell")])
def test_statistics_that_show_nothing_say_what_was_looked_at(
    named: str, says: str, tmp_path: Path
) -> None:
    file = tmp_path / "statistics.log"
    file.write_text(f"INFO - fc_activation_{named} \t iteration=000000 \t value=1.0000\n")
    assert log_page(file, "float16").startswith(f"verdict: {says}")


@pytest.mark.parametrize("text", ["", "[]", "{", '{"data": 3}', "9" * 5000])
def test_what_is_no_dump_is_refused_in_one_line(text: str, tmp_path: Path) -> None:
    file = tmp_path / "dump.json"
    file.write_text(text)
    with pytest.raises(InputError) as refused:
        read_recording(file, "float16")
    assert "\n" not in str(refused.value) and "msprobe" in str(refused.value)
    with pytest.raises(InputError, match="expected the dump_path of msprobe"):
        (tmp_path / "empty").mkdir()
        read_recording(tmp_path / "empty", "float16")


@pytest.mark.parametrize("row", [None, 3, [], {"output": "x"}, {"output": [{"Max": []}]}])
def test_rows_of_another_shape_are_passed_over(row: object, tmp_path: Path) -> None:
    file = tmp_path / "dump.json"
    file.write_text(json.dumps({"data": {"a": row, "Module.a.B.forward.0": row, "": row}}))
    assert "cannot tell" in log_page(file, "float16")
