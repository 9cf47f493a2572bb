"""One unit moves no release by more than its planned sensitivity: property tests in Python's own integers."""

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
from fedcore.methods.private_mixture import PrivateMixture, PrivateMixtureConfig, clients
from fedcore.methods.private_mixture.clients import OWN_BITS
from fedcore.population.streaming import StoredRows
from fedcore.rounds.method import PublicFacts
from tests.private_mixture.worlds import block_of, records, sums

D = 3
UNITS, RELATIONS = ("client", "record"), ("add_or_remove_one", "replace_one")
KINDS = {"columns", "centres", "spans", "norms", "moments", "cells", "components", "guard", "valleys"}
CENTRES = np.array([[9.0, 0.0, 100.0], [-9.0, 4.0, 100.0], [0.0, -9.0, 103.0]])


@lru_cache(maxsize=32)
def rounds_of(unit: str, relation: str, absurd: int | None = None, goes_on: bool = False):
    """Messages of a run on nobody's rows without noise, and the releases planned beside them.

    absurd: from this round on the server sees absurd published values. goes_on: with what such a run leaves.
    """
    method = PrivateMixture(PrivateMixtureConfig(components=3, rounds=2))
    public = PublicFacts("rows", D, 1024, 900, None, 200.0, 0, relation, None, unit)
    state, found = _rounds(method, public, absurd if not goes_on else None)
    if goes_on:
        _, found = _rounds(method, replace(public, warm_start=method.warm_start_of(state)), absurd)
    return method, found


def _rounds(method: PrivateMixture, public: PublicFacts, absurd: int | None):
    generator = np.random.default_rng(3)
    return rounds_on(records(CENTRES[np.arange(900) % 3] + generator.normal(size=(900, D))), method, public, absurd)


def rounds_on(block, method: PrivateMixture, public: PublicFacts, absurd: int | None):
    """The last state of a run without noise, and messages with their releases."""
    generator = np.random.default_rng(3)
    plan, state, found = method.plan(public), method.init(public), []
    while (message := method.message(state)) is not None:
        found.append((message, [planned for planned in plan if planned.round == len(found) + 1]))
        grid = sums(method, message, block)
        if absurd is not None and len(found) > absurd:
            grid = {name: generator.integers(-(2**45), 2**45, array.shape) for name, array in grid.items()}
        state, info = method.server_update(state, grid)
        assert all(np.isfinite(list(info.scalars.values())))
    return state, found


def squared(one: np.ndarray) -> int:
    assert one.dtype == np.int64
    return sum(int(value) ** 2 for value in one.ravel())


@st.composite
def rows(draw, most=5):
    """(n, D) rows: usual, at the clip, far, huge, nothing, with gaps, or not finite; some of them repeated."""
    generator = np.random.default_rng(draw(st.integers(0, 2**31)))
    found = []
    for _ in range(draw(st.integers(0, most))):
        kind = draw(st.sampled_from(["usual", "gaps", "between", "far", "huge", "nothing", "broken"]))
        usual = CENTRES[draw(st.integers(0, 2))] + generator.normal(size=D)
        found.append(
            {
                "usual": usual,
                "between": CENTRES[:2].mean(axis=0)
                + generator.normal(size=D) * draw(st.sampled_from([0.0, 1e-9, 3.0])),
                "far": usual * 10.0 ** draw(st.integers(-6, 9)),
                "huge": usual * draw(st.sampled_from([1e30, 1e200, 1e306])),
                "nothing": np.zeros(D),
                "gaps": np.where(generator.random(D) < 0.5, np.nan, usual),
                "broken": np.where(
                    np.arange(D) == draw(st.integers(0, D - 1)), draw(st.sampled_from([np.nan, np.inf])), 1
                ),
            }[kind]
        )
    return np.repeat(np.array(found).reshape(-1, D), draw(st.sampled_from([1, 1, 7, 5000])), axis=0)


def check(unit, relation, absurd, *people, goes_on=False) -> None:
    check_rounds(*rounds_of(unit, relation, absurd, goes_on), unit, relation, *people)


