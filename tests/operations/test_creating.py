"""Populations and budgets that a file declares: made once, finished after any kill, and never changed."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedcore.errors import BudgetExceeded, BudgetExists, ConfigError, FedcoreError, IngestError
from fedcore.operations.creating import create, declared_problems, missing
from fedcore.operations.deployment import read_file
from fedcore.operations.deployment_checks import that_pass
from fedcore.operations.up_record import folder_of
from fedcore.population.store import Population
from fedcore.privacy.ledger.shares import in_words
from fedcore.training.budget import ledger_of
from tests.command import fedcore
from tests.pipelines.places import HEAD, INGEST, PRIVATE

SOURCE = """
[[population]]
path = "population"
source = "first.csv"
client = "client"
features = 5
nominal_clients = 12
"""
BUDGET = """
[population.budget]
epsilon = 4.0
delta = 1e-6
public_schema = "made up"
cohorts = true
shares = { a = "1/3" }
"""
MADE_BY_PIPELINE = '[[population]]\npath = "population"\n'
ROWS = "client,token,count\n" + "".join(f"c{number},{number % 5},1\n" for number in range(12))
KILLED = """
import os, signal, sys
from pathlib import Path
from fedcore.operations import creating
from fedcore.operations.deployment import read_file
from fedcore.operations.up_record import folder_of
from fedcore.population.ingest import ingest as ingesting
from fedcore.privacy.ledger.ledger import Ledger

def dying(place, name, before):
    function = getattr(place, name)
    def killed(*given, **named):
        if not before:
            function(*given, **named)
        os.kill(os.getpid(), signal.SIGKILL)
    setattr(place, name, killed)

