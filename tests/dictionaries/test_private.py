"""Private dictionaries: the plan, what settings are refused, released scales, and what is learnt under noise."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcore.errors import ConfigError
from fedcore.methods.dictionaries import Dictionaries, DictionariesConfig
from fedcore.methods.dictionaries.private.clients import Ladder, packed, unpacked
from fedcore.methods.dictionaries.private.server import found
from fedcore.methods.dictionaries.start import rounds_of
from fedcore.methods.dictionary_learning.operators import random_atoms
from fedcore.methods.dictionary_learning.sparse_codes import omp
from tests.federated_em.run_in_memory import answer, block_of, facts, rounded_normal

SMALL = DictionariesConfig(private=True, global_atoms=6, sparsity=2, rounds=3)


def samples(generator, atoms, clients=60, rows=20):
    """Clients' rows: two of the atoms each, and a little noise."""
    out = []
    for _ in range(clients):
        codes = np.zeros((rows, len(atoms)))
        for row in codes:
            row[generator.choice(len(atoms), 2, replace=False)] = generator.normal(size=2)
        out.append(codes @ atoms + 0.01 * generator.normal(size=(rows, atoms.shape[1])))
    return out


def trained(config, block, public, seed=0):
    """State after a whole run with noise as planned, and its rounds' infos."""
    method, infos = Dictionaries(config), []
    noise, plan, state = rounded_normal(np.random.default_rng(seed)), list(method.plan(public)), method.init(public)
    while (message := method.message(state)) is not None:
        grid = method.release_values(message, answer(method, message, block, 1024, None)[0])
        planned = plan[len(infos)]
        assert grid[planned.name].shape == planned.shape
        state, info = method.server_update(state, {planned.name: noise(planned, grid[planned.name])})
        infos.append(info)
    assert len(infos) == len(plan)
    return state, infos


@given(st.floats(1e-9, 1e4), st.integers(1, 40), st.booleans())
@settings(max_examples=25, deadline=None)
def test_the_plan_never_exceeds_the_budget_and_wastes_none_of_it(rho, rounds, given_start):
    public = facts(block_of([np.ones((2, 5))]), rho=rho, nominal=100)
    if given_start:
        public = replace(public, warm_start={"global": np.eye(6, 5)})
    releases = Dictionaries(SMALL.model_copy(update={"rounds": rounds})).plan(public)
    prices = [release.rho for release in releases]
    assert sum(prices) <= rho and math.fsum(prices) <= rho and math.fsum(prices) >= rho * (1 - 1e-9)
    assert [release.round for release in releases] == list(range(1, len(releases) + 1))
    names = ["scale", *(() if given_start else ("moments",)), *(f"sums_{n:04d}" for n in range(1, rounds + 1))]
    assert [release.name for release in releases] == names
    assert all(release.sensitivity == 2**16 for release in releases)


def test_what_a_private_run_needs():
    public = facts(block_of([np.ones((2, 5))]), rho=1.0, nominal=100)
    for changes, config, match in (
        (dict(rho=None), SMALL, "needs a privacy budget"),
        (dict(nominal_clients=None), SMALL, "declared number"),
    ):
        with pytest.raises(ConfigError, match=match):
            Dictionaries(config).plan(replace(public, **changes))
    with pytest.raises(ConfigError, match="shape"):
        Dictionaries(SMALL).init(replace(public, warm_start={"global": np.eye(4, 5)}))


def test_settings_that_have_no_argument_are_refused():
    for wrong in ({"participation": 0.5}, {"global_atoms": 0}):
        with pytest.raises(ValueError, match="private|greater than or equal to 1"):
            DictionariesConfig(private=True, **wrong)


def test_epsilon_is_for_private_runs():
    with pytest.raises(ValueError, match="private = true"):
        DictionariesConfig(epsilon=1.0)
    assert Dictionaries(SMALL).private


