import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcore.errors import ConfigError, PopulationError
from fedcore.methods.mixture_models.gaussian import GaussianMixture
from fedcore.methods.mixture_models.packing import pack_symmetric, products, unpack_symmetric


def rows(n=600, d=4, g=3, seed=0):
    rng = np.random.default_rng(seed)
    means = rng.normal(0, 2, (g, d))
    z = np.sort(rng.integers(0, g, n))  # clients differ
    return means[z] + rng.standard_normal((n, d)) @ (np.eye(d) + 0.3 * rng.standard_normal((d, d)))


def plain_start(covariance, d, g, seed=1):
    rng = np.random.default_rng(seed)
    shape = {"spherical": (g,), "diag": (g, d)}.get(covariance)
    covariances = np.ones(shape) if shape else np.broadcast_to(np.eye(d), (d, d) if covariance == "tied" else (g, d, d))
    return {"weights": np.full(g, 1 / g), "means": rng.normal(0, 1, (g, d)), "covariances": covariances * 2.0}


@pytest.mark.parametrize("covariance", ["spherical", "diag", "tied", "full"])
def test_each_iteration_is_that_of_scikit_learn(covariance):
    mixture = pytest.importorskip("sklearn.mixture")
    y = rows()
    d, g = y.shape[1], 3
    model = GaussianMixture(g, d, covariance, centre=y.mean(axis=0))
    theta = plain_start(covariance, d, g)
    for _ in range(30):
        matrices = covariance in ("tied", "full")
        precisions = np.linalg.inv(theta["covariances"]) if matrices else 1.0 / theta["covariances"]
        peer = mixture.GaussianMixture(
            g,
            covariance_type=covariance,
            reg_covar=0.0,
            max_iter=1,
            weights_init=theta["weights"],
            means_init=theta["means"],
            precisions_init=precisions,
            tol=0.0,
        )
        with pytest.warns(Warning):  # it has not converged, and says so
            peer.fit(y)
        theta = model.maximise(model.e_total(theta, y) / len(y))
        assert np.abs(theta["weights"] - peer.weights_).max() <= 1e-10
        assert np.abs(theta["means"] - peer.means_).max() <= 1e-10
        assert np.abs(theta["covariances"] - peer.covariances_).max() <= 1e-10
        np.testing.assert_allclose(model.log_likelihood(theta, y), peer.score_samples(y), rtol=0, atol=1e-9)
        outputs = model.personalise(theta, y)
        np.testing.assert_allclose(outputs["responsibilities"], peer.predict_proba(y), rtol=0, atol=1e-9)
        assert np.array_equal(outputs["responsibilities"].argmax(axis=1), peer.predict(y))


def test_a_worked_step():
    """Two rows at 0 and 2, components at 0 and 2 with unit variance and equal weights: r = 1 / (1 + e^-2)."""
    model = GaussianMixture(2, 1, "diag")
    theta = {"weights": np.array([0.5, 0.5]), "means": np.array([[0.0], [2.0]]), "covariances": np.ones((2, 1))}
    y = np.array([[0.0], [2.0]])
    r = 1 / (1 + np.exp(-2))
    s = model.e_total(theta, y)
    np.testing.assert_allclose(s, [1.0, 1.0, 2 * (1 - r), 2 * r, 4 * (1 - r), 4 * r], rtol=1e-14)
    new = model.maximise(s / 2)
    np.testing.assert_allclose(new["means"][:, 0], [2 * (1 - r), 2 * r], rtol=1e-14)
    np.testing.assert_allclose(new["covariances"][:, 0], 4 * r * (1 - r), rtol=1e-14)
    density = np.exp(-0.5 * np.array([0, 4])).mean() / np.sqrt(2 * np.pi)
    np.testing.assert_allclose(model.log_likelihood(theta, y), np.log(density), rtol=1e-14)


