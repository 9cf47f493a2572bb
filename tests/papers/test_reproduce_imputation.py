"""The table of imputers: its hidden cells, its rivals, and a whole table of small sets."""

from __future__ import annotations

import numpy as np
import pytest
from fedcore.papers.fedem import imputation, species
from fedcore.papers.fedem.imputation import BUNDLED, IMPUTATION, OURS, RIVALS, hidden_cells, rows_of, soft
from fedcore.papers.fedem.species import SPECIES
from fedcore.papers.table import Options, Place, reproduce

from fedcore.rounds.engine import InProcessBackend


def test_a_fifth_of_the_cells_is_hidden_and_no_row_is_empty():
    x = np.random.default_rng(0).normal(3.0, 5.0, (5000, 2))
    y, truth, hidden = hidden_cells(x, 1)
    assert np.array_equal(np.isnan(y), hidden) and not hidden.all(axis=1).any()
    assert abs(hidden[:, 1].mean() - 0.2) < 5 * np.sqrt(0.16 / 5000)
    np.testing.assert_array_equal(y[~hidden], truth[~hidden])
    np.testing.assert_allclose(np.nanmean(y, axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(np.nanstd(y, axis=0), 1.0)


@pytest.mark.parametrize("name", BUNDLED)
def test_sets_that_come_with_scikit_learn(name):
    x = rows_of(name)
    assert x.ndim == 2 and len(x) > 100 and (np.ptp(x, axis=0) > 0).all()


def test_soft_impute_finds_a_table_of_low_rank():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(80, 2)) @ generator.normal(size=(2, 15))
    y, truth, hidden = hidden_cells(x, 0)
    assert np.sqrt(np.mean((soft(y, 0) - truth)[hidden] ** 2)) < 0.2


@pytest.mark.slow
def test_a_whole_table(tmp_path, monkeypatch):
    monkeypatch.setattr(imputation, "QUICK", ("wine",))
    table = reproduce(IMPUTATION, Options(quick=True), Place(tmp_path / "table", InProcessBackend(), 1 << 20))
    (row,) = table.rows
    assert row["data"] == "wine" and all(0 < float(row[label]) < 1.2 for label in (OURS, *RIVALS))
    assert float(row[OURS]) < float(row["column means"]) and 0.8 < float(row["intervals"]) < 1
    assert any("sets, asked 1" in note for note in table.notes)


@pytest.mark.slow
def test_species_of_a_drawn_table(tmp_path, monkeypatch):
    """Counts of low rank: every method that is tried beats the column means."""
    generator = np.random.default_rng(3)
    counts = generator.poisson(np.exp(1.0 + np.outer(generator.normal(size=40), generator.normal(size=12)))).astype(
        float
    )
    monkeypatch.setattr(species.missing, "counts_of", lambda name: counts)
    monkeypatch.setattr(species.missing, "tables", lambda options: ("drawn",))
    table = reproduce(SPECIES, Options(quick=True), Place(tmp_path / "table", InProcessBackend(), 1 << 20))
    (row,) = table.rows
    assert row["data"] == "drawn" and all(float(row[label]) < 1 for label in species.OURS)
    assert any(note.startswith("drawn:") for note in table.notes)
