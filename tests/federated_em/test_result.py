"""What a run shows of its parameters: in the units of the data, by model, and nothing before the first round."""

import numpy as np
import pytest
import scipy.sparse as sp

from fedcore.methods.federated_em import FederatedEM
from fedcore.population.blocks import counts_block
from fedcore.rounds.results import Features, Result
from tests.federated_em.direct_em import three_components
from tests.federated_em.run_in_memory import block_of, facts, no_noise, run
from tests.federated_em.varied import Varied

NAMES = ("a", "b", "c", "d")
SHIFT, SCALE = np.array([100.0, -5.0, 0.0, 3.0]), np.array([1e3, 1.0, 1e-3, 10.0])


def tables_of(config, block, public=None, noise=no_noise, names=NAMES):
    """Tables by name, each as columns by name, and the run's parameters."""
    ran = run(config, block, public or facts(block), noise=noise)
    method = FederatedEM(config)
    assert method.result(ran.states[0], Features(block.features, names)) == Result()
    result = method.result(ran.state, Features(block.features, names))
    for table in result.tables:
        assert len({len(column.values) for column in table.columns}) == 1
    tables = {table.name: {column.name: column.values for column in table.columns} for table in result.tables}
    return tables, method.parameters(ran.state), result


def scaled_rows():
    y, _ = three_components(600)
    return block_of(np.array_split(y * SCALE + SHIFT, 20))


@pytest.mark.parametrize("covariance", ["full", "tied", "diag", "spherical", "known"])
def test_gaussians(covariance):
    config = Varied(algorithm="em", covariance=covariance, rounds=3)
    tables, theta, result = tables_of(config, scaled_rows())
    order = np.argsort(-theta["weights"], kind="stable").tolist()
    for name in ("segments", "components"):
        assert tables[name]["segment"] == ["A", "B", "C"] and tables[name]["component"] == order
        assert tables[name]["share"] == theta["weights"][order].tolist()
    assert tables["means"]["column"] == list(NAMES)
    assert tables["means"]["B"] == theta["means"][order[1]].tolist()
    assert result.figures[0].labels == ("A", "B", "C")
    assert all("others" in sentence for sentence in tables["segments"]["how it differs"])
    assert (covariance in ("full", "tied")) == ("correlations" in tables)
    if covariance == "known":
        assert set(tables) == {"segments", "components", "means"}
    elif covariance == "spherical":
        assert tables["components"]["standard deviation"] == np.sqrt(theta["covariances"][order]).tolist()
    else:
        deviations, covariances = tables["standard_deviations"], theta["covariances"]
        found = np.array(deviations["all components" if covariance == "tied" else "C"])
        own = covariances if covariance == "tied" else covariances[order[2]]
        np.testing.assert_allclose(found, np.sqrt(own if covariance == "diag" else np.diagonal(own)))


def test_correlations_are_the_strongest_first():
    tables, theta, _ = tables_of(Varied(algorithm="em", rounds=3), scaled_rows())
    rows = list(zip(*tables["correlations"].values(), strict=True))
    assert list(tables["correlations"]) == ["column", "other column", "A", "B", "C"]
    assert len(rows) == 6
    for one, other, *correlations in rows:
        i, j, own = NAMES.index(one), NAMES.index(other), theta["covariances"][np.argsort(-theta["weights"])]
        assert correlations == pytest.approx(own[:, i, j] / np.sqrt(own[:, i, i] * own[:, j, j])) and i < j
    assert np.all(np.diff([max(map(abs, row[2:])) for row in rows]) <= 0)


def test_regressions():
    generator = np.random.default_rng(0)
    u = generator.normal(50.0, 10.0, (400, 1))
    y = np.hstack([u, 3.0 - 2.0 * u + generator.normal(size=(400, 1))])
    config = Varied(model="regression", algorithm="em", components=1, rounds=2, regularisation=0.0)
    tables, theta, result = tables_of(config, block_of(np.array_split(y, 10)), names=("age", "height"))
    assert result.tables[1].title == "Coefficients of the regression of height"
    assert tables["coefficients"]["input"] == ["age", "intercept"]
    np.testing.assert_allclose(tables["coefficients"]["A"], [-2.0, 3.0], atol=1.0)
    assert tables["components"]["residual standard deviation"] == pytest.approx([1.0], abs=0.2)


@pytest.mark.parametrize("model, name", [("poisson", "rates"), ("multinomial", "probabilities")])
def test_counts(model, name):
    counts = np.repeat([[9.0, 1, 0, 0], [0, 0, 1, 9]], 20, axis=0)
    settings = dict(model=model, algorithm="em", components=2, rounds=3)
    tables, theta, result = tables_of(Varied(**settings), block_of(np.array_split(counts, 8)))
    profiles = tables["components"]["columns that distinguish it"]
    assert sorted(profile[0] for profile in profiles) == ["a", "d"]
    assert tables[name]["A"] == theta[name][int(np.argmax(theta["weights"]))].tolist()
    assert result.figures[0].centres.shape == (2, 4)
    block, config = counts_block(0, 0, sp.csr_matrix(counts)), Varied(kind="counts", **settings)
    tables, _, _ = tables_of(config, block, names=None)
    assert set(tables) == {"components"}
    assert sorted(profile[0] for profile in tables["components"]["tokens that distinguish it"]) == [
        "token 0",
        "token 3",
    ]


def test_incomplete_rows_and_tables():
    generator = np.random.default_rng(1)
    y = generator.normal(size=(60, 4)) * SCALE + SHIFT
    y[generator.random(y.shape) < 0.2] = np.nan
    block = block_of(np.array_split(y, 10))
    tables, theta, _ = tables_of(Varied(model="gaussian_imputer", algorithm="em", rounds=3), block)
    assert tables["columns"]["mean"] == theta["mean"].tolist() and tables["columns"]["column"] == list(NAMES)
    assert "component" not in tables["correlations"]
    x = block_of(np.array_split(generator.poisson(2.0, (60, 4)).astype(float), 10))
    config = Varied(model="poisson_tables", table_rows=6, algorithm="em", rounds=3)
    tables, theta, _ = tables_of(config, x)
    assert tables["expected_entries"]["row"] == [0, 1, 2, 3, 4, 5]
    assert tables["expected_entries"]["b"] == np.exp(theta["natural"][:, 1]).tolist()


def test_private_runs_show_what_was_published():
    y, start = three_components(300)
    block = block_of(np.array_split(y, 30))
    config = Varied(algorithm="private", rounds=2)
    tables, theta, result = tables_of(config, block, facts(block, start=start, rho=50.0, nominal=30))
    assert tables["means"]["A"] == theta["means"][int(np.argmax(theta["weights"]))].tolist()
    assert not {table.name: table for table in result.tables}["correlations"].shown  # their noise is unknown
