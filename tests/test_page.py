"""The page of a study: one file, whole without scripts, strict, and true to its results."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policysearch.policy.parallel import Parallel
from policysearch.policy.policy import Phase, Policy, from_json, uniform_layer
from policysearch.policy.presets import preset
from policysearch.policy.products import Operand, Product, Products
from policysearch.policy.scaling import Scaling
from policysearch.report.lost import layer_lines
from policysearch.report.page.data import page_data
from policysearch.report.page.element import VOID, tag
from policysearch.report.page.frame import page
from policysearch.report.page.front import KINDS, picture
from policysearch.report.page.sight import MOST_DETAILED, Sight
from policysearch.report.page.svg import shortened
from policysearch.report.page.words import power, short, typeset
from policysearch.study.journal import trials
from policysearch.study.journal.records import compact
from policysearch.study.journal.trials import FailedTrial
from policysearch.study.results.results import Results
from policysearch.values import printable
from tests.made_up import diverged, many, results_of, trial_of


@dataclass
class Tree(HTMLParser):
    """The elements of a page: every tag with the names of its attributes, in order."""

    shape: list[tuple[str, ...]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    assets: dict[str, str] = field(default_factory=dict)
    policy: str = ""
    stack: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        assert len(known) == len(attrs), (tag, attrs)
        assert not any(name == "style" or name.startswith("on") for name in known), attrs
        self.shape.append((tag, *(name for name, _ in attrs)))
        self.ids += [known["id"] or ""] if "id" in known else []
        self.links += [known["href"] or ""] if "href" in known else []
        if known.get("http-equiv") == "Content-Security-Policy":
            self.policy = known["content"] or ""
        if tag == "script":
            tag = "data" if "type" in known else "script"
        if tag not in VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        self.shape.append((f"/{tag}",))
        opened = self.stack.pop()
        assert opened == tag or (opened, tag) == ("data", "script"), (opened, tag)

    def handle_data(self, data: str) -> None:
        if self.stack and self.stack[-1] in ("script", "style", "data"):
            self.assets[self.stack[-1]] = data
        else:
            self.texts.append(data)


def tree_of(html: str) -> Tree:
    """Return the tree, checked: closed, strict, every link leads somewhere in the file."""
    tree = Tree()
    tree.feed(html)
    tree.close()
    assert not tree.stack
    assert len(set(tree.ids)) == len(tree.ids)
    for link in tree.links:
        assert link.startswith("data:application/json,") or link[1:] in tree.ids, link
    for name, asset in (("style", "style-src"), ("script", "script-src")):
        digest = hashlib.sha256(tree.assets[name].encode()).digest()
        assert f"{asset} 'sha256-{base64.b64encode(digest).decode()}'" in tree.policy
    assert tree.policy.startswith("default-src 'none'")
    assert not re.search(r"https?://", html)
    return tree


@pytest.fixture(scope="module")
def results() -> Results:
    return results_of()


@pytest.fixture(scope="module")
def html(results: Results) -> str:
    return page(results, "studies/tiny.toml")


def test_a_page_is_strict_and_every_section_is_there(html: str) -> None:
    tree = tree_of(html)
    wanted = ("answer", "front", "layers", "policy", "sure", "search", "failed", "every", "made")
    assert [name for name in tree.ids if name in wanted] == list(wanted)


def test_equal_results_give_equal_bytes(html: str) -> None:
    assert page(results_of(), "studies/tiny.toml") == html


def test_without_scripts_verdict_front_and_every_detailed_policy_are_there(
    html: str, results: Results
) -> None:
    tree = tree_of(html)
    said = " ".join(tree.texts)
    assert typeset(str(results.verdict))[1:] in said
    assert len(results.front) > 1
    for trial in results.trials:
        assert f"t{trial.number}" in tree.ids
        assert f"#t{trial.number}" in tree.links


def test_figures_are_those_of_the_results(html: str, results: Results) -> None:
    data = json.loads(tree_of(html).assets["data"])
    by_number = {row[0]: row for row in data["rows"]}
    for row in results.rows():
        shown = by_number[row.trial]
        assert shown[1] == row.label
        assert shown[2] == pytest.approx(row.loss_gap, rel=1e-5)
        assert shown[3] == pytest.approx(row.modeled_speedup, rel=1e-5)
        assert shown[4] == pytest.approx(row.modeled_memory_ratio, rel=1e-5)
    pick = results.trial(results.verdict.trial or 0)
    assert f">{pick.cost.speedup:.2f}×<" in html
    assert any(row.fault for row in results.rows())
    assert "fails later: " in html


def test_data_have_no_not_a_number(results: Results) -> None:
    lost = replace(results, trials=(*results.trials[:3], diverged(results.trials[3])))
    plain = json.loads(json.dumps(page_data(lost), allow_nan=False))
    assert [row["trial"] for row in plain["policies"]] == [row.trial for row in lost.rows()]
    assert plain["verdict"]["text"] == str(lost.verdict)


def _empty() -> Results:
    return replace(results_of(2), trials=(), references=(), stopped="", confirmed=())


def _running() -> Results:
    found = results_of(4)
    assert replace(found, stopped="").verdict.trials_left > 0
    return replace(found, stopped="")


def _spread() -> Results:
    found = results_of()
    policy = replace(found.trials[4].policy, parallel=Parallel(2), all_reduce="bfloat16")
    trial = trial_of(4, policy)
    return replace(found, trials=(*found.trials[:4], trial, *found.trials[5:]))


def _phases() -> Results:
    found = results_of()
    phase = Phase(3, (("fc1", uniform_layer("float32")),))
    trial = trial_of(4, replace(found.trials[4].policy, phases=(phase,)))
    assert compact(trial.policy) != compact(found.trials[4].policy)
    return replace(found, trials=(*found.trials[:4], trial, *found.trials[5:]))


def _all_diverged() -> Results:
    found = results_of()
    return replace(found, trials=tuple(map(diverged, found.trials)), confirmed=())


FAULT = "float32 has not learned here: its own training loss does not fall"
STATES: dict[str, tuple[Callable[[], Results], str]] = {
    "empty": (
        lambda: replace(results_of(2), trials=(), references=(), stopped=""),
        "No policy has",
    ),
    "running": (_running, "trials left"),
    "all diverged": (_all_diverged, "diverged in step 3"),
    "cannot rank": (lambda: replace(results_of(), float32_fault=FAULT), "has not learned"),
    "one seed": (lambda: results_of(seeds=1), "with one seed"),
    "parallel": (_spread, "gradients reduced in bfloat16"),
    "phases": (_phases, "from step 3 other formats"),
    "300 layers": (lambda: results_of(6, [f"layer{i}" for i in range(300)]), "others"),
    "failed": (
        lambda: replace(
            results_of(),
            failed=(FailedTrial(9, results_of().trials[2].text, (), "out of memory"),),
        ),
        "out of memory",
    ),
}


@pytest.mark.parametrize("state", STATES)
def test_a_study_in_any_state_has_a_page(state: str) -> None:
    make, words = STATES[state]
    tree = tree_of(page(make()))
    assert words in " ".join(tree.texts)


def test_gaps_are_counted_in_the_unit_of_the_loss() -> None:
    """Of a loss that is no likelihood nothing is said in nats, in any state."""
    for make, _ in STATES.values():
        found = make()
        scores = ([replace(s, loss_unit="MSE") for s in t.scores] for t in found.trials)
        trials = [replace(t, scores=(*s,)) for t, s in zip(found.trials, scores, strict=True)]
        html = page(replace(found, trials=tuple(trials)))
        assert not trials or ("MSE" in html and not re.search(r"\bnats\b", html))


def test_layers_say_how_tensors_are_scaled_and_what_single_products_read() -> None:
    found = results_of(layers=("fc1", "fc2"))
    base = found.trials[4].policy
    wide = Product(Operand("bfloat16"), Operand("bfloat16"))
    rows = {
        "fc1": replace(base.layer("fc1"), compute="float8_e4m3fn", products=Products(wgrad=wide)),
        "fc2": uniform_layer("bfloat16"),
    }
    policy = replace(base.with_layers(rows), scaling=Scaling("mx_rceil"))
    trials = (*found.trials[:4], trial_of(4, policy), *found.trials[5:])
    assert "mx_rceil, wgrad bf16" not in page(found)
    html = page(replace(found, trials=trials))
    assert html.count('<span class="sub">mx_rceil, wgrad bf16</span>') == 1
    assert html.count('<span class="sub">') > 1, "others are scaled too"


def test_a_failing_member_of_the_front_is_crossed_out(results: Results) -> None:
    failing = [row for row in results.rows() if row.fault and row.on_front]
    mark = rf'<a href="#t{failing[0].trial}" data-t="\d+" aria-label[^>]*>.*?</a>'
    links = re.findall(mark, page(results), re.S)
    assert links
    for link in links:
        assert link.index("dot-front") < link.index("dot-fail")


def test_what_was_expected_of_a_gap_stands_beside_what_was_measured(results: Results) -> None:
    assert "as the search expected" not in page(results)
    told = {2: (2e-5, 1e-5, 4e-5), 4: (1e-3, 5e-4, 2e-3)}  # measured: 2.1e-5 and 4.2e-5
    told[0] = (1e-12, 1e-13, 1e-11)  # float32's own: whatever is below the noise is equal
    trials = tuple(replace(t, expected=told.get(t.number)) for t in results.trials)
    tree = tree_of(page(replace(results, trials=trials)))
    said = " ".join(tree.texts)
    assert "Did it come out as the search expected?" in said
    assert "2 of 3 lie within" in said


@pytest.mark.parametrize("state", STATES)
def test_a_page_says_nothing_of_what_is_not_there(state: str) -> None:
    """Of no training no success is told, and where there is no front nothing is said of one."""
    shown = STATES[state][0]()
    said = " ".join(tree_of(page(shown)).texts)
    assert ("Everything trained to its end" in said) <= bool(shown.trials)
    assert ("Blue marks are the front" in said) == bool(shown.front and not shown.cannot_rank)
    assert ("There is no front: no mark" in said) == (state == "cannot rank")


def test_only_a_watched_page_reads_itself_again(html: str, results: Results) -> None:
    assert "refresh" not in html
    assert '<meta http-equiv="refresh" content="5">' in page(results, "x.toml", 5)


ATTACKS = (
    "</script><script>alert(1)</script>",
    '" onload="x',
    "<!--",
    "]]>",
    "<img src=x>",
    "&lt;",
)
NAMES = st.one_of(
    st.sampled_from(ATTACKS),
    st.text(min_size=1, max_size=12),
    st.text("<>\"'&/=-!\0\n\r \u2028\u202e", min_size=1, max_size=12),
)


OF_POLICIES = NAMES.filter(lambda text: printable(text) == text)
"""A stored policy with other names is refused when it is read."""


def _named(layers: Sequence[str], names: Sequence[str], other: str) -> Results:
    found = results_of(5, layers, names=names)
    spec = replace(found.spec, cost=replace(found.spec.cost, stack=found.spec.cost.stack))
    object.__setattr__(spec.cost, "device", other)
    lost = diverged(trial_of(7, found.trials[2].policy))
    lost = replace(lost, divergence=other)
    failed = (FailedTrial(8, found.trials[3].text, (), other),)
    return replace(found, spec=spec, trials=(*found.trials, lost), failed=failed, stopped=other)


PLAIN = tree_of(page(_named(("a", "b", "c"), ("d", "e"), "f"), "g.toml")).shape


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    layers=st.lists(OF_POLICIES, min_size=3, max_size=3, unique=True),
    names=st.lists(OF_POLICIES, min_size=2, max_size=2),
    other=NAMES,
    study=NAMES,
)
def test_names_that_attack_never_change_the_tree(
    layers: list[str], names: list[str], other: str, study: str
) -> None:
    tree = tree_of(page(_named(layers, names, other), study))
    assert tree.shape == PLAIN


@pytest.mark.slow
@settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    layers=st.lists(OF_POLICIES, min_size=3, max_size=3, unique=True),
    name=OF_POLICIES,
    other=NAMES,
    study=NAMES,
)
def test_a_thousand_names_that_attack(layers: list[str], name: str, other: str, study: str) -> None:
    assert tree_of(page(_named(layers, (name, "x"), other), study)).shape == PLAIN


def test_of_many_policies_only_those_up_close_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def counted(text: str, where: str) -> Policy:
        read.append(text)
        return from_json(text, where)

    monkeypatch.setattr(trials, "from_json", counted)
    found = many(400, 12)
    html = page(found)
    assert 0 < len(read) <= MOST_DETAILED
    assert "in no policy that was trained: float16" not in html


@pytest.mark.parametrize("said", ["plain", '"}, {"name": "x', "back\\slash", "ä {"])
def test_a_policy_is_named_without_reading_all_of_it(said: str) -> None:
    policy = replace(preset("bfloat16", ("fc1",)), name=said)
    moved = json.dumps(dict(reversed(json.loads(policy.to_json()).items())))
    for text in (policy.to_json(), compact(policy), moved):
        assert trials.policy_name(text) == said


def test_formats_that_no_policy_had_are_named(results: Results) -> None:
    space = replace(results.spec.space, formats=("float16", "float6_e3m2fn", "float32"))
    offered = replace(results, spec=replace(results.spec, space=space))
    said = " ".join(tree_of(page(offered)).texts)
    assert "in no policy that was trained: float6_e3m2fn." in said
    indented = [replace(t, text=t.policy.to_json()) for t in offered.trials]
    assert "trained: float6_e3m2fn." in page(replace(offered, trials=tuple(indented)))


def plain_of(html: str, anchor: str) -> str:
    """Return the text of a section."""
    inside = html.split(f'<section id="{anchor}"')[1].split("</section>")[0]
    return " ".join(re.sub("<[^>]*>", " ", inside.replace("<wbr>", "")).split())


LAYERS = ("flatten", "fc1", "tanh1", "fc2")
"""Those of the net that made-up results are of."""

WORDS = st.lists(
    st.sampled_from(("torch", "autocast", "bfloat16", "float8_e4m3fn", "bf16", "te", "fp32", "x")),
    min_size=2,
    max_size=9,
)


@given(words=WORDS, between=st.sampled_from("./ ·,"), letters=st.integers(14, 60))
def test_no_format_is_cut_so_that_it_reads_as_another(
    words: list[str], between: str, letters: int
) -> None:
    said = shortened(between.join(words), letters)
    assert len(said) <= letters or said == between.join(words)
    assert all(word in words for word in re.findall(r"\w*\d\w*", said))


def by_hand(found: Results) -> Results:
    """Return the results with a preset of FP8 that a user tried, as the last policy."""
    tried = preset("te.current", tuple(name for name, _ in found.trials[0].policy.layers))
    return replace(found, trials=(*found.trials, replace(trial_of(20, tried), by_hand=True)))


def test_every_column_of_formats_has_a_name(results: Results) -> None:
    found = by_hand(results)
    spec = replace(found.spec, study=replace(found.spec.study, baseline="torch.autocast.bfloat16"))
    trials = [replace(found.trials[1], presets=("torch.autocast.bfloat16",)), *found.trials[2:]]
    html = page(replace(found, spec=spec, trials=(found.trials[0], *trials)))
    heads = re.findall(r'<th scope="col"[^>]*data-t="(\d+)"[^>]*>(.*?)</th>', html)
    names = {int(n): re.sub("<[^>]*>", "", head.split("<br>")[1]) for n, head in heads}
    assert names.pop(1) == "torch.autocast.bfloat16"
    assert names.pop(20) == "te.current"
    assert names.pop(0) == "float32"
    assert names == {n: found.trial(n).name for n in names}


def test_formats_of_a_page_are_those_of_the_step_as_show_has_them() -> None:
    found = by_hand(results_of(layers=LAYERS))
    assert "The net was not kept" not in page(found)
    (lines,) = (layer_lines(found.spec, t) for t in found.trials if t.number == 20)
    runs = {line.split()[0]: line.split()[1:3] for line in lines[2:]}
    assert runs["fc1"] == ["float8_e4m3fn", "float8_e5m2"]
    assert runs["tanh1"] == ["bfloat16", "bfloat16"], "no product, so nothing of 8 bits"
    only = replace(found, trials=(found.trials[-1],), confirmed=())
    cells = re.findall(r'<th scope="row" title="(\w+)">.*?</th><td[^>]*>(.*?)(?:<|$)', page(only))
    shown = {name: cell.split(" · ") for name, cell in cells}
    assert shown == {
        name: [short(form) for form in dict.fromkeys(forms) if form != "-"]
        for name, forms in runs.items()
        if name != "loss"
    }


def test_of_a_gap_that_cannot_be_told_the_most_is_said(results: Results) -> None:
    coarse = replace(results, noise_gap=1e-3, confirmed=())
    assert "≤ 0.01" in plain_of(page(coarse), "layers")
    fine = plain_of(page(results), "layers")
    assert "≤" not in fine.replace(f"≤ {power(results.resolution_gap)}", "")


def places(html: str) -> list[float]:
    """Return where the marks of the first picture stand across, 46 to 950."""
    return [float(x) for x in re.findall(r'<circle cx="([\d.]+)" cy="[\d.]+" r="11"', html)]


@pytest.mark.parametrize("fault", ["", FAULT])
def test_where_no_gap_can_be_told_the_measured_ones_fill_the_plot(fault: str) -> None:
    found = replace(results_of(), noise_gap=1e-3, confirmed=(), float32_fault=fault)
    scores = [
        replace(s, loss_gap=s.loss_gap * (-1) ** t.number) for t in found.trials for s in t.scores
    ]
    pairs = zip(scores[::2], scores[1::2], strict=True)
    trials = [replace(t, scores=pair) for t, pair in zip(found.trials, pairs, strict=True)]
    shown = replace(found, trials=tuple(trials))
    wide = places(picture(Sight(shown, ""), list(shown.rows()), KINDS[0], 960.0, 380.0))
    assert len(set(wide)) == len(shown.trials)
    assert max(wide) - min(wide) > 0.5 * 904.0
    front = plain_of(page(shown), "front")
    assert "Left: its training loss" not in front
    assert ("interval:" in front) != bool(fault), "explained only where one is drawn"
    assert "early sign" not in front
    assert "fails when trained longer" not in front


def test_where_gaps_can_be_told_left_is_closer(results: Results) -> None:
    front = plain_of(page(results), "front")
    assert "Left: its training loss" in front
    assert "fails when trained longer" in front


def test_sentences_do_not_contradict_one_another(results: Results) -> None:
    short_runs = replace(results, confirmed=())
    said = " ".join(tree_of(page(short_runs)).texts)
    assert "Nothing was trained longer yet" in said
    assert "failing later" not in said
    assert "that holds" not in said
    assert "is not known: nothing was trained longer" in said
    held = replace(results, confirmed=results.confirmed[:1])
    assert "Best speed that holds" in page(held)
    unranked = replace(short_runs, float32_fault=FAULT)
    said = " ".join(tree_of(page(unranked)).texts)
    assert "best speed" not in said
    assert "policysearch confirm trains" not in said


def test_an_element_refuses_what_a_strict_policy_forbids() -> None:
    for name in ("style", "onclick", "a b"):
        with pytest.raises(ValueError, match="strict policy"):
            tag("p", **{name: "x"})
    assert tag("p", "<b>", title='"') == '<p title="&quot;">&lt;b&gt;</p>'


@pytest.mark.parametrize(
    ("value", "said"),
    [(0.0, "0"), (2.94e-7, "2.9×10⁻⁷"), (-1e-5, "−1.0×10⁻⁵"), (0.0123, "0.012")],
)
def test_small_numbers_are_written_as_people_do(value: float, said: str) -> None:
    assert power(value) == said


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ("1.15x your baseline, at 10x the steps", "1.15× your baseline, at 10× the steps"),
        ("95 % swamped at step 140", "95% swamped at step 140"),
        ("gap +6.20e-05 nats, -1.0e-5.", "gap +6.2×10⁻⁵ nats, −1.0×10⁻⁵."),
        ("-0.001 +- 0.019 (-2 %)", "−0.001 ± 0.019 (−2%)"),
        ("0.5e-2 of 3e-03", "0.0050 of 0.0030"),
        *((same, same) for same in ("16x16", "conv2x", "net-1e-5.toml", "2026-11-28", "a.2x b-3")),
    ],
)
def test_sentences_have_the_numbers_of_the_page(told: str, said: str) -> None:
    assert typeset(told) == said
