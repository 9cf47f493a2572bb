"""Recovery, clean failure, guards, and bits that do not depend on how the rows are cut."""

import numpy as np
import pytest
from fedcore.papers.private_gmm import simulation
from fedcore.papers.private_gmm.runs import learn

from fedcore.errors import ConfigError, RunError
from fedcore.methods.private_gmm import PrivateGMM, PrivateGMMConfig, neighbours, terrific
from fedcore.methods.private_gmm.boxes import Boxes, fullest, heavy_halves, whole_cubes
from fedcore.methods.private_gmm.clients import PLACE_STEPS
from fedcore.methods.private_gmm.estimation import radius_of
from fedcore.methods.private_gmm.plan import PROFILE_RADII, sizes_of
from fedcore.methods.private_gmm.state import FOUND, NOTHING
from fedcore.methods.private_gmm.terrific import Candidates, merged, terrific_balls
from fedcore.methods.private_gmm.tree import BALL, REST, VORONOI
from fedcore.privacy.mechanisms import TestNoise
from fedcore.rounds.results import Features, Result
from tests.private_gmm.worlds import block_of, facts, structured, sums

DELTA = 1e-6


def config_of(truth, **settings) -> PrivateGMMConfig:
    prior = simulation.prior(truth)
    return PrivateGMMConfig(
        **{
            "components": truth.components,
            "covariance": "spherical",
            "radius": prior.radius,
            "sigma_min": prior.sigma_min,
            "sigma_max": prior.sigma_max,
            "least_weight": prior.least_weight,
            **settings,
        }
    )


def learned(truth, x, epsilon=1.0, key="0", seed=0, **settings):
    more = {name: settings.pop(name) for name in ("unit", "ptr", "clients_per_leaf") if name in settings}
    return learn(x, config_of(truth, **settings), epsilon=epsilon, delta=DELTA, noise=TestNoise(key), seed=seed, **more)


@pytest.mark.parametrize("covariance", ["spherical", "diag", "full"])
def test_a_separated_mixture_is_found(covariance):
    """Tolerance of a mean: the sampling error sqrt(d / n_i) and that of the noise, doubled."""
    truth = simulation.mixture(10, 2, 8.0, 1)
    x, labels = simulation.sample(truth, 10_000, 1)
    found = learned(truth, x, covariance=covariance)
    assert found.state.outcome == FOUND and found.rho == pytest.approx(found.rho_planned)
    mixture = found.mixture
    scores = simulation.scores(
        truth, mixture.means, weights=mixture.weights, covariances=mixture.matrices(), rows=x, labels=labels
    )
    n, rho = 5000, 0.3 * 0.4 * found.rho_planned
    expected = np.sqrt(10 / n + (1.4 * np.sqrt(10)) ** 2 * 10 / (2 * rho * n**2))
    assert scores.mean_errors.max() < 2 * expected
    assert scores.accuracy > 0.999 and scores.weight_error < 0.02 and scores.trace_error < 0.15
    assert np.mean(mixture.labels(x) == scores.order[labels]) > 0.999
    assert mixture.log_likelihood(x).mean() > -17 and mixture.responsibilities(x[:5]).shape == (5, 2)


def test_nested_scales_are_found_on_two_levels():
    truth = simulation.mixture(10, 3, 10.0, 3, scales=(1, 1, 12))
    x, labels = simulation.sample(truth, 20_000, 3)
    found = learned(truth, x, epsilon=2.0, depth=2)
    assert found.mixture.found, found.mixture.reason
    scores = simulation.scores(truth, found.mixture.means, rows=x, labels=labels)
    assert scores.mean_errors.max() < 0.5 and set(found.state.tree_level) >= {0, 1}


def test_up_to_k_components():
    truth = simulation.mixture(10, 2, 10.0, 1)
    x, _ = simulation.sample(truth, 10_000, 1)
    assert not learned(truth, x, components=4, least_weight=0.2).mixture.found
    found = learned(truth, x, components=4, least_weight=0.2, up_to=True)
    assert found.mixture.components == 2 and simulation.scores(truth, found.mixture.means).mean_errors.max() < 0.5


