"""`import fedcore`: the functions train, resume, plan and account as the command line does."""

import doctest
import inspect
import re
from pathlib import Path

import matplotlib
import numpy as np
import pytest

import fedcore
import fedcore.interface.functions  # now, and not in a test that changes what it imports
from fedcore.errors import BudgetExceeded, ConfigError, PopulationError, RunError
from fedcore.interface import data
from fedcore.rounds.engine import InProcessBackend
from fedcore.training.request import TrainRequest
from fedcore.training.session import start_run

COUNTS = np.random.default_rng(0).multinomial(60, np.array([0.4, 0.3, 0.2, 0.1]), size=400)


@pytest.fixture
def rows(tmp_path):
    """A population of rows of two groups, of forty clients."""
    random = np.random.default_rng(1)
    x = random.normal(size=(400, 2)) + np.where(np.arange(400) % 2, 4.0, -4.0)[:, None]
    return data.rows_stored(x, np.repeat(np.arange(40), 10), tmp_path / "population").population


def test_every_public_name_is_there_and_documented():
    for name in fedcore.WHERE:
        assert getattr(fedcore, name).__doc__
        assert name in dir(fedcore)
        assert f"import {name} as {name}" in Path(fedcore.__file__).with_suffix(".pyi").read_text()  # for type checkers
    with pytest.raises(AttributeError):
        _ = fedcore.nothing


def parameters_of(public):
    return [name for name in inspect.signature(public).parameters if name != "self"]


def described_in(text):
    """Names of the parameters that begin lines of a docstring: "name: ..." or "one, other: ..."."""
    return {name for names in re.findall(r"^((?:\w+, )*\w+): ", text, re.MULTILINE) for name in names.split(", ")}


@pytest.mark.parametrize("name", fedcore.WHERE)
def test_docstrings_have_one_form(name):
    """A summary of one sentence, a line for every parameter, what it returns (a class: its fitted attributes), what it
    raises, and at last an example. Methods have all but the example."""
    public = getattr(fedcore, name)
    text = inspect.getdoc(public)
    summary, _, rest = text.partition("\n\n")
    assert summary.endswith(".") and "\n" not in summary.partition(". ")[0]
    assert set(parameters_of(public)) <= described_in(text)
    assert re.search(r"^(Fitted:|Returns )", rest, re.MULTILINE) and re.search(r"^Raises ", rest, re.MULTILINE)
    assert rest.rpartition("\n\n")[2].startswith(">>> ")
    methods = [each for one, each in vars(public).items() if inspect.isfunction(each) and not one.startswith("_")]
    for method in methods if inspect.isclass(public) else []:
        stated = inspect.getdoc(method)
        assert all(re.search(rf"\b{one}\b", stated) for one in parameters_of(method) if one != "y"), method.__qualname__
        assert re.match(r"(Fit|Learn|Return|Draw|Fill|Estimate|Store)\b", stated), method.__qualname__


@pytest.fixture
def heights(tmp_path, monkeypatch):
    """A folder with the population that the examples read."""
    matplotlib.use("Agg")
    monkeypatch.chdir(tmp_path)
    from fedcore.training.budget import ledger_name

    x = np.concatenate([np.random.default_rng(0).normal(size=(40, 2)) + at for at in (-4, 4)])
    data.rows_stored(x, np.repeat(np.arange(20), 4), tmp_path / "heights", ledger=ledger_name(), nominal_clients=20)


@pytest.mark.slow
@pytest.mark.parametrize("name", fedcore.WHERE)
def test_examples_of_docstrings_hold(name, heights):
    (example,) = doctest.DocTestFinder(recurse=False).find(getattr(fedcore, name), name, module=False, globs={})
    assert example.examples and not doctest.DocTestRunner().run(example).failed


@pytest.mark.slow
def test_a_model_is_trained_and_read_again(rows, tmp_path):
    told = []
    model = fedcore.train(
        "federated_em",
        rows,
        {"algorithm": "em", "components": 2},
        runs=tmp_path / "runs",
        run_id="one",
        progress=lambda done, info: told.append(done),
    )
    assert told == sorted(told) and told[-1] == len(model.metrics)
    again = fedcore.load_run(tmp_path / "runs" / "one")
    assert again.id == "one" and again.status == "finished" and again.statement["privacy"] == "none"
    means = np.array([values for name, values in again.columns("means").items() if name != "column"])
    assert np.abs(np.sort(means[:, 0]) - [-4, 4]).max() < 5 / np.sqrt(200)  # five standard errors
    given = again.predict()
    assert given["component"].shape == (40,) and given["rows_responsibilities"].shape == (400, 2)
    assert np.array_equal(given["component"], again.personalised(str(rows.path))["component"])
    assert (tmp_path / "runs" / "one" / "report.html").exists()


