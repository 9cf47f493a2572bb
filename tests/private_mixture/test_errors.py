"""Standard errors of what a run shows, by noise alone: against whole runs with other noise on the same rows."""

import numpy as np
import pytest

from fedcore.methods.private_mixture import PrivateMixtureConfig
from fedcore.methods.private_mixture.result import errors_of, model_of
from fedcore.rounds.results import Features
from tests.private_mixture.worlds import mixture, records, run

CONFIG = PrivateMixtureConfig(components=2)


@pytest.mark.heavy
@pytest.mark.slow
def test_the_errors_are_those_of_whole_runs():
    """In 16 runs about 95 % of numbers lie within 1.96 errors of their mean over the runs. The
    bound is a binomial one for as many independent intervals as there are runs: numbers of one run move together."""
    generator = np.random.default_rng(1)
    truth = mixture(4, 2, 6.0, generator)
    x, _ = truth.sample(3000, generator)
    shown, errors = [], []
    for seed in range(16):
        _, state = run(records(x), CONFIG, 1.0, seed=seed)
        model = model_of(CONFIG, state)
        found = errors_of(CONFIG, state, model)
        assert found is not None
        order = np.argsort(((model.means_of_data()[:, None] - truth.means) ** 2).sum(axis=2).argmin(axis=1))
        deviations = np.sqrt(np.diagonal(model.covariances_of_data(), axis1=1, axis2=2))
        shown.append(
            np.concatenate([model.weights[order], model.means_of_data()[order].ravel(), deviations[order].ravel()])
        )
        errors.append(np.concatenate([found[0][order], found[1][order].ravel(), found[2][order].ravel()]))
    values, errors = np.array(shown), np.array(errors)
    inside = np.abs(values - values.mean(axis=0)) <= 1.96 * errors
    assert 0.95 - 3 * np.sqrt(0.95 * 0.05 / 16) <= inside.mean() <= 1.0
    ratio = values.std(axis=0, ddof=1) / errors.mean(axis=0)
    assert 0.5 < np.median(ratio) < 1.6  # so they are not merely wide


def test_no_errors_are_given_where_components_are_not_parted():
    generator = np.random.default_rng(1)
    x, _ = mixture(3, 3, 2.0, generator).sample(3000, generator)
    config = PrivateMixtureConfig(components=3)
    method, state = run(records(x), config, 1.0)
    assert len(set(model_of(config, state).group)) < 3
    tables = {table.name: table for table in method.result(state, Features(3)).tables}
    assert tables["components"].note.startswith("What the noise of privacy adds to these numbers is not known")
    assert all(column.errors is None for column in tables["means"].columns)
