"""Messy tables from the file through a draft to a population; answers to its questions are all that a person writes."""

import io
from unittest import mock

import numpy as np
import pytest

from fedcore.population.ingest.against import compare
from fedcore.population.ingest.votes import is_nothing
from fedcore.population.store import Population
from tests.command import fedcore, works

from . import messy

AT_LEAST = 0.98  # of the rows, and of the values, that can be used


@pytest.mark.parametrize(
    "table",
    [pytest.param(table, marks=[pytest.mark.slow] * (at % 3 > 0)) for at, table in enumerate(messy.TABLES)],
    ids=lambda table: table.name,
)
@pytest.mark.slow
def test_a_messy_table_becomes_a_population(tmp_path, monkeypatch, table):
    monkeypatch.chdir(tmp_path)
    path, usable = table.write(tmp_path), table.usable()
    typed = io.StringIO("".join(f"{one}\n" for one in messy.answers(table)))
    with mock.patch("sys.stdin", typed):
        drafted = works("population", "sketch", path.name, "t.toml", "--interactive")
    assert not typed.read()  # each answer had its question
    invalid = table.people - len(usable)
    call = ["population", "ingest", path.name, "p", "--schema", "t.toml", "--json"]
    assert not invalid or fedcore(*call).code == 2
    told = works(*call, *(["--tolerance", invalid] if invalid else [])).json
    population = Population.open(tmp_path / "p")
    columns = population.manifest.columns
    wanted = {column.name: column.kind for column in table.columns if column.kind not in ("client", "text")}
    assert {column.of: column.kind for column in columns} == wanted, drafted.err
    used = population.manifest.provenance.stored
    print(f"{table.name}: {used} of {len(usable)} usable rows; {told['clipped_values']} values out of bounds")
    assert used >= AT_LEAST * len(usable)
    assert told["clients"] == len({row[table.client].strip() for row in usable})
    x = np.concatenate([population.read(number).x for number in range(len(population.blocks))])
    for name in wanted:
        there = sum(not is_nothing(row[name].strip()) and row[name] not in ("-3", "999") for row in usable)
        at = next(place for place, column in enumerate(columns) if column.of == name)
        assert AT_LEAST * there <= np.isfinite(x[:, at]).sum() <= there, name
    assert compare(population, [path], {}).ok
