"""From messy tables to private segments in five commands, with nothing written by hand but bounds and answers."""

import csv
import io
import json
import re
from unittest import mock

import numpy as np
import pytest

import fedcore
from tests.command import works
from tests.population import messy as tables

pytestmark = pytest.mark.usefixtures("few_repetitions")
PEOPLE = 40_000
CITIES = ["Bern", "Basel", "Zug", "Chur"]
MEASURES = [f"measure {number}" for number in range(1, 16)]
TEXTS = ["name", "street", "remark", "phone", "profession", "mail"]


def messy(path):
    """Semicolons, decimal commas, n/a and gaps, two forms of dates, yes and no, categories, and text to leave out."""
    generator = np.random.default_rng(0)
    group = generator.integers(0, 2, PEOPLE)
    age = np.where(group, 65, 30) + generator.normal(0, 6, PEOPLE)
    measures = 4.0 * group[:, None] + generator.normal(size=(PEOPLE, len(MEASURES)))
    income = np.exp(generator.normal(4, 0.3, PEOPLE))
    days = generator.integers(7305, 19700, (PEOPLE, 2))
    dates = np.datetime64("1970-01-01") + days
    city, flags = generator.integers(0, 6, PEOPLE), generator.random((PEOPLE, 3)) < 0.3
    missing = generator.random(PEOPLE) < 0.05
    spelled = [[str(value).replace(".", ",") for value in row] for row in np.round(measures, 3).tolist()]
    other = ["Zürich", "Genève"]
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=";")
        flags_named = ["smokes", "drives", "reads"]
        writer.writerow(["person", *TEXTS, "age", "income", "joined", "born", *flags_named, "city", *MEASURES])
        for number in range(PEOPLE):
            year, month, day = str(dates[number, 1]).split("-")
            said = 'said "hello"' if number % 50 == 0 else ""
            person = [f"p{number}", f"Person {number}", "Main Street; 7", said, "+41 31 000 00 00", "n/a", "-"]
            amount = f"{income[number]:.2f}".replace(".", ",")
            person += ["n/a", "-"] if missing[number] else [round(float(age[number])), amount]
            person += [dates[number, 0], f"{day}.{month}.{year}", *("yes" if flag else "no" for flag in flags[number])]
            writer.writerow([*person, (CITIES + other)[city[number]], *spelled[number]])


def filled_in(drafted: str) -> str:
    """What a person writes into the draft."""
    assert 'client = "person"' in drafted and 'formats = ["%d.%m.%Y"]' in drafted
    drafted = drafted.replace("# declared_clients = 10000", "declared_clients = 40000")
    cities = json.dumps([*CITIES, "<other>"])
    drafted = drafted.replace('# [columns."city"]', f'[columns."city"]\nvalues = {cities}\n#')
    age = '[columns."age"]\n# unit = "years"\n# bounds = [0, 120]'
    return drafted.replace(age, '[columns."age"]\nunit = "years"\nbounds = [0, 110]')


@pytest.mark.slow
def test_a_messy_table_to_a_private_result_in_five_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    messy(tmp_path / "people.csv")
    works("population", "sketch", "people.csv", "people.toml")
    schema = tmp_path / "people.toml"
    schema.write_text(filled_in(schema.read_text()))
    told = works("population", "ingest", "people.csv", "people", "--schema", "people.toml", "--json").json
    assert told["clients"] == PEOPLE and told["bad_rows"] == 0 and told["features"] == 4 + 3 + 5 + len(MEASURES)
    assert "age (years) from 0 to 110" in told["columns"] and "born (days since 1970)" in told["columns"]
    reason = "columns of the published form; bounds and cities from its manual"
    works("budget", "set", "people", "--epsilon", "1", "--delta", "1e-7", "--public-schema", reason)
    run = works("train", "private_mixture", "people", "--local", "--set", "components=2", "--json").json["run_id"]
    works("export", f"runs/{run}", "groups.csv", "--table", "means")
    model = fedcore.load_run(f"runs/{run}")
    assert model.status == "finished" and model.statement["private"] and reason in model.statement["text"]
    shown = str(model.tables)
    assert "'Bern'" in shown and "measure 15" in shown and "Person" not in shown
    answers = model.columns("categories")
    assert {*answers["category"]} == {"smokes", "drives", "reads", "city"} and len(answers["value"]) == 2 * 3 + 5
    bern = answers["value"].index("Bern")
    assert all(abs(answers[k][bern] - 1 / 6) < 0.05 for k in "AB")
    first_page = (tmp_path / "runs" / run / "report.html").read_text().partition("<details>")[0]
    assert "This run has used about" not in first_page  # rows with missing numbers are read too
    assert "age" in model.columns("missing_numbers")["column"]
    assert works("verify-statement", f"runs/{run}/report.html").code == 0
    with open("groups.csv", newline="", encoding="utf-8") as file:
        rows = {row["column"]: row for row in csv.DictReader(file)}
    assert len(rows) == 4 + len(MEASURES) and rows["age"]["unit"] == "years"
    ages = sorted(float(rows["age"][k]) for k in "AB")
    assert abs(ages[0] - 30) < 5 and abs(ages[1] - 65) < 5


@pytest.mark.slow
@pytest.mark.parametrize(
    "table",
    [pytest.param(table, marks=[pytest.mark.heavy] * (at % 5 > 0)) for at, table in enumerate(tables.TABLES)],
    ids=lambda table: table.name,
)
def test_each_messy_table_becomes_segments(tmp_path, monkeypatch, table):
    """Small tables get a large budget: this is about the way there, not about the noise."""
    monkeypatch.chdir(tmp_path)
    path = table.write(tmp_path)
    typed = io.StringIO("".join(f"{one}\n" for one in tables.answers(table)))
    with mock.patch("sys.stdin", typed):
        works("population", "sketch", path.name, "t.toml", "--interactive")
    invalid = table.people - len(table.usable())
    works("population", "ingest", path.name, "p", "--schema", "t.toml", *["--tolerance", invalid] * bool(invalid))
    works("budget", "set", "p", "--epsilon", "20", "--delta", "1e-6", "--public-schema", "the columns of the form")
    settings = ["components=2"]
    if not any(column.kind in ("number", "date") for column in table.columns):
        settings.append("categories=[]")  # what the refusal of a table without numbers recommends
    asked = [f"--set={setting}" for setting in settings]
    works("train", "private_mixture", "p", "--local", "--run-id", "r", "--anyway", *asked)
    page = open(works("report", "runs/r", "--json").json["report"], encoding="utf-8").read()
    first = page[: page.index("<details>")]
    assert re.search(r"<h1>[12] segments?( of 1 group)?</h1>", first) and "Guarantee" in first
    model = fedcore.load_run("runs/r")
    shown = model.columns("segments")
    assert model.status == "finished" and shown["segment"] == ["A", "B"][: len(shown["segment"])]
    assert all(sentence.endswith(".") for sentence in shown["how it differs"])
    used = 1 - model.columns("rows_left_out")["left out"][0]
    print(f"{table.name}: {len(shown['segment'])} segments; {100 * used:.1f} % of the declared clients' rows used")
