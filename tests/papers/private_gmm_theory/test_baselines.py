"""The baselines' rows of the comparison at their smallest cell."""

import numpy as np
import pytest
from fedcore.papers.private_gmm import baselines as base
from fedcore.papers.private_gmm.theory import aggregate

SMALLEST = base.SETTINGS[0]


def test_blocks_do_not_depend_on_how_many_follow():
    truth = SMALLEST.truth(1)
    few = base.learnt_blocks(truth, 8, 100, 1)[0]
    more = np.concatenate([few, base.learnt_blocks(truth, 8, 100, 1, first=100)[0]])
    grown = list(base._growing(SMALLEST, 8, 1, (100, 200), aggregate.spherical_em))
    assert np.array_equal(grown[1][0], more) and np.array_equal(grown[0][0], few)
    assert len(np.unique(more[:, 0, 0])) == 200


def test_smallest_block_and_number_at_the_smallest_cell():
    size = base.smallest_block(SMALLEST, seeds=(1, 2))
    assert 4 <= size <= 16
    assert base.share_right(SMALLEST.truth(1), base.learnt_blocks(SMALLEST.truth(1), size, 200, 7)[0]) > 0.8
    rows = base.smallest_numbers(SMALLEST, size, (1.0, 4.0), seeds=(1, 2), numbers=(50, 400, 3200))
    found = {(row["epsilon"], row["goal"]): row for row in rows}
    assert set(found) == {(1.0, "labels"), (1.0, "means"), (4.0, "labels"), (4.0, "means")}
    for goal in ("labels", "means"):
        assert found[4.0, goal]["m"] <= found[1.0, goal]["m"] <= 3200
    for row in rows:
        assert row["accuracy"] >= 0.99 and row["n"] == size * row["m"]
        assert found[row["epsilon"], "labels"]["m"] <= row["m"]
        assert row["goal"] == "labels" or row["mean_error"] <= 1.0
    none = base.smallest_numbers(SMALLEST, size, (1.0,), seeds=(1,), numbers=(50,), accurate=None)
    assert none == [
        {
            "epsilon": 1.0,
            "goal": "labels",
            "b": size,
            "m": None,
            "n": None,
            "mean_error": None,
            "accuracy": None,
            "weight_error": None,
        }
    ]


@pytest.mark.parametrize("covariance", ["spherical", "diag", "full"])
def test_em_is_at_its_sampling_error(covariance):
    pytest.importorskip("sklearn")
    found = base.em_scores(SMALLEST, 2000, 1, covariance=covariance)
    assert found["mean_error"] < 4 * (10 / 1000) ** 0.5 and found["accuracy"] > 0.999
    assert found["weight_error"] < 0.05 and found["trace_error"] < 0.1
