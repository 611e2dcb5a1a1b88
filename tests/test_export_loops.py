"""An exported policy in the loops people train with: Accelerate, HF Trainer, Lightning, LoRA."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from policysearch.nn.models import mlp
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import Policy, uniform_layer
from policysearch.policy.presets import preset
from policysearch.train.tasks import Task
from policysearch.train.trainer import Trainer
from tests.test_export_modules import load

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
load = load  # the fixture

STEPS, BATCH, CLIP, RATE = 10, 8, 0.05, 0.3


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        return self.fc2(torch.tanh(self.fc1(x)))


def policy() -> Policy:
    """float16 before bfloat16, with a scale that overflows in the first steps and grows later."""
    base = preset("torch.autocast.float16", MODEL.layer_names)
    mixed = base.with_layers({"fc2": uniform_layer("bfloat16")})
    return replace(mixed, loss_scale=SCALE)


MODEL = mlp((8, 8, 4))
SCALE = LossScale("dynamic", 2.0**24, growth_interval=3)


def parts(accumulation: int = 1) -> tuple[Any, Any]:
    """Return the same module and data each time."""
    torch.manual_seed(0)
    module = Net()
    count = STEPS * BATCH * accumulation
    data = TensorDataset(torch.randn(count, 8), torch.randint(4, (count,)))
    return module, data


def plain(exported: Any, accumulation: int = 1, unscaled: bool = True) -> tuple[Any, Any]:
    """Return losses and scales of a plain loop, clipped after unscaling."""
    module, data = parts(accumulation)
    module = exported.apply_policy(module)
    scaler, optimizer = exported.make_grad_scaler(), torch.optim.SGD(module.parameters(), RATE)
    losses, scales = [], []
    batches = [*DataLoader(data, BATCH)]
    for step in range(STEPS):
        scales.append(scaler.get_scale())
        for x, y in batches[step * accumulation : (step + 1) * accumulation]:
            loss = functional.cross_entropy(module(x), y)
            scaler.scale(loss / accumulation).backward()
            losses.append(loss.item())
        if unscaled:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(module.parameters(), CLIP)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert scaler.skipped and len(set(scales)) > 2  # it overflowed and moved
    return losses, scales


def emulated(accumulation: int) -> tuple[Any, Any]:
    """Return losses and scales of the emulator on the same values and batches."""
    module, data = parts(accumulation)
    model, rows = mlp((8, 8, 4), "tanh"), BATCH * accumulation
    task = Task(
        model="mlp", optimizer="sgd", learning_rate=RATE, clip_norm=CLIP, batch_size=BATCH,
        accumulation_steps=accumulation, steps=STEPS, tail_steps=STEPS,
    )  # fmt: skip
    layers = preset("torch.autocast.float16", model.layer_names)
    mixed = replace(layers.with_layers({"fc2": uniform_layer("bfloat16")}), loss_scale=SCALE)
    trainer = Trainer(model, task, mixed, 0)
    trainer.load({name: x.detach().numpy() for name, x in module.named_parameters()})
    batches = [(x.numpy(), y.numpy()) for x, y in DataLoader(data, rows)]
    taken = [trainer.step([x], y) for x, y in batches]
    return [loss for loss, *_ in taken], [scale for _, scale, _ in taken]


@pytest.mark.parametrize("accumulation", [1, 2])
def test_the_plain_loop_trains_as_the_emulator(exported: Any, accumulation: int) -> None:
    losses, scales = plain(exported, accumulation)
    expected, moved = emulated(accumulation)
    means = torch.tensor(losses).reshape(STEPS, accumulation).mean(1)
    assert scales == moved
    assert (means - torch.tensor(expected)).abs().max() < 5e-5


@pytest.fixture
def exported(load: Callable[..., Any]) -> Any:
    return load(policy(), MODEL)


def accelerated(exported: Any, mixed: str, accumulation: int, adapted: bool = True) -> Any:
    accelerate = pytest.importorskip("accelerate")
    accelerate.state.AcceleratorState._reset_state(True)
    module, data = parts(accumulation)
    module = exported.apply_policy(module)
    accelerator = accelerate.Accelerator(
        cpu=True, mixed_precision=mixed, gradient_accumulation_steps=accumulation
    )
    if adapted:
        exported.use_in_accelerate(accelerator)
    else:
        accelerator.scaler = exported.make_grad_scaler()
    optimizer = torch.optim.SGD(module.parameters(), RATE)
    module, optimizer = accelerator.prepare(module, optimizer)
    losses, scales = [], []
    for number, (x, y) in enumerate(DataLoader(data, BATCH)):
        if number % accumulation == 0:
            scales.append(accelerator.scaler.get_scale())
        with accelerator.accumulate(module):
            accelerator.gradient_state._set_sync_gradients((number + 1) % accumulation == 0)
            loss = functional.cross_entropy(module(x), y)
            losses.append(loss.item())
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(module.parameters(), CLIP)
            optimizer.step()
            optimizer.zero_grad()
    return losses, scales


@pytest.mark.parametrize("mixed", ["no", "bf16"])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_accelerate_trains_as_a_plain_loop(exported: Any, mixed: str, accumulation: int) -> None:
    assert accelerated(exported, mixed, accumulation) == plain(exported, accumulation)


def test_without_the_adapter_accelerate_clips_scaled_gradients(exported: Any) -> None:
    """What the line is for: the losses are others then, and nothing says so."""
    losses, _ = accelerated(exported, "no", 1, adapted=False)
    expected, _ = plain(exported)
    assert max(abs(a - b) for a, b in zip(losses, expected, strict=True)) > 1e-3


def test_accelerate_is_refused_where_it_would_scale_twice(exported: Any) -> None:
    pytest.importorskip("accelerate")

    class Given:
        mixed_precision = "fp16"
        _optimizers: tuple[Any, ...] = ()

    with pytest.raises(ValueError, match="'fp16'; expected 'no' or 'bf16'"):
        exported.use_in_accelerate(Given())
    Given.mixed_precision, Given._optimizers = "bf16", (1,)
    with pytest.raises(ValueError, match="before prepare"):
        exported.use_in_accelerate(Given())


class HF(Net):
    """A net as transformers has them: it returns its own loss."""

    def forward(self, x: Any, labels: Any) -> Any:  # type: ignore[override]
        logits = super().forward(x)
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("adapted", [True, False])
def test_the_trainer_of_transformers(
    exported: Any, bf16: bool, adapted: bool, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    logging.disable(logging.WARNING)
    module, data = parts()
    module.__class__ = HF
    exported.apply_policy(module)
    losses: list[float] = []

    class Kept(transformers.Trainer):  # type: ignore[name-defined,misc]
        def compute_loss(self, *given: Any, **options: Any) -> Any:
            loss = super().compute_loss(*given, **options)
            losses.append((loss[0] if isinstance(loss, tuple) else loss).item())
            return loss

        def _get_train_sampler(self, *given: Any) -> Any:
            return torch.utils.data.SequentialSampler(data)

    class Mine(exported.PolicyTrainer, Kept):
        pass

    arguments = transformers.TrainingArguments(
        str(tmp_path), per_device_train_batch_size=BATCH, max_steps=STEPS, bf16=bf16, use_cpu=True,
        max_grad_norm=CLIP, learning_rate=RATE, lr_scheduler_type="constant", optim="sgd",
        report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True, seed=0,
    )  # fmt: skip
    rows = [{"x": x, "labels": y} for x, y in data]
    kind = Mine if adapted else Kept
    trainer = kind(model=module, args=arguments, train_dataset=rows)
    trainer.train()
    logging.disable(logging.NOTSET)
    expected, _ = plain(exported)
    gap = max(abs(a - b) for a, b in zip(losses, expected, strict=True))
    assert (gap == 0.0) if adapted else (gap > 1e-3)  # nothing is scaled: float16 underflows


def test_a_trainer_without_a_policy_does_not_train(exported: Any, tmp_path: Path) -> None:
    """Nor says that it does: the class alone applies none."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    module, data = parts()
    module.__class__ = HF
    rows = [{"x": x, "labels": y} for x, y in data]

    class Mine(exported.PolicyTrainer, transformers.Trainer):  # type: ignore[name-defined,misc]
        pass

    arguments = transformers.TrainingArguments(str(tmp_path), max_steps=1, use_cpu=True)
    trainer = Mine(model=module, args=arguments, train_dataset=rows)
    before = [p.detach().clone() for p in module.parameters()]
    with pytest.raises(ValueError, match=r"no policy on its model; expected apply_policy\(model\)"):
        trainer.train()
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))


