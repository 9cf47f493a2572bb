"""Tables of numbers, categories and numbers with steps: one unit moves no release by more than planned, and has its own
part in any company. Property tests in Python's own integers."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcore.methods.mixture_models import whole_rows
from fedcore.methods.private_mixture import PrivateMixture, PrivateMixtureConfig, clients, layout
from fedcore.rounds.method import PublicFacts
from tests.private_mixture.test_sensitivity import (
    CENTRES,
    RELATIONS,
    UNITS,
    D,
    check_rounds,
    parts_are_their_own,
    rounds_on,
    rows,
    squared,
)
from tests.private_mixture.worlds import block_of, records, sums

SIZES = (2, 3, 2)  # of the last category, a single column
CATEGORIES = ((3, 4), (6, 7, 8), (5,))  # between the numbers, as far as there are any
COLUMNS = D + 6
STEPS = {"0": 1.0, "1": 0.25, "2": 0.5}  # of all numbers: rows are read as several
CODES = np.array([[0, 2, 1], [1, 0, 0], [0, 1, 1]])


def entries(codes: np.ndarray) -> np.ndarray:
    """(n, 6) columns 3 to 8 of answers (n, 3), of which -1 is a gap."""
    found = np.full((len(codes), 6), np.nan)
    for own, code in zip(CATEGORIES, codes.T, strict=True):
        given_ = code >= 0
        one_hot = np.eye(3)[np.maximum(code, 0)][:, : len(own)] if len(own) > 1 else code[:, None]
        found[np.ix_(given_, [column - 3 for column in own])] = one_hot[given_]
    return found


@lru_cache(maxsize=32)
def rounds_of(unit: str, relation: str, absurd: int | None = None, goes_on: bool = False, steps: bool = False):
    """As those of `tests.private_mixture.test_sensitivity`, with categories, and perhaps with steps."""
    config = PrivateMixtureConfig(components=3, rounds=2, categories=CATEGORIES, steps=STEPS if steps else {})
    method, generator = PrivateMixture(config), np.random.default_rng(3)
    public = PublicFacts("rows", COLUMNS, 1024, 900, None, 200.0, 0, relation, None, unit)
    labels = np.arange(900) % 3
    x = CENTRES[labels] + generator.normal(size=(900, D))
    block = records(np.column_stack([x, entries(np.where(generator.random((900, 3)) < 0.1, -1, CODES[labels]))]))
    state, found = rounds_on(block, method, public, absurd if not goes_on else None)
    if goes_on:
        _, found = rounds_on(block, method, replace(public, warm_start=method.warm_start_of(state)), absurd)
    return method, found


@st.composite
def people(draw, most=5):
    """(n, COLUMNS) rows whose answers are usual, missing, several at once, fractions or not finite."""
    x = draw(rows(most))
    codes = np.array([[draw(st.integers(-1, size - 1)) for size in SIZES] for _ in range(min(len(x), 6))], np.int64)
    found = entries(np.resize(codes, (len(x), 3)))
    odd = draw(st.sampled_from([None, None, 0.5, 1.0, 0.0, 2.0, -1.0, np.inf, np.nan, 1e300]))
    if odd is not None and len(x):
        found[draw(st.integers(0, len(x) - 1)), draw(st.integers(0, 5)) :] = odd
    return np.column_stack([x, found])[:400]


def check(unit, relation, absurd, *people, goes_on=False, steps=False) -> None:
    check_rounds(*rounds_of(unit, relation, absurd, goes_on, steps), unit, relation, *people)


def usual(seed: int):
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 3, 40)
    x = CENTRES[labels] + generator.normal(size=(40, D)) * generator.choice([0.3, 30.0], (40, 1))
    x[generator.random((40, D)) < 0.2] = np.nan
    x = np.column_stack([x, entries(np.where(generator.random((40, 3)) < 0.2, -1, CODES[labels]))])
    return [x[:9], x[9:20]], x[20:28], x[30:34]


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("goes_on, steps", [(False, False), (False, True), (True, True)])
@pytest.mark.slow
def test_usual_people_keep_the_bounds_and_their_own_part(unit, goes_on, steps):
    for relation in RELATIONS:
        check(unit, relation, None, *usual(0), goes_on=goes_on, steps=steps)


def answers_of(rounds):
    for message, planned in rounds:
        for release in planned:
            if release.name.startswith("em_answers"):
                yield message, release


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("relation", RELATIONS)
def test_the_bound_of_answers_is_reached(unit, relation):
    """By a row that one component holds and that has answered every category; a smaller whole number would not do."""
    method, rounds = rounds_of(unit, relation)
    rows_ = np.column_stack([CENTRES[:2], entries(CODES[:2])])
    met = 0
    for message, release in answers_of(rounds):
        met += 1
        one, other = (sums(method, message, block_of([row[None]]))[release.name] for row in rows_)
        moved = squared(one) if relation == RELATIONS[0] else squared(one - other)
        assert 0.99 < moved / release.sensitivity**2 <= 1
    assert met == 2


def test_gaps_add_nothing():
    method, rounds = rounds_of("record", RELATIONS[0])
    full = np.column_stack([CENTRES[:1], entries(CODES[:1])])
    for message, release in answers_of(rounds):
        gap = full.copy()
        gap[0, 6:9] = np.nan
        whole, some = (sums(method, message, block_of([row]))[release.name] for row in (full, gap))
        assert not some[:, 2:5].any() and (np.delete(whole - some, [2, 3, 4], axis=1).sum(axis=0) == 0).all()
        assert whole[:, 2:5].sum() > 0.99 * whole_rows.ONE
        nobody = full.copy()
        nobody[0, 3:] = np.nan
        assert not sums(method, message, block_of([nobody]))[release.name].any()


@pytest.mark.parametrize("wrong", [0.5, 2.0, np.inf, -np.inf, -1.0])
def test_what_is_no_answer_counts_as_none(wrong):
    read = rounds_of("record", RELATIONS[0])[0]
    own = layout.layout_of(read.config, COLUMNS)
    x = np.column_stack([CENTRES, entries(CODES)])
    assert (own.codes(x) == CODES + [0, 2, 5]).all()
    x[0, 7] = wrong
    x[1, 3:5] = 1.0
    x[2, 3:5] = 0.0
    codes = own.codes(x)
    assert codes[0, 1] == codes[1, 0] == codes[2, 0] == sum(SIZES) and (np.delete(codes, [1, 3, 6]) < sum(SIZES)).all()


@pytest.mark.slow
def test_a_part_with_steps_is_its_own_whatever_the_block_looks_like(monkeypatch):
    """Alone, in another order, in short leaves, in small tiles, in single precision, and streamed."""
    generator = np.random.default_rng(1)
    rows_ = np.vstack([usual(1)[0][0], usual(1)[1], usual(1)[2]])
    rows_[:, :D] = np.round(rows_[:, :D] * 2) / 2
    held = [rows_[:0], rows_[:1], rows_[1:8], rows_[8:], np.repeat(rows_[:1], 3, axis=0)]
    for unit in UNITS:
        parts_are_their_own(*rounds_of(unit, RELATIONS[0], steps=True), held, generator, monkeypatch)


# --- builds that break the bound --------------------------------------------------------------------------------------


@contextmanager
def answers_count_whole():
    """A row's answers count whole in every component."""
    kept = clients.add_to_cells

    def whole(total, cells, weight):
        kept(total, cells, np.full(len(weight), float(whole_rows.ONE)))

    with mock.patch.object(clients, "add_to_cells", whole):
        yield