def check_rounds(method, rounds, unit, relation, others, one, instead) -> None:
    """That a unit moves no release of these rounds by more than planned, with and without others. Columns after the
    first D are of categories.
    """
    if unit == "record":
        one, instead = one[:1], instead[:1]
    for message, planned in rounds:
        before = sums(method, message, block_of(others))
        after = sums(method, message, block_of([*others[:1], one, *others[1:]]), 1)
        alone, exchanged = (sums(method, message, block_of([own])) for own in (one, instead))
        for release in planned:
            name, bound = release.name, release.sensitivity**2
            assert after[name].shape == release.shape
            assert np.array_equal(after[name] - before[name], alone[name]), f"{name}: a part depends on the company"
            assert squared(alone[name]) <= bound, name
            if relation == "replace_one":
                assert squared(alone[name] - exchanged[name]) <= bound, name
            used = ~np.isinf(one[:, :D]).any(axis=1)
            if message.kind != "columns":
                used &= ~np.isnan(one[:, :D]).all(axis=1)
            if not used.any():
                assert not alone[name].any(), f"{name}: a unit without usable rows adds nothing"


@pytest.mark.slow
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("relation", RELATIONS)
@given(st.data())
@settings(max_examples=15, deadline=None)
def test_a_unit_moves_no_release_by_more_than_planned(unit, relation, data):
    absurd = data.draw(st.sampled_from([None, None, 0, 7, 13]))
    check(unit, relation, absurd, [data.draw(rows(3)), data.draw(rows(2))], data.draw(rows()), data.draw(rows()))


@pytest.mark.slow
@pytest.mark.parametrize("absurd", [0, 3, 12])
def test_many_columns_components_and_rows_keep_the_bounds(absurd):
    """A client of 3000 rows, rows at the ends of what float64 holds, and absurd published values, in 24 columns with 12
    components."""
    generator = np.random.default_rng(absurd)
    d, config = 24, PrivateMixtureConfig(components=12, rounds=1, nominal_clients=900)
    ends = np.array([1.797e308, -1.797e308, 5e-324, -5e-324, 0.0, -0.0, 2.0**31, -(2.0**-31)])
    people = [
        np.repeat(generator.normal(size=(1, d)) * 50, 3000, axis=0),
        generator.choice(ends, (6, d)),
        np.where(generator.random((9, d)) < 0.05, np.nan, 1e3),
        np.zeros((0, d)),
        generator.normal(size=(1, d)),
    ]
    method = PrivateMixture(config)
    public = {each: PublicFacts("rows", d, 1024, 900, None, 1.0, 0, each, None, "client") for each in RELATIONS}
    added, exchanged = (method.plan(public[each]) for each in RELATIONS)
    state, number = method.init(public[RELATIONS[0]]), 0
    while (message := method.message(state)) is not None:
        number += 1
        alone = [sums(method, message, block_of([own])) for own in people]
        together = sums(method, message, block_of(people), 2)
        for one, other in zip(added, exchanged, strict=True):
            if one.round == number:
                parts = [own[one.name] for own in alone]
                assert np.array_equal(sum(parts), together[one.name]), one.name
                assert max(map(squared, parts)) <= one.sensitivity**2, one.name
                assert max(squared(a - b) for a in parts for b in parts) <= other.sensitivity**2, other.name
        if number > absurd:
            together = {name: generator.integers(-(2**62), 2**62, one.shape) for name, one in together.items()}
        state, _ = method.server_update(state, together)
    assert (np.linalg.eigvalsh(method.model(state).covariances) > 0).all()


def usual(seed: int):
    generator = np.random.default_rng(seed)
    x = CENTRES[generator.integers(0, 3, 40)] + generator.normal(size=(40, D)) * generator.choice([0.3, 30.0], (40, 1))
    x[generator.random((40, D)) < 0.2] = np.nan
    return [x[:9], x[9:20]], x[20:28], x[30:34]


def test_all_kinds_of_releases_are_met():
    method, rounds = rounds_of("record", RELATIONS[0])
    assert {message.kind for message, _ in rounds} == KINDS
    names = [release.name for _, planned in rounds for release in planned]
    assert len(names) == len(set(names)) and any(name.startswith("em_own") for name in names)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("goes_on", [False, True])
def test_usual_people_keep_the_bounds_and_their_own_part(unit, goes_on):
    for relation in RELATIONS:
        check(unit, relation, None, *usual(0), goes_on=goes_on)


REACHED = {"em_pooled": 0.95, "em_own": 0.95, "em_p": 0.95}  # a row's share of a component is below 1


