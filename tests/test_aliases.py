"""Names of devices and models as published rows write them, and the user's own devices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.validation.narrow.as_run import as_run
from benchmarks.validation.narrow.decoders import DECODERS, decoder_named
from policysearch.cost.device_file import device_text
from policysearch.cost.devices import (
    DEVICES,
    device_hint,
    device_labelled,
    device_named,
    plain_name,
)
from policysearch.cost.gemm import Extents
from policysearch.cost.roofline import Work
from policysearch.objective.published.aliases import SHIPPED, device_of, read_aliases
from policysearch.objective.published.known import PATH as HELD_OUT
from policysearch.objective.published.networks import network_named
from policysearch.values import InputError
from tests.validated import validated

ROW: dict[str, Any] = json.loads(
    HELD_OUT.with_name("published_speedups.json").read_text(encoding="utf-8")
)[0]


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("Ascend 910B2", "Ascend-910B2"),
        ("A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("GeForce_RTX_4090", "RTX-4090"),
        ("Tesla V100-SXM2-16GB", "V100-SXM2"),
        ("AMD Instinct MI300X", "MI300X"),
        ("Google TPU v5e", "TPU-v5e"),
        ("H100", "H100-SXM5"),
    ],
)
def test_devices_are_known_by_their_labels_however_spelled(label: str, name: str) -> None:
    assert device_labelled(label) is device_of(label) is DEVICES[name]


def test_no_two_devices_are_spelled_alike() -> None:
    spelled: dict[str, str] = {}
    for device in DEVICES.values():
        for label in (device.name, *device.labels):
            assert spelled.setdefault(plain_name(label), device.name) == device.name
            assert device_labelled(label) is device


@pytest.mark.parametrize(
    ("given", "hinted"),
    [
        ("A100", ("A100-SXM4-40GB", "A100-SXM4-80GB")),
        ("NVIDIA A100", ("A100-SXM4-40GB", "A100-SXM4-80GB")),
        ("NVIDIA GeForce RTX 4090", ("RTX-4090",)),
        ("Ascend 910B2", ("Ascend-910B2",)),
        ("H10-SXM", ()),
        ("RTX 2080", ("RTX-2080Ti",)),
        ("RTX-1234", ()),
        ("", ()),
        (3, ()),
    ],
)
def test_a_hint_names_devices_of_the_same_number(given: Any, hinted: tuple[str, ...]) -> None:
    names = " or ".join(map(repr, hinted))
    assert device_hint(given) == (f"; did you mean {names}?" if names else "")
    with pytest.raises(InputError, match="expected one that `policysearch hardware` lists"):
        device_named(given)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("Llama 3.1 70b", "llama3 70b"),
        ("LLAMA3.1_405B (Pre-Training Performance)", "llama3 405b"),
        ("Llama3-8B", "llama3 8b"),
        ("Llama 3 8B fine-tune", "llama3 8b"),
        ("Llama-2-13B", "llama 2 13b"),
        ("Nemotron 340b", "nemotron-4 340b"),
        ("nanoGPT 774M (36 layers, 1280 wide)", "gpt2-large"),
        ("Qwen2.5-0.5B", "qwen2.5-0.5b"),
    ],
)
def test_decoders_are_known_by_other_names(given: str, name: str) -> None:
    model = read_aliases().applied({"model": given})["model"]
    assert decoder_named(model.partition(" (")[0]) == DECODERS[name]


def test_every_name_that_comes_with_the_package_means_a_model_or_a_device() -> None:
    shipped = read_aliases()
    assert SHIPPED.exists() and len(shipped.models) > 10
    assert all(meant in DECODERS for meant in shipped.models.values())
    assert all(meant in DEVICES for meant in shipped.devices.values())


def test_a_file_adds_names_and_goes_before_the_package(tmp_path: Path) -> None:
    path = tmp_path / "names.toml"
    path.write_text(
        '[devices]\n"Big Node" = "H200-SXM"\n[models]\n"our net" = "resnet50"\n'
        '"Llama 3.1 70b" = "llama3 8b"\n',
        encoding="utf-8",
    )
    row = read_aliases(path).applied({"hardware": "big_node", "model": "Our-Net (seq 7)", "n": 1})
    assert row == {"hardware": "H200-SXM", "model": "resnet50 (seq 7)", "n": 1}
    assert network_named("resnet50") and read_aliases(path).models["llama3-1-70b"] == "llama3 8b"
    assert read_aliases(path).models["nemotron340b"] == "nemotron-4 340b"
    left = {"hardware": 3, "model": None}
    assert read_aliases(path).applied(left) == left


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[devices", "expected TOML"),
        ('[gpus]\n"a" = "b"', "table: 'gpus'; expected one of devices, models"),
        ("devices = 3", "devices: 3; expected a table of names"),
        ('[models]\n"a" = 3', "models: 'a': 3; expected the name that is meant"),
        ('[models]\n"a" = {b = "c"}', "models: 'a': {'b': 'c'}; expected the name"),
    ],
)
def test_a_fault_in_a_file_of_names_is_one_line(text: str, fault: str, tmp_path: Path) -> None:
    path = tmp_path / "names.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as error:
        read_aliases(path)
    (line,) = str(error.value).split("\n")
    assert line.startswith(f"{path}: ") and fault in line


def test_rows_name_device_files_and_aliases_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own, names, rows = (tmp_path / name for name in ("own.toml", "names.toml", "rows.json"))
    own.write_text(device_text(DEVICES["H200-SXM"]), encoding="utf-8")
    names.write_text(f'[devices]\n"our card" = "{own}"\n', encoding="utf-8")
    broken = tmp_path / "broken.toml"
    broken.write_text("arch = 3", encoding="utf-8")
    given = ("H200-SXM", str(own), "Our_Card", str(broken), str(tmp_path / "none.toml"))
    rows.write_text(json.dumps([{**ROW, "hardware": label} for label in given]), encoding="utf-8")
    assert validated(["--rows", str(rows), "--aliases", str(names)]) == 0
    said = capsys.readouterr().out
    assert (
        "all                3 rows" in said and f"{broken}" in said and "none.toml: No such" in said
    )
    assert device_of(str(own)).peaks == DEVICES["H200-SXM"].peaks


def test_a_format_that_the_device_lacks_is_priced_as_what_it_runs_as_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.json"
    given = (("V100-SXM2", "bf16"), ("TPU v4", "fp16"), ("V100-SXM2", "fp16"))
    made = [{**ROW, "hardware": label, "dtype_mixed": mixed} for label, mixed in given]
    rows.write_text(json.dumps(made), encoding="utf-8")
    assert validated(["--rows", str(rows)]) == 0
    said = capsys.readouterr().out
    assert "bfloat16 on V100-SXM2 runs as float32\n" in said
    assert "float16 on TPU-v4 runs as float32\n" in said
    assert "\nfloat16 on V100-SXM2" not in said and "not built" not in said


def test_a_product_that_is_widened_reads_wide_operands_after_a_pass() -> None:
    e = Extents(1, 64, 32, 16, (16,))
    moved = 64 * 16 + 16 * 32 + 64 * 32
    work = Work(2 * moved, 0, 2 * 64 * 32 * 16, e, "bfloat16", count=3)
    widened, product = as_run([work], DEVICES["V100-SXM2"])
    operands = 64 * 16 + 16 * 32
    assert (widened.bytes, widened.launches, widened.count) == (operands * (2 + 4), 2, 3)
    assert product.format == "float32" and product.bytes == 4 * operands + 2 * 64 * 32
    assert as_run([work], DEVICES["L4"]) == [work]
