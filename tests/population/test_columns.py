"""Named columns of a population: in the manifest, kept by every new version, and shown in results with their units."""

import numpy as np
import pytest

from fedcore.errors import ManifestError, PopulationError
from fedcore.population import manifest as manifests
from fedcore.population.columns import ColumnEntry, bounds_of
from fedcore.population.copying import copy_population
from fedcore.population.erasing import compact, forget
from fedcore.population.manifest import Provenance
from fedcore.population.store import Population
from fedcore.population.writer import PopulationWriter
from fedcore.training.record import columns_to_record, other_columns

AGE = ColumnEntry(name="age", of="age", unit="years", low=0.0, high=120.0)
COLUMNS = (AGE, ColumnEntry(name="city=Bern", of="city", kind="category", value="Bern", low=0.0, high=1.0))


def made(path, columns=COLUMNS, options=None):
    x = np.array([[30.0, 1.0], [np.nan, 0.0], [119.5, 0.0]], np.float32)
    with PopulationWriter(path, "rows", 2, columns=columns) as writer:
        writer.write(["a", "b"], (np.array([0, 2, 3]), x))
        return writer.commit(Provenance(options=options or {}))


def test_columns_are_kept_by_every_new_version(tmp_path):
    population = made(tmp_path / "p")
    assert "columns" in population.manifest.needs and Population.open(tmp_path / "p").manifest.columns == COLUMNS
    with PopulationWriter.extending(population) as writer:
        for entry in population.blocks:
            writer.keep(entry)
        second = writer.commit()
    assert second.manifest.columns == COLUMNS and second.verify().ok
    copy_population(tmp_path / "p", tmp_path / "q")
    assert Population.open(tmp_path / "q").manifest.columns == COLUMNS
    forgotten = forget(second, clients=["a"]).population
    assert forgotten.manifest.columns == COLUMNS and forgotten.n_rows == 1
    assert compact(forgotten).population.manifest.columns == COLUMNS


def test_columns_that_contradict_the_population_or_themselves(tmp_path):
    for columns, why in (((AGE,), "1 columns are named, and it has 2"), ((AGE, AGE), "named twice")):
        with pytest.raises(ManifestError, match=why):
            made(tmp_path / "p", columns)
    for fields in ({"low": 1.0}, {"low": 2.0, "high": 2.0}, {"value": "x"}, {"kind": "category"}, {"format": "%d"}):
        with pytest.raises(ValueError):
            ColumnEntry(name="x", of="x", **fields)
    with pytest.raises(PopulationError, match="outside the bounds"):
        made(tmp_path / "p", (AGE.model_copy(update={"high": 100.0}), COLUMNS[1]))
    assert not (tmp_path / "p").exists()


def test_bounds():
    assert bounds_of((ColumnEntry(name="x", of="x"),)) is None
    half = bounds_of((AGE, ColumnEntry(name="x", of="x")))
    assert half.low.tolist() == [0.0, -np.inf] and half.high.tolist() == [120.0, np.inf] and not half.everywhere
    assert bounds_of(COLUMNS).everywhere


def test_a_reader_that_does_not_know_columns_refuses_them(tmp_path, monkeypatch):
    made(tmp_path / "p")
    monkeypatch.setattr(manifests, "KNOWN", tuple(name for name in manifests.KNOWN if name != "columns"))
    with pytest.raises(ManifestError, match="needs columns"):
        Population.open(tmp_path / "p")


def test_other_columns_are_told(tmp_path):
    mine = made(tmp_path / "p")
    info = {"columns": columns_to_record(mine)}
    assert other_columns(info, mine) == "" and other_columns({}, mine) == ""
    assert other_columns(info, made(tmp_path / "q", ())) == ""
    months = made(tmp_path / "r", (AGE.model_copy(update={"unit": "months"}), COLUMNS[1]))
    assert other_columns(info, months) == "'age' is in months instead of years"
    turned = made(tmp_path / "s", (AGE.model_copy(update={"name": "height"}), COLUMNS[1]))
    assert other_columns(info, turned) == "column 0 is 'height' instead of 'age'"
