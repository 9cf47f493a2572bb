"""The ingest flow offers what the command line does, in groups, and reads the same file of a schema."""

import ast
import inspect
from contextlib import contextmanager
from inspect import isclass
from pathlib import Path

import pytest
import typer.main
from fedcore.flows.ingest import ingest_files, ingest_flow
from prefect.logging import disable_run_logger
from pydantic import BaseModel

from fedcore.cli.ingest_options import BY_KEY, described
from fedcore.cli.populations import population_app
from fedcore.errors import ConfigError, IngestError
from fedcore.operations.pipelines.steps import Ingest
from fedcore.population.ingest import ingest as ingest_module
from fedcore.population.ingest import parts
from fedcore.population.ingest.ingest import ingest
from fedcore.population.ingest.request import Declarations, IngestRequest, Reading, TableColumns, form_of, schema_of
from fedcore.population.ingest.schema import with_schema
from fedcore.population.store import Population
from fedcore.rounds.engine import InProcessBackend
from tests.command import fedcore, works

TABLE = "person;age;since;city\na;30,5;2001-02-03;Bern\nb;-;2002-03-04;Wil\nb;41;2002-03-05;Basel\n"
SCHEMA = """
[table]
client = "person"
declared_clients = 10
delimiter = ";"
decimal = ","
na = ["-"]
[columns.age]
unit = "years"
bounds = [0, 40]
[columns.since]
date = "days"
[columns.city]
values = ["Bern", "<other>"]
"""


@pytest.fixture
def table(tmp_path):
    (tmp_path / "t.csv").write_text(TABLE)
    (tmp_path / "t.toml").write_text(SCHEMA)
    return tmp_path


def test_groups_and_schema_and_command_line_say_the_same(table):
    grouped = IngestRequest.of(
        Reading(client="person", delimiter=";", decimal=",", na=("-",)),
        TableColumns(
            columns=("age", "since", "city"),
            units={"age": "years"},
            bounds={"age": (0, 40)},
            dates={"since": "days"},
            categories={"city": ("Bern", "<other>")},
        ),
        Declarations(declared_clients=10),
    )
    by_file = IngestRequest.of(Reading(), TableColumns(schema_file=str(table / "t.toml")), Declarations())
    works("population", "ingest", table / "t.csv", table / "p", "--schema", table / "t.toml")
    wanted = Population.open(table / "p")
    for number, request in enumerate((grouped, by_file)):
        made = ingest(table / "t.csv", table / f"p{number}", request)
        assert made.manifest.columns == wanted.manifest.columns and made.manifest.nominal_clients == 10
        assert made.read(0).x.tobytes() == wanted.read(0).x.tobytes()


def test_a_stored_form_says_what_it_said():
    stored = {"tokeniser": None, "na": [], "heldout": ["a", "b"], "client": "person"}
    read = ingest_flow.validate_parameters({"source": "a", "dest": "b", "reading": stored})["reading"]
    assert read == Reading(heldout=("a", "b"), client="person") and read.tokeniser == "words"


def test_what_is_said_twice_is_refused(table):
    file = IngestRequest(schema_file=str(table / "t.toml"))
    with pytest.raises(ConfigError, match="client: given in .*t.toml and as an option too"):
        ingest(table / "t.csv", table / "p", file, client="person")
    with pytest.raises(ConfigError, match="units: given in"):
        with_schema(file.model_copy(update={"units": {"city": "x"}}), append=False)
    assert with_schema(file, append=False).declared_clients == 10
    assert with_schema(file, append=True).declared_clients is None


# --- every option is declared once, and offered everywhere ------------------------------------------------------------

PIPELINE = {
    "schema_file": "a key of the step, whose path is taken from the deployment file",
    "workers": "a key of the step, for servers",
    "tolerance": "what `invalid_rows` decides",
}
PYTHON = {"workers": "the package starts no process: callers give `sharing`"}