def test_clients_weigh_the_same_whatever_they_hold():
    """4000 clients of 1 to 40 rows, the components' clients alike: means of the mixture of clients."""
    truth = simulation.mixture(6, 2, 9.0, 2)
    generator = np.random.default_rng(0)
    sizes = generator.integers(1, 40, 4000)
    of = (generator.random(4000) < 0.3).astype(int)
    x = truth.means[np.repeat(of, sizes)] + generator.normal(size=(sizes.sum(), 6))
    found = learned(truth, x, unit="client", ptr=np.concatenate([[0], np.cumsum(sizes)]), least_weight=0.2)
    assert found.mixture.found, found.mixture.reason
    scores = simulation.scores(truth, found.mixture.means)
    assert scores.mean_errors.max() < 0.3
    assert abs(found.mixture.weights.min() - (of == 1).mean()) < 0.03
    assert abs(found.state.tree_count[0] - 4000) < 200, "units are clients"


@pytest.mark.parametrize("kind", ["gaussian", "t3", "ring"])
def test_data_without_structure_end_cleanly(kind):
    x = simulation.structureless(kind, 6, 8000, 0)
    prior = simulation.structureless_prior(kind, 6, 2)
    config = PrivateGMMConfig(components=2, radius=prior.radius, sigma_min=prior.sigma_min, least_weight=0.3)
    found = learn(x, config, epsilon=1.0, delta=DELTA, noise=TestNoise("0"))
    assert not found.mixture.found and found.state.outcome == NOTHING and found.state.phase == "done"
    assert 0 < found.rho < found.rho_planned, "what is not needed any more is not released"
    assert "1 of 2 components found" in found.mixture.reason and "the budget was enough" in found.mixture.reason
    assert found.mixture.units_needed == 0, "by the forecast the budget would have been enough for separated data"
    with pytest.raises(RunError, match="no mixture"):
        found.mixture.sample(np.random.default_rng(0), 3)
    with pytest.raises(ConfigError, match="has not found"):
        PrivateGMM(config).warm_start_of(found.state)


def test_too_few_rows_end_cleanly_and_say_how_many_would_do():
    truth = simulation.mixture(20, 3, 10.0, 0)
    x, _ = simulation.sample(truth, 900, 0)
    found = learned(truth, x)
    assert not found.mixture.found
    assert 900 < found.mixture.units_needed < 20_000 and found.mixture.epsilon_factor > 1
    assert found.mixture.reason.startswith(NOTHING) and "records would be enough" in found.mixture.reason
    nobody = learned(truth, x[:0])
    assert "noised count of all units" in nobody.mixture.reason and nobody.rho < 0.05 * nobody.rho_planned


def test_leaves_and_order_change_no_bit():
    truth = simulation.mixture(5, 2, 9.0, 4)
    x, _ = simulation.sample(truth, 6000, 4)
    x[17] = np.nan
    states = [
        learned(truth, rows, clients_per_leaf=leaf).state
        for rows, leaf in ((x, None), (x, 700), (x[::-1].copy(), 1024))
    ]
    for name in ("means", "covariances", "weights", "tree_basis", "place"):
        for other in states[1:]:
            assert np.array_equal(getattr(states[0], name), getattr(other, name)), name
    assert states[0].found


def test_samples_have_the_moments_of_the_mixture():
    truth = simulation.mixture(4, 2, 9.0, 4)
    x, _ = simulation.sample(truth, 20_000, 4)
    mixture = learned(truth, x, epsilon=4.0, covariance="full").mixture
    rows, labels = mixture.sample(np.random.default_rng(0), 40_000)
    for component in range(2):
        own = rows[labels == component]
        assert np.abs(own.mean(axis=0) - mixture.means[component]).max() < 5 / np.sqrt(len(own)) * 1.2
        assert np.abs(np.cov(own.T) - mixture.matrices()[component]).max() < 0.1
    assert np.mean(mixture.labels(rows) == labels) > 0.999


# --- one group ------------------------------------------------------------------------------------------------------


def student(degrees):
    return lambda n, d, g: g.normal(size=(n, d)) / np.sqrt(g.chisquare(degrees, (n, 1)) / degrees)


def stretched(n, d, g):
    return g.normal(size=(n, d)) * np.where(np.arange(d) == 0, 30.0, 1.0)


def line(n, d, g):
    return g.normal(size=(n, d)) + np.outer(g.uniform(-50, 50, n), np.arange(d) == 0)


def ring(n, d, g):
    angle = g.uniform(0, 2 * np.pi, n)
    return g.normal(size=(n, d)) + 20 * (
        np.outer(np.cos(angle), np.arange(d) == 0) + np.outer(np.sin(angle), np.arange(d) == 1)
    )


def contaminated(n, d, g):
    return g.normal(size=(n, d)) / np.where(g.random((n, 1)) < 0.1, np.abs(g.normal(size=(n, 1))), 1.0)


def two_scales(n, d, g):
    return g.normal(size=(n, d)) * np.where(g.random((n, 1)) < 0.3, 8.0, 1.0)


