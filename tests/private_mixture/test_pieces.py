"""The steps between releases, each by itself: against what is known, or a slow computation of the same."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.errors import ConfigError
from fedcore.methods.mixture_models import noised_cells, noisy_matrices, valleys
from fedcore.methods.mixture_models.cell_starts import mixture_of_cells
from fedcore.methods.mixture_models.fixed_functions import exp, log, shares
from fedcore.methods.mixture_models.packing import triangle
from fedcore.methods.mixture_models.whole_rows import LIMIT, ONE, WHOLE_BITS, matrix_of, products, whole_map
from fedcore.methods.private_mixture import PrivateMixtureConfig, columns, em, groups
from fedcore.methods.private_mixture.clients import exponents
from fedcore.methods.private_mixture.plan import LARGEST_NOISE, design_of, em_shares, plan
from tests.private_mixture.worlds import facts


def test_exp_and_log_are_right_and_the_same_in_any_company():
    x = -np.abs(np.random.default_rng(0).normal(size=(5, 1001))) * np.array([[1e-8], [1.0], [30.0], [600.0], [1e300]])
    small = np.exp(np.maximum(x, -690))
    assert np.allclose(exp(np.maximum(x, -690)), small, rtol=1e-10)
    assert np.allclose(log(small[:3] + 1e-9), np.log(small[:3] + 1e-9), rtol=1e-10, atol=1e-10)
    for size in (1, 2, 3, 7, 8, 9, 1000):
        assert np.array_equal(exp(x[:, 3 : 3 + size]), exp(x)[:, 3 : 3 + size])
        assert np.array_equal(log(small[:3, 3 : 3 + size]), log(small[:3])[:, 3 : 3 + size])


def test_shares_sum_to_one():
    joint = np.random.default_rng(1).normal(size=(6, 500)) * 300
    part, top = shares(joint)
    assert np.abs(part.sum(axis=0) - 1).max() < 1e-12
    assert np.allclose(top, np.log(np.exp(joint - joint.max(axis=0)).sum(axis=0)) + joint.max(axis=0))


@given(st.floats(-1e12, 1e12, allow_subnormal=False))
def test_exponents_are_exact(x):
    found = int(exponents(np.array([x]))[0])
    if abs(x) < 2.0**-30:
        assert found == -1
    else:
        power = min(math.frexp(abs(x))[1] - 1, 30)
        assert found == power + 30 and 2.0**power <= abs(x)


def test_false_cells_far_out_do_not_move_a_quantile():
    generator = np.random.default_rng(2)
    edges = 2.0 ** (np.arange(62) - 30)
    counts = np.zeros((40, 61))
    counts[:, 26:32] = [300, 500, 900, 1500, 1400, 300]
    clean = noised_cells.quantile(counts, edges, 0.95)
    noised = noised_cells.quantile(noised_cells.kept(counts + generator.normal(0, 60, counts.shape), 60.0), edges, 0.95)
    assert np.abs(np.log2(noised / clean)).max() < 1
    nothing = noised_cells.kept(np.zeros((1, 61)), 1.0)
    assert nothing.sum() == 1


def test_what_may_be_noise_counts_in_the_largest_cell():
    counts = np.zeros((1, 61))
    counts[0, [27, 30, 31, 33, 50]] = [250.0, 1000.0, 600.0, 150.0, 500.0]
    near = noised_cells.about(counts)
    sure = noised_cells.certain(counts, 100.0, near)
    # 200 are taken from each cell near the largest, 450 from the one far out; 150 do not stand out at all
    assert sure[0, [27, 30, 31, 33, 50]].tolist() == [50.0, 1000.0 + 850.0, 400.0, 0.0, 50.0]
    assert sure.sum() == noised_cells.kept(counts, 100.0, near).sum()
    assert np.array_equal(noised_cells.certain(counts, 0.0, near), counts)


@given(st.integers(35, 60), st.floats(4.5, 5.5))
def test_one_false_cell_far_out_leaves_the_reach_of_a_column(cell, strength):
    counts = np.zeros((1, 61))
    counts[0, 28:32] = [300, 600, 1200, 900]
    without, _ = columns.reach_of(counts * ONE, 105.0 * ONE)
    counts[0, cell] = strength * 105.0  # more than 5 % of all: it moved the quantile into that cell
    found, told = columns.reach_of(counts * ONE, 105.0 * ONE)
    assert told.all()
    assert 0.9 <= found[0] / without[0] <= 2


def test_a_tail_that_is_certain_is_within_reach():
    counts = np.zeros((1, 61))
    counts[0, [29, 30, 31, 45]] = [500, 900, 700, 900]  # 30 % are far out
    found, _ = columns.reach_of(counts * ONE, 60.0 * ONE)
    assert found[0] >= 2.0**15


def test_the_oracle_is_nearer_than_the_noised_matrix_and_than_shrinking_to_the_mean():
    generator = np.random.default_rng(3)
    d, sd = 60, 0.25
    truth = np.diag(np.geomspace(0.2, 6.0, d))
    noise = generator.normal(0, sd / np.sqrt(2), (d, d))
    noise = np.triu(noise, 1)
    noised = truth + noise + noise.T + np.diag(generator.normal(0, sd, d))
    values, vectors = noisy_matrices.covariance_of(noised, sd, 1e-4)
    assert np.square((vectors * values) @ vectors.T - truth).sum() < 0.8 * np.square(noised - truth).sum()
    pure = np.linalg.eigvalsh(np.eye(d) + noise + noise.T)
    assert np.ptp(noisy_matrices.oracle(pure, sd)) < 0.25 * np.ptp(pure)
    assert np.array_equal(noisy_matrices.oracle(pure, 0.0), pure)


def test_increasing_is_the_nearest_in_squares():
    assert np.allclose(noisy_matrices.increasing(np.array([1.0, 3.0, 2.0, 4.0, 0.0])), [1, 2.25, 2.25, 2.25, 2.25])


def test_products_are_packed_with_a_bounded_norm_and_unpacked():
    y = np.rint(np.random.default_rng(4).normal(size=(50, 7)) * 300)
    packed = products(y)
    assert packed.shape == (triangle(7),)
    assert np.allclose(matrix_of(packed, 7), y.T @ y, rtol=2e-5, atol=100)


def test_a_map_of_whole_numbers_is_exact():
    generator = np.random.default_rng(5)
    found = whole_map(generator.normal(size=40) * 1000, generator.normal(size=(40, 9)) * 10.0 ** np.arange(-4, 5))
    z = np.rint(generator.normal(size=(11, 40)) * 2.0**18)
    exact = [
        [
            sum(int(a - c) * int(m) for a, c, m in zip(row, found.centre, column, strict=True))
            for column in found.matrix.T
        ]
        for row in z
    ]
    assert np.array_equal((z - found.centre) @ found.matrix, np.array(exact, np.float64))
    assert np.abs(exact).max() < 2**53


@pytest.mark.parametrize("largest", [1e200, 1e290, 1e308, math.inf])
def test_sums_of_a_map_are_exact_whatever_it_is_made_of(largest):
    """Otherwise what a row becomes would depend on the rows that are multiplied with it."""
    found = whole_map(np.full(3, largest), np.array([[largest, -largest], [1.0, largest], [1e-300, 0.0]]))
    assert np.abs(found.matrix).sum(axis=0).max() * 2 * LIMIT <= 2.0**WHOLE_BITS
    assert (found.matrix == np.rint(found.matrix)).all() and np.abs(found.centre).max() <= LIMIT


def test_columns_far_from_zero_get_their_centre_and_scale():
    """Without noise: the range of the first histogram shrinks to the column's own."""
    generator = np.random.default_rng(6)
    x = 1e6 + generator.normal(size=4000)
    histogram = np.zeros((1, 123), np.int64)
    np.add.at(histogram[0], exponents(x) + 61, ONE)
    count = np.array([4000.0])
    centre, reach, told = columns.first_guess(histogram, 1.0, columns.atoms_of(histogram, 1.0, count))
    assert told.all() and abs(centre[0] - 1e6) < reach[0]
    moved = columns.moved(centre, reach, np.rint(np.clip((x - centre) / reach, -1, 1) * ONE).sum()[None], count)
    assert abs(moved[0] - x.mean()) < 1e-3