@contextmanager
def several_answers():
    """Whatever is in the columns of a category is counted: a row may have several answers to one."""
    kept = layout.Layout.codes

    def all_of_them(self, x):
        found = kept(self, x)
        return np.concatenate([found, np.where(x[:, 6:9].sum(axis=1)[:, None] > 1, 2, found)], axis=1)

    with mock.patch.object(layout.Layout, "codes", all_of_them):
        yield


@contextmanager
def copies_count_whole():
    """Each of the rows that a row with steps is read as counts as one."""
    kept = layout.Layout.read

    def whole(self, tile, copies):
        found = kept(self, tile, copies)
        return replace(found, rows=found.rows // copies)

    with mock.patch.object(layout.Layout, "read", whole):
        yield


@contextmanager
def moved_by_their_place():
    """Steps and gaps are filled by the place of a row in its tile."""

    def words(self, x):
        return np.arange(len(x), dtype=np.uint64)

    with mock.patch.object(layout.Layout, "words", words):
        yield


SABOTAGES = {
    "answers count whole": answers_count_whole,
    "several answers": several_answers,
    "copies count whole": copies_count_whole,
    "moved by their place": moved_by_their_place,
}


@pytest.mark.parametrize("sabotage", SABOTAGES.values(), ids=SABOTAGES)
def test_a_sabotaged_kernel_breaks_the_bound(sabotage):
    rounds_of("client", RELATIONS[0], steps=True)
    with sabotage(), pytest.raises(AssertionError):
        for seed in range(10):
            check("client", RELATIONS[0], None, *usual(seed), steps=True)


# --- last, since it takes the longest ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("relation", RELATIONS)
@given(st.data())
@settings(max_examples=8, deadline=None)
def test_a_unit_moves_no_release_by_more_than_planned(unit, relation, data):
    absurd = data.draw(st.sampled_from([None, None, 0, 7, 13]))
    steps = data.draw(st.booleans())
    others = [data.draw(people(3)), data.draw(people(2))]
    check(unit, relation, absurd, others, data.draw(people()), data.draw(people()), steps=steps)