def two_shells(n, d, g):
    z = g.normal(size=(n, d))
    radius = np.sqrt(d) * np.where(g.random((n, 1)) < 0.5, 1.5, 6.0)
    return radius * z / np.linalg.norm(z, axis=1, keepdims=True) + 0.5 * g.normal(size=(n, d))


HOSTILE = {
    "normal": lambda n, d, g: g.normal(size=(n, d)),
    "Student t, 3": student(3),
    "Student t, 1.5": student(1.5),
    "stretched": stretched,
    "line": line,
    "ring": ring,
    "10 % contaminated": contaminated,
    "two scales": two_scales,
    "two shells": two_shells,
    "lognormal": lambda n, d, g: np.exp(g.normal(size=(n, d))),
}


def claims(name: str, seed: int) -> bool:
    """Whether a run claims components in one group. R is twice the radius that holds 95 % of the rows."""
    g = np.random.default_rng([seed, 7])
    d, n, epsilon = (
        int(g.choice([2, 5, 10, 20])),
        int(g.choice([5000, 10_000, 20_000])),
        float(g.choice([0.5, 1.0, 4.0])),
    )
    x = HOSTILE[name](n, d, g)
    config = PrivateGMMConfig(
        components=int(g.choice([2, 3, 5])),
        up_to=bool(g.random() < 0.8),
        radius=2 * float(np.quantile(np.linalg.norm(x, axis=1), 0.95)),
        sigma_min=0.3,
        least_weight=float(g.choice([0.05, 0.1])),
        covariance="diag",
    )
    noise = TestNoise(f"hostile {seed}")
    return learn(x, config, epsilon=epsilon, delta=DELTA, noise=noise, seed=seed).mixture.found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Student t, 3", "Student t, 1.5", "two scales"])
def test_one_group_is_not_found_to_be_several(name):
    """Without valleys, and with shells that were empty beside the ball alone, 22 of these 30 runs claimed some."""
    assert sum(claims(name, seed) for seed in range(10)) <= 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.heavy] * (at % 2)) for at, name in enumerate(HOSTILE)]
)
def test_hostile_data_are_refused(name):
    """At most one in 25 runs of a family; over all families the aim is one in 50 (docs/notes/private-gmm.md)."""
    assert sum(claims(name, seed) for seed in range(100, 125)) <= 1


def test_the_documentations_own_settings_refuse_heavy_tails():
    """They claimed two components in all of these runs."""
    config = PrivateGMMConfig(components=5, up_to=True, radius=100.0, sigma_min=0.5, least_weight=0.1)
    for seed in range(3):
        x = student(1.5)(20_000, 5, np.random.default_rng(seed))
        assert not learn(x, config, epsilon=1.0, delta=DELTA, noise=TestNoise(str(seed)), seed=seed).mixture.found


def test_cells_without_a_valley_between_them_end_the_run():
    """Rows between the two groups fill the valley; what was not needed any more is not paid for."""
    method = PrivateGMM(PrivateGMMConfig(components=2, radius=60.0, sigma_min=0.1, least_weight=0.2))
    state, block = method.init(facts(rho=200.0)), structured()
    while (message := method.message(state)) is not None:
        grid = sums(method, message, block)
        if message.kind == "leaf valleys":
            grid["leaf_valleys"] = np.full_like(grid["leaf_valleys"], 50 * 2**16)
        state, info = method.server_update(state, grid)
    assert state.outcome == NOTHING and "no valley shows" in state.reason and info.note == state.reason
    assert state.valley_p[0] > 0.01 and not len(state.covariances)


def test_both_ends_of_a_line_weigh_the_same_and_all_lines_of_a_cell_cost_one_count():
    pairs = np.array([[0, 1], [0, 2], [0, 3], [3, 4]])
    assert neighbours.weight_of(pairs) == int(2**16 / np.sqrt(3)) and neighbours.weight_of(pairs[:1]) == 2**16
    means = np.array([[0.0, 0.0], [8.0, 0.0], [0.0, 8.0]])
    maps, start = neighbours.lines(means, np.full(3, 2.0), pairs[:2])
    step = 2.0 / 2**16
    for cell, there in ((0, -1), (1, 1)):
        for x in (means[0], means[1], np.array([4.0, 3.0])):
            place = maps[cell].of(np.rint((x[None] - means[cell]) / step))[0, 0] + start[cell, 0]
            assert abs(place / PLACE_STEPS - (x[0] - 4) / 4) < 1e-3 and start[cell, 0] == there * 2**14
    alike, start = neighbours.lines(np.zeros((2, 2)), np.ones(2), pairs[:1])
    assert not start.any() and not alike[0].matrix.any(), "means that are one have one place"


