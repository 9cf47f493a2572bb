"""A profile from a CSV to its tables, as a user makes it."""

import csv

import numpy as np
import pytest

import fedcore
from fedcore.methods.registry import make_method
from fedcore.population.columns import ColumnEntry
from fedcore.privacy.accounting import make_budget
from fedcore.training.budget import rho_asked
from tests.command import fedcore as command
from tests.command import works

PEOPLE = 6000
SCHEMA = """
[table]
client = "person"
nominal_clients = 6000
[columns."age"]
unit = "years"
bounds = [0, 120]
[columns."stay"]
unit = "days"
[columns."city"]
values = ["Bern", "Chur", "<other>"]
[columns."smoker"]
boolean = true
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A population with a budget of 20, so that a tenth of it counts 6000 people well."""
    folder, generator = tmp_path_factory.mktemp("profile"), np.random.default_rng(0)
    with open(folder / "people.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["person", "age", "stay", "city", "smoker"])
        for number in range(PEOPLE):
            city = ["Bern", "Chur"][number % 3 == 0]
            age = round(float(np.clip(generator.normal(60 if city == "Chur" else 40, 10), 0, 120)))
            stay = 0 if generator.random() < 0.4 else round(float(generator.exponential(5)), 2)
            row = [age if generator.random() < 0.9 else "", stay, city, ["no", "yes"][number % 5 == 0]]
            writer.writerow([f"p{number}", *row])
    (folder / "people.toml").write_text(SCHEMA)
    return folder


@pytest.fixture(scope="module")
def made(folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDCORE_LEDGER", f"sqlite:///{folder}/ledger.db")
        patch.chdir(folder)
        works("population", "ingest", "people.csv", "people", "--schema", "people.toml")
        works("budget", "set", "people", "--epsilon", "20", "--delta", "1e-6", "--public-schema", "made up")
        given = ["--set", "by=city,smoker", "--run-id", "first", "--json"]
        told = works("train", "profile", "people", "--local", *given).json
        yield fedcore.load_run("runs/first"), told


def of(run, table, **wanted):
    """The rows of a table whose columns have these values, as dictionaries."""
    columns = run.columns(table)
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


@pytest.mark.slow
def test_a_tenth_of_the_budget_is_spent_and_shown_before(made, folder, monkeypatch):
    run, _ = made
    monkeypatch.chdir(folder)
    monkeypatch.setenv("FEDCORE_LEDGER", f"sqlite:///{folder}/ledger.db")
    privacy = run.statement
    assert privacy["rho"] == pytest.approx(privacy["population"]["rho_max"] / 10, rel=1e-6)
    planned = works("plan", "profile", "people", "--local", "--json").json
    assert planned["epsilon"] == pytest.approx(privacy["epsilon"], rel=1e-6) and planned["delta"] == 1e-6
    assert planned["worth"].startswith("good")
    assert len(privacy["releases"]) == 1 and privacy["releases"][0]["argument"] == "docs/privacy/profile.md"


def test_the_result_is_near_the_truth(made):
    run, told = made
    counted = int(told["outcome"].split()[1].replace(",", ""))
    assert abs(counted - PEOPLE) < 60 and {table["name"] for table in told["result"]} >= {"columns", "groups"}
    age, stay = of(run, "columns", column="age")[0], of(run, "columns", column="stay")[0]
    assert abs(age["missing"] - 0.1) < 0.02 and abs(age["mean"] - 46.7) < 1 and abs(age["50 %"] - 46) < 2
    assert stay["mean"] is None and stay["25 %"] == 0 and abs(stay["75 %"] - 4.5) < 1
    zeros = of(run, "point_masses", column="stay")[0]
    assert zeros["value"] == 0 and zeros["within"] == 0 and abs(zeros["share"] - 0.4) < 0.03
    assert abs(of(run, "categories", category="city", value="Bern")[0]["share"] - 2 / 3) < 0.03
    group = of(run, "groups", city="Chur", smoker="1")[0]
    assert abs(group["clients"] - PEOPLE / 15) < 60
    assert abs(of(run, "group_means", city="Chur", smoker="0")[0]["age (years)"] - 60) < 2
    assert of(run, "group_means", city="<other>", smoker="0")[0]["age (years)"] is None
    every = of(run, "group_columns", city="Bern", smoker="0", column="stay")[0]
    assert abs(every["75 %"] - 4.5) < 2
    assert sum(row["share"] for row in of(run, "histograms", column="age")) == pytest.approx(1)
    quantile = of(run, "quantiles", column="age", **{"share below": 0.5})[0]
    assert quantile["from"] <= quantile["value"] <= quantile["to"]


def test_the_report_has_one_page_of_small_plots(made, folder):
    page = (folder / "runs" / "first" / "report.html").read_text()
    assert "Shares of the values that are not missing" in page and "Values that many rows share" in page
    assert "Histograms" not in page


def test_what_a_run_asks_for():
    """By its horizon, its epsilon, or the usual share of its method; else all that is left."""
    budget = make_budget(1.0, 1e-6)
    tenth = budget.rho_max / 10
    assert rho_asked(make_method("profile", {}), budget) == pytest.approx(tenth)
    assert rho_asked(make_method("profile", {"epsilon": 0.5}), budget) == budget.rho_of(0.5)
    assert rho_asked(make_method("profile", {"horizon": 4}), budget) == pytest.approx(budget.rho_max / 4)
    assert rho_asked(make_method("private_mixture", {}), budget) is None


def test_settings_follow_from_the_columns():
    columns = [
        ColumnEntry(name="age", of="age", low=0.0, high=120.0),
        ColumnEntry(name="city=Bern", of="city", kind="category", value="Bern"),
        ColumnEntry(name="city=Chur", of="city", kind="category", value="Chur"),
        ColumnEntry(name="smoker", of="smoker", kind="boolean"),
    ]
    found = make_method("profile", {"by": "smoker, city"}).settings_of_columns(columns)
    assert found == {"categories": ((1, 2), (3,)), "by": ("1", "0"), "bounds": ((0.0, 120.0), None, None, None)}
    chosen = make_method("profile", {"categories": [], "bounds": [None] * 4})
    assert chosen.settings_of_columns(columns) == {}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("by=town", "There is no category 'town'"),
        ("by=city,city", "lists one category twice"),
        ("by=city,smoker,age", "at most 2"),
        ("bounds=[[0, 1]]", "has 1 entries, and the population has 6 columns"),
        ("bounds=[[1, 0]]", "the lower one first"),
        ("categories=[[9]]", "no column 9"),
        ("categories=[[1], [1]]", "belongs to two"),
    ],
)
def test_settings_that_do_not_fit_are_refused(made, folder, monkeypatch, given, message):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("FEDCORE_LEDGER", f"sqlite:///{folder}/ledger.db")
    refused = command("train", "profile", "people", "--local", "--set", given)
    assert refused.code == 2 and message in refused.err


@pytest.mark.slow
def test_ten_profiles_use_the_budget_up(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDCORE_LEDGER", f"sqlite:///{tmp_path}/ledger.db")
    works("population", "ingest", str(folder / "people.csv"), "people", "--schema", str(folder / "people.toml"))
    works("budget", "set", "people", "--epsilon", "20", "--delta", "1e-6", "--public-schema", "made up")
    for number in range(10):
        works("train", "profile", "people", "--local", "--run-id", f"run-{number}")
    refused = command("train", "profile", "people", "--local")
    assert refused.code == 2 and "Nothing was released" in refused.err