def test_known_covariance_against_densities():
    stats = pytest.importorskip("scipy.stats")
    y = rows(50, 3)
    known = np.array([[1.0, 0.3, 0], [0.3, 0.8, 0.1], [0, 0.1, 0.5]])
    model = GaussianMixture(2, 3, "known", centre=np.ones(3), known=known)
    theta = {"weights": np.array([0.3, 0.7]), "means": y[[0, 40]]}
    joint = np.stack([w * stats.multivariate_normal(m, known).pdf(y) for w, m in ((0.3, y[0]), (0.7, y[40]))])
    np.testing.assert_allclose(model.log_likelihood(theta, y), np.log(joint.sum(axis=0)), rtol=1e-12)
    r = (joint / joint.sum(axis=0)).T
    np.testing.assert_allclose(model.personalise(theta, y)["responsibilities"], r, atol=1e-12)
    new = model.maximise(model.e_total(theta, y) / 50)
    np.testing.assert_allclose(new["means"], (r.T @ y) / r.sum(axis=0)[:, None], rtol=1e-12)


@pytest.mark.parametrize("covariance", ["spherical", "diag", "tied", "full"])
def test_a_distant_origin_costs_no_digits_when_the_centre_is_there(covariance):
    y = rows(300, 3)
    near, far = GaussianMixture(2, 3, covariance), GaussianMixture(2, 3, covariance, centre=np.full(3, 1e6))
    theta = plain_start(covariance, 3, 2)
    s = near.e_total(theta, y)
    shifted = theta | {"means": theta["means"] + 1e6}
    np.testing.assert_allclose(far.e_total(shifted, y + 1e6), s, rtol=1e-6)
    back = far.maximise(far.e_total(shifted, y + 1e6) / 300)
    np.testing.assert_allclose(back["covariances"], near.maximise(s / 300)["covariances"], rtol=1e-6)


def test_full_keeps_its_digits_when_a_covariance_is_ill_conditioned():
    rng = np.random.default_rng(3)
    basis, _ = np.linalg.qr(rng.standard_normal((4, 4)))
    root = basis * np.array([1e-5, 1, 1, 1])
    z = rng.standard_normal((40, 4))
    model = GaussianMixture(1, 4, "full")
    theta = {"weights": np.ones(1), "means": np.full((1, 4), 3.0), "covariances": (root @ root.T)[None]}
    expected = -0.5 * (z**2).sum(axis=1) - 2 * np.log(2 * np.pi) - np.log(1e-5)
    np.testing.assert_allclose(model.log_likelihood(theta, z @ root.T + 3.0), expected, rtol=0, atol=1e-4)


SINGULAR = {
    "equal rows": np.ones((20, 2)) * [1.0, 3.0],
    "collinear": np.arange(20.0)[:, None] * [0.1, 0.3],
    "one row": np.array([[0.3, 1.1]]),
    "constant column": np.column_stack([np.linspace(-1, 1, 20), np.full(20, 0.7)]),
}


@pytest.mark.parametrize("y", SINGULAR.values(), ids=SINGULAR)
@pytest.mark.parametrize("covariance", ["spherical", "diag", "tied", "full"])
def test_singular_covariances_are_not_admissible_and_give_no_nan(covariance, y):
    model = GaussianMixture(1, 2, covariance)
    theta = plain_start(covariance, 2, 1)
    s = model.e_total(theta, y) / len(y)
    spread = {"spherical": y.var(axis=0).sum(), "diag": y.var(axis=0).min()}
    spread = spread.get(covariance, np.linalg.eigvalsh(np.cov(y.T, ddof=0))[0])
    assert model.admissible(s) == (spread > 1e-6)
    new = model.maximise(s)
    assert all(np.isfinite(value).all() for value in new.values())
    assert np.isfinite(model.e_total(new, y)).all() and np.isfinite(model.log_likelihood(new, y)).all()
    penalised = GaussianMixture(1, 2, covariance, lam=1e-3)
    assert penalised.admissible(s)


def test_a_dead_component():
    model = GaussianMixture(2, 2, "full", lam=0.1)
    s = model.e_total(plain_start("full", 2, 2), rows(100, 2)) / 100
    dead = s.copy()
    dead[0] = 0.0
    assert model.admissible(s) and not model.admissible(dead)
    assert all(np.isfinite(value).all() for value in model.maximise(dead).values())


