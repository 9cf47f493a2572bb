"""Runs of a series: what is pooled, which component is which, and what becomes of components that come, go and move."""

import dataclasses

import numpy as np
import pytest
from fedcore.papers.private_gmm import simulation

from fedcore.errors import ConfigError, NothingLeft
from fedcore.methods.federated_em import FederatedEM, FederatedEMConfig
from fedcore.methods.mixture_models.released import MIXTURE_NAMES as NAMES
from fedcore.methods.private_gmm import PrivateGMM, PrivateGMMConfig, PrivateGMMState, estimation, series
from fedcore.methods.private_gmm.plan import searches
from fedcore.methods.private_gmm.series import FORGETTING, MEANS, MOMENTS, SERIES_NAMES, SHARES, joined, matched, of_run
from fedcore.methods.private_gmm.state import FOUND, LOST, NOTHING
from fedcore.methods.private_gmm.tree import cells_about, node_of
from fedcore.methods.registry import make_method
from fedcore.runs.store import load_run
from tests.private_gmm.series import ALONE, POOLED, SEARCHING, chosen, config_of, run
from tests.private_gmm.series import series as runs_of
from tests.private_gmm.test_run import SETTINGS, begin, population
from tests.private_gmm.worlds import facts
from tests.sessions import to_end

FORMS = ("spherical", "diag", "full")
D, FLOOR = 3, 1e-3
MEANS_OF_THREE = np.array([[0.0, 0.0, 0.0], [10.0, 0.0, 0.0], [0.0, 10.0, 0.0]])


def release(means, noise=0.1, form="spherical", variance=1.0) -> series.Pool:
    """A run that released these means; the noise of all else is the same."""
    means = np.asarray(means, np.float64)
    m, d = means.shape
    moments = {
        "spherical": np.full((m, 1), d * variance),
        "diag": np.full((m, d), variance),
        "full": np.stack([series.triangle_of(variance * np.eye(d))] * m),
    }[form]
    return of_run(np.full(m, 1 / m), means, moments, np.full((m, series.QUANTITIES), noise))


def after(past: series.Pool, own: series.Pool, most: int = 4, form="spherical") -> series.Pool:
    pairs = matched(past, own.means, own.noise[:, MEANS], form, FLOOR)
    return joined(past.forgotten(), own, pairs, form, most)


# --- what is pooled -------------------------------------------------------------------------------------------------


def test_runs_are_weighted_by_the_inverse_variance_of_their_noise_and_by_age():
    generator = np.random.default_rng(0)
    noises = [0.1, 0.3, 0.05, 0.2]
    runs = [release(MEANS_OF_THREE + 0.01 * generator.normal(size=(3, D)), noise) for noise in noises]
    pool = runs[0]
    for own in runs[1:]:
        pool = after(pool, own)
    weights = np.array([FORGETTING ** (3 - age) / noise**2 for age, noise in enumerate(noises)])
    expected = sum(weight * own.means for weight, own in zip(weights, runs, strict=True)) / weights.sum()
    np.testing.assert_allclose(pool.means, expected)
    np.testing.assert_allclose(pool.precision, np.sqrt(weights.sum()))
    variance = ((weights * noises) ** 2).sum() / weights.sum() ** 2
    np.testing.assert_allclose(pool.noise, np.sqrt(variance))


def test_the_noise_is_what_is_said():
    """Means of many series of four runs: as far from the truth as the noise that the pool reports."""
    generator, noise, truth = np.random.default_rng(1), 0.2, np.zeros((1, D))
    errors, reported = [], 0.0
    for _ in range(500):
        pool = release(truth + noise * generator.normal(size=(1, D)), noise)
        for _ in range(3):
            pool = after(pool, release(truth + noise * generator.normal(size=(1, D)), noise), 1)
        errors.append(pool.means[0])
        reported = pool.noise[0, MEANS]
    assert np.std(errors) == pytest.approx(reported, rel=0.08)
    assert reported < 0.52 * noise


@pytest.mark.parametrize("form", FORMS)
def test_moments_are_about_the_pooled_mean(form):
    """What each run's own noise of its mean had added is taken off: moments about the mean of two runs' means."""
    shift = np.array([0.2, -0.1, 0.0])
    past, own = (release(MEANS_OF_THREE + sign * shift, 0.2, form) for sign in (1, -1))
    pool = joined(past, own, np.arange(3), form, 3)
    np.testing.assert_allclose(pool.means, MEANS_OF_THREE, atol=1e-12)
    covariances, _ = estimation.covariances_of(pool.moments, np.ones(3), D, form, np.zeros(3), FLOOR)
    less = {"spherical": (shift**2).mean(), "diag": shift**2, "full": np.outer(shift, shift)}[form]
    whole = {"spherical": 1.0, "diag": np.ones(D), "full": np.eye(D)}[form]
    np.testing.assert_allclose(covariances, np.stack([whole - less] * 3), atol=1e-9)