def lit(exported: Any, plugin: Any, inner: bool = True) -> tuple[Any, Any]:
    lightning = pytest.importorskip("lightning")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    net, data = parts()
    losses: list[float] = []

    class Lit(lightning.LightningModule):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            if inner:
                self.net = net
            else:
                self.fc1, self.fc2 = net.fc1, net.fc2

        def forward(self, x: Any) -> Any:
            return self.net(x)

        def training_step(self, batch: Any, number: int) -> Any:
            loss = functional.cross_entropy(self(batch[0]), batch[1])
            losses.append(loss.item())
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), RATE)

    trainer = lightning.Trainer(
        accelerator="cpu", max_steps=STEPS, gradient_clip_val=CLIP, logger=False, plugins=plugin,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(Lit(), DataLoader(data, BATCH))
    return losses, trainer


def test_lightning_trains_as_a_plain_loop(exported: Any) -> None:
    pytest.importorskip("lightning")
    losses, trainer = lit(exported, [exported.lightning_plugin()])
    expected, scales = plain(exported)
    assert losses == expected
    assert trainer.precision_plugin.scaler.skipped and scales
    without, _ = lit(exported, None)
    assert max(abs(a - b) for a, b in zip(without, expected, strict=True)) > 1e-3


def test_lightning_is_refused_where_the_layers_are_its_own(exported: Any) -> None:
    pytest.importorskip("lightning")
    with pytest.raises(ValueError, match=r"expected the net as one submodule, say self\.net"):
        lit(exported, [exported.lightning_plugin()], inner=False)


X = torch.linspace(-2, 2, 64).reshape(8, 8)


def gradients(module: Any) -> list[Any]:
    module.zero_grad()
    functional.cross_entropy(module(X), torch.arange(8) % 4).backward()
    return [x.grad.clone() for x in module.parameters() if x.grad is not None]


def test_a_checkpoint_wrapper_before_the_policy(exported: Any) -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    module = parts()[0]
    expected = gradients(exported.apply_policy(copy.deepcopy(module)))
    module.fc1 = checkpoint_wrapper(module.fc1)
    got = gradients(exported.apply_policy(module))
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    assert any(x.abs().max() > 0 for x in got)


def test_names_of_the_policy_lose_what_the_module_has_not(load: Any) -> None:
    base = preset("float16", MODEL.layer_names)
    text = load(base, MODEL)
    text.LAYERS = {f"model.{name}": row for name, row in text.LAYERS.items()}
    module = parts()[0]
    with pytest.raises(ValueError, match="have no counterpart"):
        text.apply_policy(copy.deepcopy(module))
    with pytest.raises(ValueError, match=r"strip: 'net\.'; expected what 'model\.fc1' begins with"):
        text.apply_policy(copy.deepcopy(module), strip="net")
    stripped = text.apply_policy(copy.deepcopy(module), strip="model")(X)
    assert torch.equal(stripped, load(base, MODEL).apply_policy(module)(X))


def test_a_layer_that_is_replaced_is_noticed(exported: Any) -> None:
    module = exported.apply_policy(parts()[0])
    module(X)
    copied = copy.deepcopy(module)
    module.fc2 = nn.Linear(8, 4)
    with pytest.raises(RuntimeError, match="layer 'fc2' was replaced by Linear after apply_policy"):
        module(X)
    copied(X)  # its own layers are in place
    wrapped = copy.deepcopy(copied)
    wrapped.fc2 = nn.Sequential(wrapped.fc2)  # still inside
    assert torch.equal(wrapped(X), copied(X))


class LoRA(nn.Module):
    """A layer with a low-rank adapter, as PEFT makes it of a linear."""

    def __init__(self, base: Any) -> None:
        super().__init__()
        self.base_layer = base
        self.lora_A = nn.Linear(8, 2, bias=False)
        self.lora_B = nn.Linear(2, base.out_features, bias=False)

    def forward(self, x: Any) -> Any:
        return self.base_layer(x) + self.lora_B(self.lora_A(x)) * 2.0


def by_hand(module: Any, x: Any, adapter: Any) -> Any:
    def low(part: Any, value: Any, dtype: Any) -> Any:
        return functional.linear(value.to(dtype), part.weight.to(dtype))

    wrapped, base = module.fc1, module.fc1.base_layer
    made = functional.linear(x.half(), base.weight.half(), base.bias.half())
    side = low(wrapped.lora_B, low(wrapped.lora_A, x, adapter), adapter) * 2.0
    hidden = torch.tanh(made.to(adapter) + side)
    low_bf16 = module.fc2.weight.bfloat16(), module.fc2.bias.bfloat16()
    return functional.linear(hidden.bfloat16(), *low_bf16).float()


@pytest.mark.parametrize(("adapters", "dtype"), [("layer", "float16"), ("float32", "float32")])
def test_an_adapter_is_followed_to_its_base_layer(exported: Any, adapters: str, dtype: str) -> None:
    torch.manual_seed(1)
    module = parts()[0]
    module.fc1 = LoRA(module.fc1)
    exported.apply_policy(module, adapters=adapters)
    assert torch.equal(module(X), by_hand(module, X, getattr(torch, dtype)))
    assert any(x.abs().max() > 0 for x in gradients(module))
    with pytest.raises(ValueError, match="adapters: 'wide'; expected 'layer' or 'float32'"):
        exported.apply_policy(exported.remove_policy(module), adapters="wide")


def test_a_model_of_peft_is_followed(exported: Any) -> None:
    peft = pytest.importorskip("peft")
    module = parts()[0]
    given = peft.get_peft_model(module, peft.LoraConfig(target_modules=["fc1"], r=2))
    exported.apply_policy(given)
    results: dict[str, Any] = {}

    def note(name: str) -> Any:
        def hook(_: Any, __: Any, made: Any) -> None:
            results[name] = made.dtype

        return hook

    for name, part in given.named_modules():
        part.register_forward_hook(note(name))
    assert given(X).dtype == torch.float32
    base = "base_model.model."
    assert results[f"{base}fc1.base_layer"] == results[f"{base}fc1.lora_B.default"] == torch.float16
    assert results[f"{base}fc1"] == torch.float16 and results[f"{base}fc2"] == torch.bfloat16
