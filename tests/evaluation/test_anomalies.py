"""Rows that a run finds least likely: rows without a density, and rows that are too far away to have one."""

import json

import numpy as np
import pytest

from fedcore.evaluation.anomalies import unusual_rows
from tests.command import works
from tests.conftest import write_population


def rows_population(path, rows):
    write_population(path, "rows", 2, range(10), (np.arange(0, len(rows) + 1, len(rows) // 10), rows), dtype="float64")
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Runs of a mixture of Gaussians and of regressions, on rows without gaps."""
    folder = tmp_path_factory.mktemp("anomalies")
    rows = np.random.default_rng(0).normal(size=(200, 2))
    rows_population(folder / "p", rows)
    for model in ("gaussian", "regression"):
        settings = (f"model={model}", "components=2", "algorithm=em", "restarts=1", "max_passes=4")
        pairs = [part for setting in settings for part in ("--set", setting)]
        works("train", "federated_em", folder / "p", "--local", "--runs", folder, "--run-id", model, *pairs)
    gaps = rows.copy()
    gaps[[3, 150], 1] = np.nan
    rows_population(folder / "gaps", gaps)
    gaps[:, 1] = np.nan
    rows_population(folder / "nothing", gaps)
    rows[[7, 170], 0] = 1e300
    rows_population(folder / "far", rows)
    return folder


def test_rows_without_a_density_are_left_out(place):
    found = unusual_rows(place / "regression", place / "gaps", 1000)
    assert found.left_out == 2 and len(found.rows) == 198
    densities = [row.log_density for row in found.rows]
    assert np.isfinite(densities).all() and densities == sorted(densities)
    nothing = unusual_rows(place / "regression", place / "nothing", 5)
    assert nothing.rows == [] and nothing.left_out == 200
    shown = works("runs", "anomalies", place / "regression", place / "gaps")
    assert "2 rows are left out" in shown.err and "nan" not in shown.out


@pytest.mark.parametrize("model", ["gaussian", "regression"])
def test_what_is_too_far_away_comes_first(place, model):
    found = unusual_rows(place / model, place / "far", 4)
    assert [(row.client, row.row) for row in found.rows[:2]] == [("0", 7), ("8", 10)]
    assert found.rows[0].log_density == -np.inf and np.isfinite(found.rows[2].log_density)
    said = works("runs", "anomalies", place / model, place / "far", "--json", "--rows", "3").out
    rows = json.loads(said, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))["rows"]
    assert [row["log_density"] is None for row in rows] == [True, True, False]
