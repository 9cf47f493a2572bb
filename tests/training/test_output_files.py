"""Personalised outputs as Zarr, Parquet and CSV: the same numbers, marked and private in each, whole or absent."""

import csv
import json
import os
import stat

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import zarr
from fedcore.papers.histograms import PaperHistograms

from fedcore.errors import ConfigError
from fedcore.evaluation.run_summary import result_of
from fedcore.population.store import Population
from fedcore.training import output_files as writers
from fedcore.training.personalise import NOTE, personalise
from tests.conftest import small_counts, write_counts, write_population
from tests.training.test_personalise import train

LEARN = {"algorithm": "algorithm2", "clusters": 3, "rounds": 3}
TOKENS = ("the", "of,", 'a "word"', "=1+1", "é", "7", "z")


def read_csv(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def counted(tmp_path_factory):
    """(population, run) of counts, which tests read only."""
    folder = tmp_path_factory.mktemp("counted")
    population = write_counts(folder / "p", small_counts(), block=8, vocabulary=TOKENS)
    return population, train(population, folder, **LEARN)


@pytest.fixture(scope="module")
def of_rows(tmp_path_factory):
    """(population, run) of rows, which tests read only; the second of nine clients has none."""
    folder, ptr = tmp_path_factory.mktemp("of_rows"), np.array([0, 5, 5, 6, 12, 20, 21, 30, 39, 40])
    rows, ids = np.random.default_rng(0).normal(size=(40, 2)), [f"c{i}" for i in range(9)]
    population = write_population(folder / "p", "rows", 2, ids, (ptr, rows), leaf=2, block=4)
    return population, train(population, folder, "federated_em", components=2, rounds=3)


def test_every_format_has_the_same_numbers(tmp_path, counted):
    population, run = counted
    personalise(run.path, population.path, tmp_path / "out")
    told = personalise(run.path, population.path, tmp_path / "out.parquet")
    personalise(run.path, population.path, tmp_path / "out.csv")
    group = zarr.open_group(tmp_path / "out", mode="r")
    ids = [json.loads(line) for line in (tmp_path / "out" / "clients.jsonl").read_text().splitlines()]
    lines, table = read_csv(tmp_path / "out.csv"), parquet.read_table(tmp_path / "out.parquet")
    assert ids == [line["client"] for line in lines] == table["client"].to_pylist()
    for name in ("estimate", "mixture"):
        expected = group[name][:]
        assert (np.array(table[name].to_pylist(), np.float32) == expected).all()
        columns = (
            [f"estimate:{token}" for token in TOKENS] if name == "estimate" else [f"mixture_{k}" for k in range(4)]
        )
        assert (np.array([[line[c] for c in columns] for line in lines], np.float32) == expected).all()
    assert table.schema.field("cluster").type == pa.int32()
    assert table["cluster"].to_pylist() == [int(line["cluster"]) for line in lines] == group["cluster"][:].tolist()
    assert [float(line["weight"]) for line in lines] == group["weight"][:].tolist()
    assert told["clients"] == 50 and told["files"] == [
        str(tmp_path / n) for n in ("out.parquet", "out.parquet.about.json")
    ]
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("name", ["out.csv", "out.parquet"])
def test_a_file_is_marked_and_its_owners_alone(tmp_path, counted, name):
    population, run = counted
    tmp_path.chmod(0o755)
    personalise(run.path, population.path, tmp_path / name, settings={"prior_tokens": 3.0})
    about = json.loads((tmp_path / f"{name}.about.json").read_text())
    assert about["sensitive"] is True and about["note"] == NOTE and about["run"] == "r" and about["file"] == name
    assert about["settings"]["prior_tokens"] == 3.0 and about["clients"] == 50 and "rows_file" not in about
    for path in (tmp_path / name, tmp_path / f"{name}.about.json"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    if name.endswith("parquet"):
        told = parquet.read_schema(tmp_path / name).metadata
        assert told[b"sensitive"] == b"true" and told[b"note"].decode() == NOTE
        assert json.loads(told[b"fedcore"])["settings"]["prior_tokens"] == 3.0


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_rows_have_a_file_of_their_own(tmp_path, suffix, of_rows):
    population, run = of_rows
    personalise(run.path, population.path, tmp_path / "out")
    told = personalise(run.path, population.path, tmp_path / f"out.{suffix}")
    group, file = zarr.open_group(tmp_path / "out", mode="r"), tmp_path / f"out.rows.{suffix}"
    assert told["files"][1] == str(file) and stat.S_IMODE(file.stat().st_mode) == 0o600
    assert json.loads((tmp_path / f"out.{suffix}.about.json").read_text())["rows_file"] == file.name
    ptr, density, shares = (group[name][:] for name in ("ptr", "rows_log_density", "rows_responsibilities"))
    lines = read_csv(file) if suffix == "csv" else parquet.read_table(file).to_pylist()
    own = [(f"c{i}", row) for i in range(9) for row in range(ptr[i + 1] - ptr[i])]
    assert [(line["client"], int(line["row"])) for line in lines] == own
    assert [float(line["rows_log_density"]) for line in lines] == density.tolist()
    if suffix == "csv":
        found = [[line["rows_responsibilities_0"], line["rows_responsibilities_1"]] for line in lines]
        people = read_csv(tmp_path / "out.csv")
        assert people[1]["log_likelihood"] == "nan" and people[1]["component"] == "-1" and people[1]["segment"] == ""
        named = json.loads((tmp_path / "out.csv.about.json").read_text())["segments"]
        assert list(named) == ["A", "B"] and sorted(named.values()) == [0, 1]
        assert list(named.values()) == result_of(run).tables[0].columns[1].values
        assert all(named[one["segment"]] == int(one["component"]) for one in people if one["segment"])
    else:
        found = [line["rows_responsibilities"] for line in lines]
        assert np.isnan(parquet.read_table(tmp_path / "out.parquet")["log_likelihood"][1].as_py())
    assert (np.array(found, np.float32) == shares).all()


def test_arrays_of_any_depth_are_lists_or_columns(tmp_path):
    values = {"a": np.arange(12.0).reshape(2, 2, 3), "none": np.zeros((2, 0, 3)), "n": np.array([1, 2], np.int8)}
    made = writers.ParquetFile(tmp_path / "x", {"note": "n"}).columns(values, {})
    assert made["a"].to_pylist() == values["a"].tolist() and made["none"].to_pylist() == [[], []]
    columns = writers.CsvFile(tmp_path / "y", {}).columns(values, {"a": ("x", "y", "z")})
    assert list(columns) == [f"a_{i}:{j}" for i in range(2) for j in "xyz"] + ["n"]
    assert columns["a_1:z"].tolist() == [5.0, 11.0]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_blocks_change_no_byte(tmp_path, suffix, monkeypatch):
    monkeypatch.setattr(writers, "GROUP_BYTES", 1000)  # several row groups
    monkeypatch.setattr(writers, "LINE_NUMBERS", 50)
    found = []
    for name, size in (("one", 8), ("other", 64)):
        population = write_counts(tmp_path / name / "p", small_counts(), block=size)
        run = train(population, tmp_path / name, **LEARN)
        personalise(run.path, population.path, tmp_path / name / f"out.{suffix}")
        found.append((tmp_path / name / f"out.{suffix}").read_bytes())
    assert found[0] == found[1]
    if suffix == "parquet":
        assert parquet.ParquetFile(tmp_path / "one" / "out.parquet").num_row_groups > 2


@pytest.mark.parametrize("suffix", ["csv", "parquet", "zarr"])
def test_a_failure_half_way_leaves_nothing(tmp_path, counted, suffix, monkeypatch):
    population, run = counted
    original = PaperHistograms.personalise

    def fails_later(self, state, block, memory):
        if block.first >= 16:
            raise ValueError("a client's data")
        return original(self, state, block, memory)

    before = sorted(path.name for path in tmp_path.iterdir())
    monkeypatch.setattr(PaperHistograms, "personalise", fails_later)
    with pytest.raises(ValueError):
        personalise(run.path, population.path, tmp_path / f"out.{suffix}")
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.parametrize("renames", [0, 1, 2])
def test_who_is_killed_while_names_are_given_leaves_no_file_of_clients_and_can_be_repeated(
    tmp_path, renames, monkeypatch, of_rows
):
    population, run = of_rows
    replace, done = os.replace, []

    def killed(source, target):
        if len(done) == renames:
            raise KeyboardInterrupt
        done.append(target)
        replace(source, target)

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        personalise(run.path, population.path, tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()
    monkeypatch.setattr(os, "replace", replace)
    personalise(run.path, population.path, tmp_path / "out.csv")
    assert len(read_csv(tmp_path / "out.csv")) == 9 and len(read_csv(tmp_path / "out.rows.csv")) == 40


def test_clients_who_were_forgotten_have_no_line(tmp_path, counted, monkeypatch):
    population, run = counted
    forgotten = np.zeros(50, bool)
    forgotten[[3, 20]] = True
    monkeypatch.setattr(Population, "are_holes", lambda self, first, clients: forgotten[first : first + clients])
    assert personalise(run.path, population.path, tmp_path / "out.csv")["clients"] == 48
    ids = [line["client"] for line in read_csv(tmp_path / "out.csv")]
    assert ids == [f"c{i}" for i in range(50) if not forgotten[i]]


@pytest.mark.parametrize("safe", [False, True])
def test_ids_that_look_like_formulas(tmp_path, safe):
    formulas = ["=1+1", "@SUM(A1)", "-2", "+3"]
    ids = [*formulas, *(f"c{number}" for number in range(46))]
    population = write_counts(tmp_path / "p", small_counts(), block=8, ids=ids)
    run = train(population, tmp_path, **LEARN)
    personalise(run.path, population.path, tmp_path / "out.csv", safe_cells=safe)
    about = json.loads((tmp_path / "out.csv.about.json").read_text())
    found = [line["client"] for line in read_csv(tmp_path / "out.csv")]
    assert found == ([f"'{one}" for one in formulas] if safe else formulas) + ids[4:]
    assert ("apostrophe" if safe else "formula") in about["text_cells"]
    if safe:
        with pytest.raises(ConfigError, match="CSV"):
            personalise(run.path, population.path, tmp_path / "out.parquet", safe_cells=True)


def test_a_point_before_a_digit_is_part_of_a_name(tmp_path, counted):
    population, run = counted
    personalise(run.path, population.path, tmp_path / "run_0.5_0")
    assert zarr.open_group(tmp_path / "run_0.5_0", mode="r")["estimate"].shape[0] == 50
    personalise(run.path, population.path, tmp_path / "run_0.5.csv")
    assert len(read_csv(tmp_path / "run_0.5.csv")) == 50
    with pytest.raises(ConfigError, match="xlsx"):
        personalise(run.path, population.path, tmp_path / "run_0.5.xlsx")
