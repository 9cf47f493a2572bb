"""The command line: every command, what it prints, and that a reading command's --json is one object on stdout."""

import json
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import zarr

from fedcore import __version__
from fedcore.cli.ingest_options import request_of
from fedcore.cli.planning import in_units
from fedcore.cli.terminal import parse_bytes, read_settings
from fedcore.cli.training import saying_how_to_go_on
from fedcore.errors import ConfigError
from fedcore.methods.registry import method_class
from fedcore.population.store import Population
from fedcore.privacy.ledger.ledger import default_ledger_url, open_ledger
from fedcore.rounds.engine import Training
from fedcore.runs.store import Run
from fedcore.training.session import concluding
from tests import sessions
from tests.command import fedcore, private_population, works
from tests.conftest import small_counts, write_counts

SMALL = ("--set", "clusters=2", "--set", "rounds=2")
COMMANDS = {
    "population": ",generate,ingest,sketch,describe,open-cohort,verify,copy",
    "runs": ",list,show,abandon,latest,promote,prune,outliers,anomalies",
    "budget": ",set,raise,show,plan,public-schema,accept-loss",
    "": ",methods,train,resume,deploy,reproduce,report,personalise,evaluate,serve,demo,plan,select",
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def texts(place):
    """A small folder of text and a vocabulary."""
    (place / "texts").mkdir()
    for number in range(30):
        words = "the cat sat " * (number % 5 + 1) + "on mat " * (number % 3)
        (place / "texts" / f"author-{number:02d}.txt").write_text(words)
    (place / "words.txt").write_text("the\ncat\nsat\non\nmat\n")
    return place


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    folder, public = tmp_path_factory.mktemp("trained"), "made up"
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        write_counts("p", small_counts(), heldout=small_counts(seed=1), public_for_evaluation=public)
        works("train", "paper_histograms", "p", "--local", "--run-id", "open", "--set", "algorithm=algorithm2", *SMALL)
    return folder


@pytest.fixture
def trained(place, template):
    """A population of counts with a held-out part, public for evaluation, and a run over it that is not private."""
    return shutil.copytree(template, place, dirs_exist_ok=True)


# --- help and mistakes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [f"{group} {name}" for group in COMMANDS for name in COMMANDS[group].split(",")])
def test_every_command_has_help(command):
    outcome = works(f"{command} --help")
    assert "Usage:" in outcome.out and len(outcome.out.splitlines()) > 4


@pytest.mark.parametrize("command", ["train", "plan", "select"])
def test_help_of_a_command_on_a_method_has_its_main_settings_and_names_the_others(command):
    shown = works(command, "histograms", "people", "--help").out.split("Settings of histograms")[1]
    main, advanced = shown.split("Advanced:")
    cls = method_class("histograms")
    for name in cls.Config.model_fields:
        assert (f"\n  {name} " in main) == (name in cls.main_settings), name
        assert (name in re.findall(r"\w+", advanced)) == (name not in cls.main_settings), name
    assert "METHOD --help" in works(command, "--help").out


def test_settings_of_a_method_have_two_tables():
    told = works("methods", "histograms").out
    main, advanced = told.split("Advanced")
    assert "clusters" in main and "merge_after" in advanced and "merge_after" not in main
    assert json.loads(works("methods", "histograms", "--json").out)["main_settings"][0] == "epsilon"


@pytest.mark.slow
def test_exit_codes_of_the_process(place):
    """A user's mistake: exit code 2, one message, no traceback; with --json also one object on stdout."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    def run(*arguments):
        command = [sys.executable, "-m", "fedcore.cli", *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, cwd=place)

    failed = run("population", "describe", "nowhere", "--json")
    assert failed.returncode == 2 and "Traceback" not in failed.stderr
    assert failed.stderr.startswith("PopulationNotFound: ")
    answer = json.loads(failed.stdout)
    assert answer["error"] == "PopulationNotFound" and answer["message"] and answer["remedy"]
    assert run("no-such-command").returncode == 2
    listed = run("methods", "--json")
    assert listed.returncode == 0 and json.loads(listed.stdout)["methods"][0]["method"] == "histograms"


@pytest.mark.parametrize(
    ("text", "bytes"),
    [("512MiB", 512 * 2**20), ("2GB", 2 * 10**9), ("1000", 1000), ("1.5KiB", 1536), (" 3 kb", 3000), ("0", 0)],
)
def test_sizes(text, bytes):
    assert parse_bytes(text) == bytes


@pytest.mark.parametrize("text", ["", "lots", "12XB", "MiB", "-1MiB", "1e999", "nan", "inf", "1 2"])
def test_no_sizes(text):
    with pytest.raises(ConfigError, match="not a size"):
        parse_bytes(text)


def test_settings_from_a_file_and_pairs(place):
    (place / "run.toml").write_text('algorithm = "fedavg"\nclip = 2.5\n')
    found = read_settings(place / "run.toml", ["clip=1", "start=algorithm1", "name=a b", 'quoted="7"'])
    assert found == {"algorithm": "fedavg", "clip": 1, "start": "algorithm1", "name": "a b", "quoted": "7"}


def test_options_of_the_format():
    found = request_of({}, ["columns=x, y", "features=3", r'delimiter="\t"', "prefix=train"])
    assert found.model_dump(exclude_unset=True) == {
        **{"columns": ("x", "y"), "features": 3, "delimiter": "\t", "prefix": "train"}
    }
    assert request_of({}, ['columns=["a,b", "c"]']).columns == ("a,b", "c")
    assert request_of({"columns": "x, y", "client": None}).columns == ("x", "y")
    with pytest.raises(ConfigError, match="named twice"):
        request_of({"columns": "x"}, ["columns=x"])


def test_a_population_is_copied_and_a_url_is_not_written_to_directly(texts):
    works("population", "ingest", "texts/", "blogs", "--vocabulary", "words.txt", "--json")
    copied = works("population", "copy", "blogs", "elsewhere", "--json").json
    assert copied["blocks"] == 1 and copied["bytes"] > 0
    assert works("population", "verify", "elsewhere", "--json").json["ok"]
    first, second = (works("population", "describe", name, "--json").json for name in ("blogs", "elsewhere"))
    assert first["population_id"] == second["population_id"] and first["clients"] == second["clients"]
    refused = fedcore("population", "generate", "pure", "s3://bucket/population")
    assert refused.code == 2 and "ConfigError" in refused.err and "population copy" in refused.err


# --- the order of the README ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_commands_of_the_readme(texts):
    ingested = works("population ingest texts/ blogs --vocabulary words.txt --declared-clients 10000 --json").json
    assert (ingested["clients"], ingested["features"], ingested["nominal_clients"]) == (30, 5, 10000)
    assert ingested["ledger"]["url"] == default_ledger_url()

    budget = works("budget set blogs --public-schema 'made up' --epsilon 8 --delta 1e-8 --json").json
    assert budget["budget"]["epsilon"] == 8 and budget["rho_spent"] == 0 and budget["unit"] == "client"

    shown = works("train", "histograms", "blogs", "--set", "epsilon=2", "--local", "--run-id", "first", *SMALL)
    assert "finished" in shown.out and "differential privacy per client" in shown.out
    assert "flat_mean" not in shown.out  # the whole statement is shown by `runs show`

    balance = works("budget", "show", "blogs", "--json").json
    assert 0 < balance["epsilon_spent"] <= 2 and balance["rho_reserved"] == 0 and balance["open_runs"] == []
    assert balance["releases"] == {"published": 4}
    kinds = [record["kind"] for record in balance["history"]]
    assert kinds == ["register", "budget set", "reserve", "acquire", *["charge", "publish"] * 4, "finish"]

    refused = fedcore("evaluate", "runs/first", "blogs", "--local")
    assert refused.code == 2 and refused.err.startswith("PrivacyError") and "--public-for-evaluation" in refused.err

    assert "runs/first" in works("runs", "list", "--json").json["runs"][0]["run"]
    assert works("report", "runs/first", "--json").json == {
        "report": "runs/first/report.html",
        "result": "runs/first/result.json",
    }
    assert (texts / "runs" / "first" / "report.html").stat().st_size > 10_000

    told = works("predict", "runs/first", "blogs", "personal/", "--json").json
    assert told["sensitive"] and told["clients"] == 30
    assert told["outputs"] == ["cluster", "estimate", "mixture", "weight"]
    assert zarr.open_group("personal", mode="r")["estimate"].shape == (30, 5)


# --- populations ----------------------------------------------------------------------------------------------------


def test_generate_describe_verify(place):
    small = [
        part
        for pair in ("features=12", "heldout_clients=10", "tokens=20", "test_tokens=20")
        for part in ("--set", pair)
    ]
    made = works("population", "generate", "pure", "p", "--clients", "40", "--seed", "3", *small, "--json").json
    assert (made["clients"], made["features"], made["tokens"], made["heldout_tokens"]) == (40, 12, 800, 200)
    assert made["nominal_clients"] == 40 and "synthetic" in made["public_for_evaluation"]
    assert works("population", "describe", "p", "--json").json == made
    assert open_ledger(default_ledger_url()).balance(made["population_id"]).budget is None  # registered
    found = works("population", "verify", "p", "--json").json
    assert found["ok"] and found["blocks"] == 1 and found["problems"] == []
    aligned = works("population", "describe", "p")
    assert "clients   " in aligned.out and "40" in aligned.out


def test_verify_names_the_damaged_block(place):
    write_counts(place / "p", small_counts())
    victim = sorted((place / "p" / "blocks").glob("*/train/counts/c/0"))[1]
    victim.write_bytes(victim.read_bytes()[:-3])
    outcome = fedcore("population", "verify", "p", "--json")
    assert outcome.code == 2 and not outcome.json["ok"] and "Block 1 " in outcome.json["problems"][0]


def test_append_makes_a_version_under_the_same_budget(texts):
    ingest = ("population", "ingest", "texts", "p", "--vocabulary", "words.txt", "--json")
    first = works(*ingest).json
    works("budget", "set", "p", "--public-schema", "made up", "--epsilon", "2", "--delta", "1e-6")
    (texts / "more").mkdir()
    (texts / "more" / "late.txt").write_text("the mat")
    second = works("population", "ingest", "more", "p", "--append", "--json").json
    assert second["population_id"] == first["population_id"] and second["versions"] == [1, 2]
    assert second["clients"] == 31 and second["ledger"] == first["ledger"]
    assert works("budget", "show", "p", "--json").json["budget"]["epsilon"] == 2
    assert works("population", "describe", "p", "--version", "1", "--json").json["clients"] == 30


@pytest.mark.parametrize(("more", "said"), [((), "declared number of clients"), (("--declared-clients", "9"), "")])
def test_an_ingest_says_what_private_runs_need(place, more, said):
    (place / "a.csv").write_text("client,x\nann,1\nbob,4\n")
    out = works("population", "ingest", "a.csv", "p", *more).out
    assert (said in out) and ("--declared-clients" in out) == bool(said)


def test_numbers_of_a_plan_are_rounded():
    assert in_units("pace", 3.0166040815032757) == "3.02" and in_units("clients", 6000) == "6,000"


def test_columns_are_separated_by_commas(place):
    (place / "a.csv").write_text("client,x,y,z\nann,1,2,3\nbob,4,5,6\n")
    made = works("population", "ingest", "a.csv", "p", "--columns", "x,z", "--json").json
    assert made["features"] == 2
    assert sorted(Population.open("p").read(0).x.tolist()) == [[1, 3], [4, 6]]


def test_what_is_said_of_columns(place):
    (place / "a.csv").write_text("who;age;since;city;new\nann;130;31.01.1970;Bern;yes\nbob;-;;Zug;no\n")
    said = "--client who --bounds age=0:120 --date since=days,%d.%m.%Y --category 'city=Bern,<other>' --boolean new"
    said += " --na n/a,- --decimal , --option 'delimiter=;' --units age=years --json"
    told = works(f"population ingest a.csv p {said}").json
    assert told["columns"][0] == "age (years) from 0 to 120" and told["clipped_values"] == 1
    rows = Population.open("p").read(0).x.tolist()
    assert sorted(row[2:] for row in rows) == [[0, 1, 0], [1, 0, 1]] and [120, 30, 1, 0, 1] in rows
    assert works("population", "describe", "p").out.count("None") == 0
    wrong = (("--bounds", "age"), ("--bounds", "age=1"), ("--units", "age"), ("--category", "=a"), ("--date", "since"))
    for option, text in wrong:
        assert fedcore("population", "ingest", "a.csv", "q", option, text).code == 2


def test_a_schema_is_sketched_filled_in_and_used(place):
    (place / "a.csv").write_text("who,age,name\nann,13,Ann Smith\nbob,7,Bob\n")
    works("population", "sketch", "a.csv", "a.toml")
    drafted = (place / "a.toml").read_text()
    assert "Smith" not in drafted and works("population", "sketch", "a.csv").out.splitlines()[0] in drafted
    assert fedcore("population", "sketch", "a.csv", "a.toml").code == 2  # it is not overwritten
    assert 'client = "who"' in drafted and "# bounds = [0, 120]" in drafted
    (place / "a.toml").write_text(drafted.replace("# bounds = [0, 120]", "bounds = [0, 9]"))
    told = works("population", "ingest", "a.csv", "p", "--schema", "a.toml", "--json").json
    assert told["columns"] == ["age from 0 to 9"] and told["clipped_values"] == 1
    again = works("population", "ingest", "a.csv", "p", "--schema", "a.toml", "--append", "--json").json
    assert (again["version"], again["clients"], again["rows"]) == (2, 2, 4)
    beside = fedcore("population", "ingest", "a.csv", "q", "--schema", "a.toml", "--columns", "age")
    assert beside.code == 2 and "given in a.toml and as an option too" in beside.err


def test_a_budget_for_clients_of_a_table_without_clients_is_refused(place):
    (place / "a.csv").write_text("x,y\n1,2\n3,4\n")
    assert works("population", "ingest", "a.csv", "p", "--unit", "record", "--json").json["unit"] == "record"
    terms = ("--epsilon", "1", "--delta", "1e-6", "--public-schema", "made up")
    refused = fedcore("budget", "set", "p", *terms)
    assert refused.code == 2 and "--unit record" in refused.err
    works("budget", "set", "p", *terms, "--unit", "record")


# --- methods --------------------------------------------------------------------------------------------------------


def test_methods_and_their_settings(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert works("methods", "--json").json["methods"][0]["reads"] == "counts"
    assert "histograms" in works("methods").out
    shown = works("methods", "histograms").out
    for words in ("epsilon", "> 0, <= 100", "spare_releases", ">= 0, <= 10", "mixture | centre", "None"):
        assert words in shown, words
    schema = works("methods", "histograms", "--json").json["schema"]
    assert schema["properties"]["clusters"]["default"] is None and schema["additionalProperties"] is False


# --- training -------------------------------------------------------------------------------------------------------


def check_facts(answer, *, rounds):
    assert answer["status"] == "finished" and answer["rounds"] == rounds
    assert answer["metrics"]["round"] == rounds and answer["seconds"] > 0
    assert answer["population"]["name"] == "p" and answer["population"]["version"] == 1
    assert answer["peak_memory_bytes"]["flow"] > 2**20


def test_train_json_of_a_private_run(place):
    private_population(place / "p", small_counts())
    outcome = works("train", "histograms", "p", "--local", "--json", "--set", "epsilon=2", *SMALL)
    answer = outcome.json
    check_facts(answer, rounds=4)
    assert outcome.err == "" and answer["private"] and answer["run"].startswith("runs/histograms-p-")
    assert Run.open(answer["run"]).id == answer["run_id"]
    privacy = answer["privacy"]
    assert (privacy["unit"], privacy["relation"]) == ("client", "add_or_remove_one")
    assert 0 < privacy["epsilon"] <= 2 and 0 < privacy["delta"] <= 1e-6 and privacy["rho"] > 0
    assert [entry["round"] for entry in privacy["releases"]] == [1, 2, 3, 4]
    assert abs(sum(entry["rho"] for entry in privacy["releases"]) - privacy["rho"]) < 1e-12
    assert len(privacy["not_covered"]) >= 4 and privacy["population"]["epsilon"] == 8
    assert works("runs", "show", answer["run"], "--json").json == answer
    short, whole = works("runs", "show", answer["run"]).out, works("runs", "show", answer["run"], "--all").out
    assert "Not covered:" in whole and "clusters_002" in whole
    assert (
        "Privacy cost of this run" in short and "clusters_002" not in short and "--all" in short and "Centres" in short
    )


@pytest.mark.parametrize(
    ("settings", "rounds", "reason"), [(("--set", "algorithm=fedavg"), 1, "mean"), (SMALL, None, "exact")]
)
def test_train_json_of_a_run_that_is_not_private(place, settings, rounds, reason):
    write_counts(place / "p", small_counts())
    answer = works("train", "paper_histograms", "p", "--local", "--json", *settings).json
    check_facts(answer, rounds=rounds or answer["rounds"])
    assert not answer["private"] and answer["privacy"]["privacy"] == "none" and reason in answer["privacy"]["reason"]


def test_test_noise_is_said_to_be_none(place):
    private_population(place / "p", small_counts(), test=True)
    answer = works("train", "histograms", "p", "--local", "--json", "--test-noise", "key", *SMALL).json
    assert not answer["private"] and answer["privacy"]["privacy"] == "none"
    assert "test noise" in answer["privacy"]["reason"]


def test_settings_of_a_file_reach_the_run(place):
    write_counts(place / "p", small_counts())
    (place / "run.toml").write_text('algorithm = "algorithm2"\nclusters = 4\nrounds = 3\n')
    answer = works(
        "train paper_histograms p --local --json --config run.toml --set clusters=3 --seed 5 --runs kept --run-id mine"
    ).json
    run = Run.open(place / "kept" / "mine")
    assert answer["run"] == "kept/mine" and run.info["seed"] == 5
    assert (run.info["config"]["algorithm"]["clusters"], run.info["config"]["algorithm"]["rounds"]) == (3, 3)


def test_an_older_version_can_be_trained_on(texts):
    works("population", "ingest", "texts", "p", "--vocabulary", "words.txt")
    works("population", "ingest", "texts", "p", "--append")
    answer = works("train paper_histograms p --local --json --version 1 --set algorithm=fedavg").json
    assert answer["population"]["version"] == 1


@pytest.mark.slow
def test_workers_answer_the_same_and_report_their_memory(place):
    write_counts(place / "p", small_counts(200))
    common = ("train", "paper_histograms", "p", "--local", "--json", "--set", "algorithm=algorithm2", *SMALL)
    alone = works(*common, "--run-id", "alone").json
    many = works(*common, "--run-id", "many", "--workers", "2").json
    check_facts(many, rounds=alone["rounds"])
    assert len(many["peak_memory_bytes"]["workers"]) == 2 and min(many["peak_memory_bytes"]["workers"]) > 2**20
    states = [Run.open(place / "runs" / name).read_state() for name in ("alone", "many")]
    assert all(np.asarray(states[0][name]).tobytes() == np.asarray(states[1][name]).tobytes() for name in states[0])


def interrupt(place, run_id="half", **changes):
    """A run whose process was interrupted after its first round."""
    settings = {"clusters": 2, "rounds": 2, **changes}
    session = sessions.begin(place / "p", place, settings=settings, run_id=run_id)
    with pytest.raises(KeyboardInterrupt), concluding(session):
        session.training.step()
        raise KeyboardInterrupt


def test_who_stops_a_run_is_told_how_to_go_on(place, monkeypatch):
    write_counts(place / "p", small_counts())
    real, rounds = Training.step, []

    def stopped(self):
        if len(rounds) == 2:
            rounds.append(works("runs", "list", "--json").json["runs"][0]["status"])
            raise KeyboardInterrupt
        rounds.append(real(self))
        return rounds[-1]

    monkeypatch.setattr(Training, "step", stopped)
    outcome = fedcore(
        "train", "paper_histograms", "p", "--local", "--run-id", "r", "--set", "algorithm=algorithm2", *SMALL
    )
    assert outcome.code not in (0, 2) and rounds[2] == "running"
    assert "interrupted. Continue with: fedcore resume runs/r" in outcome.err
    assert works("runs", "list", "--json").json["runs"][0]["status"] == "interrupted"
    assert works("runs", "show", "runs/r", "--json").json["status"] == "interrupted"
    monkeypatch.setattr(Training, "step", real)
    assert works("resume", "runs/r", "--local", "--json").json["status"] == "finished"


def test_who_stops_a_flow_is_told_of_the_run_that_it_began(tmp_path, capsys):
    with pytest.raises(KeyboardInterrupt), saying_how_to_go_on(None, str(tmp_path)):
        (tmp_path / "r").mkdir()
        raise KeyboardInterrupt
    assert f"fedcore resume {tmp_path}/r" in capsys.readouterr().err


def test_version_and_completion(monkeypatch):
    assert works("--version").out == f"fedcore {__version__}\n"
    monkeypatch.setenv("_FEDCORE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "fedcore pred")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert fedcore().out.split() == ["predict"]


def test_old_names_of_commands_work_and_no_help_shows_them():
    assert works("personalise", "--help").out == works("predict", "--help").out
    assert "predict" in works("--help").out and "personalise" not in works("--help").out
    for command in ("ingest", "open-cohort"):
        told = works("population", command, "--help").out
        assert "--declared-clients" in told and "nominal-clients" not in told


@pytest.mark.slow
def test_scores_of_small_populations_start_no_server(trained, monkeypatch):
    """Neither a flow nor a server, unless Prefect knows one or workers are asked for."""
    import fedcore.flows.evaluate as evaluate_flow
    from prefect.settings import PREFECT_API_URL, temporary_settings

    called = []
    monkeypatch.setattr(
        evaluate_flow, "evaluate_run_flow", lambda **given: called.append(given) or {**told, "rows": []}
    )
    told = works("evaluate", "runs/open", "p", "--json").json
    assert not called and told["rows"]
    works("evaluate", "runs/open", "p", "--workers", "2", "--json")
    assert [given["workers"] for given in called] == [2]
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:1/api"}):
        works("evaluate", "runs/open", "p", "--json")
    assert len(called) == 2


def test_resume_and_abandon(place):
    private_population(place / "p", small_counts())
    interrupt(place, "half", epsilon=2.0)
    interrupt(place, "left", epsilon=2.0)
    listed = works("runs", "list", "--json").json["runs"]
    assert [(row["status"], row["rounds"]) for row in listed] == [("interrupted", 1)] * 2
    pending = works("runs", "show", "runs/half", "--json").json
    assert pending["privacy"]["pending"] and not pending["private"]
    shown = works("runs", "show", "runs/half").out
    assert "False" not in shown and "not stated yet" in shown and "No statement yet" in shown

    answer = works("resume", "runs/half", "--local", "--json").json
    assert answer["status"] == "finished" and answer["rounds"] == 4 and len(answer["privacy"]["releases"]) == 4

    reserved = works("budget", "show", "p", "--json").json["rho_reserved"]
    assert reserved > 0
    assert works("runs", "abandon", "runs/left", "--json").json == {"run": "runs/left", "status": "abandoned"}
    assert works("budget", "show", "p", "--json").json["rho_reserved"] == 0
    shown = works("runs", "show", "runs/left", "--json").json
    assert shown["status"] == "abandoned" and len(shown["privacy"]["releases"]) == 1


def test_a_moved_population_is_named_on_resuming(place):
    write_counts(place / "p", small_counts())
    interrupt(place, algorithm="algorithm2")
    (place / "p").rename(place / "moved")
    lost = fedcore("resume", "runs/half", "--local")
    assert lost.code == 2 and lost.err.startswith("PopulationNotFound")
    assert works("resume", "runs/half", "--local", "--population", "moved", "--json").json["status"] == "finished"


def test_runs_list(trained, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert works("runs", "list", "--runs", "nowhere").out == "no runs in nowhere\n"
    assert works("runs", "list", "--runs", "nowhere", "--json").json == {"runs": []}
    (row,) = works("runs", "list", "--json").json["runs"]
    assert row["method"] == "paper_histograms" and row["population"] == "p" and row["private"] is False
    assert "runs/open" in works("runs", "list").out


@pytest.mark.slow
def test_a_foreign_folder_among_the_runs_is_no_obstacle(trained):
    (trained / "runs" / "odd").mkdir()
    (trained / "runs" / "odd" / "run.json").write_text('{"schema": 2, "run_id": "odd"}')
    rows = works("runs", "list", "--json").json["runs"]
    assert [row["run"] for row in rows] == ["runs/odd", "runs/open"]
    for command in (
        ("resume", "runs/odd", "--local"),
        ("runs", "abandon", "runs/odd"),
        ("predict", "runs/odd", "p", "out"),
        ("evaluate", "runs/odd", "p", "--local"),
        ("report", "runs/odd"),
    ):
        outcome = fedcore(*command)
        assert outcome.code == 2 and "RunError: run.json" in outcome.err, (command, outcome.err)


# --- evaluation -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_evaluate_keeps_the_scores_in_the_run_and_its_report(trained):
    result = works("evaluate", "runs/open", "p", "--local", "--json").json
    assert result["public"] == "made up"
    assert {row["method"] for row in result["rows"]} >= {"Local", "FedAvg", "Algorithm 2"}
    assert result == json.loads((trained / "runs" / "open" / "evaluation.json").read_text())
    assert works("runs", "show", "runs/open", "--json").json["evaluation"]["rows"] == result["rows"]
    assert "Algorithm 2" in (trained / "runs" / "open" / "report.html").read_text()
    assert "Algorithm 2" in works("evaluate", "runs/open", "p", "--local").out


@pytest.mark.slow
def test_scores_that_are_not_private_go_into_their_file_only(trained):
    write_counts(trained / "own", small_counts(seed=4), heldout=small_counts(seed=5))
    report = (trained / "runs" / "open" / "report.html").read_bytes()
    for more in ((), ("--json",)):
        outcome = works("evaluate", "runs/open", "own", "--not-private", "scores.json", *more)
        scores = json.loads((trained / "scores.json").read_text())
        assert scores["privacy"] == "none" and scores["warning"].startswith("NOT PRIVATE") and scores["rows"]
        assert "scores.json" in outcome.out and "FedAvg" not in outcome.out + outcome.err
    assert not (trained / "runs" / "open" / "evaluation.json").exists()
    assert (trained / "runs" / "open" / "report.html").read_bytes() == report


# --- budgets --------------------------------------------------------------------------------------------------------


def test_budget_set_raise_show(place):
    private_population(place / "p", small_counts(), epsilon=None)
    none = works("budget", "show", "p", "--json").json
    assert none["budget"] is None and [record["kind"] for record in none["history"]] == ["register"]
    first = works("budget set p --public-schema 'made up' --epsilon 1 --delta 1e-6 --delta-extra 1e-7 --json").json
    assert first["budget"]["delta_extra"] == 1e-7 and first["population"] == "p"
    raised = works("budget", "raise", "p", "--epsilon", "2", "--delta", "1e-6", "--json").json
    assert raised["budget"]["rho_max"] > first["budget"]["rho_max"]
    assert [record["kind"] for record in raised["history"]] == ["register", "budget set", "budget raise"]
    shown = works("budget", "show", "p")
    assert "budget raise" in shown.out and "rho_left" in shown.out
    assert works("budget", "show", "p", "--all").out != shown.out
    assert (place / "p" / "ledger-head.json").exists()


def test_the_ledger_may_be_named_on_the_command_line(place):
    private_population(place / "p", small_counts(), epsilon=None)
    (place / "ledger.sqlite").rename(place / "moved.sqlite")
    lost = fedcore("budget", "show", "p")
    assert lost.code == 2 and lost.err.startswith("LedgerMissing")
    works(
        "budget",
        "set",
        "p",
        "--public-schema",
        "made up",
        "--epsilon",
        "1",
        "--delta",
        "1e-6",
        "--ledger",
        f"sqlite:///{place / 'moved.sqlite'}",
    )
