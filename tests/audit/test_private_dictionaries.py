"""Private dictionaries: one client moves no release beyond its bound, nobody tells a canary better than is paid for,
and sabotaged builds are caught."""

from collections import Counter
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

from fedcore.methods.dictionaries.private import clients
from fedcore.methods.dictionaries.private.clients import MomentsMessage, PrivateSumsMessage
from fedcore.methods.dictionary_learning.operators import normalise
from fedcore.methods.dictionary_learning.sparse_codes import omp
from fedcore.population.blocks import leaves
from fedcore.rounds.statistics import merge_all
from tests.audit.attack import PRODUCT, Build, attack_release, attack_runs
from tests.audit.bounds import mu_lower_bound
from tests.audit.dictionary_releases import CASES, KERNELS, no_clip
from tests.audit.em_releases import block_of
from tests.audit.releases import PUBLISHED, rounds_of, squared_distance, sums, whole
from tests.audit.test_sensitivity import check, neighbours

MU = 1.5  # claimed, of every audited run and release
RHO = MU**2 / 2


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@given(neighbours(), st.sampled_from(list(PUBLISHED)), st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_one_client_moves_no_release_by_more_than_planned(case, people, published, seed):
    check(case, people, published, seed)


@pytest.mark.parametrize("name", KERNELS)
def test_a_sabotaged_kernel_breaks_the_bound(name):
    generator = np.random.default_rng(0)
    with KERNELS[name](), pytest.raises(AssertionError):
        for seed in range(50):
            people = generator.integers(0, 9, (8, 6))
            case = CASES[("dictionaries", "dictionaries, given")[seed % 2]]
            check(case, (people[:6], people[6] * 10 ** (seed % 5), people[7], 2, 2), "as planned", seed)


def test_the_bound_is_reached():
    """By a client far beyond the scale: all three parts of its vector are at their bounds, up to truncation."""
    case = CASES["dictionaries"]
    others = case.block(np.random.default_rng(0).integers(0, 9, (12, 6)))
    for round in rounds_of(case, others):
        (planned,) = round.planned
        own = sums(case, round.message, case.block([[900, 4, 3, 800, 0, 700]]))[planned.name]
        assert (planned.sensitivity - 40) ** 2 < squared_distance(own, 0 * own) <= planned.sensitivity**2


@pytest.mark.slow
def test_a_clients_part_is_its_own_to_the_last_bit_in_large_leaves():
    """Alone, in all company, without some others, in another order, cut into leaves, stored in another precision."""
    generator, case = np.random.default_rng(1), CASES["dictionaries"]
    sizes = generator.permutation([0, 1, 2, 3, 7, 8, 9, 16, 31, 33, 100, 3000] + generator.integers(0, 40, 12).tolist())
    parts = [generator.normal(size=(size, 2)).astype(np.float32) for size in sizes]
    for round in rounds_of(case, block_of(parts)):
        name = round.planned[0].name

        def total(rows, leaf=1024, dtype=np.float32, message=round.message):
            made = leaves(block_of([own.astype(dtype) for own in rows]), leaf)
            return merge_all([case.method.client_update(message, each, None)[0] for each in made])

        alone = np.stack([total([own])[name].value() for own in parts])
        for number in range(4):
            chosen = generator.permutation(len(parts))[: len(parts) - 4 * number]
            found = total([parts[i] for i in chosen], (1024, 7, 1)[number % 3], (np.float32, np.float64)[number % 2])
            assert whole(found[name].value()) == whole(alone[chosen].sum(axis=0))
        assert np.count_nonzero(alone.any(axis=1)) >= 15


def before_the_cut(people, asked):
    """How often each vector that is clipped occurs, by its bytes, if all clients answer together, and one by one."""
    together: Counter[bytes] = Counter()
    alone: Counter[bytes] = Counter()
    for found, blocks in ((together, [people]), (alone, [[own] for own in people])):

        def clipped(values, clip, bound, found=found):
            found.update(own.tobytes() for own in values)
            return np.zeros_like(values)

        with mock.patch.object(clients, "clipped", clipped):
            for each in blocks:
                for message in asked:
                    clients.client_update(message, block_of(each))
    return together, alone


def some_company(seed):
    generator = np.random.default_rng(seed)
    d, r = (int(generator.choice(of)) for of in ((1, 2, 7, 24, 65), (1, 3, 40)))
    atoms = normalise(generator.normal(size=(r, d)))[0]
    sums = PrivateSumsMessage("sums", atoms, int(generator.integers(1, 9)), float(d), 1e9)
    sizes = [*generator.integers(0, 14, generator.integers(2, 40)), *[9] * generator.integers(0, 60)]
    return [generator.normal(size=(size, d)) for size in sizes], (sums, MomentsMessage("moments", 1.0))


@pytest.mark.slow
@given(st.integers(0, 2**31))
@settings(max_examples=25, deadline=None)
def test_a_clients_vector_has_the_same_bits_in_any_company(seed):
    """Before it is clipped and cut: few of a release's whole numbers move if a last bit does."""
    together, alone = before_the_cut(*some_company(seed))
    assert together == alone


def test_codes_of_all_rows_in_one_product_are_caught():
    """One thread of the BLAS cuts these products alike, and two do not."""
    with threadpool_limits(2), mock.patch.object(clients, "omp_apart", omp):
        found = (before_the_cut(*some_company(seed)) for seed in range(20))
        assert any(together != alone for together, alone in found)


def test_a_large_client_is_the_same_in_tiles_and_alone():
    """Rows that are read tile by tile, between others that are stacked."""
    generator, case = np.random.default_rng(3), CASES["dictionaries"]
    parts = [generator.normal(size=(size, 2)) for size in (5, 90, 7, 33)]
    with mock.patch.object(clients, "TILE_NUMBERS", 2 * 24):
        for round in rounds_of(case, block_of(parts)):
            name = round.planned[0].name
            whole_sum, *own = (
                case.method.client_update(round.message, block_of(rows), None)[0][name].value()
                for rows in (parts, *([part] for part in parts))
            )
            assert whole(whole_sum) == whole(sum(own)) and all(part.any() for part in own)


def first_sums(case):
    """The first round of sums, with a budget that makes its own mu equal to MU."""
    people = case.block(np.random.default_rng(2).integers(0, 9, (5, 4)))
    share = list(case.method.plan(case.public(4, 1.0)))[-1].rho
    return next((r, r.planned[0]) for r in rounds_of(case, people, rho=RHO / share) if "sums" in r.planned[0].name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dictionaries", "dictionaries, replaced"])
def test_nobody_tells_a_canary_better_than_a_release_is_paid_for(name):
    case = CASES[name]
    round, planned = first_sums(case)
    shown = mu_lower_bound(*attack_release(PRODUCT, case, round, planned, 3000))
    print(f"mu >= {shown:.3f}")
    assert shown <= MU


@pytest.mark.slow
@pytest.mark.heavy
def test_nobody_tells_a_canary_better_than_a_run_is_paid_for():
    shown = mu_lower_bound(*attack_runs(PRODUCT, CASES["dictionaries"], RHO, 3000))
    print(f"mu >= {shown:.3f}")
    assert 0.3 * MU <= shown <= MU


def test_a_release_without_a_clip_is_caught():
    case = CASES["dictionaries"]
    round, planned = first_sums(case)
    assert mu_lower_bound(*attack_release(Build(sabotage=no_clip), case, round, planned, 300)) > MU