@pytest.mark.parametrize("unit", UNITS)
def test_the_bounds_are_reached(unit):
    """By a record far out, or at the edge of a component: no smaller whole number would do for counts and sums."""
    method, rounds = rounds_of(unit, RELATIONS[0])
    near: dict[str, float] = {}
    generator = np.random.default_rng(0)
    directions = generator.normal(size=(40, D))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    candidates = [*CENTRES, *(CENTRES + 30.0), *(directions * 40 + CENTRES[0]), *(directions * 3.5 + CENTRES[0])]
    for message, planned in rounds:
        for x in candidates:
            own = sums(method, message, block_of([x[None]]))
            for release in planned:
                share = squared(own[release.name]) / release.sensitivity**2
                near[release.name] = max(near.get(release.name, 0.0), share)
    for name, share in near.items():
        assert share <= 1
        least = next((value for part, value in REACHED.items() if name.startswith(part)), 0.99)
        assert share > least, (name, share)


@given(st.integers(0, 2**31), st.integers(1, 40), st.sampled_from([1, 2, 3, 1000, 10**6, 2**25]))
@settings(max_examples=60, deadline=None)
def test_vectors_are_cut_in_integers(seed, d, b):
    generator = np.random.default_rng(seed)
    z = whole_rows.cut_coordinates(generator.normal(size=(20, d)) * 10.0 ** generator.integers(0, 12, (20, 1)))
    rows, clip = np.full(20, b), 10.0 ** generator.integers(0, 6)
    factor = whole_rows.cut_to(z, clip)
    for each in whole_rows.for_sums(z, factor, clip, rows):
        assert sum(int(value) ** 2 for value in each) <= (whole_rows.ONE // b) ** 2
    for each in whole_rows.for_products(z, factor, clip, rows):
        assert sum(int(value) ** 2 for value in each) <= whole_rows.ONE // b
        assert 2 * squared(whole_rows.products(each[None])) <= (whole_rows.ONE // b) ** 2


@pytest.mark.slow
def test_a_clients_part_is_its_own_whatever_the_block_looks_like(monkeypatch):
    """Alone, in company, in another order, in short leaves, in small tiles, in single precision, and streamed."""
    generator = np.random.default_rng(1)
    clients_ = [
        CENTRES[generator.integers(0, 3, size)] + 3 * generator.normal(size=(size, D))
        for size in [0, 1, 2, 7, 8, 9, 31, 64, 200, 3, 0, 5]
    ]
    clients_ = [np.where(generator.random(own.shape) < 0.2, np.nan, own.astype(np.float32)) for own in clients_]
    for unit in UNITS:
        parts_are_their_own(*rounds_of(unit, RELATIONS[0]), clients_, generator, monkeypatch)


def parts_are_their_own(method, rounds, people, generator, monkeypatch):
    """people: rows of each, which single precision holds."""
    block = block_of(people)
    held = block.x.astype(np.float32)
    for message, planned in rounds:
        monkeypatch.undo()
        alone = [sums(method, message, block_of([own])) for own in people]
        together = sums(method, message, block)
        monkeypatch.setattr(whole_rows, "FEWEST_ROWS", 3)
        monkeypatch.setattr(whole_rows, "TILE_NUMBERS", 30)
        turned = sums(method, message, block_of([people[i] for i in generator.permutation(len(people))]), 3)
        stored = StoredRows(lambda first, stop: held[first:stop], *held.shape, held.dtype, 4)
        streamed = sums(method, message, type(block)(0, 0, block.ptr, stored))
        for release in planned:
            total = sum(own[release.name] for own in alone)
            for other in (together, turned, streamed):
                assert np.array_equal(other[release.name], total), release.name


@pytest.mark.parametrize("absurd, goes_on", [(0, False), (3, False), (7, False), (10, False), (13, False), (0, True)])
def test_whatever_is_published_messages_keep_products_exact(absurd, goes_on):
    """Whole numbers of the message times those of rows, summed over columns, stay below 2^53."""
    _, rounds = rounds_of("record", RELATIONS[0], absurd, goes_on)
    for message, _ in rounds:
        assert np.isfinite(message.centre).all() and (message.scale > 0).all()
        maps = [*([message.map] if hasattr(message, "map") else []), *getattr(message, "maps", [])]
        for each in maps:
            assert np.abs(each.centre).max() <= whole_rows.LIMIT
            assert 2 * whole_rows.LIMIT * np.abs(each.matrix).sum(axis=0).max() <= 2.0**53
        if message.kind == "cells":
            assert np.abs(message.cells).max() <= whole_rows.LIMIT


def test_rows_that_were_cut_to_the_limit_make_no_valley():
    """As where a column's scale came out far too small: all rows lie in two places then."""
    method, rounds = rounds_of("record", RELATIONS[0])
    message = next(message for message, _ in rounds if message.kind == "valleys")
    block = records(CENTRES[np.arange(90) % 3] + np.random.default_rng(0).normal(size=(90, D)))
    assert sums(method, message, block)["valleys"].sum() == 90 * whole_rows.ONE
    assert not sums(method, replace(message, scale=message.scale * [1.0, 1e-6, 1.0]), block)["valleys"].any()


def test_rows_of_the_background_are_counted_between_components():
    method, rounds = rounds_of("record", RELATIONS[0])
    message = next(message for message, _ in rounds if message.kind == "valleys")
    middle = records(np.repeat(CENTRES.mean(axis=0)[None], 5, axis=0))
    wide = replace(message, constants=message.constants + [0.0, 0.0, 0.0, 50.0])
    assert sums(method, wide, middle)["valleys"].sum() == 5 * whole_rows.ONE


def test_rows_of_components_that_lie_upon_each_other_face_the_same_edges():
    """Rows of a narrow component within a wide one are not missing between that and a third."""
    method, rounds = rounds_of("record", RELATIONS[0])
    message = next(message for message, _ in rounds if message.kind == "valleys")
    edge = np.array([[0, 1]])
    along = replace(message.along, matrix=message.along.matrix[:, :1], exponent=message.along.exponent[:1])
    joined = replace(message, node=np.array([0, 0, 1]), edges=edge, along=along, middle=message.middle[:1])
    block = records(CENTRES[np.arange(90) % 3])
    assert sums(method, joined, block)["valleys"].sum() == 90 * whole_rows.ONE
    assert (sums(method, message, block)["valleys"].sum(axis=1) < 90 * whole_rows.ONE).all()


# --- builds that break the bound --------------------------------------------------------------------------------------


@contextmanager
def no_cut():
    """Rows count whole, however far out they are."""
    with mock.patch.object(whole_rows, "shortened", lambda z, allowed: np.rint(z)):
        with mock.patch.object(clients, "cut_to", lambda z, clip: np.ones(len(z))):
            yield


@contextmanager
def clients_of_many_rows():
    """A client's rows count each for itself."""
    tiles = whole_rows.tiles

    def heavy(block, by_client, numbers, needed=None):
        return tiles(block, False, numbers, needed)

    with mock.patch.object(whole_rows, "tiles", heavy):
        yield


@contextmanager
def each_component_for_itself():
    """A row counts whole in every component."""

    def all_ones(joint):
        return np.ones_like(joint), joint.max(axis=0)

    with mock.patch.object(clients, "shares", all_ones):
        yield


@contextmanager
def centred_rows():
    """Rows are centred by those beside them."""
    kept = whole_rows.standardised

    def centred(x, centre, scale):
        return kept(x - x.mean(axis=0), centre, scale)

    with mock.patch.object(clients, "standardised", centred):
        yield


SABOTAGES = {"no cut": no_cut, "clients of many rows": clients_of_many_rows, "centred rows": centred_rows}


@pytest.mark.parametrize("sabotage", SABOTAGES.values(), ids=SABOTAGES)
def test_a_sabotaged_kernel_breaks_the_bound(sabotage):
    rounds_of("client", RELATIONS[0])
    with sabotage(), pytest.raises(AssertionError):
        for seed in range(10):
            check("client", RELATIONS[0], None, *usual(seed))


def test_shares_that_do_not_sum_to_one_add_nothing():
    """The bound of counts does not rest on how shares are rounded."""
    with each_component_for_itself():
        method, rounds = rounds_of("record", RELATIONS[0])
        for message, planned in rounds:
            if message.kind == "components":
                own = sums(method, message, block_of([CENTRES[:1]]))
                for release in planned:
                    assert squared(own[release.name]) <= release.sensitivity**2
                assert not own[planned[0].name].any()


def test_the_cut_of_a_component_is_in_its_own_units():
    _, rounds = rounds_of("record", RELATIONS[0])
    message = next(message for message, _ in rounds if message.kind == "components")
    assert message.clip == (np.sqrt(D) + 1.5) * 2.0**OWN_BITS