@pytest.mark.slow
@pytest.mark.parametrize("components, steps", [(2, 4), ("auto", 1)])
def test_an_interrupted_run_goes_on_to_the_same_bits(rows, tmp_path, components, steps):
    """Also right after the run chose a number of components."""
    settings = {"algorithm": "em", "components": components}
    whole = fedcore.train("federated_em", rows, settings, runs=tmp_path / "whole", report=False)
    request = TrainRequest(
        method="federated_em", population=str(rows.path), settings=settings, runs=str(tmp_path), run_id="cut"
    )
    session = start_run(request, InProcessBackend(), stamp="then")
    for _ in range(steps):
        session.training.step()
    session.training.commit()
    session.close()
    model = fedcore.resume(tmp_path / "cut")
    assert np.array_equal(model.state["theta"], whole.state["theta"])
    with pytest.raises(RunError, match="has ended"):
        fedcore.resume(model)


KINDS = ["S", "T", "U", object]


@pytest.mark.parametrize("kind", KINDS)
def test_labels_are_spelled_as_ids_whatever_their_type(tmp_path, kind):
    """Of bytes, of fixed and of variable length: one person is one client."""
    texts = ["a", " a", "b", "Zoe\u0308", "Zo\u00eb "]
    texts = [one.encode() for one in texts] if kind == "S" else texts
    labels = np.array(texts, np.dtypes.StringDType() if kind == "T" else kind)
    assert data.checked_groups(labels, 5).tolist() == ["a", "a", "b", "Zo\u00eb", "Zo\u00eb"]
    stored = data.rows_stored(np.arange(10.0).reshape(5, 2), labels, tmp_path / "p")
    assert stored.population.client_ids(0).tolist() == stored.ids().tolist() == ["Zo\u00eb", "a", "b"]
    assert stored.in_given_order(np.arange(5)).shape == (5,) and stored.population.n_rows == 5


def test_bytes_that_stand_in_for_text_are_text():
    assert data.checked_groups(np.array([b"a ", "a"], object), 2).tolist() == ["a", "a"]
    assert data.checked_groups([b"a", b" a"], 2).tolist() == ["a", "a"]
    for label in (b"a\xff", b"a\x001", b"\xe2\x80\x8b"):
        with pytest.raises(PopulationError, match="A client id cannot be used"):
            data.checked_groups([b"a", label], 2)


def test_a_missing_label_is_no_client():
    missing = np.array(["a", None], np.dtypes.StringDType(na_object=None))
    for labels in (missing, np.array(["a", None], object), np.array(["a", np.nan], object)):
        with pytest.raises(ConfigError, match="row 1"):
            data.checked_groups(labels, 2)
    assert data.checked_groups(np.array([3, 1], object), 2).tolist() == [3, 1]


def test_mistakes_are_told_before_anything_is_made(rows, tmp_path):
    with pytest.raises(ConfigError):
        fedcore.train("federated_em", rows, {"components": 0}, runs=tmp_path / "runs")
    with pytest.raises(ConfigError):
        fedcore.train("no_method", rows, runs=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_plan_reserves_and_makes_nothing(rows, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    predicted = fedcore.plan("federated_em", rows, {"algorithm": "em"}, seconds=0.2)
    assert predicted["method"] == "federated_em" and not (tmp_path / "runs").exists()


def test_a_budget_is_set_charged_and_ends(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCORE_LEDGER", f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    from fedcore.training.budget import ledger_name

    options = {"ledger": ledger_name(), "nominal_clients": 400}
    import scipy.sparse as sp

    store = data.counts_stored(sp.csr_matrix(COUNTS), tmp_path / "population", **options).population
    fedcore.set_budget(store, 2.0, 1e-6, public_schema="four numbered sides of a die")
    assert fedcore.budget(store.path).rho_spent == 0
    model = fedcore.train("histograms", store.path, runs=tmp_path / "runs")
    assert model.statement["private"] and "four numbered sides" in model.statement["text"]
    assert fedcore.budget(store).rho_spent > 0
    with pytest.raises(BudgetExceeded):
        fedcore.train("histograms", store.path, {"epsilon": 1.0}, runs=tmp_path / "runs")
