"""Two models on the same rows, and pictures of them."""

import matplotlib
import numpy as np
import pytest
from matplotlib.patches import Ellipse
from sklearn.mixture import GaussianMixture

import fedcore
from fedcore.errors import ConfigError, PrivacyError
from fedcore.interface.data import rows_stored

matplotlib.use("Agg")


class Given:
    """A model whose log densities are a column of the rows."""

    def __init__(self, column):
        self.column = column

    def score_samples(self, x):
        return x[:, self.column]


def test_the_difference_has_the_standard_error_of_paired_rows():
    x = np.random.default_rng(0).normal(size=(500, 2)) * (1.0, 3.0) - (1000.0, 1000.5)
    found = fedcore.compare(Given(0), Given(1), x)
    differences = x[:, 0] - x[:, 1]
    assert found.difference == pytest.approx(differences.mean())
    assert found.standard_error == pytest.approx(differences.std(ddof=1) / np.sqrt(500))
    assert (found.rows, found.clients, found.left_out, found.clear) == (500, None, 0, True)
    assert "the first model is better: +0.4" in str(found)


def test_rows_of_a_client_count_as_one():
    """Rows that are copied to clients of four have the standard error of the rows that were copied, with groups."""
    x = np.random.default_rng(1).normal(size=(60, 2))
    copied, groups = np.repeat(x, 4, axis=0), np.repeat([f"c{i}" for i in range(60)], 4)
    alone, together = fedcore.compare(Given(0), Given(1), x), fedcore.compare(Given(0), Given(1), copied, groups)
    assert together.standard_error == pytest.approx(alone.standard_error)
    assert (together.rows, together.clients) == (240, 60)
    assert fedcore.compare(Given(0), Given(1), copied).standard_error < 0.6 * alone.standard_error


def test_a_population_is_compared_by_its_clients(tmp_path):
    generator = np.random.default_rng(2)
    x, groups = generator.normal(size=(900, 2)), generator.integers(0, 50, 900)
    public = {"clients_per_leaf": 7, "public_for_evaluation": "drawn by a test"}
    population = rows_stored(x, groups, tmp_path / "p", **public).population
    stored, given = fedcore.compare(Given(0), Given(1), population), fedcore.compare(Given(0), Given(1), x, groups)
    assert stored.difference == pytest.approx(given.difference)
    assert stored.standard_error == pytest.approx(given.standard_error)
    assert (stored.clients, stored.rows) == (50, 900)
    assert fedcore.compare(Given(0), Given(1), str(tmp_path / "p")) == stored
    with pytest.raises(ConfigError, match="names its clients"):
        fedcore.compare(Given(0), Given(1), population, groups)


def test_a_population_that_is_not_public_is_refused(tmp_path):
    x = np.random.default_rng(2).normal(size=(90, 2))
    population = rows_stored(x, np.arange(90) % 9, tmp_path / "p").population
    for data in (population, str(population.path)):
        with pytest.raises(PrivacyError, match="public for evaluation"):
            fedcore.compare(Given(0), Given(1), data)


def test_rows_without_a_density_are_left_out_and_one_client_has_no_error():
    x = np.array([[1.0, 0.0], [np.nan, 1.0], [3.0, 1.0]])
    found = fedcore.compare(Given(0), Given(1), x, ["a", "a", "a"])
    assert found == type(found)(1.5, None, 2, 1, 1) and "no clear difference" in str(found) and "1 rows" in str(found)


@pytest.fixture(scope="module")
def mixtures(tmp_path_factory):
    generator = np.random.default_rng(3)
    x = np.concatenate([generator.normal(size=(300, 3)) + at for at in (-4, 4)])
    folder = tmp_path_factory.mktemp("mixtures")
    two = fedcore.FederatedMixture(2, folder=str(folder / "two")).fit(x)
    return x, fedcore.FederatedMixture(1).fit(x), two, GaussianMixture(2, random_state=0).fit(x)


def test_estimators_runs_and_scikit_learn_are_compared(mixtures):
    x, one, two, theirs = mixtures
    assert fedcore.compare(two, one, x).clear and fedcore.compare(two, one, x).difference > 1
    assert abs(fedcore.compare(two, theirs, x).difference) < 1e-3
    run = fedcore.compare(two.run_, two, x)
    assert abs(run.difference) < 1e-6 and run.rows == 600
    assert fedcore.compare(two.model_, one.model_, x).difference == pytest.approx(
        fedcore.compare(two, one, x).difference
    )
    with pytest.raises(ConfigError, match="no log density"):
        fedcore.compare(object(), two, x)


@pytest.mark.parametrize("kind", ["full", "tied", "diag", "spherical"])
def test_components_are_drawn_where_they_are(mixtures, kind):
    x = mixtures[0]
    mixture = GaussianMixture(2, covariance_type=kind, random_state=0).fit(x)
    axes = fedcore.plot_components(mixture, x, (2, 0))
    rings = [patch for patch in axes.patches if isinstance(patch, Ellipse)]
    assert len(rings) == 4 and (axes.get_xlabel(), axes.get_ylabel()) == ("column 2", "column 0")
    np.testing.assert_allclose([ring.center for ring in rings[::2]], mixture.means_[:, [2, 0]])
    # a ring of one standard deviation has the area pi sqrt(det of the covariance of the two columns)
    c = mixture.covariances_
    own = {"full": c[0], "tied": c, "diag": np.eye(3) * c[0], "spherical": np.eye(3) * c[0]}
    area = np.sqrt(np.linalg.det(own[kind][np.ix_([2, 0], [2, 0])]))
    assert rings[0].width * rings[0].height / 4 == pytest.approx(area)
    mixture.degrees_of_freedom_ = 4.0  # the covariance is twice the scale matrix
    ring = next(patch for patch in fedcore.plot_components(mixture, None, (2, 0)).patches if isinstance(patch, Ellipse))
    assert ring.width * ring.height / 4 == pytest.approx(2 * area)
    with pytest.raises(ConfigError, match="columns"):
        fedcore.plot_components(mixture, columns=(0, 3))


def test_the_least_likely_rows_have_their_own_colour(mixtures):
    x, _, two, _ = mixtures
    axes = fedcore.plot_scores(two, np.concatenate([x, [[99.0, 99.0, 99.0]]]), share=0.02)
    many, few = axes.containers
    assert (sum(bar.get_height() for bar in many), sum(bar.get_height() for bar in few)) == (589, 12)
    low, high = axes.get_xlim()
    assert high - low < 60  # nats; the row far away has -5000
    with pytest.raises(ConfigError, match="no log density"):
        fedcore.plot_scores(object(), x)