# --- guards, and the steps of the server ---------------------------------------------------------------------------


def profile_of(at: dict[int, float]) -> np.ndarray:
    row = np.zeros((1, PROFILE_RADII + 1))
    for cell, value in at.items():
        row[0, cell] = value
    return row


def test_a_ball_must_hold_more_than_noise_makes():
    """Guard 1: t and two standard deviations of all cells up to the radius. Worked by hand for one cell of rows."""
    needed, noise = 1000.0, 100.0
    for cells, inside in ((6, 1000 + 200 * np.sqrt(7)), (12, 1000 + 200 * np.sqrt(13))):
        enough, short = (
            terrific_balls(profile_of({cells: inside + more, 24: 3000.0}), inside + more + 3000, noise, needed)
            for more in (1.0, -1.0)
        )
        assert [ball.radius for ball in enough] == [terrific.profile_radii()[cells]] and not short
    assert terrific_balls(profile_of({3: 1e5, 24: 1e5}), 2e5, 178.0, needed) == [], "a shell that noise may fill"
    assert terrific_balls(profile_of({3: 1e5, 24: 700.0}), 1e5 + 700, noise, needed) == [], "nothing is left outside"


def test_a_shell_must_be_nearly_empty():
    full = profile_of({5: 5000.0, 6: 700.0, 24: 5000.0})
    radii = [ball.radius for ball in terrific_balls(full, 10_700.0, 10.0, 1000.0)]
    edges = terrific.profile_radii()
    assert edges[5] not in radii and edges[6] in radii and edges[6 + 2] in radii


def test_balls_are_disjoint_and_small_ones_come_first():
    at = np.array([[0.0, 0.0], [10.0, 0.0], [100.0, 0.0]])
    balls = [
        terrific.Ball(1, 40.0, 10, 0.0),
        terrific.Ball(0, 4.0, 10, 0.01),
        terrific.Ball(1, 4.0, 10, 0.0),
        terrific.Ball(2, 5.0, 10, 0.0),
    ]
    assert [(ball.candidate, ball.radius) for ball in terrific.disjoint(balls, at, 3)] == [(1, 4.0), (2, 5.0), (0, 4.0)]
    assert len(terrific.disjoint(balls, at, 1)) == 1
    found = terrific.disjoint(balls, at, 3)
    assert terrific.children_of(found, at, 30.0, 5.0, 3).kinds == [VORONOI] * 3
    assert terrific.children_of(found[:2], at, 30.0, 5.0, 3).kinds == [BALL, BALL, REST]
    assert terrific.children_of(found[:2], at, 22.0, 5.0, 3).kinds == [VORONOI] * 2
    assert terrific.children_of(found[:1], at, 13.0, 5.0, 3).kinds == [BALL, REST]


def test_a_cell_of_noise_ends_the_run():
    """Guard 2: a cell whose noised count is below t."""
    method = PrivateGMM(PrivateGMMConfig(components=2, radius=60.0, sigma_min=0.1, least_weight=0.2))
    state, block = method.init(facts(rho=200.0)), structured()
    while (message := method.message(state)) is not None:
        grid = sums(method, message, block)
        if message.kind == "leaf radii" and "leaf_counts" in grid:
            grid["leaf_counts"][1] = int(0.99 * state.needed * 2**16)
        state, info = method.server_update(state, grid)
    assert not state.found and "balls of noise" in state.reason and info.note == state.reason
    assert method.message(state) is None


def test_radius_leaves_out_what_noise_hides_and_never_more_than_a_quarter():
    edges = np.arange(1.0, 7.0)
    counts = np.array([50.0, 30, 15, 4, 1, 0])
    assert radius_of(counts, edges, 0.0, 100.0, 0.0) == 5.0
    assert radius_of(counts, edges, 0.0, 100.0, 5.0) == 3.0
    assert radius_of(counts, edges, 100.0, 100.0, 0.0) == 2.0


def test_boxes_are_halved_where_rows_are():
    cubes = whole_cubes(1, 2)
    counts = np.zeros((2, 4))
    counts[0, 3], counts[1, 0] = 900.0, 40.0
    found = heavy_halves(cubes, counts, 10.0, 1000.0, 10)
    assert found.place.tolist() == [[0, 0, 1]] and found.code.tolist() == [[1, 1]], "40 is less than a tenth of t"
    again = heavy_halves(found, np.array([[0.0, 500.0, 400.0, 0.0]]), 10.0, 1000.0, 1)
    assert again.code.tolist() == [[3, 2]] and again.place.tolist() == [[0, 0, 2]] and again.count.tolist() == [500.0]


