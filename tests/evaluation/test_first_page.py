"""The first page of each private method: the whole message on one screen, and nothing of it said twice."""

import re

import numpy as np
import pytest

from fedcore.methods.registry import OWN, method_class
from fedcore.rounds.method import PrivateMethod
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
    train(method, "counts" if counts else "rows", method, *start)
    page = (rows / "runs" / method / "report.html").read_text()
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
    assert works("verify-statement", f"runs/{method}/report.html").code == 0
    assert "Result" in Page(page).text
    if method in ("private_mixture", "private_gmm", "federated_em"):
        assert "<h1>3 segments</h1>" in page and re.search(r"Higher [abcd] \(", before)
