"""One unit moves no release by more than its planned sensitivity: property tests in Python's own integers."""

import warnings
from contextlib import contextmanager
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcore.methods.mixture_models import whole_rows
from fedcore.methods.private_gmm import PrivateGMM, clients, integer_rows, tree
from fedcore.methods.private_gmm.tree import node_of
from fedcore.population.streaming import StoredRows
from fedcore.rounds.statistics import IntegerSum
from tests.private_gmm.worlds import CASES, CENTRES, RELATIONS, D, Round, block_of, rounds_of, sums

UNITS = ("client", "record")
KINDS = {
    *("mean", "radii", "moments", "boxes", "offsets", "profiles"),
    *("leaf mean", "leaf radii", "leaf valleys", "leaf covariance"),
}


def integers(array: np.ndarray) -> list[int]:
    assert array.dtype == np.int64
    return [int(value) for value in array.ravel()]


def squared(one: np.ndarray, other: np.ndarray) -> int:
    return sum((a - b) ** 2 for a, b in zip(integers(one), integers(other), strict=True))


@st.composite
def row(draw, message):
    """A row: usual, absurd, at the clip of a slot, at a corner of a box, beside a candidate's ring, or not finite."""
    generator = np.random.default_rng(draw(st.integers(0, 2**31)))
    kind = draw(st.sampled_from(["usual", "usual", "clip", "clip", "far", "corner", "middle", "huge", "broken"]))
    slot = draw(st.integers(0, len(message.nodes) - 1))
    direction = generator.normal(size=D)
    direction /= np.linalg.norm(direction)
    centre, radius = message.centre[slot], message.radius[slot]
    if kind == "clip":
        return centre + direction * radius * draw(st.sampled_from([1.0, 1 - 1e-12, 1 + 1e-12, 0.5, 2.0]))
    if kind == "far":
        return centre + direction * radius * 10.0 ** draw(st.integers(1, 9))
    if kind == "corner":
        steps = generator.integers(-8, 8, D) * 2.0 ** draw(st.integers(8, 15)) + draw(st.sampled_from([0.0, 0.5, -0.5]))
        return centre + steps * radius / integer_rows.ONE
    if kind == "middle":
        return centre.copy()
    if kind == "huge":
        return direction * draw(st.sampled_from([1e30, 1e200, 1e308]))
    if kind == "broken":
        bad = draw(st.sampled_from([np.nan, np.inf, -np.inf]))
        return np.where(np.arange(D) == draw(st.integers(0, D - 1)), bad, 1.0)
    return CENTRES[draw(st.integers(0, 2))] + generator.normal(size=D) * draw(st.sampled_from([0.0, 0.3, 5.0]))


@st.composite
def rows(draw, message, most=5):
    """(n, d), some of them repeated."""
    found = draw(st.lists(row(message), min_size=0, max_size=most))
    repeats = draw(st.sampled_from([1, 1, 1, 7]))
    return np.repeat(np.array(found).reshape(-1, D), repeats, axis=0)


def clients_with(unit: str, others: list[np.ndarray], one: np.ndarray | None) -> list[np.ndarray]:
    """The population with one more unit: a client of its own, or a record of the second client."""
    if one is None:
        return others
    if unit == "client":
        return [*others[:1], one, *others[1:]]
    return [others[0], np.vstack([one, others[1]]), *others[2:]]


