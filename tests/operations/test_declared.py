"""What a file declares: one schema, unknown keys named with the nearest known one, all problems in one list."""

import json
from pathlib import Path

import jsonschema
import pytest

from fedcore.errors import ConfigError
from fedcore.operations.deployment import json_schema, read_file
from fedcore.storage.parsing import read_toml
from tests.command import fedcore

EXAMPLES = Path(__file__).parents[2] / "deployments"
POPULATION = """
[[population]]
path = "shop"
source = ["week1.csv", "week2.csv"]
client = "customer"
token = "article"
vocabulary = "articles.txt"
bounds = { age = [0, 120] }

[population.budget]
epsilon = 4
delta = 1e-6
public_schema = "the published catalogue"
shares = { team-a = "1/3", team-b = 0.5 }
"""
DEPLOYMENT = '[[deployment]]\nname = "weekly"\nmethod = "histograms"\npopulation = "shop"\n'
PIPELINE = '[[pipeline]]\nname = "nightly"\npopulation = "shop"\n[[pipeline.step]]\ndo = "ingest"\nfiles = "in/*.csv"\n'
WHOLE = POPULATION + '[storage]\nledger = "sqlite:///l.sqlite"\n' + DEPLOYMENT


def write(folder: Path, text: str) -> Path:
    (folder / "fedcore.toml").write_text(text)
    return folder / "fedcore.toml"


def test_populations_budgets_and_places(tmp_path):
    content = read_file(write(tmp_path, WHOLE))
    (item,) = content.population
    assert item.path == content.deployment[0].population == str(tmp_path / "shop")
    assert item.source == (str(tmp_path / "week1.csv"), str(tmp_path / "week2.csv"))
    assert item.options == {
        **{"client": "customer", "token": "article", "vocabulary": str(tmp_path / "articles.txt")},
        "bounds": {"age": (0, 120)},
    }
    assert {name: str(part) for name, part in item.budget.parts.items()} == {"team-a": "1/3", "team-b": "1/2"}
    assert content.storage.ledger == f"sqlite:///{tmp_path / 'l.sqlite'}"


def test_a_query_is_no_place(tmp_path):
    text = WHOLE.replace('source = ["week1.csv", "week2.csv"]', 'format = "sql"\nsource = "select 1"')
    assert read_file(write(tmp_path, text)).population[0].source == "select 1"


def test_everything_that_is_wrong_is_one_list_and_names_what_was_meant(tmp_path):
    text = WHOLE.replace("epsilon = 4", "epsilonn = 4").replace("token =", "tokens =")
    text += "colour = 1\n[deployment.config]\nhorizn = 3\n[deploymint]\n" + PIPELINE.replace("files", "file")
    with pytest.raises(ConfigError) as refused:
        read_file(write(tmp_path, text))
    first, *listed = str(refused.value.message).splitlines()
    assert first == "8 problems in fedcore.toml:" and all(line.startswith("  - ") for line in listed)
    for words in (
        "'population.0.tokens' is not a setting (did you mean 'token'?)",
        "'population.0.budget.epsilonn' is not a setting (did you mean 'epsilon'?)",
        "'population.0.budget.epsilon': Field required",
        "'deployment.0.colour' is not a setting",
        "'deploymint' is not a setting (did you mean 'deployment'?)",
        "'pipeline.0.step.0.ingest.file' is not a setting (did you mean 'files'?)",
        "deployment 'weekly': settings of 'histograms': 'horizn' is not a setting (did you mean 'horizon'?)",
    ):
        assert any(words in line for line in listed), words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (POPULATION + POPULATION + DEPLOYMENT, "two populations have the same path: shop"),
        (WHOLE + PIPELINE, "leave source out"),
        (WHOLE.replace('source = ["week1.csv", "week2.csv"]', ""), "goes with source"),
        (WHOLE.replace("epsilon = 4", "epsilon = 0"), "population.0.budget.epsilon"),
        (WHOLE.replace('public_schema = "the published catalogue"', ""), "population.0.budget.public_schema"),
        (WHOLE.replace("0.5", "0.7"), "more than all of it"),
        (WHOLE.replace('"1/3"', '"a third"'), "is no name with a part"),
        (WHOLE.replace("epsilon = 4", "epsilon = 4\nwindow = 3"), "window goes with"),
        (WHOLE.replace("epsilon = 4", "epsilon = 4\nspent_before = 0"), "go together"),
        (WHOLE.replace("sqlite:///l.sqlite", "l.sqlite"), "storage.ledger"),
        (POPULATION, "there is no [[deployment]] and no [[pipeline]]"),
    ],
)
def test_what_is_refused(tmp_path, text, words):
    with pytest.raises(ConfigError) as refused:
        read_file(write(tmp_path, text))
    assert words in str(refused.value)


def test_the_json_schema_takes_what_is_read_and_refuses_other_keys(tmp_path):
    printed = fedcore("up", "--schema")
    schema = json.loads(printed.out)
    assert printed.code == 0 and schema == json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    page = EXAMPLES.with_name("docs") / "up.md"
    (tmp_path / "page.toml").write_text(page.read_text().split("```toml\n")[1].split("```")[0])
    files = [tmp_path / "page.toml", *sorted(EXAMPLES.glob("*.toml"))]
    for file in [write(tmp_path, WHOLE), *files]:
        read_file(file)
        assert not list(validator.iter_errors(read_toml(file))), file.name
    for text in (WHOLE + "colour = 1\n", WHOLE.replace("client =", "clients ="), WHOLE.replace("epsilon", "epsilonn")):
        assert list(validator.iter_errors(read_toml(write(tmp_path, text))))
