"""What is wrong with a file is told as one list before it is served or deployed."""

import subprocess
import sys

import pytest
from pydantic import ValidationError

from fedcore.operations.deployment import read_file
from fedcore.operations.deployment_checks import problems
from fedcore.operations.pipelines.steps import Ingest
from tests.command import fedcore, private_population
from tests.conftest import small_counts, write_counts
from tests.pipelines.places import HEAD, INGEST, OPEN, PRIVATE, step

MISSING = OPEN.replace('"open"', '"lost"').replace('"population"', '"nowhere"')
STARVED = PRIVATE.replace('"closed"', '"starved"').replace("epsilon = 0.5", "epsilon = 50.0")
HOPELESS = PRIVATE.replace('"closed"', '"hopeless"').replace(", anyway = true", "")
PEOPLE = PRIVATE.replace('"population"', '"bare"').replace('"closed"', '"bare"')
COMPARED = OPEN.replace('"open"', '"compared"') + 'evaluate_on = "secret"\n'
OTHERS = OPEN.replace('"open"', '"others"') + 'evaluate_on = "wide"\n'
EXPORT, EVALUATE = step("export", deployment="open", to="model"), step("evaluate", deployment="open", on="secret")
OUTPUTS = step("personalise", deployment="open", to="s3://bucket/personal")


@pytest.fixture
def folder(tmp_path):
    private_population(tmp_path / "population", small_counts(20, 5), epsilon=1.0, nominal=8)
    private_population(tmp_path / "bare", small_counts(20, 5), epsilon=None)
    write_counts(tmp_path / "secret", small_counts(20, 5), heldout=small_counts(20, 5))
    write_counts(tmp_path / "wide", small_counts(20, 6), heldout=small_counts(20, 6), public_for_evaluation="made up")
    (tmp_path / "arrivals").mkdir()
    return tmp_path


def found(folder, text):
    (folder / "f.toml").write_text(text)
    return [(where, type(error).__name__) for where, error in problems(read_file(folder / "f.toml"))]


def test_nothing_is_wrong_with_what_can_run(folder):
    assert found(folder, OPEN + PRIVATE + HEAD + INGEST + step("train", deployment="closed")) == []


def test_each_kind_of_problem_has_its_named_error(folder):
    everything = MISSING + STARVED + HOPELESS + PEOPLE + COMPARED + OTHERS + OPEN + PRIVATE
    everything += HEAD + INGEST.replace("client =", "colour = 1, client =") + step("forget", after_days=3)
    everything += EXPORT + EVALUATE + OUTPUTS
    everything += HEAD.replace("nightly", "hasty") + INGEST + step("train", deployment="closed", when="if_new_files")
    assert found(folder, everything) == [
        ("deployment 'lost'", "PopulationNotFound"),
        ("deployment 'starved'", "BudgetExceeded"),
        ("deployment 'hopeless'", "NotWorthIt"),
        ("deployment 'bare'", "BudgetMissing"),
        ("deployment 'compared'", "PrivacyError"),
        ("deployment 'others'", "WrongKind"),
        ("step 'ingest' of pipeline 'nightly'", "ConfigError"),
        ("step 'forget' of pipeline 'nightly'", "ConfigError"),
        ("step 'export-open' of pipeline 'nightly'", "ConfigError"),
        ("step 'evaluate-open' of pipeline 'nightly'", "PrivacyError"),
        ("step 'personalise-open' of pipeline 'nightly'", "ConfigError"),
        ("pipeline 'hasty'", "PrivacyError"),
    ]


@pytest.mark.parametrize("name", ["invalid_rows", "bad_rows"])
def test_invalid_rows_are_read_by_the_new_and_the_old_name_and_kept_by_the_old(name):
    """Workers of an earlier version read what a server keeps."""
    given = {"files": "arrivals/*.csv", name: "leave_out"}
    assert Ingest.model_validate(given).model_dump(exclude_unset=True) == {
        "files": "arrivals/*.csv",
        "bad_rows": "leave_out",
    }
    with pytest.raises(ValidationError, match="bad_rows"):
        Ingest.model_validate({**given, "invalid_rows": "leave_out", "bad_rows": "refuse"})


def test_a_population_that_the_pipeline_makes_need_not_be_there(folder):
    new = '"made-later"'
    text = (OPEN + PRIVATE + HEAD + INGEST).replace('"population"', new) + step("train", deployment="closed")
    assert found(folder, text) == []
    assert found(folder, text.replace("arrivals", "departures")) == [
        ("step 'ingest' of pipeline 'nightly'", "IngestError")
    ]


@pytest.mark.slow
def test_columns_of_a_schema_that_the_population_does_not_have(folder):
    for name in ("age", "height"):
        (folder / f"{name}.toml").write_text(f'[table]\nclient = "who"\n[columns.{name}]\nbounds = [0, 120]\n')
    (folder / "people.csv").write_text("who,age\na,3\n")
    arguments = ("population", "ingest", folder / "people.csv", folder / "people", "--schema", folder / "age.toml")
    assert fedcore(*arguments).code == 0
    ingest = '[[pipeline.step]]\ndo = "ingest"\nfiles = "arrivals/*.csv"\nschema_file = "%s.toml"\n'
    head = OPEN + HEAD.replace('"population"', '"people"')
    assert found(folder, head + ingest % "age") == []
    assert found(folder, head + ingest % "height") == [("step 'ingest' of pipeline 'nightly'", "ConfigError")]


@pytest.mark.slow
def test_serve_and_deploy_say_it_all_and_end_with_code_2(folder, monkeypatch):
    schedule = OPEN.replace('"open"', '"odd"') + 'schedule = { rrule = "FREQ=SOMETIMES" }\n'
    (folder / "f.toml").write_text(MISSING + STARVED + schedule)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    refused = fedcore("serve", folder / "f.toml")
    assert refused.code == 2 and refused.err.startswith("NotReady: 3 problems in f.toml:")
    for words in ("'lost': PopulationNotFound", "'starved': BudgetExceeded", "'odd': ConfigError: schedule FREQ=SOME"):
        assert words in refused.err


SERVED = """
import sys
from pathlib import Path
from fedcore.cli import serving
from fedcore.flows import server

def told(lines):
    if lines and lines[0].startswith("Prefect UI"):
        from prefect.settings import get_current_settings
        settings = get_current_settings()
        print(lines[0].split()[-1] + "/api" == settings.api.url, settings.api.auth_string is not None)
        raise SystemExit

server._wait = lambda *_: None
serving.tell = told
serving.serve(Path(sys.argv[1]))
"""


@pytest.mark.slow
def test_what_looks_at_the_file_does_not_make_prefect_start_a_server_without_password(folder, monkeypatch):
    """Prefect takes the address of its server from the environment in which it is imported, and starts one of its own
    where there is none."""
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    (folder / "f.toml").write_text(OPEN + 'schedule = { rrule = "FREQ=DAILY" }\n')
    done = subprocess.run(
        [sys.executable, "-c", SERVED, str(folder / "f.toml")], cwd=folder, capture_output=True, text=True
    )
    assert done.stdout.split() == ["True", "True"], done.stderr


@pytest.mark.slow
def test_what_is_wrong_is_told_before_anything_is_registered(folder, monkeypatch):
    from fedcore.flows import server

    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    monkeypatch.setattr(server, "check_reachable", lambda address: None)
    (folder / "f.toml").write_text(MISSING)
    refused = fedcore("deploy", folder / "f.toml", "--json")
    assert (refused.code, refused.json["error"]) == (2, "NotReady") and "Nothing was registered" in refused.json[
        "remedy"
    ]
