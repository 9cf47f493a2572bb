"""The first page of each private method: the whole message on one screen, and nothing of it said twice."""

import csv
import json
import re

import numpy as np
import pytest

from fedcore.evaluation.report import markdown_report
from fedcore.evaluation.run_summary import result_of
from fedcore.methods.names import OWN
from fedcore.methods.registry import method_class
from fedcore.rounds.method import PrivateMethod
from fedcore.runs.store import Run
from tests.command import private_population, works
from tests.conftest import small_counts
from tests.evaluation.test_report import Page

MOST = 400  # words before the first folded part
PRIVATE = [name for name in OWN if issubclass(method_class(name), PrivateMethod) and not name.startswith("paper_")]
SETTINGS = {
    "histograms": ["rounds=2", "clusters=2"],
    "private_gmm": ["components=3"],
    "private_mixture": ["components=3"],
    "federated_em": ["algorithm=private", "components=3", "rounds=3"],
    "dictionaries": ["private=true", "global_atoms=4", "sparsity=2", "rounds=3"],
}
CENTRES = np.array([[40.0, 90.0, 2.0, 10.0], [60.0, 130.0, 5.0, 30.0], [80.0, 180.0, 9.0, 60.0]])
BOUNDS = "".join(f"[columns.{name}]\nunit = 'mg'\nbounds = [-1000, 1000]\n" for name in "abcd")


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """A folder with populations "rows" and "counts", and a run of private_mixture that others may start from."""
    folder = tmp_path_factory.mktemp("rows")
    draw = np.random.default_rng(0)
    values = CENTRES[draw.integers(0, 3, 4000)] + draw.normal(size=(4000, 4))
    lines = [f"P{number}," + ",".join(f"{x:.3f}" for x in row) for number, row in enumerate(values)]
    (folder / "people.csv").write_text("\n".join(["who,a,b,c,d", *lines]))
    (folder / "people.toml").write_text(f"[table]\nclient = 'who'\nnominal_clients = 4000\n{BOUNDS}")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("FEDCORE_LEDGER", f"sqlite:///{folder / 'ledger.sqlite'}")
        private_population(folder / "counts", small_counts(60), epsilon=60.0)
        works("population", "ingest", "people.csv", "rows", "--schema", "people.toml")
        why = "columns of the published form, bounds of its manual"
        works("budget", "set", "rows", "--epsilon", "60", "--delta", "1e-6", "--public-schema", why)
        train("private_mixture", "rows", "mixture")
    return folder


def train(method, population, run, *more):
    settings = [f"--set={one}" for one in [*SETTINGS.get(method, ()), "epsilon=8"]]
    works("train", method, population, "--local", "--anyway", "--run-id", run, *settings, *more)


@pytest.mark.slow
@pytest.mark.parametrize("method", PRIVATE)
def test_the_first_page_is_one_screen(rows, monkeypatch, method):
    monkeypatch.chdir(rows)
    monkeypatch.setenv("FEDCORE_LEDGER", f"sqlite:///{rows / 'ledger.sqlite'}")
    counts = "rows" not in method_class(method).kinds
    start = ["--start-from", "runs/mixture"] if method == "federated_em" else []
    run = "mixture" if method == "private_mixture" else method
    if run == method:
        train(method, "counts" if counts else "rows", run, *start)
    page = (rows / "runs" / run / "report.html").read_text()
    body = page[page.index("<body>") :]
    before = re.sub(r"<[^>]*>", " ", body[: body.index("<details>")])
    print(f"{method}: {len(before.split())} words before the first folded part")
    assert len(before.split()) <= MOST
    for part in (
        "Guarantee",
        "equally likely, guesses right at most",
        "All runs so far",
        "Assumptions",
        "Not protected",
        "Verify",
    ):
        assert before.count(part) == 1, part
    assert page.count("sensitivity (grid units)</th>") == 1 and page.count('<pre id="statement">') == 1
    assert works("verify-statement", f"runs/{run}/report.html").code == 0
    assert "Result" in Page(page).text
    if method in ("private_mixture", "private_gmm", "federated_em"):
        assert "<h1>3 segments</h1>" in page and re.search(r"Higher [abcd] \(", before)


@pytest.mark.slow
def test_segments_have_the_same_names_everywhere(rows, monkeypatch):
    """Report, JSON, command line, artifact, figure, export and per-client file; A is the largest."""
    monkeypatch.chdir(rows)
    monkeypatch.setenv("FEDCORE_LEDGER", f"sqlite:///{rows / 'ledger.sqlite'}")
    run = Run.open("runs/mixture")
    result = result_of(run)
    table = {column.name: column.values for column in result.tables[0].columns}
    numbers = dict(zip(table["segment"], table["component"], strict=True))
    assert list(numbers) == ["A", "B", "C"] and table["share"] == sorted(table["share"], reverse=True)
    assert result.figures[0].labels == ("A", "B", "C")
    kept = json.loads((rows / "runs/mixture/result.json").read_text())["tables"]
    shown = works("runs", "show", "runs/mixture", "--json").json["result"]
    assert kept[0] == shown[0] == json.loads(json.dumps(result.tables[0].to_json()))
    assert "**3 segments**" in markdown_report(run, {}) and "\n| A | " in markdown_report(run, {})
    works("export", "runs/mixture", "means.csv", "--table", "means", "--force")
    with open("means.csv", newline="") as file:
        means = {row["column"]: row for row in csv.DictReader(file)}
    state = run.read_state()
    works("predict", "runs/mixture", "rows", "people.of.csv")
    with open("people.of.csv", newline="") as file:
        people = list(csv.DictReader(file))
    assert len(people) == 4000 and all(int(one["component"]) == numbers[one["segment"]] for one in people)
    sizes = {name: sum(one["segment"] == name for one in people) for name in numbers}
    for name, share in zip(table["segment"], table["share"], strict=True):
        assert abs(sizes[name] / 4000 - share) < 0.02 and share == pytest.approx(state["weights"][numbers[name]])
    nearest = {name: min(CENTRES[:, 0], key=lambda a: abs(a - float(means["a"][name]))) for name in numbers}
    assert sorted(nearest.values()) == sorted(CENTRES[:, 0])
