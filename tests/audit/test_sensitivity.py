"""One client moves no release by more than its planned sensitivity: property tests in Python's own integers.

Every release of every configuration in `tests.audit.releases`, with messages of runs whose published values are
usual, absurd, zero, or as bad for the whitening as they can be.
"""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcore.errors import SensitivityError
from fedcore.population.streaming import StoredRows
from fedcore.rounds.clients import Source, answer_block
from tests.audit import em_releases
from tests.audit.releases import (
    ALL,
    CASES,
    PUBLISHED,
    WITH_HALVES,
    in_one_cell,
    rounds_of,
    squared_distance,
    sums,
    whole,
)
from tests.audit.sabotage import KERNELS, OF_HALVES
from tests.conftest import write_counts
from tests.histograms.example_clients import block_of, random_counts
from tests.histograms.run_in_memory import answer

COUNTS = st.sampled_from([0, 0, 0, 1, 1, 2, 7, 500, 2**24 + 1, 2**40, 2**50])


@st.composite
def neighbours(draw):
    """(counts of the others, one client, another client in its place, where it stands, cut into leaves)."""
    features = draw(st.integers(3, 12))  # sums of 8 and more terms are added in another order
    even = st.sampled_from([1, 7, 500]).map(lambda count: [count] * features)  # a tie between turned centres
    row = st.lists(COUNTS, min_size=features, max_size=features) | even
    others = draw(st.lists(row, min_size=1, max_size=6))
    place = draw(st.integers(0, len(others)))
    return np.array(others), np.array(draw(row)), np.array(draw(row)), place, draw(st.integers(1, 8))


def check(case, people, published, seed):
    others, one, instead, place, leaf = people
    without, alone = case.block(others), case.block(one[None])
    with_one, replaced = (case.block(np.insert(others, place, row, axis=0)) for row in (one, instead))
    for round in rounds_of(case, without, seed, published):
        before, after, exchanged, own = (sums(case, round.message, b) for b in (without, with_one, replaced, alone))
        cut = sums(case, round.message, with_one, leaf)
        for planned in round.planned:
            name = planned.name
            assert squared_distance(after[name], before[name]) <= case.allowed(planned, "add_or_remove_one")
            assert squared_distance(after[name], exchanged[name]) <= case.allowed(planned, "replace_one")
            # what it adds depends on itself alone: nobody else moves, and its own part is the same in any company
            assert whole(after[name] - before[name]) == whole(own[name])
            assert whole(cut[name]) == whole(after[name]), "the cut into leaves changes nothing"
            if in_one_cell(planned):
                assert np.count_nonzero((after[name] != before[name]).reshape(len(after[name]), -1).any(axis=1)) <= 1
            if not one.any():
                assert not any(whole(own[name])), "an empty client adds nothing"


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@given(neighbours(), st.sampled_from(list(PUBLISHED)), st.integers(0, 2**31))
@settings(max_examples=100, deadline=None)
def test_one_client_moves_no_release_by_more_than_planned(case, people, published, seed):
    check(case, people, published, seed)


@pytest.mark.slow
@pytest.mark.parametrize("case", WITH_HALVES.values(), ids=WITH_HALVES)
@given(neighbours(), st.sampled_from(list(PUBLISHED)), st.integers(0, 2**31))
@settings(max_examples=30, deadline=None)
def test_one_client_with_both_halves_moves_no_release_by_more_than_planned(case, people, published, seed):
    check(case, people, published, seed)


@pytest.mark.slow
@pytest.mark.parametrize("case", em_releases.CASES.values(), ids=em_releases.CASES)
@given(neighbours(), st.sampled_from(list(PUBLISHED)), st.integers(0, 2**31))
@settings(max_examples=50, deadline=None)
def test_one_client_moves_no_release_of_em_by_more_than_planned(case, people, published, seed):
    check(case, people, published, seed)


def total_of(
    method, message, rows: list[np.ndarray], dtype=np.float32, leaf: int = 1024, stored: bool = False
) -> np.ndarray:
    """stored: the rows are read while they are used, as those of a block that is too large to be held."""
    block = em_releases.block_of(rows)
    held = block.x.astype(dtype)
    read = StoredRows(lambda first, stop: held[first:stop], *held.shape, held.dtype, 100)
    return answer(method, message, replace(block, x=read if stored else held), leaf)[message.release].value()


@pytest.mark.slow
@pytest.mark.parametrize(("model", "covariance"), em_releases.MODELS)
@pytest.mark.parametrize(("d", "components"), [(3, 2), (11, 5), (16, 8)])
def test_a_clients_part_is_its_own_to_the_last_bit_in_large_leaves(model, covariance, d, components, monkeypatch):
    """Where sums of many rows are one product for a leaf, its last bits follow from who else is there. Few clients are
    clipped together, so that most leaves are clipped in parts.

    Alone, in all company, without some others, in another order, cut into leaves and into portions, stored in another
    precision, and read from the store: whether a block is too large to be held depends on all of its clients.
    """
    monkeypatch.setattr("fedcore.methods.federated_em.leaf_rows.PORTION_NUMBERS", 8000)
    monkeypatch.setattr("fedcore.methods.federated_em.private.CLIPPED_TOGETHER", 50)
    generator = np.random.default_rng(d)
    method, message, parts = em_releases.large_world(model, covariance, d, components, generator)
    alone = np.stack([total_of(method, message, [part]) for part in parts])
    for number in range(6):
        chosen = generator.permutation(len(parts))[: len(parts) - 5 * number]
        total = total_of(
            method,
            message,
            [parts[i] for i in chosen],
            (np.float32, np.float64)[number % 2],
            (1024, 7, 1)[number % 3],
            number in (1, 4),
        )
        assert whole(total) == whole(alone[chosen].sum(axis=0))
    assert np.count_nonzero(alone.any(axis=1)) >= 30


