"""The report: right content, nothing from elsewhere, nothing executed, and nothing raw in a private run."""

import base64
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pytest

from fedcore.errors import RunError
from fedcore.evaluation import report
from fedcore.evaluation.figures import seconds_figure
from fedcore.evaluation.privacy_page import paragraphs
from fedcore.evaluation.report import markdown_report, run_figures, show, show_bytes, write_report
from fedcore.evaluation.run_summary import run_summary
from fedcore.methods.histograms import Histograms, HistogramsState
from fedcore.methods.registry import make_method
from fedcore.privacy.gdp import mu_of
from fedcore.privacy.statement import NOT_COVERED, PrivacyStatement, no_privacy
from fedcore.privacy.statement_texts import CURRENT
from fedcore.rounds.choices import flat
from fedcore.rounds.method import PublicFacts
from fedcore.runs.store import Run
from fedcore.storage.files import write_json
from tests.digests.cases import CASES

EVIL = '<script>alert("x")</script><img src="http://evil.example/x.png">'
VOCABULARY = ["the", EVIL, "$x$", "| pipe", "中文", "z"]
RELEASE = {"shape": [2, 6], "sensitivity": 65536, "noise_multiplier": 2.5, "argument": "docs/privacy/histograms.md"}
RELEASE |= {"composition": "one cell per client"}
NOISE = {"noise": ["rounded gaussian 1"]}
RELEASES = tuple(
    {"name": f"clusters_{r:03d}", "round": r, **RELEASE, "attempts": r, "rho": 0.08 * r, **NOISE} for r in (1, 2, 3)
)
OF_DELTA = {"delta": 1e-9, "delta_conv": 1e-10, "delta_extra": 9e-10}
BUDGET = {"epsilon": 15.0, **OF_DELTA, "rho_max": 2.03, "rho_spent": 0.9, "epsilon_spent": 9.5}
PRICE = {"epsilon": 5.25, "delta": 1e-10, "rho": 0.48, "mu": mu_of(0.48)}
PROMISE = {"private": True, "unit": "client", "relation": "add_or_remove_one", **PRICE, "mechanism": "exact noise"}
STATEMENT = (
    PrivacyStatement.from_json({**PROMISE, "releases": RELEASES, "population": BUDGET}).in_version(CURRENT).to_json()
)


def state(round: int) -> HistogramsState:
    centres = np.array([[0.6, 0.2, 0.05, 0.05, 0.05, 0.05], [0.05, 0.05, 0.3, 0.2, 0.2, 0.2]])
    before = Histograms().init(PublicFacts("counts", 6, 4, 30, None, 1.0, 0))
    known = {"centres": centres, "mean": centres.mean(axis=0), "counts": np.array([30.0, -1.0])}
    return replace(before, **known, round=round)


def make(folder, *, private, rounds=3, statement=None, status="finished", **info) -> Run:
    """A run that committed `rounds` rounds; its metrics name an objective in any case."""
    plan = [{"name": f"clusters_{r:03d}", "round": r, **RELEASE, "delta": 0.0, "rho": 0.08} for r in range(1, 5)]
    config = {"epsilon": 5.0, "clip": 3.0, "mystery": "kept"}
    about = {"seed": 12345, "code_version": "0.1.0", "kernel": "k1", "features": 6, "nominal_clients": 1000, "rho": 0.3}
    population = {"path": "/secret/place", "name": "authors", "version": 2, "id": "p-77"}
    given = {"config": config, "population": population, **about, "test_noise": None, "started": "20260102-0304"}
    method, plan = ("histograms", plan) if private else ("paper_histograms", [])
    run = Run.create(folder, {"run_id": "run-1", "method": method, "private": private, "plan": plan, **given, **info})
    run.commit(0, state(0))
    for r in range(1, rounds + 1):
        if private:
            run.keep_release(f"clusters_{r:03d}", np.zeros(3, np.int64))
        seconds = {"seconds_clients": 1.5, "seconds_server": 0.25}
        row = {"round": r, "movement": 0.5**r, "objective": 777.125 + r, "log_likelihood": -888.25, **seconds}
        run.commit(r, state(r), [row])
    run.note(peak_memory_of_workers=[2**20, 3 * 2**20], peak_memory_of_flow=5 * 2**20)
    if statement is not None:
        write_json(run.path / "statement.json", statement)
    run.finish(status)
    return run


