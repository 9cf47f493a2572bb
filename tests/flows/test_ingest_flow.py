"""The ingest flow offers what the command line does, in groups, and reads the same file of a schema."""

import inspect
from contextlib import contextmanager

import pytest
import typer.main
from fedcore.flows.ingest import ingest_files, ingest_flow
from prefect.logging import disable_run_logger

from fedcore.cli.populations import population_app
from fedcore.errors import ConfigError, IngestError
from fedcore.population.ingest import parts
from fedcore.population.ingest.ingest import ingest
from fedcore.population.ingest.request import CalendarPeriods, Declarations, Limits, Reading, TableColumns, arguments
from fedcore.population.store import Population
from fedcore.rounds.engine import InProcessBackend
from tests.command import works

GROUPS = (Reading, TableColumns, CalendarPeriods, Declarations, Limits)
TABLE = "person;age;since;city\na;30,5;2001-02-03;Bern\nb;-;2002-03-04;Wil\nb;41;2002-03-05;Basel\n"
SCHEMA = """
[table]
client = "person"
nominal_clients = 10
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
    grouped = arguments(
        Reading(client="person", delimiter=";", decimal=",", na=("-",)),
        TableColumns(
            columns=["age", "since", "city"],
            units={"age": "years"},
            bounds={"age": (0, 40)},
            dates={"since": "days"},
            categories={"city": ["Bern", "<other>"]},
        ),
        Declarations(nominal_clients=10),
        append=False,
    )
    by_file = arguments(Reading(), TableColumns(schema_file=str(table / "t.toml")), Declarations(), append=False)
    works("population", "ingest", table / "t.csv", table / "p", "--schema", table / "t.toml")
    wanted = Population.open(table / "p")
    for number, said in enumerate((grouped, by_file)):
        made = ingest(table / "t.csv", table / f"p{number}", **said)
        assert made.manifest.columns == wanted.manifest.columns and made.manifest.nominal_clients == 10
        assert made.read(0).x.tobytes() == wanted.read(0).x.tobytes()


def test_what_is_said_twice_is_refused(table):
    file = TableColumns(schema_file=str(table / "t.toml"))
    with pytest.raises(ConfigError, match="client: said in .*t.toml and beside it"):
        arguments(Reading(client="person"), file, append=False)
    with pytest.raises(ConfigError, match="units: said in"):
        arguments(file.model_copy(update={"units": {"city": "x"}}), append=False)
    assert "nominal_clients" not in arguments(file, append=True)


def test_the_groups_have_every_option():
    there = {name for group in GROUPS for name in group.model_fields}
    # of the flow itself, and of pipelines; workers are what share
    left_out = {"source", "dest", "append", "ledger", "progress", "delivered", "sharing"}
    rare = {"features", "dtype", "clients_per_leaf", "clients_per_block"}  # go into `options`
    assert {*inspect.signature(ingest).parameters} - left_out - rare == there - {"schema_file", "workers"}
    command = typer.main.get_command(population_app).commands["ingest"]
    offered = {parameter.name for parameter in command.params} - left_out - {"as_json", "option"}
    other_names = {"schema": "schema_file", "date": "dates", "category": "categories", "boolean": "booleans"}
    assert {other_names.get(name, name) for name in offered} <= there
    assert {"reading", "table", "periods", "declared", "limits"} <= {*inspect.signature(ingest_flow.fn).parameters}


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
        ingest_files.fn(str(tmp_path / "t.csv"), str(tmp_path / "p"), {"client": "client"}, 3)
    works("population", "ingest", tmp_path / "t.csv", tmp_path / "q", "--workers", "2")
    assert started == [3, 2]
    assert Population.open(tmp_path / "p").read(0).x.tobytes() == Population.open(tmp_path / "q").read(0).x.tobytes()


def test_what_prefect_is_told_of_bad_rows_is_where_they_are(tmp_path):
    """Whoever sees the UI sees the error; the command line shows what they hold to whoever has the file."""
    (tmp_path / "one.csv").write_text("client,a\nu,1\nv,secret\n")
    with pytest.raises(IngestError, match="one.csv, line 3") as told:
        ingest_files.fn(str(tmp_path / "one.csv"), str(tmp_path / "p"), {"client": "client"})
    assert "secret" not in str(told.value) and told.value.__cause__ is None
    with pytest.raises(IngestError, match="secret"):
        ingest(tmp_path / "one.csv", tmp_path / "p", client="client")