def value_of(name):
    """A value of an option as Python and TOML write it, and as the command line does."""
    made = schema_of(name)
    if "enum" in made:
        return made["enum"][-1], made["enum"][-1]
    if made["type"] == "object":
        values: dict = {"bounds": ([1.0, 2.0], "1:2"), "categories": (["x", "y"], "x,y")}
        values |= {"outside": ("missing", 'a="missing"'), "spelling": ("alike", 'a="alike"'), "marks": (",.", 'a=",."')}
        values["spellings"] = ({"x": "y"}, 'a={x="y"}')
        value, text = values.get(name, ("days", "days"))
        return {"a": value}, f"{{{text}}}" if name in BY_KEY else f"a={text}"
    number = max(made.get("minimum", 0), 3)
    by_type = {"integer": (number, str(number)), "boolean": (True, None), "array": (["a", "b"], "a,b")}
    return by_type.get(made["type"], (".", "."))


@pytest.mark.parametrize("name", IngestRequest.model_fields)
def test_every_option_is_offered_everywhere(tmp_path, monkeypatch, name):
    value, text = value_of(name)
    wanted = getattr(IngestRequest.of({name: value}), name)
    assert described(name).endswith((".", "n/a,-")) and form_of(name)
    # Python, and the form of the flow
    if name not in PYTHON:
        assert name not in inspect.signature(ingest).parameters
        with pytest.raises(IngestError):  # and no ConfigError
            ingest("nowhere.csv", tmp_path / "p", **{name: value})
    groups = [group.annotation for group in parameters_of(ingest_flow.fn) if issubclass(group.annotation, BaseModel)]
    assert sum(name in group.model_fields for group in groups) == 1
    # the step of a pipeline
    step = {"do": "ingest", "files": "*.csv"}
    if name in PIPELINE:
        assert name in Ingest.model_fields or name == "tolerance"
    else:
        assert getattr(IngestRequest.of(Ingest(**step, options={name: value}).options), name) == wanted
    # the command line
    asked = []

    def seen(source, dest, request, **others):
        asked.append(request)
        raise ConfigError("It was seen.")

    monkeypatch.setattr(ingest_module, "ingest", seen)
    command = typer.main.get_command(population_app).commands["ingest"]
    flags = {one.name: one for one in command.params}
    if name in BY_KEY:
        assert described(name) in flags["option"].help
        written = ["--option", f"{name}={text}"]
    else:
        assert described(name) in flags[name].help
        written = [flags[name].opts[0], *([] if text is None else [text])]
    fedcore("population", "ingest", "nowhere.csv", tmp_path / "p", *written)
    found = getattr(asked[0], name)
    assert found == (wanted if name != "bounds" else {"a": ("1", "2")})


def parameters_of(function):
    return [one for one in inspect.signature(function, eval_str=True).parameters.values() if isclass(one.annotation)]


def test_no_function_of_the_ingest_has_many_parameters():
    for file in sorted(Path(ingest_module.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef):
                given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                assert len(given) <= 12, f"{file.name}: {node.name} has {len(given)} parameters"


def test_the_flow_and_the_command_take_workers(tmp_path, monkeypatch):
    started = []

    @contextmanager
    def several(workers):
        started.append(workers)
        yield InProcessBackend(), workers

    monkeypatch.setattr(parts, "LEAST_BYTES", 20)
    for module in ("flows.ingest", "tasks.dask_backend"):
        monkeypatch.setattr(f"fedcore.{module}.sharing", several)
    (tmp_path / "t.csv").write_text("client,x\n" + "".join(f"c{number % 7},{number}\n" for number in range(40)))
    with disable_run_logger():
        ingest_files.fn(str(tmp_path / "t.csv"), str(tmp_path / "p"), IngestRequest(client="client", workers=3))
    works("population", "ingest", tmp_path / "t.csv", tmp_path / "q", "--workers", "2")
    assert started == [3, 2]
    assert Population.open(tmp_path / "p").read(0).x.tobytes() == Population.open(tmp_path / "q").read(0).x.tobytes()


def test_what_prefect_is_told_of_bad_rows_is_where_they_are(tmp_path):
    """Whoever sees the UI sees the error; the command line shows what they hold to whoever has the file."""
    (tmp_path / "one.csv").write_text("client,a\nu,1\nv,secret\n")
    with pytest.raises(IngestError, match="one.csv, line 3") as told:
        ingest_files.fn(str(tmp_path / "one.csv"), str(tmp_path / "p"), IngestRequest(client="client"))
    assert "secret" not in str(told.value) and told.value.__cause__ is None
    with pytest.raises(IngestError, match="secret"):
        ingest(tmp_path / "one.csv", tmp_path / "p", client="client")
