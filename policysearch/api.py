"""The Python API: studies, their fronts, picks from them, and what a policy does to a step."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from policysearch.data.datasets import Dataset as Dataset
from policysearch.diagnose.diagnosis import Diagnoser
from policysearch.diagnose.diagnosis import Diagnosis as Diagnosis
from policysearch.diagnose.preflight import preflight as found_before
from policysearch.export.targets import files_of
from policysearch.files import RESULTS_FOLDER, make_folder, write_files
from policysearch.nn.model import Model as Model
from policysearch.policy.loss_scale import LossScale as LossScale
from policysearch.policy.policy import LayerPolicy as LayerPolicy
from policysearch.policy.policy import Policy as Policy
from policysearch.policy.policy import uniform_layer as uniform_layer
from policysearch.policy.policy_file import schema_text
from policysearch.policy.presets import preset as preset
from policysearch.report.at_home import install
from policysearch.report.explain import explain as explain_graph
from policysearch.report.graph_diff import diff_of, policy_passes
from policysearch.report.progress import told
from policysearch.rounding.rounder import Fast
from policysearch.search.objectives import DIRECTIONS
from policysearch.space.target import run_and_different
from policysearch.study.cost_section import CostSection as CostSection
from policysearch.study.first_study import study_of as study_of
from policysearch.study.goal import with_goal
from policysearch.study.journal.records import unreadable
from policysearch.study.journal.storage import Repair, repair
from policysearch.study.journal.trials import Trial as Trial
from policysearch.study.opening import load_results as read_journal
from policysearch.study.questions.by_hand import try_policy as try_spec
from policysearch.study.questions.carry import FEWEST, Carried, carry
from policysearch.study.results.results import Results as Results
from policysearch.study.session import Progress
from policysearch.study.specification import StudySpec as StudySpec
from policysearch.study.specification import load_spec, objective_of
from policysearch.study.study import confirm_study as confirm_spec
from policysearch.study.study import run_study as run_spec
from policysearch.study.workers.cluster import workers_of
from policysearch.train.scripts.script import Script as Script
from policysearch.train.tasks import Task as Task
from policysearch.values import InputError as InputError
from policysearch.values import number, one_of, without_own_frames
from policysearch.verify.jittered_runs import silent
from policysearch.verify.verdict import Verdict, verify

install()


@without_own_frames
def load_study(path: str | Path) -> StudySpec:
    """Return the study of a TOML file; InputError `file: table.key: given; valid`."""
    return load_spec(Path(path))


@without_own_frames
def default_storage(study: StudySpec) -> Path:
    """Return where the results of a study are kept unless told otherwise."""
    return RESULTS_FOLDER / f"{study.study.name}.journal"


def _journal(study: StudySpec, storage: str | Path | None) -> Path:
    return default_storage(study) if storage is None else Path(storage)


@without_own_frames
def run_study(
    study: StudySpec,
    storage: str | Path | None = None,
    *,
    trials: int | None = None,
    goal: str | None = None,
    processes: int | None = None,
    fast: Fast | None = None,
    place: str | None = None,
    progress: Progress | bool = True,
    accept_changes: bool = False,
    retry_failed: bool = False,
    executor: Any = None,
) -> Results:
    """Run a study, or go on with it, and return its results.

    `storage` is the journal file (default: results/<name>.journal); `trials` replaces the number in
    the study file, `goal` its goal ("fastest gap<=0.01 memory<=0.6"), `fast` ("c", "numpy" or
    "off") what emulates. Results depend neither on that nor on `processes`: None takes one per
    core, 0 trains in this process. "torch", at a `place` ("cpu", "cuda:1"), has its own journal.
    `executor`: a Dask client. `progress` is called after every run: by default a bar; False is
    silent. Every run that ended is used again. Raises InputError where `storage` holds runs of
    another task, other data, or other code or libraries; the last two are mixed, and the results
    say so, with `accept_changes`. `retry_failed` starts runs again that were recorded as failed.
    """
    spec = study if trials is None else study.with_trials(trials)
    spec = (spec if goal is None else with_goal(spec, goal)).emulated_by(fast, place)
    path = _journal(study, storage)
    make_folder(path.parent)
    with told(progress, spec.study.trials) as tell:
        results = run_spec(
            spec,
            path,
            processes=processes,
            progress=tell,
            executor=workers_of(executor),
            accept_changes=accept_changes,
            retry_failed=retry_failed,
        )
    return replace(results, storage=path)


@without_own_frames
def confirm_study(
    study: StudySpec,
    storage: str | Path | None = None,
    *,
    factor: float = 10.0,
    seeds: int = 1,
    share: float | None = None,
    every: bool = False,
    retry_failed: bool = False,
    processes: int | None = None,
    progress: Progress | bool = True,
    executor: Any = None,
) -> Results:
    """Train the front of a study longer and return its results with what came of it.

    The front and the policies right behind it (with `every`, all that did not diverge), over
    `factor` times the steps and on `seeds` seeds that the search did not use; `share` bounds the
    cost as a share of the search's own training steps. A policy whose gap does not hold is marked
    in every view, and not picked. `retry_failed`, `executor`, `progress` and InputError as of
    `run_study`; also where there is nothing to confirm yet.
    """
    path = _journal(study, storage)
    load_results(study, path)
    with told(progress, None, "runs that confirm") as tell:
        results = confirm_spec(
            study,
            path,
            factor=factor,
            seeds=seeds,
            share=share,
            every=every,
            retry_failed=retry_failed,
            processes=processes,
            progress=tell,
            executor=workers_of(executor),
        )
    return replace(results, storage=path)


@without_own_frames
def try_policy(
    policy: Policy,
    study: StudySpec,
    storage: str | Path | None = None,
    *,
    processes: int | None = None,
    progress: Progress | None = None,
) -> tuple[Results, int, bool]:
    """Train and price one policy of your own as a trial of the study, with the study's seeds.

    Every view shows it from then on, and what the search does next does not depend on it. Returns
    the results, the trial's number, and False where the policy was a trial before: runs that are
    there are used again. Raises InputError as `run_study`, and where the policy does not fit.
    """
    path = _journal(study, storage)
    make_folder(path.parent)
    return try_spec(study, path, policy, processes=processes, progress=progress)


@without_own_frames
def carry_study(
    small: StudySpec,
    large: StudySpec,
    storage: str | Path | None = None,
    to_storage: str | Path | None = None,
    *,
    policies: int = 6,
    processes: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> Carried:
    """Return what of the study `small` may be on the front of another study's net, and is there.

    It goes there as rules and is priced there; `policies` of it are trained with the seeds and
    steps of `large`, in its journal `to_storage`. `progress` is told what is trained, a line each.
    InputError where the small study has no results, and as of `try_policy`.
    """
    number("policies", policies, FEWEST, 1000)
    results, path = load_results(small, storage), _journal(large, to_storage)
    make_folder(path.parent)
    say = progress or silent
    return carry(results, large, path, policies=policies, processes=processes, say=say)


@without_own_frames
def diagnose(
    policy: Policy,
    study: StudySpec,
    *,
    budget: int = 6,
    progress: Callable[[str], None] | None = None,
) -> Diagnosis:
    """Return why a policy fails in a study, where, and the smallest change that repairs it.

    Trains it and float32 with the first seed of the study, weighs changes by their gradients along
    float32's run, and trains at most `budget` of them, as the target of the study (torch, where it
    has none) runs them; the repair is then trained with the other seeds. Nothing is recorded in the
    study. `progress` is told what is trained, a line each. InputError where the policy does not
    fit.
    """
    number("budget", budget, 1, 1000)
    objective, say = objective_of(study), progress or silent
    objective.price(policy)  # says what is wrong with a policy before anything is trained
    seeds, target = sorted(study.study.seeds), study.study.target
    return Diagnoser(objective, seeds, budget, say, target).diagnose(policy)


def preflight(policy: Policy, study: StudySpec) -> tuple[str, ...]:
    """Return what a policy cannot hold of a study, a line each, before anything is trained.

    Epsilons that are zero in their format, masks, losses and other values of the first batch beyond
    it, and a loss scale above what its gradients bear; () where nothing of that is so. InputError
    where the policy does not fit.
    """
    objective = objective_of(study)
    objective.price(policy)
    return found_before(objective, policy, min(study.study.seeds))


@without_own_frames
def record(
    module: Any,
    optimizer: Any,
    path: str | Path,
    every: int = 10,
    *,
    scaler: Any = None,
    clip: float | None = None,
) -> AbstractContextManager[Any]:
    """Record every `every`-th step of a torch training in a file, for `diagnose --log`.

    `scaler` is the GradScaler and `clip` the limit that gradients are clipped to, where there are;
    see `policysearch.diagnose.recorder.record`. InputError without torch.
    """
    try:
        from policysearch.diagnose import recorder
    except ModuleNotFoundError as error:
        raise InputError(
            f"record: {error.name} is not installed; expected torch (pip install torch)"
        ) from None
    number("every", every, 1, 2**31)
    return recorder.record(module, optimizer, path, every, scaler=scaler, clip=clip)


@without_own_frames
def from_torch(
    module: Any,
    example_inputs: Any,
    *,
    loss: str = "token_cross_entropy",
    labels: str = "",
    name: str = "",
) -> Model:
    """Return a torch module as a model to search policies for; needs torch.

    `module` is an nn.Module, or a function that makes one for every seed; `example_inputs` a tensor
    or a tuple of them, the batch along axis 0. `loss` is one that a task can name, or "own" where
    the module returns its loss; `labels` is then the argument that takes them. See
    `policysearch.importers.torch_export.from_torch` for what it raises.
    """
    try:
        from policysearch.importers import torch_export
    except ModuleNotFoundError as error:
        raise InputError(
            f"from_torch: {error.name} is not installed; expected torch (pip install torch)"
        ) from None
    return torch_export.from_torch(module, example_inputs, loss=loss, labels=labels, name=name)


@without_own_frames
def from_loader(
    module: Any,
    loader: Any,
    *,
    loss: str | Callable[..., Any],
    steps: int | None = None,
    epochs: float | None = None,
    seed: int = 0,
    optimizer: Any = None,
    scheduler: Any = None,
    precision: str = "no",
    scaler: Any = None,
    init_from: str | Path | None = None,
    **options: Any,
) -> Script:
    """Return a training loop of torch's as a task; needs torch.

    `loss` is a function of module and batch, a function or module of outputs and labels, or a name.
    `options` are keys of [task] ("clip_norm"), and of how batches are kept: `spool`, `spool_bytes`,
    `name`, `labels`, `validation`, `validation_batches`, `pads`, `length`.
    See `policysearch.train.scripts.loader.from_loader` for the others and what it raises.
    """
    taken = {"steps": steps, "epochs": epochs, "seed": seed, "precision": precision}
    read = {"optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
    said = {"loss": loss, **taken, **read, "init_from": init_from, **options}
    return _read("from_loader", "loader", module, loader, **said)


@without_own_frames
def from_trainer(trainer: Any, *, init_from: str | Path | None = None, **kept: Any) -> Script:
    """Return what a Trainer of transformers would train, as a task; needs torch.

    `init_from` is a checkpoint to go on from; `kept` is how batches are kept, as in `from_loader`.
    See `policysearch.train.scripts.hugging_face.from_trainer` for what it takes and raises.
    """
    return _read("from_trainer", "hugging_face", trainer, init_from=init_from, **kept)


@without_own_frames
def from_lightning(
    module: Any,
    datamodule: Any,
    trainer: Any = None,
    *,
    steps: int | None = None,
    epochs: float | None = None,
    seed: int = 0,
    init_from: str | Path | None = None,
    **kept: Any,
) -> Script:
    """Return what a Trainer of Lightning would train, as a task; needs torch.

    `steps` or `epochs` are in place of the trainer's; `kept` says how batches are kept, as in
    `from_loader`. See `policysearch.train.scripts.lightning.from_lightning` for the rest.
    """
    said = {"steps": steps, "epochs": epochs, "seed": seed, "init_from": init_from, **kept}
    return _read("from_lightning", "lightning", module, datamodule, trainer, **said)


def _read(name: str, file: str, *given: Any, **options: Any) -> Script:
    try:
        reader = importlib.import_module(f"policysearch.train.scripts.{file}")
    except ModuleNotFoundError as error:
        raise InputError(
            f"{name}: {error.name} is not installed; expected torch (pip install torch)"
        ) from None
    script: Script = getattr(reader, name)(*given, **options)
    return script


@without_own_frames
def repair_study(study: StudySpec, storage: str | Path | None = None) -> Repair:
    """Rewrite a damaged journal with every intact record, and keep a copy of the damaged file.

    A sound journal is left alone. InputError where there is none, or nothing intact in it.
    """
    path = _journal(study, storage)
    directions = [DIRECTIONS[name] for name in study.objectives.names]
    return repair(path, study.study.name, directions, unreadable)


@without_own_frames
def load_results(study: StudySpec, storage: str | Path | None = None) -> Results:
    """Return what a study has found so far; InputError where there is nothing yet."""
    path = _journal(study, storage)
    return replace(read_journal(study, path), storage=path)


@without_own_frames
def pick(results: Results, rule: str = "knee", *, max_gap: float | None = None) -> Trial:
    """Return one member of the front.

    `rule`: "knee" is the member nearest to the ideal (see `Results.knee`), "verdict" what
    `Results.verdict` names, the baseline where that is kept, and the knee where it names none,
    "fastest" the one of highest modeled speedup whose loss gap is at most `max_gap` nats.
    InputError where none is.
    """
    one_of("pick", rule, ("knee", "verdict", "fastest"))
    if rule == "verdict" and results.verdict.trial is not None:
        return results.trial(results.verdict.trial)
    if rule != "fastest" and max_gap is None:
        return results.knee()
    return results.fastest(max_gap)


@without_own_frames
def export_policy(
    policy: Policy,
    study: StudySpec,
    folder: str | Path,
    target: str | None = None,
    notes: Sequence[str] = (),
    pipeline: int = 1,
) -> tuple[Path, ...]:
    """Write the policy, its JSON Schema and a file that applies it; return their paths.

    The file is for `target`, None for the study's own, or torch where it has none.
    `notes` stand in the head of that file: what is known of the policy beside its formats. Another
    says how the recipe clips gradients, which is left to the training loop. Where names are those
    of a stage, as in Megatron-LM, the file is for a `pipeline` of so many.
    Files of an earlier export with these names are replaced; nothing is written unless all can
    be made.
    """
    model = study.task.build_model(study.task.load_dataset())
    target = target or study.study.export_target
    name, lines = study.study.name, (*notes, *study.task.loop_notes)
    files = {
        f"{name}-policy.json": policy.to_json(),
        "policy.schema.json": schema_text(),
        **files_of(target, policy, model, name, lines, pipeline),
    }
    return write_files({key: text.encode() for key, text in files.items()}, Path(folder))


@without_own_frames
def as_exported(
    policy: Policy, study: StudySpec, target: str = "torch"
) -> tuple[Policy, tuple[str, ...]]:
    """Return what `target` runs when it is given the policy, and how that differs, by lines."""
    model = study.task.build_model(study.task.load_dataset())
    return run_and_different(policy, model, target)


@without_own_frames
def verify_policy(
    policy: Policy,
    study: StudySpec,
    *,
    target: str = "torch",
    steps: int = 50,
    seed: int = 0,
    place: str = "cpu",
    batch_size: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> Verdict:
    """Train the policy as `target` runs it, there on `place` and here, from the same values.

    Batches are the study's unless `batch_size` is given. `progress` is told before each training
    which it is. Raises InputError where the target is not installed or the policy does not fit.
    """
    task = study.task if batch_size is None else replace(study.task, batch_size=batch_size)
    say = progress or silent
    return verify(policy, task, target=target, steps=steps, seed=seed, place=place, progress=say)


@without_own_frames
def explain(policy: Policy, task: Task) -> str:
    """Return the training step of `task` under `policy` as text, every cast and step shown."""
    model = task.build_model(task.load_dataset())
    graph = task.tracing(model, task.batch_size).step_graph(policy)
    return explain_graph(graph, policy, task.loop_notes)


@without_own_frames
def explain_passes(policy: Policy, task: Task, device: str, stack: str) -> str:
    """Return what each pass does to the training step of `task`: nodes, casts, time and bytes."""
    model = task.build_model(task.load_dataset())
    return diff_of(policy_passes(task, model, policy), device, stack)