def test_histograms_that_noise_drowns_tell_no_scale():
    generator = np.random.default_rng(12)
    noise = generator.normal(0, 100.0 * ONE, (200, 123))
    forms = columns.atoms_of(np.where(np.arange(123) < 122, noise, 0.0), 100.0 * ONE, np.full(200, 4000.0))
    centre, reach, told = columns.first_guess(noise, 100.0 * ONE, forms)
    assert told.sum() <= 1
    assert (centre[~told] == 0).all() and (reach[~told] == columns.LARGEST_SCALE).all()
    assert columns.reach_of(noise[:, :61], 100.0 * ONE)[1].sum() <= 1


def test_weak_histograms_are_read_where_most_units_are_not_where_noise_is_largest():
    """Units in four cells, each within noise of which the largest of 61 cells is as large as they are."""
    generator = np.random.default_rng(13)
    noise = generator.normal(0, 100.0, (300, 61))
    noise[:, 28:32] += [180, 330, 300, 60]
    reach, told = columns.reach_of(noise * ONE, 100.0 * ONE)
    found = np.log2(reach[told]) + 30
    assert 0.3 < told.mean() < 0.95 and found.min() > 26 and found.max() < 35
    usual = columns.exponent_edges()[np.maximum((noise.argmax(axis=1) + 1), 0)][told]
    assert np.abs(np.log2(usual) + 30 - 31).max() > 10, "the largest cell alone is often far off"