def evaluate(run: Run, **more) -> None:
    rows = [
        {"method": "Local", "kl": 5.5, "se": 0.1, "smoothing": 1e-10},
        {"method": "FedAvg", "kl": 1.0625, "se": 0.01, "smoothing": 1e-10},
    ]
    table = {"title": "Mean KL", "public": "its authors published it", "rows": rows}
    write_json(run.path / "evaluation.json", table | more)


class Page(HTMLParser):
    """Tags, attributes and text; fails on a tag that is closed in the wrong place."""

    VOID = {"meta", "img", "br", "link", "input", "hr"}

    def __init__(self, html: str):
        super().__init__()
        self.open, self.tags, self.text = [], [], ""
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] != "style":
            self.text += " " + " ".join(data.split())


def page(run: Run, vocabulary=VOCABULARY) -> Page:
    path = write_report(run, vocabulary)
    assert path == run.path / "report.html"
    return Page(path.read_text())


@pytest.fixture
def drawn():
    """Asked for by tests that need real figures."""


@pytest.fixture(scope="module")
def png():
    return seconds_figure([])


@pytest.fixture(autouse=True)
def quick(request, monkeypatch, png):
    """The other tests get one picture for all figures."""
    if "drawn" not in request.fixturenames:
        for name in ("budget", "evaluation", "profiles", "rounds", "seconds"):
            monkeypatch.setattr(report, f"{name}_figure", lambda *_: png)


@pytest.fixture
def private(tmp_path):
    return make(tmp_path, private=True, statement=STATEMENT)


@pytest.fixture
def open_run(tmp_path):
    return make(tmp_path, private=False, statement=no_privacy("it adds no noise").to_json())


# --- figures --------------------------------------------------------------------------------------------------------


def test_figures_of_a_private_run(private, drawn):
    figures = run_figures(private, VOCABULARY)
    assert set(figures) == {"profiles", "movement", "budget", "seconds"}
    assert all(png.startswith(b"\x89PNG") for png in figures.values())


def test_figures_of_a_run_that_is_not_private(open_run, drawn):
    evaluate(open_run)
    assert set(run_figures(open_run, None)) == {"evaluation", "profiles", "objective", "movement", "seconds"}


def test_a_run_before_its_first_round_has_a_report(tmp_path):
    run = make(tmp_path, private=False, rounds=0, status="running")
    assert run_figures(run, None) == {}
    assert "No round is committed yet" in page(run).text


def test_a_run_without_any_commit_has_a_report(tmp_path):
    run = Run.create(tmp_path, {"run_id": "bare", "method": "unheard-of", "private": False})
    assert run_figures(run, None) == {}
    assert "unheard-of" in page(run).text
    assert run_summary(run)["rounds"] == 0


def test_centres_that_are_no_histograms_have_no_profiles(tmp_path):
    run = Run.create(tmp_path, {"run_id": "r", "method": "m", "private": False})
    run.commit(1, replace(state(1), centres=np.array([[-1.0, 2.0]])))
    assert "profiles" not in run_figures(run, None)


# --- what must never be shown ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("said", [True, None])
def test_no_objective_is_shown_of_a_private_run_or_one_that_does_not_say(tmp_path, said):
    run = make(tmp_path, private=True, statement=STATEMENT)
    run.info["private"] = said
    shown = page(run).text + json.dumps(run_summary(run)) + markdown_report(run, {})
    assert "777.1" not in shown and "780.1" not in shown and "888.2" not in shown
    assert "log likelihood" not in shown and "log_likelihood" not in shown
    assert "objective" not in run_summary(run)["metrics"]
    assert "movement" in shown and "objective" not in run_figures(run, None)


def test_the_objective_is_shown_of_a_run_that_is_not_private(open_run):
    assert "780.12" in page(open_run).text and run_summary(open_run)["metrics"]["objective"] == 780.125