def test_of_near_candidates_the_fullest_stays():
    at = np.array([[0.0, 0.0], [3.0, 0.0], [50.0, 0.0], [0.0, 1.0]])
    slot, width = np.array([0, 0, 0, 1]), np.full(4, 10.0)
    kept = merged(Candidates(slot, at, width, np.array([5.0, 9.0, 1.0, 2.0])))
    assert kept.count.tolist() == [9.0, 2.0, 1.0] and np.array_equal(kept.at, at[[1, 3, 2]])


def test_places_are_shared_out_over_widths():
    sizes = sizes_of(PrivateGMMConfig(components=2, radius=1.0), 3)
    place = np.array([(0, shift, width) for width in (1, 2) for shift in (0, 1) for _ in range(10)])
    boxes = Boxes(place, np.zeros((40, 2), np.int64), np.arange(40.0))
    kept = fullest(boxes, sizes.candidates)
    assert len(kept) == sizes.candidates == 16
    assert all((kept.place == key).all(axis=1).sum() == 4 for key in np.unique(place, axis=0))


def test_personal_outputs_are_the_clients_own_labels():
    truth = simulation.mixture(4, 2, 9.0, 4)
    x, labels = simulation.sample(truth, 6000, 4)
    found = learned(truth, x, epsilon=4.0)
    method, order = PrivateGMM(config_of(truth)), simulation.scores(truth, found.mixture.means).order
    rows = x[:7].copy()
    rows[2, 1] = np.nan
    outputs = method.personalise(found.state, block_of([rows[:5], rows[5:7], rows[:0]]), None)
    assert outputs["rows_labels"].tolist() == [-1 if i == 2 else order[labels[i]] for i in range(7)]
    assert outputs["component"][2] == -1 and np.isnan(outputs["shares"][2]).all()
    assert outputs["shares"][0].sum() == pytest.approx(1.0)


@pytest.mark.parametrize("covariance", ["spherical", "diag", "full"])
def test_the_tables_of_a_result_are_of_the_mixture(covariance):
    truth = simulation.mixture(4, 2, 12.0, 4, weights=(0.35, 0.65))
    x, _ = simulation.sample(truth, 6000, 4)
    found = learned(truth, x, epsilon=4.0, covariance=covariance)
    method = PrivateGMM(config_of(truth, covariance=covariance))
    result = method.result(found.state, Features(4, ["a", "b"], people=6000))
    segments, components, means, deviations, *correlations, valleys = result.tables
    for table in correlations:  # of the sample alone
        shown = [(r, e) for each in table.columns[2:] for r, e in zip(each.values, each.errors, strict=True)]
        assert all(1.96 * e < abs(r) < 0.1 for r, e in shown if r is not None)
    assert segments.name == "segments" and segments.columns[0].values == ["A", "B"]
    sizes = dict(zip((column.name for column in segments.columns), segments.columns, strict=True))
    if found.state.unit == "client":
        assert sizes["clients"].values == pytest.approx([3900, 2100], abs=120)
    assert [table.name for table in (components, means, deviations)] == ["components", "means", "standard_deviations"]
    assert valleys.name == "valleys"
    assert valleys.columns[0].values == ["A and B"] and valleys.columns[3].values[0] < 0.001
    shares = components.columns[2].values
    heaviest = int(found.mixture.weights.argmax())
    assert shares == sorted(found.mixture.weights.tolist(), reverse=True)
    assert components.columns[1].values[0] == heaviest and components.columns[3].values[0] == covariance
    assert means.columns[1].name == "A"
    assert means.columns[0].values == deviations.columns[0].values == ["a", "b", "column 2", "column 3"]
    assert means.columns[1].values == found.mixture.means[heaviest].tolist()
    own = np.sqrt(np.diagonal(found.mixture.matrices()[heaviest]))
    assert deviations.columns[1].values == pytest.approx(own) and own == pytest.approx(np.ones(4), abs=0.1)
    nothing = learned(truth, x[:50], epsilon=0.5, covariance=covariance)
    assert method.result(nothing.state, Features(4)) == Result()


def test_metrics_are_declared():
    truth = simulation.mixture(4, 2, 12.0, 4)
    x, _ = simulation.sample(truth, 6000, 4)
    for info in learned(truth, x, epsilon=4.0).infos:
        assert set(info.scalars) == {metric.name for metric in PrivateGMM.metrics}