def test_the_variance_of_cut_rows_is_found():
    generator = np.random.default_rng(7)
    for d in (1, 5, 40):
        for variance in (0.3, 1.0, 2.0):
            rows = generator.normal(size=(40_000, d)) * np.sqrt(variance)
            clip = math.sqrt(d) + 1.5
            cut = np.minimum((rows**2).sum(axis=1), clip**2).mean() / d
            assert em.variance_before_cut(np.array([cut]), d, clip)[0] == pytest.approx(variance, rel=0.05)


def test_cells_tell_where_components_are():
    generator = np.random.default_rng(8)
    means = np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0]])
    cells = np.repeat(means, 12, axis=0) + generator.normal(size=(36, 2))
    found = mixture_of_cells(cells, np.full(36, 100.0), np.full(36, 0.2), np.eye(2) * 0.2, 3, generator)
    order = np.argsort(found.means @ [1.0, 10.0])
    assert np.abs(found.means[order] - means).max() < 1.0 and np.allclose(found.weights, 1 / 3, atol=0.05)


# --- valleys ----------------------------------------------------------------------------------------------------------


def places(centres, n, generator):
    at = np.concatenate([generator.normal(c, 0.35, n // len(centres)) for c in centres])
    return np.histogram(at, np.linspace(-1.5, 1.5, 25))[0].astype(float)


def test_a_valley_is_found_and_one_peak_is_not():
    generator = np.random.default_rng(9)
    two = valleys.valley_of(places((-1, 1), 2000, generator) + generator.normal(0, 10, 24), 10.0, generator)
    assert two.p < 1e-4 and two.depth < 0.5
    ps = [
        valleys.valley_of(places((0.2,), 2000, generator) + generator.normal(0, 10, 24), 10.0, generator).p
        for _ in range(30)
    ]
    assert min(ps) > 1e-3 and np.mean(np.array(ps) < 0.1) < 0.4


def test_the_fit_with_one_peak_is_the_nearest():
    counts = np.array([0.0, 3.0, 2.0, 9.0, 4.0, 5.0, 1.0])
    fit = valleys.unimodal(counts)
    peak = int(fit.argmax())
    assert (np.diff(fit[: peak + 1]) >= 0).all() and (np.diff(fit[peak:]) <= 0).all()
    assert np.allclose(fit, [0, 2.5, 2.5, 9, 4.5, 4.5, 1])


def test_a_tree_spans_and_groups_are_what_stays_connected():
    points = np.array([0.0, 1.0, 5.0, 5.5])
    distances = np.abs(points[:, None] - points)
    edges = valleys.spanning_tree(distances, -distances, np.ones(4), np.inf, 2.0)
    assert edges == [(0, 1), (1, 2), (2, 3)]
    assert valleys.connected(4, [edges[0], edges[2]]).tolist() == [0, 0, 1, 1]


def test_light_nodes_are_no_middle_of_a_star_unless_they_are_near():
    """Node 0 is a little nearer to all others than they are to each other."""
    distances = np.full((4, 4), 25.0)
    distances[0] = distances[:, 0] = 20.0
    mass = np.array([0.01, 0.33, 0.33, 0.33])
    assert valleys.spanning_tree(distances, -distances, mass, np.inf, 2.0) == [(0, 1), (0, 2), (0, 3)]
    apart = valleys.spanning_tree(distances, -distances, mass, 12.0, 2.0)
    assert len(apart) == 3 and sum(0 in edge for edge in apart) == 1
    assert sum(0 in edge for edge in valleys.spanning_tree(distances, -distances, mass, 12.0, 1.1)) == 3
    assert valleys.spanning_tree(np.zeros((1, 1)), np.zeros((1, 1)), mass[:1], 12.0, 2.0) == []


def test_components_that_lie_upon_each_other_are_one_node():
    """A wide and a narrow one with one centre, two a standard deviation apart, and a wide one that is near to all."""
    means = np.array([[0.0, 0.0], [9.0, 0.0], [0.1, 0.0], [10.0, 0.0], [18.0, 0.0]])
    covariances = np.array([4.0, 1.0, 0.25, 1.0, 1.0])[:, None, None] * np.eye(2)
    weights = np.full(5, 0.18)
    node = groups.near(weights, means, covariances)
    assert node.tolist() == [0, 1, 0, 1, 2]
    nodes = groups.nodes_of(node, weights, means, covariances)
    assert np.allclose(nodes.weights, [0.36, 0.36, 0.18]) and np.allclose(nodes.means[:, 0], [0.05, 9.5, 18])
    assert np.allclose(nodes.covariances[1], [[1.25, 0], [0, 1]])
    assert groups.edges_of(nodes).tolist() == [[0, 1], [1, 2]]
    cut = groups.groups_of(node, np.array([[0, 1], [1, 2]]), np.array([0.1, 0.9]), np.zeros(2), 0.01, 0.6)
    assert cut.tolist() == [0, 1, 0, 1, 1]
    covariances[4] *= 60.0
    assert groups.near(weights, means, covariances).tolist() != [0] * 5, "a wide component joins no two far apart"


def test_whatever_is_published_the_components_stay_densities():
    """Five rounds of absurd sums: covariances whose smallest eigenvalues rounding made negative were handed on."""
    generator, d, k = np.random.default_rng(0), 5, 8
    noise = dict.fromkeys(("p", "pv", "pvv", "pooled", "own"), 2.0**40)
    found = em.Components(
        np.full(k + 1, 1 / (k + 1)), np.zeros((k, d)), np.tile(np.eye(d), (k, 1, 1)), np.ones((k, em.KNOWN))
    )
    for _ in range(5):
        shapes = ((k + 1,), (k, d), (k,), (triangle(d),), (k, triangle(d)))
        sums = em.Sums(
            *(generator.integers(-(2**61), 2**62, shape).astype(float)[: shape[0]] for shape in shapes), noise
        )
        found = em.moved(found, sums, 3.7, 900.0, False)
        k = len(found.means)
        assert (np.linalg.eigvalsh(found.covariances) > em.LEAST_EIGENVALUE / 2).all()
        assert found.weights.sum() == pytest.approx(1) and np.isfinite(found.means).all()


def test_the_ends_of_a_banana_are_joined_by_way_of_its_middle():
    """They are a little nearer to each other than to the middle, but nothing lies between them."""
    means = np.array([[0.0, 0.0], [-2.0, 3.0], [2.0, 3.0]])
    covariances = np.array([0.7, 1.3, 1.3])[:, None, None] * np.eye(2)
    nodes = groups.Nodes(np.array([0.85, 0.08, 0.07]), means, covariances)
    assert nodes.distances()[1, 2] < nodes.distances()[0, 1] < groups.FAR
    assert groups.edges_of(nodes).tolist() == [[0, 1], [0, 2]]
    assert [1, 2] in groups.edges_of(groups.Nodes(np.full(3, 0.3), means, covariances)).tolist()


# --- plan -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", ["client", "record"])
@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
@pytest.mark.parametrize(("features", "units", "epsilon"), [(2, 500, 0.1), (10, 60_000, 1.0), (60, 5000, 4.0)])
def test_prices_sum_to_the_budget_and_no_more(unit, relation, features, units, epsilon):
    public = facts(features, units, epsilon, unit, relation)
    releases = plan(PrivateMixtureConfig(), public)
    total = math.fsum(release.rho for release in releases)
    assert 0.999999 * public.rho < total <= public.rho
    assert [release.round for release in releases] == sorted(release.round for release in releases)
    assert max(release.scale for release in releases) <= LARGEST_NOISE


def test_shapes_and_matrices_are_decided_by_public_facts():
    config = PrivateMixtureConfig(components=5)
    few, many = (design_of(config, 20, n, 0.03, "add_or_remove_one") for n in (2000, 2_000_000))
    assert not few.own and many.own
    assert sum(em_shares(5)) == pytest.approx(1) and em_shares(5)[0] == pytest.approx(0.49 / 6.45)


def test_no_run_without_a_size():
    public = facts(3, 100, 1.0)
    nobody = type(public)(*(getattr(public, name) if name != "nominal_clients" else None for name in public.__slots__))
    with pytest.raises(ConfigError, match="public size"):
        plan(PrivateMixtureConfig(), nobody)
    assert plan(PrivateMixtureConfig(nominal_records=100), nobody)
