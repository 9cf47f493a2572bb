"""Cohorts in a manifest, and ranges of numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.errors import ManifestError
from fedcore.population import manifest as manifests
from fedcore.population.cohorts import HOLE, Cohort, clients_of, fault, joined
from fedcore.storage.ranges import holds, in_words, merged, numbers_in, parsed, ranges_of

ORDERS = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4)), min_size=1, max_size=12).map(joined)


def cohorts(number: int) -> tuple[Cohort, ...]:
    return tuple(Cohort(number=n, token=f"{n:032x}", opened="2026-01-01") for n in range(1, number + 1))


@given(st.sets(st.integers(0, 60)))
def test_ranges_hold_exactly_their_numbers(numbers):
    ranges = ranges_of(numbers)
    assert numbers_in(ranges) == sorted(numbers)
    assert all(holds(ranges, n) == (n in numbers) for n in range(62))
    assert merged(ranges) == ranges and (not ranges or parsed(in_words(ranges)) == ranges)


@pytest.mark.parametrize("text", ["", "a", "3-1", "-2", "1,,2"])
def test_ranges_that_are_none(text):
    with pytest.raises(ValueError):
        parsed(text)


@given(ORDERS, st.sets(st.integers(1, 5)))
def test_clients_of_cohorts_are_those_with_its_number(order, chosen):
    each = [cohort for cohort, clients in order for _ in range(clients)]
    asked = [i for i, cohort in enumerate(each) if cohort in chosen and cohort != HOLE]
    ranges = clients_of(order, ranges_of(chosen))
    assert [i for first, stop in ranges for i in range(first, stop)] == asked
    assert all(stop < following for (_, stop), (following, _) in zip(ranges, ranges[1:], strict=False))


@given(ORDERS)
def test_an_order_of_known_cohorts_is_no_fault(order):
    assert fault(cohorts(5), order, sum(clients for _, clients in order)) is None


@pytest.mark.parametrize(
    ("made", "order", "clients"),
    [
        ((), ((1, 3),), 3),
        (cohorts(2)[1:], ((2, 3),), 3),
        (cohorts(2), ((1, 3),), 4),
        (cohorts(2), ((1, 1), (1, 2)), 3),
        (cohorts(2), ((1, 1), (3, 2)), 3),
        (cohorts(2), ((1, 0), (2, 3)), 3),
        ((*cohorts(1), cohorts(1)[0].model_copy(update={"number": 2})), ((1, 3),), 3),
    ],
)
def test_faults_of_an_order(made, order, clients):
    assert fault(made, order, clients)


def test_a_manifest_with_cohorts_comes_back(counts_population):
    old = counts_population.manifest
    clients = old.n_clients
    fields = {"needs": ("cohorts",), "cohorts": cohorts(2), "order": ((1, clients - 1), (2, 1))}
    made = manifests.build(**{**dict(old), **fields})
    assert manifests.decode(manifests.encode(made), "here") == made
    assert manifests.checksum(made) != manifests.checksum(old)
    with pytest.raises(ManifestError, match="need"):
        manifests.build(**{**dict(old), **fields, "needs": ()})