@pytest.mark.parametrize("covariance", ["known", "spherical", "diag", "tied", "full"])
def test_the_margin(covariance):
    y = np.random.default_rng(5).standard_normal((4000, 2)) * 0.5  # variance 0.25
    model = GaussianMixture(1, 2, covariance)
    s = model.e_total(plain_start(covariance, 2, 1), y) / len(y)
    assert model.admissible(s, 0.2)
    assert model.admissible(s, 0.3) == (covariance == "known")
    assert not model.admissible(s, 1.1)


@given(st.integers(1, 6), st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_packed_triangles_keep_inner_products(d, seed):
    rng = np.random.default_rng(seed)
    a, b = (m + m.T for m in rng.standard_normal((2, d, d)))
    assert pack_symmetric(a) @ pack_symmetric(b) == pytest.approx(np.sum(a * b))
    np.testing.assert_allclose(unpack_symmetric(pack_symmetric(a), d), a, atol=1e-15)
    x = rng.standard_normal((d, 7))
    out = np.empty((d * (d + 1) // 2, 7))
    products(x, out)
    np.testing.assert_allclose(out.T, pack_symmetric(x.T[:, :, None] * x.T[:, None, :]), atol=1e-14)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_rows_that_are_not_finite_are_named_by_row_and_column(bad):
    y = rows(20, 3)
    y[7, 2] = bad
    with pytest.raises(PopulationError) as error:
        GaussianMixture(2, 3).check_rows(y)
    assert str(error.value) == "Row 7, column 2 is not finite. The model needs finite values."
    with pytest.raises(PopulationError, match="4 columns"):
        GaussianMixture(2, 4).check_rows(y)


@pytest.mark.parametrize(
    "settings",
    [
        {"covariance": "round"},
        {"components": 0},
        {"nu": -1.0},
        {"a": -0.1},
        {"lam": -1.0},
        {"lam": [1.0, 2.0, 3.0]},
        {"lam": [[1.0, 2.0], [2.0, 1.0]]},
        {"centre": [0.0]},
        {"centre": [0.0, np.nan]},
        {"nu": float("nan")},
        {"covariance": "known", "known": [[1.0, 2.0], [2.0, 1.0]]},
    ],
)
def test_settings_out_of_range(settings):
    with pytest.raises(ConfigError):
        GaussianMixture(**{"components": 2, "features": 2} | settings)


@pytest.mark.parametrize(
    "change",
    [
        {"weights": np.array([0.5, 0.6])},
        {"weights": np.array([1.5, -0.5])},
        {"covariances": -np.ones((2, 2, 2))},
        {"covariances": np.array([[[1.0, 0.5], [0.0, 1.0]]] * 2)},
    ],
)
def test_starts_that_are_no_distribution(change):
    with pytest.raises(ConfigError):
        GaussianMixture(2, 2, "full").check_theta(plain_start("full", 2, 2) | change)


def test_a_small_weight_still_has_a_statistic():
    model = GaussianMixture(3, 1, "diag", a=0.5)
    theta = {"weights": np.array([0.01, 0.29, 0.7]), "means": np.zeros((3, 1)), "covariances": np.ones((3, 1))}
    s = model.statistic_of(theta)
    assert model.admissible(s)
    np.testing.assert_allclose(model.maximise(s)["weights"], theta["weights"], rtol=1e-12)


def test_covariances_that_are_symmetric_up_to_rounding_can_be_a_start():
    """Off the diagonal an M-step leaves numbers of 1e-17 that differ in all digits."""
    model = GaussianMixture(1, 2, "full")
    theta = {"weights": np.ones(1), "means": np.zeros((1, 2)), "covariances": np.array([[[1.0, 1e-17], [3e-18, 0.5]]])}
    assert model.check_theta(theta)["covariances"][0, 1, 1] == 0.5
    with pytest.raises(ConfigError, match="symmetric"):
        model.check_theta(theta | {"covariances": np.array([[[1.0, 0.1], [0.2, 0.5]]])})