file, place, name, when = sys.argv[1:]
dying({"creating": creating, "ingest": ingesting, "ledger": Ledger}[place], name, when == "before")
creating.create(read_file(file), folder_of(Path(file)), print)
"""


def write(folder: Path, text: str) -> Path:
    (folder / "first.csv").write_text(ROWS)
    (folder / "fedcore.toml").write_text(text)
    return folder / "fedcore.toml"


def made(file: Path) -> list[str]:
    told: list[str] = []
    create(read_file(file), folder_of(file), told.append)
    return told


def state(folder: Path) -> tuple:
    """Everything that a second process must find as if the first had not been killed."""
    population = Population.open(folder / "population")
    balance = ledger_of(population).balance(population.id)
    shares = {share.name: share.part for share in balance.shares if share.name}
    facts = (population.version, population.n_clients, len(population.manifest.cohorts), balance.budget)
    notes = [path.name for path in (folder / ".fedcore").glob("budget-*")]
    return *facts, balance.public_schema, in_words(shares), notes


def test_what_is_missing_is_made_once(tmp_path):
    file = write(tmp_path, SOURCE + BUDGET + PRIVATE)
    words = [*missing(read_file(file), folder_of(file)).values()]
    assert [len(each) for each in words] == [2] and "first ingest" in words[0][0] and "shares a 1/3" in words[0][1]
    assert not (tmp_path / "population").exists()
    assert len(made(file)) == 2
    before = state(tmp_path)
    assert before[:3] == (2, 12, 1) and before[4:] == ("made up", "a 1/3", [])
    assert made(file) == [] and state(tmp_path) == before and missing(read_file(file), folder_of(file)) == {}


def test_the_files_that_have_arrived_for_a_pipeline_make_its_population(tmp_path):
    file = write(tmp_path, MADE_BY_PIPELINE + BUDGET + PRIVATE + HEAD + INGEST)
    (tmp_path / "arrivals").mkdir()
    (found,) = declared_problems(read_file(file), folder_of(file))
    assert "no file yet" in str(found[1])
    (tmp_path / "arrivals" / "one.csv").write_text(ROWS)
    assert declared_problems(read_file(file), folder_of(file)) == []
    made(file)
    population = Population.open(tmp_path / "population")
    assert [one.name for one in population.manifest.deliveries] == ["one.csv"], "so the next run does not read it again"
    assert state(tmp_path)[:3] == (2, 12, 1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("epsilon = 4.0", "epsilon = 5.0"), "epsilon is 5.0 in the file, and 4.0 is set"),
        (("delta = 1e-6", "delta = 1e-7"), "delta is 1e-07 in the file, and 1e-06 is set"),
        (('"made up"', '"other"'), "public_schema is other in the file, and made up is set"),
        (("cohorts = true", "cohorts = false"), "cohorts is False in the file, and True is set"),
        (('"1/3"', '"1/2"'), "shares is a 1/2 in the file, and a 1/3 is set"),
        (("[population.budget]", '[population.budget]\nrelation = "replace_one"'), "relation is replace_one"),
    ],
)
def test_a_file_never_changes_a_budget(tmp_path, change, words):
    file = write(tmp_path, SOURCE + BUDGET + PRIVATE)
    made(file)
    before = state(tmp_path)
    file.write_text(file.read_text().replace(*change))
    with pytest.raises(BudgetExists) as refused:
        made(file)
    assert words in str(refused.value) and state(tmp_path) == before
    checked = fedcore("up", file, "--check")
    assert checked.code == 2 and words in checked.err


def test_what_the_file_does_not_name_is_not_compared(tmp_path):
    file = write(tmp_path, SOURCE + BUDGET + PRIVATE)
    made(file)
    file.write_text(file.read_text().replace("cohorts = true\n", "").replace('shares = { a = "1/3" }\n', ""))
    assert made(file) == []


def test_cohorts_and_shares_are_not_added_to_a_budget_that_is_complete(tmp_path):
    file = write(tmp_path, SOURCE + BUDGET.replace("cohorts = true\n", "") + PRIVATE)
    made(file)
    file.write_text(SOURCE + BUDGET + PRIVATE)
    with pytest.raises(BudgetExists, match="cohorts is True in the file, and False is set"):
        made(file)


def test_problems_are_found_before_anything_is_made(tmp_path):
    text = SOURCE.replace("first.csv", "lost.csv") + PRIVATE
    checked = fedcore("up", write(tmp_path, text), "--check")
    assert checked.code == 2 and "population" in checked.err and "lost.csv" in checked.err
    assert "declares no budget for it" in checked.err, "a private deployment would be refused at its first run"
    assert not (tmp_path / "population").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "name", "when"),
    [
        ("ingest", "write_clients", "before"),
        ("creating", "ingest", "after"),
        ("creating", "set_budget", "before"),
        ("ledger", "set_budget", "after"),
        ("creating", "set_budget", "after"),
        ("ledger", "begin_cohorts", "after"),
        ("creating", "begin_cohorts", "after"),
        ("ledger", "divide", "after"),
        ("creating", "remember_head", "after"),
    ],
)
def test_a_process_that_is_killed_is_followed_by_one_that_makes_the_rest(tmp_path, place, name, when):
    file = write(tmp_path, SOURCE + BUDGET + PRIVATE)
    done = subprocess.run([sys.executable, "-c", KILLED, str(file), place, name, when], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    made(file)
    assert state(tmp_path)[:3] == (2, 12, 1) and state(tmp_path)[4:] == ("made up", "a 1/3", [])
    assert made(file) == []


@pytest.mark.slow
def test_another_budget_than_the_one_that_was_begun_is_refused(tmp_path):
    file = write(tmp_path, SOURCE + BUDGET + PRIVATE)
    subprocess.run([sys.executable, "-c", KILLED, str(file), "creating", "set_budget", "after"], capture_output=True)
    file.write_text(file.read_text().replace("epsilon = 4.0", "epsilon = 8.0"))
    with pytest.raises(FedcoreError, match="epsilon is 8.0 in the file, and 4.0 is set"):
        made(file)


def test_a_new_population_is_made_while_the_budget_of_another_is_exhausted():
    found = [("a", BudgetExceeded("spent")), ("b", IngestError("out of reach")), ("c", ConfigError("wrong"))]
    assert [where for where, _ in that_pass(found, served_before=False)] == ["a"]
    assert [where for where, _ in that_pass(found, served_before=True)] == ["a", "b"]