@pytest.mark.parametrize("mark", [{"public": None}, {"public": ""}, {"privacy": "none", "warning": "NOT PRIVATE"}])
def test_scores_of_data_that_are_not_public_are_not_shown(private, mark):
    evaluate(private, **mark)
    assert "1.0625" not in page(private).text + json.dumps(run_summary(private))
    assert "evaluation" not in run_figures(private, None)


def test_scores_of_public_data_are_shown_with_the_reason(private):
    evaluate(private)
    text = page(private).text
    assert "1.0625" in text and "its authors published it" in text
    assert run_summary(private)["evaluation"]["rows"][0]["method"] == "Local"


def test_the_report_does_not_tell_where_the_data_are(private):
    assert "/secret/place" not in page(private).text + json.dumps(run_summary(private))


# --- privacy --------------------------------------------------------------------------------------------------------


def test_a_private_run_states_its_privacy(private):
    found = page(private)
    assert "privacy: none" not in found.text
    for part in (
        *("(5.25, 1e-10)-differential privacy per client", "the presence or absence of one client"),
        *("add_or_remove_one", "this run 5.25", "rho = mu^2 / 2 = 0.48", "at most: the budget 15"),
        *("exact noise", "Planned and not made: clusters_004.", "One cell per client"),
        *("docs/privacy/histograms.md", "Not covered"),
        *NOT_COVERED,
    ):
        assert part in found.text, part
    assert found.text.count("One cell per client") == 1  # releases stand in one place
    assert "Drawn more than once: clusters_002 (2 times), clusters_003 (3 times)." in found.text
    assert run_summary(private)["privacy"]["private"] is True and run_summary(private)["private"] is True


def test_paragraphs_of_a_statement_are_those_without_a_list():
    text = "Private.\n\nReleases:\n  - one\n  - two\nUnit: client.\nNot covered:\n  - counts\n"
    assert paragraphs({"text": text}) == ["Private.", "Unit: client."]


def test_what_was_charged_and_lost_counts_as_spent(tmp_path, monkeypatch):
    run = make(tmp_path, private=True, rounds=2, statement=STATEMENT, status="budget exhausted")
    asked = []
    monkeypatch.setattr(report, "budget_figure", lambda *arguments: asked.append(arguments) or b"")
    run_figures(run)
    ((releases, paid, rho_max, others),) = asked
    assert paid == {"clusters_001", "clusters_002", "clusters_003"} and rho_max == 2.03
    assert [release["rho"] for release in releases] == [0.08, 0.16, 0.24, 0.08]
    assert others == pytest.approx(0.9 - 0.48)
    assert [release["state"] for release in releases] == [
        "published",
        "published; drawn 2 times",
        "charged and lost; drawn 3 times",
        "not made",
    ]
    shown = " ".join(page(run).text.split())
    assert "Charged and lost: clusters_003. Drawn more than once: clusters_002 (2 times)" in shown


def test_a_run_that_claims_nothing_shows_no_budget(tmp_path):
    run = make(tmp_path, private=True, test_noise="key", statement=STATEMENT)
    assert "budget" not in run_figures(run) and "sensitivity (grid units)" not in page(run).text


@pytest.mark.parametrize(
    ("info", "statement", "reason"),
    [
        ({"private": False}, no_privacy("it adds no noise").to_json(), "it adds no noise"),
        ({"private": False}, None, "adds no noise that protects people"),
        ({"private": True, "test_noise": "key"}, None, "pseudo-random test noise"),
        ({"private": True, "test_noise": "key"}, STATEMENT, "pseudo-random test noise"),  # whatever a statement claims
        ({"private": False}, STATEMENT, "adds no noise that protects people"),
        ({"private": True}, no_privacy("somebody revoked it").to_json(), "somebody revoked it"),
    ],
)
def test_no_privacy_is_said_first_and_with_the_reason(tmp_path, info, statement, reason):
    run = make(tmp_path, statement=statement, **info)
    html = write_report(run, None).read_text()
    body = html[html.index("<body>") :]
    assert body.index("privacy: none") < body.index("<h1>") and reason in body[: body.index("<h1>")]
    text = markdown_report(run, {})
    assert text.index("privacy: none") < text.index("| status")
    summary = run_summary(run)
    assert summary["private"] is False and summary["privacy"]["private"] is False
    assert "privacy: none" in summary["privacy"]["text"] and "epsilon" not in summary["privacy"]


