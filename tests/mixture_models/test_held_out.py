"""Rows that clients hold out: shares, folds, and independence of how clients are cut."""

import numpy as np

from fedcore.methods.mixture_models.row_draws import folds, held_out, random_order


def of_clients(values: np.ndarray, sizes: np.ndarray) -> list[np.ndarray]:
    return np.split(values, np.cumsum(sizes)[:-1])


def test_an_order_is_a_permutation_of_each_client_and_depends_on_names_alone():
    sizes = np.random.default_rng(0).integers(0, 30, 200)
    whole = of_clients(random_order(3, "a", np.arange(200), sizes), sizes)
    assert all(np.array_equal(np.sort(own), np.arange(len(own))) for own in whole)
    part = of_clients(random_order(3, "a", np.arange(50, 90), sizes[50:90]), sizes[50:90])
    assert all(np.array_equal(one, other) for one, other in zip(whole[50:90], part, strict=True))
    for other in (random_order(4, "a", np.arange(200), sizes), random_order(3, "b", np.arange(200), sizes)):
        assert not np.array_equal(np.concatenate(whole), other)


def test_every_place_is_equally_likely():
    orders = random_order(0, "a", np.arange(20_000), np.full(20_000, 4)).reshape(-1, 4)
    _, counts = np.unique(orders @ [64, 16, 4, 1], return_counts=True)
    assert len(counts) == 24
    assert ((counts - 20_000 / 24) ** 2 / (20_000 / 24)).sum() < 50  # chi-squared of 23 degrees: once in 1000


def test_shares_and_folds():
    sizes = np.array([0, 1, 2, 3, 7, 8, 10, 103])
    kept = [int(own.sum()) for own in of_clients(held_out(0, "a", np.arange(8), sizes), sizes)]
    assert kept == [0, 0, 1, 1, 1, 2, 2, 21]
    for own in of_clients(folds(0, "a", np.arange(8), sizes), sizes)[1:]:
        counts = np.bincount(own, minlength=5)
        assert counts.max() - counts.min() <= 1
