"""Scores of rows: means, paired differences and their standard errors, against sums written out client by client."""

import json

import numpy as np
import pytest

from fedcore.population.blocks import RowsBlock, counts_block, scored_from
from fedcore.rounds.scores import differences_in_words, sums, table
from fedcore.rounds.statistics import merge, values
from tests.conftest import small_counts


def scored(m, losses, of=None, leaf=3):
    total = None
    for number, start in enumerate(range(0, len(m), leaf)):
        at = slice(start, start + leaf)
        mine = {name: loss[at] for name, loss in losses.items()}
        total = merge(total, sums(number, m[at], mine, {name: who[at] for name, who in (of or {}).items()}))
    return table(values(total), list(losses)).to_json("here")


def ratio(m, s):
    """The ratio estimator over clients and its standard error."""
    mean = s.sum() / m.sum()
    return mean, np.sqrt(((s - mean * m) ** 2).sum()) / m.sum()


def test_differences_are_paired_over_the_clients_that_a_line_is_about():
    generator = np.random.default_rng(0)
    m = generator.integers(0, 5, 20).astype(float)
    level = generator.normal(size=20) * 10  # clients differ much more than lines do
    own = generator.random(20) < 0.5
    losses = {"this run": m * level, "other": m * (level + 0.1), "as trained": m * (level - generator.random(20))}
    found = scored(m, losses, {"as trained": own})
    rows = {row["method"]: row for row in found["rows"]}
    assert found["difference_to"] == "this run" and rows["this run"]["difference"] is None
    assert (rows["other"]["difference"], rows["other"]["difference_se"]) == pytest.approx((0.1, 0.0), abs=1e-6)
    assert rows["other"]["se"] > 1
    expected = ratio(m[own], (losses["as trained"] - losses["this run"])[own])
    assert (rows["as trained"]["difference"], rows["as trained"]["difference_se"]) == pytest.approx(expected)
    assert (rows["as trained"]["nll"], rows["as trained"]["se"]) == pytest.approx(
        ratio(m[own], losses["as trained"][own])
    )
    assert "less that of 'this run'" in differences_in_words(json.loads(json.dumps(found)))


def test_a_table_of_one_line_has_no_differences():
    found = scored(np.ones(4), {"this run": np.arange(4.0)})
    assert "difference_to" not in found and not differences_in_words(found)
    assert set(found["rows"][0]) == {"method", "nll", "se"}


def test_a_table_without_the_line_of_the_run_compares_with_nothing():
    total = sums(0, np.ones(4), {"this run": np.arange(4.0), "other": np.ones(4)})
    assert "difference_to" not in table(values(total), ["other"]).to_json("here")


@pytest.mark.parametrize("least", [0, 1, 3, 100])
def test_nothing_is_held_out_of_short_clients(least):
    counts = counts_block(0, 0, small_counts(), small_counts(seed=1))
    lengths = np.minimum(counts.totals, counts.heldout.totals)
    found = scored_from(counts, least).heldout
    expected = counts.heldout.csr.toarray() * (lengths >= least)[:, None]
    assert (found.csr.toarray() == expected).all() and (found.totals == expected.sum(axis=1)).all()

    ptr, held = np.array([0, 2, 2, 7, 8]), np.array([0, 4, 5, 8, 8])
    rows = RowsBlock(0, 0, ptr, np.zeros((8, 2)), RowsBlock(0, 0, held, np.arange(16.0).reshape(8, 2)))
    kept = [i for i in range(4) if min(np.diff(ptr)[i], np.diff(held)[i]) >= least]
    found = scored_from(rows, least).heldout
    assert found.x.tolist() == [row for i in kept for row in rows.heldout.x[held[i] : held[i + 1]].tolist()]
    assert np.diff(found.ptr).tolist() == [np.diff(held)[i] * (i in kept) for i in range(4)]
