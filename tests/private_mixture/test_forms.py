"""Columns with many zeros: the form of each, its density, rows drawn of it, and the bounds of releases."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcore.errors import ConfigError
from fedcore.methods.mixture_models.whole_rows import ONE
from fedcore.methods.private_mixture import PrivateMixture, PrivateMixtureConfig, columns
from fedcore.methods.private_mixture.clients import exponents
from fedcore.methods.private_mixture.layout import COPIES, MOST_COPIES, layout_now, layout_of
from fedcore.methods.private_mixture.plan import COLUMN_CELLS, SPANS
from fedcore.rounds.method import PublicFacts
from fedcore.rounds.results import Features
from tests.private_mixture.test_density import model_by_hand
from tests.private_mixture.test_mixed_sensitivity import copies_count_whole, moved_by_their_place
from tests.private_mixture.test_sensitivity import (
    CENTRES,
    RELATIONS,
    UNITS,
    D,
    check_rounds,
    parts_are_their_own,
    rounds_on,
    rows,
)
from tests.private_mixture.worlds import block_of, records, run


def histogram(x: np.ndarray, noise: float, generator: np.random.Generator) -> np.ndarray:
    """(1, COLUMN_CELLS) in steps, of numbers (n,), with normal noise of this standard deviation in units."""
    found = exponents(x)
    cells = np.where(found < 0, 2 * SPANS, np.where(x < 0, found, found + SPANS))
    return (np.bincount(cells, minlength=COLUMN_CELLS) + generator.normal(0, noise, COLUMN_CELLS))[None] * ONE


def form_of(x: np.ndarray, noise: float = 10.0, seed: int = 0) -> columns.Forms:
    return columns.atoms_of(histogram(x, noise, np.random.default_rng(seed)), noise * ONE, np.array([len(x)]))


def test_a_column_is_read_as_it_is_unless_its_zeros_stand_out():
    generator = np.random.default_rng(0)
    for x in (generator.normal(size=5000), np.exp(generator.normal(size=5000)), generator.normal(size=5000) + 1e6):
        found = form_of(x)
        assert not found.atoms[0] and not found.steps[0] and not found.share[0] and not found.near.any()
    few = np.where(np.arange(5000) < 40, 0.0, generator.normal(size=5000))
    assert not form_of(few).atoms[0] and form_of(few, 2.0).atoms[0] > 0


@pytest.mark.parametrize("size", [1e-3, 1.0, 300.0])
def test_zeros_are_an_atom_a_quarter_as_wide_as_the_other_numbers_are_large(size):
    generator = np.random.default_rng(1)
    x = np.where(generator.random(6000) < 0.7, 0.0, size * np.exp(0.5 * generator.normal(size=6000)))
    found = form_of(x)
    assert 0.25 < found.atoms[0] / (2 * size) < 0.5 and not found.steps[0] and not found.share[0]
    assert np.abs(x[x != 0]).min() > 0.2 * found.atoms[0]
    typical = np.arange(SPANS)[found.near[0, 1:]]
    assert abs(np.log2(size) + 30 - typical.mean()) < 3 and not found.near[0, 0]


def test_whole_numbers_have_steps_and_numbers_in_pieces_have_not():
    generator = np.random.default_rng(2)
    for rate in (0.3, 1.0, 3.0):
        found = form_of(generator.poisson(rate, 6000).astype(float))
        assert found.steps[0] == 1 and not found.atoms[0]
    halves = generator.poisson(2.0, 6000) / 2
    assert not form_of(halves).steps[0] and form_of(halves).atoms[0] > 0


def test_a_column_whose_other_numbers_noise_drowns_stands_alone():
    x = np.zeros(6000)
    x[:200] = np.exp(2 * np.random.default_rng(3).normal(size=200))
    found = form_of(x, 100.0)
    assert not found.atoms[0] and found.share[0] == pytest.approx(0.97, abs=0.05)
    assert form_of(np.zeros(6000)).share[0] == 0.99
    centre, reach, told = columns.first_guess(histogram(x, 100.0, np.random.default_rng(0)), 100.0 * ONE, found)
    assert centre[0] == 0 and reach[0] == 1 and told[0]


def test_whatever_is_published_forms_are_finite():
    generator = np.random.default_rng(4)
    for _ in range(20):
        found = columns.atoms_of(generator.integers(-(2**61), 2**61, (5, COLUMN_CELLS)).astype(float), 1.0, np.ones(5))
        for part in (found.atoms, found.steps, found.share):
            assert np.isfinite(part).all() and (part >= 0).all()
        assert (found.share <= 0.99).all()


# --- rows -------------------------------------------------------------------------------------------------------------

FORMS = {"steps": np.array([0.0, 1.0, 0.0]), "atoms": np.array([2.0, 0.0, 0.0]), "share": np.array([0.0, 0.0, 0.9])}
READ = replace(layout_of(PrivateMixtureConfig(), 3, 7), **FORMS)


def test_only_zeros_of_an_atom_and_all_numbers_of_other_forms_are_moved():
    x = np.array([[0.0, 4.0, 0.0], [-0.0, 4.0, 1e9], [5.0, 0.0, -3.0], [1e-300, 1.0, 0.0]])
    moved = READ.numbers(x, COPIES).reshape(4, COPIES, 3)
    assert (np.abs(moved[:2, :, 0]) <= 1).all() and np.ptp(moved[0, :, 0]) > 1.5
    assert (moved[2:, :, 0] == x[2:, :1]).all()
    assert (np.abs(moved[:, :, 1] - x[:, 1:2]) <= 0.5).all() and (np.abs(moved[:, :, 2]) <= 0.5).all()
    assert np.array_equal(READ.numbers(x[2:3], 1), READ.numbers(x, 1)[2:3])
    assert READ.copies() == COPIES and READ.copies(of_valleys=True) == MOST_COPIES
    assert replace(READ, atoms=np.zeros(3)).copies() == 1


def test_rows_are_moved_elsewhere_in_each_round():
    """Equal rows are moved to a few places, and components would shrink to these if they stayed."""
    x = np.zeros((1, 3))
    one, two = (replace(layout_of(PrivateMixtureConfig(), 3, 7, number), **FORMS) for number in (1, 2))
    assert not np.array_equal(one.numbers(x, COPIES), two.numbers(x, COPIES))


def test_the_setting_steps_comes_first():
    config = PrivateMixtureConfig(components=2, rounds=1, steps={"0": 0.5})
    x = np.random.default_rng(5).normal(size=(3000, 2)) * 9
    x[np.random.default_rng(6).random(x.shape) < 0.4] = 0.0
    method, state = run(records(x), config, 4.0)
    now = layout_now(config, state)
    assert now.steps.tolist() == [0.5, 0] and now.atoms[0] == 0 < now.atoms[1] and state.atoms[0] == 0


# --- density ----------------------------------------------------------------------------------------------------------


def test_a_zero_counts_by_its_probability():
    """The density of a column with an atom: over the numbers beyond the atom, and the zero, it sums to one."""
    model = model_by_hand()
    model = replace(model, layout=replace(model.layout, atoms=np.array([3.0])))
    grid = np.append(-np.geomspace(1e12, 1.5, 200_001), np.geomspace(1.5, 1e12, 200_001))[:, None]
    middle, width = (grid[1:] + grid[:-1]) / 2, np.diff(grid[:, 0])
    outside = np.abs(middle[:, 0]) > 1.5
    beyond = np.exp(model.log_likelihood(middle[outside])) @ width[outside]
    assert beyond + np.exp(model.log_likelihood(np.zeros((1, 1))))[0] == pytest.approx(1, abs=5e-3)


def test_a_column_that_stands_alone_has_a_factor_of_its_own():
    model = model_by_hand(2)
    model = replace(model, layout=replace(model.layout, share=np.array([0.0, 0.8])))
    x = np.array([[3.0, 0.0], [3.0, 5.0], [3.0, -5.0], [3.0, 1e300], [3.0, 2.0**-40]])
    found = model.log_likelihood(x)
    assert np.isfinite(found).all() and found[1] == pytest.approx(found[2], abs=0.1)
    factor = 0.2 * (0.99 / (2 * 61 * np.log(2) * 5) + 0.01 / (np.pi * 26))
    assert found[1] - found[0] == pytest.approx(np.log(factor / 0.8), abs=0.1)


def test_drawn_rows_have_zeros_where_the_data_have():
    model = model_by_hand(3)
    model = replace(model, scale=np.full(3, 2.0), centre=np.zeros(3), layout=READ)
    x, y = model.sample(4000, np.random.default_rng(0))
    assert set(y.tolist()) == {0, 1, 2} and (y == 0).mean() == pytest.approx(0.6, abs=0.03)
    assert (x[:, 0] == 0).mean() > 0.02 and np.abs(x[x[:, 0] != 0, 0]).min() >= 1.0
    assert (x[:, 1] == np.rint(x[:, 1])).all()
    assert (x[:, 2] == 0).mean() == pytest.approx(0.9, abs=0.02)
    size = np.log2(np.abs(x[x[:, 2] != 0, 2]))
    assert size.min() >= -30 and size.max() <= 31 and size.mean() == pytest.approx(0.5, abs=4)


def zeros_and_numbers(n: int, generator: np.random.Generator) -> np.ndarray:
    """Two groups; a column with an atom, one of whole numbers, one of zeros with a few others, and a plain one."""
    group = generator.random(n) < 0.5
    amount = np.where(generator.random(n) < np.where(group, 0.3, 0.8), 0.0, np.exp(3 + 0.5 * generator.normal(size=n)))
    visits = generator.poisson(np.where(group, 4.0, 0.5)).astype(float)
    rare = np.where(generator.random(n) < 0.995, 0.0, 100 * generator.normal(size=n))
    return np.column_stack([amount, visits, rare, generator.normal(size=n) + 6 * group])


@pytest.fixture(scope="module")
def fitted():
    generator = np.random.default_rng(8)
    config = PrivateMixtureConfig(components=3)
    return run(records(zeros_and_numbers(6000, generator)), config, 1.0), zeros_and_numbers(3000, generator)


def test_a_run_finds_the_form_of_each_column_and_says_it(fitted):
    (method, state), test = fitted
    assert state.atoms.astype(bool).tolist() == [True, False, False, False]
    assert state.steps.tolist() == [0, 1, 0, 0] and state.share.astype(bool).tolist() == [False, False, True, False]
    assert "column 2 stands alone: 99 % zeros" in method.outcome(state)
    names = ["amount", "visits", "rare", "size"]
    tables = {table.name: table for table in method.result(state, Features(4, names)).tables}
    forms = {column.name: column.values for column in tables["column_forms"].columns}
    assert forms["column"] == names[:3] and forms["read as"][1] == "whole numbers, steps of 1"
    assert forms["share of zeros"][:2] == [None, None] and forms["share of zeros"][2] == pytest.approx(0.99, abs=0.02)
    assert next(iter(tables["means"].columns)).values == ["amount", "visits", "size"]
    with pytest.raises(ConfigError, match="stand alone"):
        method.fitted_model(state)
    assert "weights" not in method.warm_start_of(state)  # federated EM does not read columns so


def test_the_density_is_near_that_of_the_truth(fitted):
    (method, state), test = fitted
    model = method.model(state)
    found = model.log_likelihood(test)
    assert np.isfinite(found).all()
    likely = np.zeros((len(test), 2))
    for k, (none, rate, at) in enumerate(((0.8, 0.5, 0.0), (0.3, 4.0, 6.0))):
        amount, visits, rare, size = test.T
        log = np.log(np.where(amount == 0, 1.0, amount))
        spread = -0.5 * ((log - 3) / 0.5) ** 2 - log - np.log(0.5 * np.sqrt(2 * np.pi))
        likely[:, k] = np.log(0.5) + np.where(amount == 0, np.log(none), np.log(1 - none) + spread)
        factorial = np.array([sum(np.log(np.arange(1, int(v) + 1))) for v in visits])
        likely[:, k] += visits * np.log(rate) - rate - factorial - 0.5 * (size - at) ** 2 - 0.5 * np.log(2 * np.pi)
        wide = -0.5 * (rare / 100) ** 2 - np.log(100 * np.sqrt(2 * np.pi))
        likely[:, k] += np.where(rare == 0, np.log(0.995), np.log(0.005) + wide)
    truth = np.logaddexp(*likely.T).mean()
    assert truth - 1.5 < found.mean() < truth + 0.05


def test_a_series_keeps_the_forms(fitted):
    (method, state), test = fitted
    block = records(zeros_and_numbers(6000, np.random.default_rng(9)))
    start = method.checked_warm_start(method.warm_start_of(state), "it", 4)
    _, later = run(block, method.config, 1.0, 5, start=start)
    assert later.warm and np.array_equal(later.atoms, state.atoms) and np.array_equal(later.share, state.share)
    assert later.steps.tolist() == state.steps.tolist()
    with pytest.raises(ConfigError, match="what no run leaves"):
        method.checked_warm_start(start | {"pooled_share": np.full(4, 1.5)}, "it", 4)


# --- bounds -----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=32)
def rounds_of(unit: str, relation: str, absurd: int | None = None, goes_on: bool = False):
    """As those of `tests.private_mixture.test_sensitivity`; one column has an atom, one steps, and one stands alone."""
    method, generator = PrivateMixture(PrivateMixtureConfig(components=3, rounds=2)), np.random.default_rng(3)
    public = PublicFacts("rows", D, 1024, 900, None, 200.0, 0, relation, None, unit)
    labels = np.arange(900) % 3
    x = CENTRES[labels] + generator.normal(size=(900, D))
    x[labels == 2, 0] = 0.0
    x[:, 1] = generator.poisson(np.array([1.0, 3.0, 9.0])[labels])
    x[:, 2] = 0.0
    state, found = rounds_on(records(x), method, public, absurd if not goes_on else None)
    if goes_on:
        _, found = rounds_on(records(x), method, replace(public, warm_start=method.warm_start_of(state)), absurd)
    if absurd is None:
        assert (layout_now(method.config, state).moving == [True] * D).all()
    return method, found


def check(unit, relation, absurd, *people, goes_on=False) -> None:
    check_rounds(*rounds_of(unit, relation, absurd, goes_on), unit, relation, *people)


def usual(seed: int):
    generator = np.random.default_rng(seed)
    x = CENTRES[generator.integers(0, 3, 40)] + generator.normal(size=(40, D)) * generator.choice([0.3, 30.0], (40, 1))
    x[generator.random((40, D)) < 0.3] = 0.0
    x[generator.random((40, D)) < 0.15] = np.nan
    return [x[:9], x[9:20]], x[20:28], x[30:34]


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.slow
def test_usual_people_keep_the_bounds_and_their_own_part(unit, goes_on):
    for relation in RELATIONS:
        check(unit, relation, None, *usual(0), goes_on=goes_on)


@pytest.mark.slow
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("relation", RELATIONS)
@given(st.data())
@settings(max_examples=8, deadline=None)
def test_a_unit_moves_no_release_by_more_than_planned(unit, relation, data):
    """Of at most 400 rows, as with categories; `tests.private_mixture.test_sensitivity` repeats rows 5000 times."""
    absurd = data.draw(st.sampled_from([None, None, 0, 7, 13]))
    few = [data.draw(rows(most))[:400] for most in (3, 2, 5, 5)]
    check(unit, relation, absurd, few[:2], *few[2:])


@pytest.mark.slow
def test_a_part_is_its_own_whatever_the_block_looks_like(monkeypatch):
    generator = np.random.default_rng(1)
    x = np.round(np.vstack([*usual(1)[0], usual(1)[1], usual(1)[2]]) * 2) / 2
    held = [x[:0], x[:1], x[1:8], x[8:], np.repeat(x[:1], 3, axis=0)]
    for unit in UNITS:
        parts_are_their_own(*rounds_of(unit, RELATIONS[0]), held, generator, monkeypatch)


@pytest.mark.parametrize("sabotage", [copies_count_whole, moved_by_their_place])
def test_a_sabotaged_kernel_breaks_the_bound(sabotage):
    rounds_of("client", RELATIONS[0])
    with sabotage(), pytest.raises(AssertionError):
        for seed in range(10):
            check("client", RELATIONS[0], None, *usual(seed))


def test_components_do_not_shrink_to_the_places_of_equal_rows():
    """Four rows in five are zeros alone. Their probability is at most one. If they were moved to the same places in
    all rounds, the density there would be far above it."""
    generator = np.random.default_rng(11)
    x = np.where(generator.random((6000, 9)) < 0.02, np.exp(3 + generator.normal(size=(6000, 9))), 0.0)
    method, state = run(records(x[:5000]), PrivateMixtureConfig(components=8), 1.0)
    found = method.model(state).log_likelihood(np.zeros((1, 9)))[0]
    assert -1.5 < found < 0.05


def test_clients_of_zeros_alone_add_a_client():
    config = PrivateMixtureConfig(components=2, rounds=1)
    method, state = run(block_of([np.zeros((3, 2))] * 800), config, 4.0, unit="client")
    assert state.count == pytest.approx(800, abs=40) and (state.share > 0).all()
    assert method.result(state, Features(2)).tables and not method.result(state, Features(2)).figures


def test_a_narrow_component_is_said_to_be_perhaps_a_repeated_value():
    generator = np.random.default_rng(2)
    x = generator.normal(size=(6000, 3)) + [0.0, 100.0, 0.0]
    repeated = generator.random(6000) < 0.5
    x[repeated, 1] = 103.5
    method, state = run(records(x), PrivateMixtureConfig(components=3), 4.0)
    said = "columns that may hold repeated values other than zero: 1. A component there is less than 3.3% as wide"
    assert said in method.outcome(state)
    tables = {table.name: table for table in method.result(state, Features(3)).tables}
    assert tables["standard_deviations"].note.startswith("The released histograms show repeated values at zero only.")
    _, state = run(records(x), PrivateMixtureConfig(components=3, steps={"0": 1.0, "1": 1.0, "2": 1.0}), 4.0)
    assert "repeated" not in method.outcome(state)
    x[repeated, 1] = 103.5 + generator.normal(size=int(repeated.sum()))
    method, state = run(records(x), PrivateMixtureConfig(components=3), 4.0)
    assert "repeated" not in method.outcome(state)