@pytest.mark.parametrize("clip", [float("nan"), float("inf"), 0.0, -3.25, 5e-324])
def test_workers_do_not_answer_a_message_that_the_bound_does_not_cover(tmp_path, clip):
    """And the error shows no number."""
    case, counts = CASES["clusters"], random_counts(np.random.default_rng(0), 6, 4)
    made = write_counts(tmp_path / "p", sp.csr_matrix(counts), leaf=2, block=4)
    message = next(iter(rounds_of(case, block_of(counts)))).message
    source = Source(made.location, made.version)
    assert answer_block(case.method, source, message, 0)
    with pytest.raises(SensitivityError, match="the field 'clip' of this round's message") as refused:
        answer_block(case.method, source, replace(message, clip=clip), 0)
    assert not set("0123456789") & set(f"{refused.value} {refused.value.remedy}") and "nan" not in str(refused.value)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_a_sabotaged_kernel_breaks_the_bound(kernel):
    generator = np.random.default_rng(0)
    with kernel(), pytest.raises(AssertionError):
        for seed in range(200):
            others, (one, instead) = random_counts(generator, 6, 4), random_counts(generator, 2, 4)
            others = np.vstack([np.minimum(others, 1000), [seed + 1] * 4])
            for case in ("clusters", "given"):
                check(CASES[case], (others, one * 2 ** (seed % 40), instead, 2, 2), "as planned", seed)


@pytest.mark.parametrize("kernel", OF_HALVES.values(), ids=OF_HALVES)
def test_a_sabotaged_kernel_of_second_halves_breaks_the_bound(kernel):
    generator = np.random.default_rng(0)
    with kernel(), pytest.raises(AssertionError):
        for seed in range(30):
            others, (one, instead) = random_counts(generator, 6, 5), random_counts(generator, 2, 5)
            case = ("halves", "halves, replaced")[seed % 2]
            check(WITH_HALVES[case], (np.minimum(others, 1000), one, instead, 2, 2), "as planned", seed)


@pytest.mark.parametrize("kernel", em_releases.KERNELS.values(), ids=em_releases.KERNELS)
def test_a_sabotaged_kernel_of_em_breaks_the_bound(kernel):
    generator = np.random.default_rng(0)
    with kernel(), pytest.raises(AssertionError):
        for seed in range(50):
            people = generator.integers(0, 9, (8, 5))
            case = ALL[("em, known", "em, diag", "em, full")[seed % 3]]
            check(case, (people[:6], people[6] * 10 ** (seed % 5), people[7], 2, 2), "as planned", seed)


TIGHT = CASES | {name: ALL[name] for name in ("em, known", "em, replaced")}


@pytest.mark.parametrize("case", TIGHT.values(), ids=TIGHT)
def test_the_bound_is_reached_so_a_smaller_whole_number_would_be_wrong(case):
    """By clients with one token, under addition and under replacement by clients without a common token.

    With a narrow clip, which all of them reach, or with published values that leave most tokens at the metric's floor.
    """
    d, near = 6, {}
    others, rows = case.block(random_counts(np.random.default_rng(0), 12, d)), np.eye(d, dtype=np.int64) * 2**40
    for shape, published in ((case, "one-sided"), (case.narrow(0.5), "as planned")):
        for round in rounds_of(shape, others, published=published):
            parts = [sums(shape, round.message, case.block([row])) for row in rows]
            for planned in round.planned:
                own = [part[planned.name] for part in parts]
                exchanged = max(squared_distance(a, b) for a in own for b in own)
                added = max(squared_distance(a, 0 * a) for a in own)
                reached = exchanged if case.relation == "replace_one" else min(added, exchanged / case.replaced)
                enough = min(0.999 * planned.sensitivity**2, (planned.sensitivity - 1) ** 2)
                near[planned.name] = near.get(planned.name, False) or reached > enough
    assert all(near.values()), near


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_client_that_switches_cells_moves_two_of_them_within_the_bound_for_replacement(case):
    others, moved = random_counts(np.random.default_rng(1), 12, 6), []
    rows = np.eye(6, dtype=np.int64) * 9 + 1
    for seed in range(3):
        for round in rounds_of(case, block_of(others), seed):
            parts = [sums(case, round.message, block_of(row[None])) for row in rows]
            for planned in round.planned:
                for part in parts:
                    change = part[planned.name] - parts[0][planned.name]
                    assert squared_distance(change, 0 * change) <= case.allowed(planned, "replace_one")
                    if in_one_cell(planned):
                        moved.append(np.count_nonzero(change.reshape(len(change), -1).any(axis=1)))
    most = max(p.shape[0] for p in case.method.plan(case.public(6)) if in_one_cell(p) or p.shape[0] == 1)
    assert max(moved, default=1) == min(2, most), "some pair of rows lies in two cells, and none in more"


@given(st.sampled_from(list(ALL)), st.floats(1e-8, 1e3))
@settings(max_examples=60, deadline=None)
def test_the_charged_price_covers_the_noise_that_is_drawn(name, rho):
    """The scale that is drawn with, in fractions, costs at most the charged rho, and hardly less."""
    case = ALL[name]
    for planned in case.method.plan(case.public(5, rho)):
        exact = Fraction(planned.sensitivity) ** 2 / (2 * Fraction(planned.scale) ** 2)
        assert exact <= Fraction(planned.rho) <= exact * (1 + Fraction(1, 2**49))
