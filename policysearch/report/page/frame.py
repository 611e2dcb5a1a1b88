"""The page of a study as one file: its sections in order, its style and its script."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files

from policysearch.report.page.element import Html, joined, tag, text
from policysearch.report.page.registry import found
from policysearch.report.page.sight import Sight
from policysearch.study.results.results import Results

PACKAGE = __package__ or ""


def page(results: Results, study: str = "", watched: int = 0) -> str:
    """Return the page of a study as HTML: equal results give equal bytes.

    `study` is the study file as commands are given it, by default its name with ".toml". A page
    that is `watched` is read again after so many seconds. It asks for nothing from anywhere, and
    all of it can be reached without scripts.
    """
    sight = Sight(results, study or f"{results.spec.study.name}.toml", watched)
    shown = [(module.SECTION, module.body(sight)) for module in found("SECTION")]
    parts = [(section, body) for section, body in shown if body is not None]
    style, script = _asset("page.css"), _asset("page.js")
    links = [
        tag("a", section.short, href=f"#{section.anchor}") for section, _ in parts if section.short
    ]
    main = [
        tag(
            "section",
            tag("h2", section.title, id=f"{section.anchor}-title") if section.title else None,
            body,
            id=section.anchor,
            aria_labelledby=f"{section.anchor}-title",
        )
        for section, body in parts
    ]
    document = tag(
        "html",
        tag("head", _head(sight, style, script)),
        tag(
            "body",
            tag("a", "To the answer", href="#answer", cls="skip"),
            tag("header", _masthead(sight), tag("nav", *links, aria_label="Sections")),
            tag("main", *main),
            tag("script", Html(script)),
        ),
        lang="en",
    )
    return f"<!doctype html>\n{document}\n"


def _head(sight: Sight, style: str, script: str) -> Html:
    allowed = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    # An icon of no bytes, or a browser asks for one.
    return joined(
        (
            tag("meta", charset="utf-8"),
            tag("meta", http_equiv="Content-Security-Policy", content=allowed),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("meta", name="color-scheme", content="light dark"),
            tag("meta", http_equiv="refresh", content=str(sight.watched)) if sight.watched else "",
            tag("title", f"{sight.results.spec.study.name}: policysearch report"),
            tag("style", Html(style)),
        )
    )


def _masthead(sight: Sight) -> Html:
    results = sight.results
    spec, task = results.spec, results.spec.task
    count = len(results.trials) + len(results.failed)
    diverged = sum(trial.diverged for trial in results.trials)
    left = results.verdict.trials_left
    state = f"running: {left} of {spec.study.trials} trials left" if left else "finished"
    chips = [
        tag("li", state, cls="chip live" if left else "chip"),
        tag("li", f"{count} policies, {diverged} diverged, {len(results.failed)} failed"),
        tag("li", "losses are real trainings, emulated bit by bit"),
        tag("li", "speed and memory are modeled, not measured", cls="chip modeled"),
    ]
    return tag(
        "div",
        tag("p", "policysearch report", cls="kicker"),
        tag("h1", spec.study.name),
        tag(
            "p",
            f"Which parts of {task.model_name} can train in low precision on {task.data_name}, and "
            f"what that saves on {spec.cost.device}.",
            cls="lead",
        ),
        tag("ul", *chips, cls="chips"),
        cls="masthead",
    )


@cache
def _asset(name: str) -> str:
    return (files(PACKAGE) / name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    digest = hashlib.sha256(content.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def failed_page(where: str, reason: str) -> str:
    """Return a page that says only why there is none yet, for a study that is watched."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{text(where)}</title>'
        f'<meta http-equiv="refresh" content="2"></head><body><main><h1>{text(where)}</h1>'
        f"<p>{text(reason)}</p></main></body></html>\n"
    )
