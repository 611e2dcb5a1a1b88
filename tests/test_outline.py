"""Training scripts as strangers write them: what `init` finds in them without running them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from policysearch.cli import main
from policysearch.train import user_code
from policysearch.train.scripts.outline import Outline, outline_of

PLAIN = """
import argparse
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=16)
args = parser.parse_args()

class Block(nn.Module):
    def __init__(self, width, *, bias=True):
        super().__init__()
        self.fc = nn.Linear(width, width, bias)

    def forward(self, x):
        return torch.relu(self.fc(x))

class Classifier(nn.Sequential):
    def __init__(self, width=8):
        super().__init__(nn.Linear(4, width), Block(width), nn.Linear(width, 3))

def build(args):
    net = Classifier(args.width)
    return net, 3

def loaders(batch, seed=0):
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(seed))
    train = DataLoader(TensorDataset(x, x[:, :3].argmax(1)), batch_size=batch, shuffle=True)
    return train, DataLoader(TensorDataset(x, x[:, :3].argmax(1)), batch_size=batch)

def run(net, optimizer, loader):
    for x, y in loader:
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

def main():
    net, _ = build(args)
    run(net, torch.optim.AdamW(net.parameters(), lr=1e-2), loaders(8)[0])

if __name__ == "__main__":
    main()
"""
UNGUARDED = PLAIN.replace('if __name__ == "__main__":\n    main()', "main()")
SCRIPT = (
    PLAIN
    + """

def script():
    import policysearch

    net, _ = build(args)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    loss = nn.CrossEntropyLoss()
    return policysearch.from_loader(net, loaders(8)[0], loss=loss, optimizer=optimizer, steps=6)
"""
)
TRAINER = """
from transformers import Trainer, TrainingArguments

class Weighted(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **more):
        return model(**inputs).loss

def main():
    trainer = Weighted(model=None, args=TrainingArguments("out"))
    trainer.train()
"""
LIGHTNING = """
import lightning as L

class Net(L.LightningModule):
    def training_step(self, batch, index):
        return self(batch)

class Digits(L.LightningDataModule):
    pass

if __name__ == "__main__":
    L.Trainer(max_epochs=1).fit(Net(), Digits())
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    user_code._module.cache_clear()
    yield tmp_path
    user_code._module.cache_clear()


def outline(text: str) -> Outline:
    Path("train.py").write_text(text, encoding="utf-8")
    found = outline_of(Path("train.py"))
    assert found is not None
    return found


def test_what_a_script_makes_is_found_with_the_arguments_that_it_wants(folder: Path) -> None:
    found = outline(PLAIN)
    assert found.nets == ("Block(width)", "Classifier()", "build(args)")
    assert found.loaders == ("loaders(batch)",)
    assert (found.scripts, found.at_import) == ((), 0)
    assert PLAIN.splitlines()[found.trains - 1].strip() == "loss.backward()"
    assert found.words == (
        "a function script() of the lines of run() before line 33 that ends in `return "
        "policysearch.from_loader(net, loader, loss=nn.functional.cross_entropy, "
        "optimizer=optimizer, steps=...)` (nets: Block(width), Classifier(), build(args); "
        "loaders: loaders(batch))"
    )
    assert outline(SCRIPT).scripts == ("script",)
    taken = SCRIPT.replace("def script():", "def read(steps):")
    assert outline(taken + "\ndef short():\n    return read(6)\n").scripts == ("short",)


@pytest.mark.parametrize(
    "trained, named",
    [
        ("nn.functional.cross_entropy(net(x), y)", "loss=nn.functional.cross_entropy,"),
        ("nn.functional.cross_entropy(net(x).flatten(1), y)", "loss=...,"),
        ("nn.functional.cross_entropy(net(x), y, label_smoothing=0.1)", "loss=...,"),
        ("nn.functional.cross_entropy(net(x), y + 1)", "loss=...,"),
        ("nn.functional.cross_entropy(net(y), x)", "loss=...,"),
    ],
)
def test_a_function_is_the_loss_where_it_takes_outputs_and_labels_as_they_are(
    folder: Path, trained: str, named: str
) -> None:
    assert "nn.functional.cross_entropy(net(x), y)" in PLAIN
    text = PLAIN.replace("nn.functional.cross_entropy(net(x), y)", trained)
    assert named in outline(text).words