def test_components_are_known_again_in_any_order():
    past, own = release(MEANS_OF_THREE), release(MEANS_OF_THREE[[2, 0, 1]] + 0.05)
    assert matched(past, own.means, own.noise[:, MEANS], "spherical", FLOOR).tolist() == [2, 0, 1]
    pool = after(past, own)
    assert (pool.noise < 0.08).all() and pool.present.all() and not pool.lost[0]


def test_a_component_that_moved_a_little_is_known_and_its_mean_starts_anew():
    moved = MEANS_OF_THREE + np.array([[0.9, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    pool = after(release(MEANS_OF_THREE), release(moved))
    assert (pool.noise[:, SHARES] < 0.08).all() and (pool.noise[:, MOMENTS] < 0.08).all()
    np.testing.assert_allclose(pool.noise[:, MEANS] < 0.08, [False, True, True])
    np.testing.assert_array_equal(pool.means[0], moved[0])


def test_a_component_that_is_elsewhere_is_another_one():
    elsewhere = MEANS_OF_THREE + np.array([[0.0, 0.0, 3.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    pool = after(release(MEANS_OF_THREE), release(elsewhere), most=3)
    np.testing.assert_allclose(pool.means, elsewhere)
    assert (pool.noise[0] == 0.1).all() and (pool.noise[1:, 1:] < 0.08).all()
    assert (pool.noise[:, SHARES] == 0.1).all(), "shares are of other components"


def test_a_component_that_a_run_missed_waits_while_there_is_room():
    past, two = release(MEANS_OF_THREE), release(MEANS_OF_THREE[:2])
    pool = after(past, two)
    assert pool.present.tolist() == [1, 1, 0] and len(pool.found) == 2
    np.testing.assert_array_equal(pool.means[2], MEANS_OF_THREE[2])
    again = after(pool, release(MEANS_OF_THREE))
    assert again.present.all() and len(again) == 3 and (again.noise[:, MEANS] < 0.08).all()
    assert len(after(past, two, most=2)) == 2


def test_a_first_run_is_its_own_release():
    own = release(MEANS_OF_THREE)
    pool = after(series.empty(D, 1), own)
    for field in dataclasses.fields(pool):
        np.testing.assert_array_equal(getattr(pool, field.name), getattr(own, field.name))


@pytest.mark.parametrize("form", FORMS)
def test_a_start_holds_a_whole_pool_or_none(form):
    method = PrivateGMM(PrivateGMMConfig(components=3, covariance=form, radius=20.0))
    arrays = series.arrays_of(release(MEANS_OF_THREE, form=form))
    assert method.checked_warm_start(arrays, "it", D).keys() == set(SERIES_NAMES)
    other = PrivateGMM(PrivateGMMConfig(components=3, covariance=FORMS[FORMS.index(form) - 1], radius=20.0))
    broken = {
        "are not those": {name: arrays[name] for name in SERIES_NAMES[:-1]},
        "are not those of": arrays | {"pooled_shares": np.array(3.0)},
        "not an array": arrays | {"pooled_means": np.full((3, D), np.nan)},
        "no run leaves": arrays | {"pooled_noise": -arrays["pooled_noise"]},
        "centres, which": {"centres": np.ones((3, D))},
    }
    for message, wrong in broken.items():
        with pytest.raises(ConfigError, match=message):
            method.checked_warm_start(wrong, "it", D)
    with pytest.raises(ConfigError, match="are not those"):
        other.checked_warm_start(arrays, "it", D)
    with pytest.raises(ConfigError, match="are not those"):
        method.checked_warm_start(arrays, "it", D + 1)


# --- runs that do not search ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("q", [2, D])
def test_rows_go_to_the_component_that_they_are_of(q):
    means, scales = MEANS_OF_THREE + 5.0, np.array([0.5, 1.0, 1.0])
    tree = cells_about(means, scales, q)
    which = np.random.default_rng(0).integers(3, size=500)
    x = means[which] + scales[which, None] * np.random.default_rng(1).normal(size=(500, D))
    assert (node_of(tree, x) == 1 + which).mean() > 0.995
    np.testing.assert_array_equal(tree.centre[1:], means)
    far = node_of(tree, np.array([[1e300, 0.0, 0.0], [0.0, 1e300, 0.0]]))
    assert far.tolist() == [2, 3]


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
def test_a_run_of_known_components_spends_all_of_its_budget_on_them(relation):
    config = PrivateGMMConfig(components=3, covariance="diag", radius=20.0)
    arrays = series.arrays_of(release(MEANS_OF_THREE, form="diag"))
    public = facts("client", relation, rho=0.1, features=D)
    warm = dataclasses.replace(public, warm_start=arrays)
    cold, plan = PrivateGMM(config).plan(public), PrivateGMM(config).plan(warm)
    assert sum(release.rho for release in plan) == pytest.approx(0.1) and max(one.round for one in plan) == 5
    noise = {one.name: one.noise_multiplier for one in cold}
    for one in plan:
        assert one.noise_multiplier == pytest.approx(np.sqrt(0.4 * 0.88) * noise[one.name])
    for changed in (config.model_copy(update={"components": 4}), config.model_copy(update={"components": 2})):
        assert searches(changed, warm), "as many components as are asked for must be known"
    assert searches(config, dataclasses.replace(public, warm_start=arrays | {"pooled_lost": np.ones(1)}))


@pytest.mark.parametrize("covariance", FORMS)
def test_a_plan_of_later_runs_foresees_what_they_leave(covariance):
    config = PrivateGMMConfig(components=3, covariance=covariance, radius=20.0)
    method, public = PrivateGMM(config), facts("record", rho=0.1, features=D, nominal=900)
    sketches = []
    for _ in range(4):
        plan = method.plan(public)
        sketches.append(method.budget_sketch(public, plan))
        method.init(public)
        public = dataclasses.replace(public, warm_start=method.likely_warm_start(public))
    assert [sketch["search"] for sketch in sketches] == [True, False, False, False]
    assert [sketch["rounds"] for sketch in sketches] == [18, 5, 5, 5]
    budgets = [sketch["accumulated_rho"] for sketch in sketches]
    assert budgets[0] == pytest.approx(0.1) and budgets[1] == pytest.approx(0.1 * (1 + 1 / 0.352), rel=0.01)
    assert budgets == sorted(budgets)


# --- what it brings -------------------------------------------------------------------------------------------------

TRUTH = simulation.mixture(10, 2, 8.0, 0)
ROWS = simulation.sample(TRUTH, 4000, 0)[0]


@pytest.mark.slow
@pytest.mark.parametrize("covariance", ["spherical", "full"])
def test_a_series_does_better_from_run_to_run(covariance):
    config = config_of(TRUTH, covariance=covariance)
    errors = {}
    for how in (POOLED, SEARCHING, ALONE):
        ended = list(runs_of(config, lambda _: ROWS, 0.01, "series", how, 5))
        errors[how] = [one.error(TRUTH) for one in ended]
        assert [one.state.searches for one in ended] == [True, *[how != POOLED] * 4]
        words = ["pooled with" in one.state.reason for one in ended]
        assert words == [False, *[how != ALONE] * 4]
    assert errors[POOLED][0] == errors[SEARCHING][0] == errors[ALONE][0]
    assert errors[POOLED][4] < 0.75 * errors[ALONE][4] and errors[SEARCHING][4] < 0.85 * errors[ALONE][4]


def test_a_mixture_alone_starts_no_series():
    """Of another population, say: the run is that from nothing, to the last bit."""
    config = config_of(TRUTH)
    first = run(config, ROWS, 0.01, "a")
    left = first.method.warm_start_of(first.state)
    assert left.keys() == {*NAMES, *SERIES_NAMES}
    again = run(config, ROWS, 0.01, "a", {name: left[name] for name in NAMES})
    for field in dataclasses.fields(first.state):
        np.testing.assert_array_equal(getattr(again.state, field.name), getattr(first.state, field.name))


def test_a_run_that_finds_nothing_passes_on_what_it_was_given():
    config = config_of(TRUTH)
    first = run(config, ROWS, 0.01, "a")
    left = first.method.warm_start_of(first.state)
    searching = left | {"pooled_lost": np.ones(1)}
    for start, outcome in ((searching, NOTHING), (left, LOST)):
        missed = run(config, ROWS, 1e-7, "b", start)
        assert missed.state.outcome == outcome and missed.state.reason.startswith(outcome)
        passed = missed.method.warm_start_of(missed.state)
        assert passed["pooled_lost"] == 1 and not missed.method.mixture(missed.state).found
        for name in left.keys() - {"pooled_lost"}:
            np.testing.assert_allclose(passed[name], left[name], rtol=1e-12)
        later = run(config, ROWS, 0.01, "c", passed)
        assert later.state.searches and later.state.found and "pooled with" in later.state.reason
        assert later.method.warm_start_of(later.state)["pooled_lost"] == 0


def test_a_series_notices_that_a_component_is_another_one():
    four = simulation.mixture(10, 4, 10.0, 0)
    before, later = chosen(four, [0, 1, 2]), chosen(four, [0, 1, 3])
    config = config_of(before)
    x, y = (simulation.sample(truth, 6000, 0)[0] for truth in (before, later))
    ended = list(runs_of(config, lambda number: x if number < 3 else y, 0.02, "changed", POOLED, 4))
    assert [one.state.searches for one in ended] == [True, False, False, True]
    assert [one.state.outcome for one in ended] == [FOUND, FOUND, LOST, FOUND]
    assert len(ended[2].state.tree_count) == 4 and ended[2].state.round < 5
    assert ended[3].error(later) < 0.5 and "pooled with" in ended[3].state.reason


def test_a_component_that_appears_is_found_where_more_are_asked_for():
    four = simulation.mixture(10, 4, 10.0, 3)
    config = config_of(four, up_to=True)
    x, y = (simulation.sample(truth, 8000, 3)[0] for truth in (chosen(four, [0, 1, 2]), four))
    ended = list(runs_of(config, lambda number: x if number < 3 else y, 0.02, "more3", POOLED, 4))
    assert all(one.state.found for one in ended)
    assert [len(one.state.means) for one in ended] == [3, 3, 4, 4]
    assert [one.state.searches for one in ended] == [True, True, True, False]
    noise = ended[2].state.pool.noise[:, MEANS]
    assert (noise > 1.2 * noise.min()).sum() == 1, "the new one has been released once"


# --- through sessions -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_series_goes_on_through_sessions_and_runs_that_found_nothing(tmp_path):
    made, ledger = population(tmp_path / "p", test=True, epsilon=30.0)
    given = {"test_noise": "key", "start_from": "previous"}
    hopeless = SETTINGS | {"epsilon": 0.05}
    runs = [
        to_end(begin(made, tmp_path, settings=settings, run_id=f"r{number}", **given))
        for number, settings in enumerate([hopeless, SETTINGS, hopeless, SETTINGS, SETTINGS])
    ]
    states = [load_run(one.path).state for one in runs]
    starts = [None if one.info["start"] is None else one.info["start"]["name"] for one in runs]
    assert starts == [None, None, "r1", "r2", "r3"], "the first one left nothing"
    assert [state["outcome"] for state in states] == [NOTHING, FOUND, LOST, FOUND, FOUND]
    assert [state["searches"] for state in states] == [True, True, False, True, False]
    assert states[4]["pooled_noise"].max() < states[1]["pooled_noise"].max()
    assert ledger.balance(made.id).rho_reserved == 0
    with pytest.raises(NothingLeft, match="has not found"):
        begin(made, tmp_path, run_id="again", test_noise="key", start_from=str(runs[0].path))
    refined(made, tmp_path, runs[4])


def refined(made, tmp_path, mixture) -> None:
    """Federated EM takes the mixture and nothing of the pool, from whichever run of the series."""
    settings = {"algorithm": "private", "components": 2, "covariance": "diag", "rounds": 2, "epsilon": 1.0}
    for number, path in enumerate((mixture.path, mixture.path.parent / "r2")):
        run_id = f"em{number}"
        later = to_end(
            begin(made, tmp_path, "federated_em", settings, run_id=run_id, test_noise="key", start_from=str(path))
        )
        assert set(later.info["start"]["arrays"]) == set(NAMES)
        method = make_method("federated_em", settings)
        assert isinstance(method, FederatedEM) and isinstance(method.config, FederatedEMConfig)
        state = method.State(**load_run(later.path).state)
        assert set(method.parameters(state)) == {"weights", "means", "covariances"}


@pytest.mark.slow
def test_what_a_series_released_stays_with_its_population(tmp_path):
    made, _ = population(tmp_path / "p", test=True)
    other, _ = population(tmp_path / "q", test=True)
    first = to_end(begin(made, tmp_path, run_id="first", test_noise="key"))
    later = to_end(begin(other, tmp_path, run_id="later", test_noise="key", start_from=str(first.path)))
    assert set(later.info["start"]["arrays"]) == set(NAMES) and load_run(later.path).state["searches"]


def test_a_run_of_a_version_without_series_leaves_its_mixture():
    config = config_of(TRUTH)
    first = run(config, ROWS, 0.01, "a")
    old = {
        field.name: getattr(first.state, field.name)
        for field in dataclasses.fields(first.state)
        if not field.name.startswith("pooled_") and field.name != "searches"
    }
    state = PrivateGMMState(**old)
    left = first.method.warm_start_of(state)
    assert state.searches and left.keys() == set(NAMES)
    np.testing.assert_array_equal(left["means"], first.method.warm_start_of(first.state)["means"])
