"""The table of defaults: its splits and its three lines on small data of our own."""

from __future__ import annotations

import numpy as np
import pytest
from fedcore.papers.fedem.defaults import (
    DEFAULTS,
    OURS,
    REGRESSIONS,
    Regression,
    clients_of,
    mixture_loss,
    regression_errors,
    rival_loss,
)
from fedcore.papers.table import Options, Place

from fedcore.rounds.engine import InProcessBackend


def two_groups(clients: int = 12, rows: int = 50) -> tuple[np.ndarray, np.ndarray]:
    """Rows of two groups far apart, a constant column, and their clients."""
    random = np.random.default_rng(0)
    x = random.normal(size=(clients * rows, 3)) + 6.0 * random.integers(0, 2, size=(clients * rows, 1))
    return np.column_stack([x, np.ones(len(x))]), np.repeat(np.arange(clients), rows)


def test_rows_of_a_client_are_trained_on_or_held_out():
    x, clients = two_groups()
    split = list(clients_of((x, clients), 1, lambda rows: rows // 5))
    assert len(split) == 12
    for number, (train, held) in enumerate(split):
        assert (len(train), len(held)) == (40, 10)
        mine = np.concatenate([train, held])
        np.testing.assert_array_equal(np.unique(mine, axis=0), np.unique(x[clients == number], axis=0))
    dealt = list(clients_of((x, np.zeros(0)), 1, lambda rows: 0))
    assert len(dealt) == 20
    assert sum(len(train) for train, _ in dealt) == len(x)


def test_losses_of_both_are_in_the_same_units(tmp_path):
    """Where one optimum is the only one, exact EM and scikit-learn agree on the held-out rows."""
    split = list(clients_of(two_groups(), 1, lambda rows: rows // 5))
    place = Place(tmp_path, InProcessBackend(), 1 << 20)
    settings = {"algorithm": "em", "components": 2}
    ours = mixture_loss(place, "ours", "two-groups", settings, split, 1)
    rival = rival_loss(split, 2, 1)
    assert ours["loss"] == pytest.approx(rival["loss"], abs=0.02)
    assert ours["mb"] > 0 and rival["status"] == "converged"


def test_regressions_are_measured_on_the_rows_that_were_left_out():
    random = np.random.default_rng(1)
    x = random.normal(size=(400, 2))
    slopes = np.repeat(random.normal(size=20), 20)
    rows = np.column_stack([x, slopes * x[:, 0] + 0.1 * random.normal(size=400)])
    task = Regression(lambda: (rows, np.repeat(np.arange(20), 20)), 2, (0, 1), 12)
    errors = regression_errors(task, 1)["error"]
    assert errors["own least squares"] < 0.1 < errors["one for all"]
    assert OURS in errors


def test_cells_have_names_of_their_own():
    cells = DEFAULTS.cells(Options())
    assert len({cell.key for cell in cells}) == len(cells)
    assert all("/" not in cell.key and " " not in cell.key for cell in cells)
    assert {cell.arguments["data"] for cell in cells} > set(REGRESSIONS)