def test_a_private_run_without_a_statement_claims_nothing(tmp_path):
    run = make(tmp_path, private=True, status="running")
    text = page(run).text
    assert "Planned and not made: clusters_004." in text  # what copies say without a ledger
    assert "not stated yet" in text and "privacy: none" not in text
    assert run_summary(run)["private"] is False and "not stated yet" in markdown_report(run, {})


# --- content --------------------------------------------------------------------------------------------------------


def test_the_summary_is_json_and_complete(private):
    summary = json.loads(json.dumps(run_summary(private)))
    assert summary["run_id"] == "run-1" and summary["status"] == "finished" and summary["rounds"] == 3
    assert summary["method"] == "histograms" and summary["started"] == "20260102-0304"
    assert summary["population"] == {"name": "authors", "version": 2, "id": "p-77"}
    assert summary["seconds"] == 3 * 1.75
    assert summary["metrics"] == {"round": 3, "movement": 0.125, "seconds_clients": 1.5, "seconds_server": 0.25}
    assert summary["peak_memory_bytes"] == {"flow": 5 * 2**20, "workers": [2**20, 3 * 2**20]}
    assert "evaluation" not in summary


def test_whole_rounds_count_where_they_were_timed(tmp_path):
    run = Run.create(tmp_path, {"run_id": "r", "method": "m", "private": False})
    run.commit(1, state(1), [{"round": 1, "seconds_clients": 1.0, "seconds_server": 0.5}])
    run.commit(2, state(2), [{"round": 2, "seconds_clients": 1.0, "seconds_server": 0.5, "seconds_round": 2.25}])
    assert run_summary(run)["seconds"] == 3.75


def test_the_page_tells_what_was_run_and_what_it_used(private):
    found = page(private)
    for part in (
        *("Run run-1", "authors", "version 2", "finished after 3 rounds", "epsilon", "mystery", "kept", "12345"),
        *("3 MiB", "5 MiB", "5.25 s", "load_run", "metrics.jsonl", "the"),
    ):
        assert part in found.text, part
    given = [attributes for tag, attributes in found.tags if tag == "tr" and attributes.get("class") == "given"]
    assert len(given) == 1  # epsilon has no default value; clip is given as its default


def test_a_missing_vocabulary_leaves_indices(private):
    assert "token 0" in page(private, None).text


def test_settings_that_are_not_the_defaults_are_marked():
    """Of every algorithm and model, also where one has a setting that must be given."""
    for name, case in CASES.items():
        config = make_method(case.method, dict(case.settings)).config.model_dump(mode="json")
        rows = report._settings(SimpleNamespace(info={"method": case.method, "config": config}))
        asked = flat(case.settings)
        for row in rows:
            assert row["meaning"] and row["given"] == (row["value"] != row["default"]), (name, row)
            own = row["name"] in asked or case.method == "perma"  # a profile of perma gives others
            assert row["given"] <= own, (name, row)
        assert not {row["name"] for row in rows if not row["given"]} & {"table_rows"}, name


def test_the_markdown_holds_the_figures(private, drawn):
    figures = run_figures(private, VOCABULARY)
    text = markdown_report(private, figures)
    embedded = dict(re.findall(r"!\[(\w+)\]\(data:image/png;base64,([A-Za-z0-9+/=]+)\)", text))
    assert {name: base64.b64decode(body) for name, body in embedded.items()} == figures
    privacy = text[text.index("## Privacy") : text.index("![")]
    assert len([line for line in privacy.splitlines() if line.startswith("- ")]) == 3
    assert (
        "differential privacy per client" in privacy and "rho = mu^2 / 2 = 0.48" in privacy and "Not covered" in privacy
    )


# --- safety ---------------------------------------------------------------------------------------------------------


def test_long_words_do_not_widen_the_page(private):
    styles = write_report(private, VOCABULARY).read_text().partition("</style>")[0]
    assert re.search(r"^body {[^}]*overflow-wrap: break-word;", styles, re.MULTILINE)


