"""What is real and what is modeled, and what made the results: all from the journal."""

from __future__ import annotations

from policysearch.report.page.element import Html, Section, code, joined, tag
from policysearch.report.page.sight import Sight
from policysearch.report.page.words import seconds, typeset
from policysearch.report.table import caption

SECTION = Section(90, "made", "What is real and what is modeled?", "Provenance")

GLOSSARY = (
    ("loss gap", "training loss at the end minus float32's, same start and batches"),
    ("front", "policies that no other beats in every axis by what can be told"),
    ("beaten by", "no better than that one in any axis, by what can be told, and worse in some"),
    ("as good as", "neither can be told to be better in any axis"),
    ("swamped", "updates so small beside their parameter that adding them changes nothing"),
    ("no-master", "weights are stored in a low format, with no float32 copy"),
    ("volume", "how much of speed, memory and loss gap the front beats: what a search makes grow"),
    (
        "early sign",
        "updates too small to move their parameter: a longer training would stand still",
    ),
    ("master weights", "a float32 copy of the parameters that the optimizer updates"),
    ("loss scale", "a factor that keeps small gradients from becoming zero"),
    ("probed step", "a step whose every value was looked at before and after rounding"),
)


def body(sight: Sight) -> Html:
    """Return on what the page rests, the versions and times of the journal, and words explained."""
    results = sight.results
    spec, made = results.spec, results.provenance
    versions = ", ".join(f"{name} {value}" for name, value in made.versions.items())
    task = spec.task
    facts = [
        ("On what it rests", typeset(caption(results).replace("\n", " "))),
        ("Task", f"{task.said}, {_recipe(sight)}"),
        ("Formats offered", ", ".join(spec.space.formats)),
        ("Target", spec.study.target or "none named"),
        ("Made with", versions or "not recorded"),
        ("Trained", _times(sight)),
        *((f"Changed amid the results ({i})", said) for i, said in enumerate(results.mixed, 1)),
    ]
    if len(made.makers) > 1:
        facts.append(("Sets of versions", f"{len(made.makers)} added to the journal"))
    rows = [part for name, said in facts for part in (tag("dt", name), tag("dd", said))]
    terms = [part for name, said in GLOSSARY for part in (tag("dt", name), tag("dd", said))]
    again = sight.command("run {0}") + "\n" + sight.command("report {0}")
    return joined(
        (
            tag("dl", *rows, cls="facts"),
            tag("h3", "Words"),
            tag("dl", *terms, cls="facts"),
            code("Make this page again", "again", again),
        )
    )


def _times(sight: Sight) -> str:
    made = sight.results.provenance
    if not made.started:
        return "not recorded"
    took = (
        f"; {made.runs} trainings took {seconds(made.trained_seconds)} of wall clock in all, each "
        "counted in its own process, several of which run at a time"
        if made.trained_seconds
        else ""
    )
    first, last = (time[:19].replace("T", " ") for time in (made.started, made.ended))
    return f"{first} to {last} by the clock of the machine{took}"


def _recipe(sight: Sight) -> str:
    task = sight.results.spec.task
    rate = f"learning rate {task.learning_rate:g}"
    return f"{task.optimizer}, {rate}, batch {task.batch_size}, {task.steps} steps"