def check(case: str, unit: str, relation: str, round: Round, people) -> None:
    method = PrivateGMM(CASES[case])
    others, one, instead = people
    if unit == "record":
        one, instead = one[:1], instead[:1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before, after, exchanged = (
            sums(method, round.message, block_of(clients_with(unit, others, added)), leaf)
            for added, leaf in ((None, 1024), (one, 1), (instead, 2))
        )
        alone = sums(method, round.message, block_of([one]))
    for planned in round.planned:
        name, bound = planned.name, planned.sensitivity**2
        assert after[name].shape == planned.shape
        assert squared(after[name], before[name]) <= bound
        # what a unit adds depends on itself alone: nobody else moves, whoever is there
        assert integers(after[name] - before[name]) == integers(alone[name])
        if relation == "replace_one":
            assert squared(after[name], exchanged[name]) <= bound
        if not np.isfinite(one).all(axis=1).any():
            assert not any(integers(alone[name])), "a unit without usable rows adds nothing"


@pytest.mark.slow
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("relation", RELATIONS)
@given(st.data())
@settings(max_examples=45, deadline=None)
def test_a_unit_moves_no_release_by_more_than_planned(unit, relation, data):
    case = data.draw(st.sampled_from(list(CASES)))
    rounds = rounds_of(case, unit, relation, data.draw(st.sampled_from([None, None, 0, 3, 6])))
    round = data.draw(st.sampled_from(rounds))
    others = data.draw(st.lists(rows(round.message, 3), min_size=2, max_size=3))
    check(case, unit, relation, round, (others, data.draw(rows(round.message)), data.draw(rows(round.message))))


def usual(round: Round, seed: int) -> tuple:
    """People for the tests that must find something: every kind of row, some of them beyond the clip."""
    generator = np.random.default_rng(seed)
    x = CENTRES[generator.integers(0, 3, 40)] + generator.normal(size=(40, D)) * generator.choice([0.3, 30.0], (40, 1))
    x[::7] = round.message.centre[0] + 3 * round.message.radius[0] * generator.choice([-1.0, 1.0], (1, D)) / np.sqrt(D)
    return [x[:9], x[9:20]], x[20:28], x[30:34]


def test_all_kinds_of_releases_are_met():
    assert {round.message.kind for round in rounds_of("two levels")} == KINDS
    assert sum(len(round.planned) for round in rounds_of("two levels")) == len(
        {planned.name for round in rounds_of("two levels") for planned in round.planned}
    )
    assert [round.message.kind for round in rounds_of("nothing projected")].count("moments") == 0


@pytest.mark.parametrize("unit", UNITS)
def test_the_bounds_are_reached(unit):
    """By a record at the clip of every ball: no smaller whole number would do for counts and sums."""
    method, near = PrivateGMM(CASES["two levels"]), {}
    for round in rounds_of("two levels", unit):
        message = round.message
        for slot in range(len(message.nodes)):
            for sign in (*np.eye(D), *-np.eye(D), *(CENTRES - message.centre[slot])):
                candidate = message.centre[slot] + sign / np.linalg.norm(sign) * message.radius[slot] * 0.9999
                for x in (candidate, message.centre[slot]):
                    own = sums(method, message, block_of([x[None]]))
                    for planned in round.planned:
                        reached = squared(own[planned.name], 0 * own[planned.name]) / planned.sensitivity**2
                        near[planned.name] = max(near.get(planned.name, 0.0), reached)
    for name, share in near.items():
        assert share <= 1
        if any(part in name for part in ("counts", "radii", "mean", "profiles")):
            assert share > 0.99, name
        if "boxes" in name:
            assert share > 0.99, name
        if "valleys" in name:
            assert share > 0.99, f"{name}: the cell in the middle of two lines adds to both"
        if "moments" in name or "covariance" in name:
            assert share > 0.9, name


@given(st.integers(0, 2**31), st.integers(1, 40), st.sampled_from([1, 2, 3, 1000, 10**6]))
@settings(max_examples=100, deadline=None)
def test_clipped_rows_keep_their_norm_exactly(seed, d, b):
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(20, d)) * 10.0 ** generator.integers(-8, 12, (20, 1))
    x[0], x[1] = 1e308, -1e308
    centre, radius = generator.normal(size=d), 10.0 ** generator.integers(-3, 5)
    z, _ = integer_rows.clipped(x, centre, radius, np.full(20, b))
    assert np.array_equal(z, np.rint(z))
    assert all(sum(int(value) ** 2 for value in own) <= integer_rows.ONE**2 // b for own in z)
    inside = np.linalg.norm(np.clip(x, -1e100, 1e100) - centre, axis=1) < 0.9 * radius
    assert np.abs(z[inside] * radius / integer_rows.ONE * np.sqrt(b) - (x - centre)[inside]).max(initial=0.0) <= (
        0.51 * np.sqrt(b) * radius / integer_rows.ONE
    )


@pytest.mark.slow
def test_a_clients_part_is_its_own_whatever_the_block_looks_like(monkeypatch):
    """Alone, in company, in another order, in short leaves, in small tiles, in single precision, and streamed."""
    generator = np.random.default_rng(1)
    clients = [
        CENTRES[generator.integers(0, 3, size)] + 9 * generator.normal(size=(size, D))
        for size in [0, 1, 2, 7, 8, 9, 31, 64, 200, 3, 0, 5]
    ]
    clients = [own.astype(np.float32).astype(np.float64) for own in clients]
    method = PrivateGMM(CASES["two levels"])
    for unit in UNITS:
        for round in rounds_of("two levels", unit):
            monkeypatch.setattr(integer_rows, "TILE_NUMBERS", 2**22)
            alone = [sums(method, round.message, block_of([own])) for own in clients]
            together = sums(method, round.message, block_of(clients))
            monkeypatch.setattr(integer_rows, "TILE_NUMBERS", 30)
            order = generator.permutation(len(clients))
            turned = sums(method, round.message, block_of([clients[i] for i in order]), 3)
            block = block_of(clients)
            held = block.x.astype(np.float32)
            stored = StoredRows(lambda first, stop, held=held: held[first:stop], *held.shape, held.dtype, 4)
            streamed = sums(method, round.message, type(block)(0, 0, block.ptr, stored))
            for planned in round.planned:
                total = sum(own[planned.name] for own in alone)
                for other in (together, turned, streamed):
                    assert integers(other[planned.name]) == integers(total), planned.name


# --- builds that break the bound -----------------------------------------------------------------------------------


@contextmanager
def no_clip():
    """Rows count whole, however far out they are."""

    def unclipped(x, centre, radius, rows=None):
        z = np.rint(np.clip((x - centre) / (radius / integer_rows.ONE), -(2.0**20), 2.0**20))
        return z, (z * z).sum(axis=1)

    with mock.patch.object(clients, "clipped", unclipped):
        yield


@contextmanager
def clients_of_many_rows():
    """A client's rows count each for itself."""
    close = integer_rows.VectorSum.close

    def heavy(self, group):
        close(self, integer_rows.Group(np.ones_like(group.sizes), group.tiles))

    with mock.patch.object(integer_rows.VectorSum, "close", heavy):
        yield


@contextmanager
def node_of_the_neighbour():
    """A row goes to the node of the row before it."""
    with mock.patch.object(clients, "node_of", lambda tree, x, level=None: np.roll(node_of(tree, x, level), 1)):
        yield


@contextmanager
def shared_leaf():
    """The sum of a leaf is shared out: a part depends on who else is there."""
    kept = clients.client_update

    def shared(message, block):
        return {
            name: IntegerSum(total.value() // max(1, np.count_nonzero(np.diff(block.ptr))))
            for name, total in kept(message, block).items()
        }

    with mock.patch.object(clients, "client_update", shared):
        yield


@contextmanager
def every_ring():
    """A row is counted in all rings up to its own, so that its weight grows with their number."""
    add = integer_rows.CountSum.add

    def heavy(self, tile, cells):
        add(self, tile, cells)
        add(self, tile, np.maximum(cells - 1, -1))

    with mock.patch.object(integer_rows.CountSum, "add", heavy):
        yield


@contextmanager
def whole_on_every_line():
    """A row counts whole on each line of its cell."""
    kept = clients.Valleys.__init__

    def heavy(self, message):
        kept(self, message)
        self.places.weight = integer_rows.ONE

    with mock.patch.object(clients.Valleys, "__init__", heavy):
        yield


KERNELS = {
    "no clip": no_clip,
    "clients of many rows": clients_of_many_rows,
    "node of the neighbour": node_of_the_neighbour,
    "shared leaf": shared_leaf,
    "every ring": every_ring,
}


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_a_sabotaged_kernel_breaks_the_bound(kernel):
    rounds = rounds_of("two levels", "client")
    with kernel(), pytest.raises(AssertionError):
        for seed in range(20):
            for round in rounds:
                check("two levels", "client", RELATIONS[0], round, usual(round, seed))


def test_a_row_that_counts_whole_on_every_line_breaks_the_bound():
    """One of the cell in the middle, where two lines meet."""
    method, people = PrivateGMM(CASES["two levels"]), [block_of([x[None]]) for x in CENTRES]
    message, (planned,) = next(
        (one.message, one.planned) for one in rounds_of("two levels", "record") if one.message.kind == "leaf valleys"
    )

    def largest() -> int:
        found = [sums(method, message, one)[planned.name] for one in people]
        return max(squared(own, 0 * own) for own in found)

    assert 0.99 * planned.sensitivity**2 < largest() <= planned.sensitivity**2
    with whole_on_every_line():
        assert largest() > planned.sensitivity**2


def test_rows_out_of_the_grid_are_on_no_line():
    """They would pile up where they are cut, and a peak would be seen there."""
    method = PrivateGMM(CASES["two levels"])
    message = next(one.message for one in rounds_of("two levels", "record") if one.message.kind == "leaf valleys")
    far = np.array([[1e9, 0.0, 0.0, 0.0], [1e308, -1e308, 0.0, 0.0]])
    assert not sums(method, message, block_of([far]))["leaf_valleys"].any()
    assert sums(method, message, block_of([CENTRES]))["leaf_valleys"].sum() == message.weight * 4, (
        "three cells, two lines"
    )


def test_the_product_keeps_it_under_the_same_people():
    for round in rounds_of("two levels", "client"):
        check("two levels", "client", RELATIONS[0], round, usual(round, 0))


def test_a_row_is_in_at_most_one_node_of_a_level():
    """By the tree of a finished run: what is in no child has left the tree."""
    message = rounds_of("two levels")[-1].message
    assert set(message.tree.status[message.nodes]) <= {tree.CLOSED, tree.OPEN}
    x = np.random.default_rng(0).normal(size=(4000, D)) * 40
    at = node_of(message.tree, x)
    assert set(at) <= {-1, *message.nodes.tolist()} and len(set(at) - {-1}) == 3


def test_rows_that_are_no_numbers_are_cut_to_nothing():
    z = np.array([[np.nan, 1.0], [np.inf, -np.inf], [3.0, 4.0]])
    short = integer_rows.shortened(z.copy(), 5)
    assert short[0].tolist() == [0, 0] and short[2].tolist() == [3, 4] and (short**2).sum(axis=1).max() <= 25
    short = whole_rows.shortened(np.array([[np.nan, 1.0], [3.0, 4.0]]), np.array([25.0, 25.0]))
    assert short.tolist() == [[0, 0], [3, 4]]
