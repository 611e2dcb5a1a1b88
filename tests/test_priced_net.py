"""A larger net priced in the place of the trained one costs what a study of itself says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from policysearch.cli import main
from policysearch.nn.stacks import counterparts
from policysearch.objective.priced_net import PricedNet
from policysearch.policy.policy import Policy, uniform_layer
from policysearch.policy.presets import preset
from policysearch.search.price_table import Lookup
from policysearch.study.specification import StudySpec, load_spec, objective_of, space_of
from policysearch.values import InputError
from tests.studies import write_study

STUDIES = Path(__file__).parents[1] / "studies"
FORMATS = ("float32", "tfloat32", "bfloat16", "float16", "float8_e4m3fn")
NETS = {
    "mlp": PricedNet(widths=(64, 64, 64, 64)),
    "transformer": PricedNet(widths=(64, 256, 256), inputs=(16, 16), classes=100),
    "gpt": PricedNet(widths=(64, 256, 256, 256), inputs=(64,), classes=200),
    "resnet": PricedNet(widths=(16, 32, 64, 128), inputs=(3, 64, 64)),
    "lenet5": PricedNet(inputs=(3, 64, 64), classes=20),
}
DATA = {"gpt": "sums", "mlp": "digits"}


def study_of(model: str, net: PricedNet, folder: Path) -> StudySpec:
    spec = load_spec(write_study(folder, ("batch_size = 4096", "batch_size = 256")))
    widths = (32, 32) if model == "mlp" else ()
    task = replace(spec.task, model=model, widths=widths, data=DATA.get(model, "digits32"))
    if model == "gpt":
        task = replace(task, loss="token_cross_entropy", activation="gelu")
    return replace(spec, task=task, cost=replace(spec.cost, net=net))


def drawn(layers: tuple[str, ...], rng: np.random.Generator) -> Policy:
    """A policy whose layers have a format each."""
    formats = {name: uniform_layer(str(rng.choice(FORMATS))) for name in layers}
    return preset("float8", layers).with_layers(formats)


@pytest.mark.parametrize("model", NETS)
def test_prices_are_those_of_a_study_of_the_larger_net_itself(model: str, tmp_path: Path) -> None:
    net = NETS[model]
    spec = study_of(model, net, tmp_path)
    objective = objective_of(spec)
    task = net.task(spec.task, objective.dataset)
    own = objective_of(replace(spec, task=task, cost=replace(spec.cost, net=None)))
    small = objective_of(replace(spec, cost=replace(spec.cost, net=None)))
    assert own.model.layer_names == objective.priced_model.layer_names
    rng, speeds = np.random.default_rng(0), set()
    for policy in (objective.float32, *(drawn(objective.model.layer_names, rng) for _ in range(4))):
        layers = {x: policy.layer(objective.trained_layer(x)) for x in own.model.layer_names}
        there = preset("float8", own.model.layer_names).with_layers(layers)
        if policy is objective.float32:
            there = own.float32
        assert objective.price(policy) == own.price(there)
        assert objective.price(policy).peak_bytes > small.price(policy).peak_bytes
        speeds.add(objective.price(policy).speedup)
    assert len(speeds) == 5


def test_a_profile_says_which_layers_are_folded_into_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wide = ("widths = [8]", "widths = [8, 8]")
    for net, said in (("net.widths = [9, 9, 9, 9, 9]\n", True), ("", False)):
        stack = 'stack = "torch.compile"\n'
        study = write_study(tmp_path, wide, (stack, stack + net))
        assert main(["profile", "preset:bfloat16", "--study", str(study)]) == 0
        page = capsys.readouterr().out
        assert ("fc1 for fc1 and fc2; fc2 for fc3 and fc4; fc3 for fc5 and fc6" in page) == said
        assert ("a layer that is trained stands for" in page) == said


def test_tables_of_the_search_have_these_prices(tmp_path: Path) -> None:
    spec = study_of("gpt", NETS["gpt"], tmp_path)
    section = replace(spec.space, ops=(), formats=("float32", "bfloat16"), granularity="block")
    section = replace(section, loss_scales=("none",), master_weights=(True,))
    spec = replace(spec, space=section)
    objective, space = objective_of(spec), space_of(spec)
    lookup = Lookup(objective, space, 0)
    assert lookup.exact(0)
    rng = np.random.default_rng(1)
    every = [
        {name: values[rng.integers(len(values))] for name, values in space.choices().items()}
        for _ in range(8)
    ]
    exact = [objective.price(space.policy(params)) for params in every]
    assert len({cost.speedup for cost in exact}) > 4
    wanted = [(1.0 / cost.speedup, cost.memory_ratio) for cost in exact]
    np.testing.assert_allclose(lookup.costs(every), wanted, rtol=0.02)


def test_the_first_stands_for_the_first_and_the_last_for_the_last() -> None:
    small = {f"block{n}.fc{i}": "Linear" for n in (1, 2, 3) for i in (1, 2)} | {"head": "Linear"}
    large = {f"block{n}.fc{i}": "Linear" for n in range(1, 13) for i in (1, 2)} | {"head": "Linear"}
    found = counterparts(large, small)
    assert [found[f"block{n}.fc2"][5] for n in range(1, 13)] == list("111222222333")
    assert all(found[name][-3:] == name[-3:] for name in large) and found["head"] == "head"
    # Numbers of a sequence count among layers of their kind alone, and from where they begin.
    mixed = {"net.0": "Conv2d", "net.1": "ReLU", "net.2": "Conv2d", "net.3": "ReLU"}
    deeper = {f"net.{n}": ("Conv2d", "BatchNorm2d", "ReLU")[n % 3] for n in range(3, 15)}
    found = counterparts(deeper, mixed)
    assert (found["net.3"], found["net.12"], found["net.5"]) == ("net.0", "net.2", "net.1")
    assert "net.4" not in found


def test_resnet50_has_the_formats_of_a_small_residual_net() -> None:
    spec = load_spec(STUDIES / "resnet-digits.toml")
    objective = objective_of(spec)
    sizes = [int(np.prod(each.shape)) for each in objective.priced_model.parameters()]
    assert sum(sizes) == 25_557_032  # as torchvision counts it
    assert objective.trained_layer("layer4.2.conv3") == "layer3.1.conv2"
    assert objective.trained_layer("layer1.0.downsample.0") == "layer2.0.downsample.0"
    assert objective.trained_layer("stem_pool") == "bn1"


@pytest.mark.parametrize(
    ("model", "net", "said"),
    [
        ("lenet5", PricedNet(widths=(8,)), "cost.net: model lenet5, widths: [8]; expected none"),
        ("mlp", PricedNet("gpt"), "cost.net: model gpt"),
        ("transformer", PricedNet("resnet"), "layer 'conv1' has no counterpart"),
        ("mlp", PricedNet(widths=(8,)), "nothing stands for layer 'fc2', which is trained"),
        ("mlp", PricedNet("gone.py:net"), "cost.net: model: 'gone.py': no such file"),
    ],
)
def test_what_cannot_be_priced_is_one_line(
    model: str, net: PricedNet, said: str, tmp_path: Path
) -> None:
    objective = objective_of(study_of(model, net, tmp_path))
    with pytest.raises(InputError) as raised:
        objective.check_price()
    assert said in str(raised.value) and "\n" not in str(raised.value)


def test_values_are_checked() -> None:
    for fields, said in (
        ({}, "none given"),
        ({"inputs": (0,)}, "inputs: 0"),
        ({"inputs": (1,) * 5}, "inputs: 5 axes"),
        ({"model": "a.py:f", "widths": (3,)}, "widths: given with a.py:f"),
    ):
        with pytest.raises(InputError, match=said):
            PricedNet(**fields)


@pytest.mark.usefixtures("one_process")
def test_every_view_says_which_net_is_trained_and_which_priced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    net = ('batch_size_reason = "small kernels"\n', "\n[cost.net]\nwidths = [256, 256]\n")
    study = str(write_study(tmp_path, net, ("batch_size = 4096\n", "")))
    said = "the same net, widths 2 x 256"
    for command in (["run", study, "--processes", "1"], ["show", study], ["show", study, "--csv"]):
        assert main(command) == 0
        out = capsys.readouterr().out
        assert "--csv" in command or said in out
    assert main(["profile", "preset:bfloat16", "--study", study]) == 0
    page = capsys.readouterr().out
    assert said in page and "fc3" in page
    for command in (["show", study, "--trial", "1"], ["export", study, "--trial", "1"]):
        assert main(command) == 0
        assert said in capsys.readouterr().out