@pytest.mark.parametrize(
    "text, call, nets",
    [
        (TRAINER, "from_trainer(trainer)", ()),
        (LIGHTNING, "from_lightning(Net(), Digits(), L.Trainer(max_epochs=1))", ("Net()",)),
        (
            LIGHTNING.replace("fit(Net(), Digits())", "fit(model=net, datamodule=data)"),
            "from_lightning(net, data, L.Trainer(max_epochs=1))",
            ("Net()",),
        ),
    ],
    ids=["trainer", "lightning", "named"],
)
def test_trainers_of_others_are_named(
    text: str, call: str, nets: tuple[str, ...], folder: Path
) -> None:
    found = outline(text)
    assert (found.loop and found.loop.call, found.nets) == (f"policysearch.{call}", nets)
    assert found.at_import == 0
    assert found.trains == 1 + [
        "trainer.train()" in line or ".fit(" in line for line in text.splitlines()
    ].index(True)


def test_a_function_that_returns_a_trainer_is_a_script_as_it_stands(folder: Path) -> None:
    given = TRAINER.replace("def main():", "def made():").replace(
        "trainer.train()", "return trainer"
    )
    run = "\nif __name__ == '__main__':\n    t = made()\n    t.train()\n"
    found = outline(given + run)
    assert found.scripts == ("made",) and found.at_import == 0
    assert (given + run).splitlines()[found.trains - 1].strip() == "t.train()"
    assert outline(given + run.replace("if __name__ == '__main__':", "if True:")).at_import
    other = given.replace("from transformers import", "from others import")
    assert outline(other + run).scripts == ()
    assert outline(other + run.replace("t = made()", "t = net()")).trains == 0


LOOP = """
def train(cfg):
    accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=cfg.parts)
    model, opt, train_dl, lr_sched = accelerator.prepare(*setup(cfg))
    for epoch in tqdm(range(cfg.epochs)):
        for i, batch in enumerate(tqdm(train_dl)):
            loss = compute_loss(model, batch)
            accelerator.backward(loss)
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=cfg.clip)
            opt.step()
            lr_sched.step()

def compute_loss(model, batch):
    return model(**batch).loss
"""
SCALED = """
criterion = nn.BCEWithLogitsLoss()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
ema = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.99))

def main():
    for step in range(1, 1001):
        with torch.autocast("cuda", dtype=torch.float16):
            x, y = next(stream)
            loss = criterion(net(x), y)
            loss = loss / 8
        scaler.scale(loss).backward()
        nn.utils.clip_grad_value_(net.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
"""
ZIPPED = """
def main():
    for step, (x, y) in zip(range(STEPS), stream):
        with torch.autocast(device, torch.bfloat16):
            loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
    net.parameters()
"""


@pytest.mark.parametrize(
    "text, call",
    [
        (
            LOOP,
            "model, train_dl, loss=compute_loss, optimizer=opt, scheduler=lr_sched, "
            'precision="bf16", accumulation_steps=cfg.parts, clip_norm=cfg.clip, epochs=cfg.epochs',
        ),
        (
            SCALED,
            "net, stream, loss=criterion, optimizer=optimizer, scaler=scaler, ema_decay=0.99, "
            'precision="fp16", clip_value=0.5, accumulation_steps=8, steps=1000',
        ),
        (
            ZIPPED,
            'net, stream, loss=F.cross_entropy, optimizer=optimizer, precision="bf16", steps=STEPS',
        ),
        (
            SCALED.replace("in range(1, 1001)", "in trange(1000)"),
            "net, stream, loss=criterion, optimizer=optimizer, scaler=scaler, ema_decay=0.99, "
            'precision="fp16", clip_value=0.5, accumulation_steps=8, steps=1000',
        ),
    ],
    ids=["accelerate", "scaled", "zipped", "trange"],
)
def test_a_loop_is_read_with_its_own_names(text: str, call: str, folder: Path) -> None:
    loop = outline(text).loop
    assert loop is not None and loop.function in ("train", "main")
    assert text.splitlines()[loop.line - 1].strip().startswith("for ")
    assert sorted(loop.call.split("(", 1)[1][:-1].split(", ")) == sorted(call.split(", "))


@pytest.mark.parametrize(
    "head, steps",
    [("global_step < cfg.total", "cfg.total"), ("True", "..."), ("loss > best", "...")],
)
def test_steps_are_counted_by_the_test_of_a_loop(head: str, steps: str, folder: Path) -> None:
    loop = outline(LOOP.replace("for epoch in tqdm(range(cfg.epochs)):", f"while {head}:")).loop
    assert loop is not None and loop.call.endswith(f", steps={steps})")


def test_a_training_at_import_is_found_through_functions_and_nothing_else_is(folder: Path) -> None:
    assert UNGUARDED.splitlines()[outline(UNGUARDED).at_import - 1] == "main()"
    bare = "for x in data:\n    loss = net(x)\n    loss.backward()\n"
    assert outline(bare).at_import == 3
    calm = "scaler = StandardScaler().fit(x)\nnet.train()\nnet = make()\n"
    assert (outline(calm).at_import, outline(calm).trains) == (0, 0)
    Path("broken.py").write_text("def (:")
    assert outline_of(Path("broken.py")) is None
    assert outline_of(Path("not-there.py")) is None
    Path("deep.py").write_text("x = " + "-" * 100_000 + "1")
    assert outline_of(Path("deep.py")) is None