def test_the_page_needs_nothing_from_elsewhere(private, drawn):
    evaluate(private)
    found = page(private)
    links = [value for _, attributes in found.tags for name, value in attributes.items() if name in ("src", "href")]
    assert len(links) == 5 and all(link.startswith("data:image/png;base64,") for link in links)
    for link in links:
        assert base64.b64decode(link.split(",")[1]).startswith(b"\x89PNG")
    assert not {"script", "link", "iframe", "object"} & {tag for tag, _ in found.tags}
    html = (private.path / "report.html").read_text()
    assert "@import" not in html and "url(" not in html and "default-src 'none'" in html


def test_markup_in_any_text_is_shown_as_text(tmp_path, drawn):
    statement = {
        "private": True,
        "privacy": EVIL,
        "text": EVIL,
        "unit": EVIL,
        "relation": EVIL,
        "not_covered": [EVIL],
        "population": {"epsilon": EVIL},
        "releases": [{**RELEASES[0], "attempts": EVIL}],
    }
    run = make(
        tmp_path,
        private=True,
        statement=statement,
        config={EVIL: EVIL, "epsilon": EVIL},
        population={"name": EVIL, "version": EVIL, "id": EVIL},
        **dict.fromkeys(("started", "code_version", "seed", "kernel", "features", "nominal_clients", "method"), EVIL),
    )
    run.info["run_id"] = EVIL
    for item in run.info["plan"]:
        item |= {"composition": EVIL, "argument": EVIL, "shape": [EVIL]}
    evaluate(run, title=EVIL, public=EVIL, rows=[{"method": EVIL, "kl": 1.0, "se": 0.1, EVIL: EVIL}])
    found = page(run)
    assert "script" not in {tag for tag, _ in found.tags}
    assert all(attributes["src"].startswith("data:") for tag, attributes in found.tags if tag == "img")
    assert found.text.count('<script>alert("x")</script>') > 20
    markdown = re.sub(r"!\[\w+\]\(data:[^)]*\)", "", markdown_report(run, run_figures(run, VOCABULARY)))
    assert "<script" not in markdown and "<img" not in markdown


def test_markup_in_the_reason_of_the_banner(tmp_path):
    run = make(tmp_path, private=False, statement={"private": False, "reason": EVIL})
    assert "script" not in {tag for tag, _ in page(run).tags}
    assert "<script" not in markdown_report(run, {})


def test_text_that_is_no_unicode_does_not_stop_the_report(private):
    assert "\\udc80" in page(private, ["\udc80"] * 6).text


def test_a_pipe_does_not_break_the_markdown_table(tmp_path):
    run = make(tmp_path, private=False, population={"name": "a|b\nc", "version": 1, "id": "p"})
    assert "| population | a\\|b c, version 1 |" in markdown_report(run, {})


@pytest.mark.parametrize("content", ["{", "[1]", '{"public": "yes", "rows": 3}', '{"public": "yes", "rows": [3]}'])
def test_a_damaged_evaluation_is_a_named_error(private, content):
    (private.path / "evaluation.json").write_text(content)
    with pytest.raises(RunError, match="evaluation.json"):
        write_report(private, None)


def test_a_report_that_fails_leaves_the_old_one(private, monkeypatch):
    before = write_report(private, None).read_bytes()
    monkeypatch.setattr(report, "run_figures", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_report(private, None)
    assert (private.path / "report.html").read_bytes() == before


# --- numbers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        ("", "–"),
        (True, "yes"),
        (0.123456789, "0.12346"),
        (1e-10, "1e-10"),
        (3.0, "3"),
        (1234567, "1\u202f234\u202f567"),
        (float("inf"), "inf"),
        ([1, "a"], '[1, "a"]'),
        ("word", "word"),
    ],
)
def test_numbers_for_people(value, text):
    assert show(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**30, "1 GiB"), (3 * 2**40, "3 TiB")],
)
def test_bytes_for_people(value, text):
    assert show_bytes(value) == text


def test_an_outcome_that_is_a_sentence_ends_once(tmp_path):
    run = make(tmp_path, private=False)
    run.note(outcome="converged: it moves no more.")
    page = Page(write_report(run).read_text()).text
    assert "converged: it moves no more." in page and "more.." not in page