def test_a_private_run_has_fewer_rounds():
    assert rounds_of(DictionariesConfig(private=True)) == 20 and rounds_of(DictionariesConfig()) == 60
    assert rounds_of(DictionariesConfig(private=True, rounds=7)) == 7


def test_a_symmetric_matrix_is_packed_with_its_norm():
    matrix = np.random.default_rng(0).normal(size=(5, 5))
    matrix = matrix + matrix.T
    assert np.linalg.norm(packed(matrix[None])) == pytest.approx(np.linalg.norm(matrix), rel=1e-14)
    np.testing.assert_allclose(unpacked(packed(matrix[None])[0], 5), matrix, rtol=1e-14)


def test_a_noised_ladder_tells_the_typical_value():
    ladder, generator = Ladder(-40.0, 160), np.random.default_rng(0)
    counts = np.bincount([ladder.cell(v) for v in np.exp(generator.normal(3, 0.3, 2000))], minlength=160)
    noised = counts + generator.normal(0, 40, 160)
    assert np.exp(3) / 1.5 < ladder.quantile(noised, 0.5) < np.exp(3) * 1.5
    assert ladder.cell(1e-300) == 0 and ladder.cell(1e300) == 159
    assert ladder.quantile(np.zeros(160), 0.5) > 0


def test_directions_that_noise_alone_gives_are_not_found():
    generator, d, sd = np.random.default_rng(2), 40, 0.01
    noise = generator.normal(scale=sd / math.sqrt(2), size=(d, d))
    noise = np.triu(noise, 1) + np.triu(noise, 1).T + np.diag(generator.normal(scale=sd, size=d))
    planted = np.zeros((d, d))
    planted[0, 0] = 1.0
    values, vectors = found(planted + noise, sd)
    assert np.count_nonzero(values) == 1 and abs(vectors[0, 0]) > 0.99 and values[0] == pytest.approx(1.0, abs=0.05)


@pytest.mark.slow
def test_atoms_are_learnt_under_noise():
    """Share of the energy of fresh rows that two atoms a row leave; the rival has all singular vectors."""
    generator = np.random.default_rng(1)
    atoms = random_atoms(generator, 12, 8)
    block, (rows,) = block_of(samples(generator, atoms)), samples(generator, atoms, 1, 1000)
    singular = np.linalg.svd(block.x, full_matrices=False)[2]

    def left(atoms):
        return ((rows - omp(rows, atoms, 2) @ atoms) ** 2).sum() / (rows**2).sum()

    found = {}
    for rho in (2e-3, 2e3):
        state, infos = trained(
            SMALL.model_copy(update={"global_atoms": 12, "rounds": 12}), block, facts(block, rho=rho, nominal=60)
        )
        assert all(np.isfinite(list(info.scalars.values())).all() for info in infos)
        np.testing.assert_allclose(np.linalg.norm(state.common, axis=1), 1.0, rtol=1e-12)
        found[rho] = left(state.common)
    print(found, left(singular))
    assert found[2e3] < 0.6 * left(singular) and found[2e3] < 0.6 * found[2e-3]


def test_runs_of_a_series_make_shorter_steps():
    """From atoms that the same clients made in a private run, and not from others."""
    generator = np.random.default_rng(3)
    block = block_of(samples(generator, random_atoms(generator, 6, 5), 12, 6))
    public = facts(block, rho=50.0, nominal=12)
    state, _ = trained(SMALL, block, public)
    left = Dictionaries(SMALL).checked_warm_start(Dictionaries(SMALL).warm_start_of(state), "a run", 5)
    _, again = trained(SMALL, block, replace(public, warm_start=left))
    _, others = trained(SMALL, block, replace(public, warm_start={"global": left["global"]}))
    assert again[1].scalars["step"] < 0.3 * others[1].scalars["step"]


def test_rows_that_are_absurd_contribute_and_raise_nothing():
    public = facts(block_of([np.ones((2, 5))]), rho=1.0, nominal=10)
    absurd = [np.full((3, 5), value) for value in (np.nan, np.inf, 1e200, 1e-200, 0.0)] + [np.zeros((0, 5))]
    state, _ = trained(SMALL, block_of([np.ones((2, 5)), *absurd]), public)
    assert np.isfinite(state.common).all() and state.phase == "done"