def test_what_python_finds_odd_in_a_script_is_not_said(folder: Path) -> None:
    kinds = (DeprecationWarning, SyntaxWarning)  # the latter from Python 3.12 on
    with pytest.warns(kinds, match="invalid escape"):
        compile(odd := 'pattern = "\\d"\nloss.backward()\n', "train.py", "exec")
    assert outline(odd).trains == 2


def test_init_says_what_to_pass_of_a_script(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    Path("train.py").write_text(PLAIN)
    assert main(["init", "train.py"]) == 2
    said = capsys.readouterr().err.strip()
    assert "\n" not in said and f"trains (line {outline(PLAIN).trains})" in said
    assert "policysearch.from_loader(net, loader" in said and "nets: Block(width)" in said
    Path("train.py").write_text(UNGUARDED)
    assert main(["init", "train.py:build"]) == 2
    last = outline(UNGUARDED).at_import
    assert f"train.py: line {last} trains on import" in capsys.readouterr().err
    Path("net.py").write_text("import torch\n\ndef made():\n    return torch.nn.Linear(2, 2)\n")
    assert main(["init", "net.py"]) == 2
    said = capsys.readouterr().err
    assert "one of made" in said and "from_loader" not in said


def test_init_of_a_function_that_gives_a_script_is_a_study_that_runs(
    folder: Path, capsys: pytest.CaptureFixture[str], one_process: None
) -> None:
    pytest.importorskip("torch")
    counted = "def script():\n    with open('runs.txt', 'a') as runs:\n        runs.write('x')\n"
    Path("train.py").write_text(SCRIPT.replace("def script():\n", counted))
    assert main(["init", "train.py", "--data", "loaders"]) == 2
    assert "--data: beside script" in capsys.readouterr().err
    assert main(["init", "train.py", "--device", "L4"]) == 0
    assert Path("runs.txt").read_text() == "x"  # it makes the net and draws the batches once
    said = capsys.readouterr().out
    assert "batches: 6 of 8 under seed 0" in said and "assumed batch" not in said
    text = Path("train.toml").read_text()
    assert 'script = "train.py:script"' in text and "learning_rate" not in text
    assert "baseline" not in text  # the script says it
    assert main(["run", "train.toml", "--trials", "1"]) == 0
    Path("train.toml").unlink()
    chosen = ["--baseline", "torch.autocast.float16", "--batch", "256", "--steps", "4"]
    assert main(["init", "train.py:script", "--device", "L4", *chosen]) == 0
    text = Path("train.toml").read_text()
    assert 'baseline = "torch.autocast.float16"' in text and "steps = 4" in text
    assert (
        'batch_size = 256\nbatch_size_reason = "of --batch; the script trains at another"' in text
    )


TERMS = """
def main(args):
    train, val = DataLoader(Blobs()), DataLoader(Blobs(1))
    train_dl = DataLoader(Blobs())
    val_dl = DataLoader(Blobs(1))
    bce = nn.BCEWithLogitsLoss()
    for epoch in range(args.epochs):
        for x, y in train_dl:
            for group in opt.param_groups:
                group["lr"] = rate_at(epoch)
            loss = bce(net(x), y) + dice_loss(net(x), y)
            loss.backward()
            opt.step()
"""


def test_a_loss_of_several_terms_and_rates_set_by_hand_are_asked_for(folder: Path) -> None:
    loop = outline(TERMS).loop
    assert loop is not None and "train_dl, loss=..., validation=val_dl, optimizer=opt" in loop.call
    assert loop.more == (
        "`loss` a function of the net and a batch that returns `bce(net(x), y) + dice_loss(net(x), "
        "y)`",
        "`scheduler` a LambdaLR of the rates that the loop sets itself",
    )
    alone = TERMS.replace(" + dice_loss(net(x), y)", "").replace('group["lr"] =', "rate =")
    loop = outline(alone).loop
    assert loop is not None and ("loss=bce, " in loop.call, loop.more) == (True, ())
    more = "            loss += extra\n            loss.backward"
    added = TERMS.replace("            loss.backward", more)
    loop = outline(added.replace(" + dice_loss(net(x), y)", "")).loop
    assert loop is not None and "loss=..., " in loop.call
    later = alone.replace(
        "            loss.backward", more.replace("loss += extra", "loss = loss + x")
    )
    loop = outline(later).loop
    assert loop is not None and "returns `loss + x`" in loop.more[0]