@pytest.mark.parametrize("changes", [{}, {"atoms": 9}])
def test_absurd_rows_of_somebody_spoil_nobodys_outputs(changes):
    """Rows that training leaves out have no parts; a client with nothing else is one without samples."""
    config = SMALL.model_copy(update=changes)
    generator = np.random.default_rng(5)
    good = samples(generator, random_atoms(generator, 6, 5), 3, 4)
    state, _ = trained(config, block_of(good), facts(block_of(good), rho=50.0, nominal=3))
    absurd = [np.full((2, 5), value) for value in (np.nan, np.inf, 1e200, 7e153)]
    mixed = np.vstack([good[2][:1], np.full((1, 5), np.nan), good[2][1:]])
    block = block_of([good[0], *absurd, good[1], mixed])
    found = Dictionaries(config).personalise(state, block, None)
    alone = Dictionaries(config).personalise(state, block_of(good), None)
    for name in ("loss", "rank", "local"):
        np.testing.assert_allclose(found[name][[0, 5, 6]], alone[name], rtol=1e-9, atol=1e-12)
    assert np.isnan(found["loss"][1:4]).all() and (found["rank"][1:4] == 0).all()
    for name in ("rows_global", "rows_local"):
        rows = np.split(found[name], block.ptr[1:-1])
        assert all(np.isnan(own).all() for own in rows[1:4]) and np.isnan(rows[6][1]).all()
        own = np.vstack([rows[0], rows[5], np.delete(rows[6], 1, axis=0)])
        np.testing.assert_allclose(own, alone[name], rtol=1e-5, atol=1e-6)


def test_clients_have_local_atoms_where_they_are_asked_for():
    """Also beside given atoms that are fewer than a run of its own would learn."""
    config = DictionariesConfig(private=True, rounds=1)
    block = block_of(samples(np.random.default_rng(6), np.eye(5), 3, 4))
    public = replace(facts(block, rho=1.0, nominal=3), warm_start={"global": np.eye(4, 5)})
    state, _ = trained(config, block, public)
    assert Dictionaries(config).personalise(state, block, None)["local"].shape == (3, 0, 5)


def test_stand_ins_without_a_budget_are_like_a_public_file():
    """Which cannot tell that these clients have made it."""
    public = facts(block_of([np.ones((2, 5))]), rho=1.0, nominal=10)
    assert set(Dictionaries(SMALL).likely_warm_start(public)) == {"global", "released"}
    assert set(Dictionaries(SMALL).likely_warm_start(replace(public, rho=None))) == {"global"}


def test_noise_is_that_of_those_who_take_part():
    """A forecast of cohorts says how many: the number of the settings is that of the whole population."""
    method = Dictionaries(SMALL.model_copy(update={"nominal_clients": 100}))
    some, all_of_them = (facts(block_of([np.ones((2, 5))]), rho=1.0, nominal=n) for n in (50, 100))
    assert method.init(some).clients == 50
    noise = [method.budget_sketch(public, method.plan(public))["noise"] for public in (some, all_of_them)]
    assert noise[0] == pytest.approx(2 * noise[1])


def test_a_plan_compares_with_public_cosines():
    """By noise alone, which falls with the clients; the stated number of clients is where it says so first."""
    method = Dictionaries(DictionariesConfig(private=True))
    public = facts(block_of([np.ones((1, 784))]), rho=0.03, nominal=1)

    def said(clients):
        return method.worth(replace(public, nominal_clients=clients)).expect

    few = said(300)
    assert "public cosines, which cost no budget, were better" in few
    border = int(few.rsplit(" with ", 1)[1].split()[0].replace(",", ""))
    assert "learnt atoms were better" in said(border) and "public cosines, which" in said(border - 1)
