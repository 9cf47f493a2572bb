"""Standard errors of what a run shows, by noise alone: against whole runs with other noise on the same rows."""

import numpy as np
import pytest
from fedcore.papers.private_gmm import simulation
from fedcore.papers.private_gmm.runs import learn

from fedcore.methods.private_gmm import PrivateGMMConfig
from fedcore.methods.private_gmm.result import column_variances, errors_of, result_of
from fedcore.privacy.mechanisms import TestNoise
from fedcore.rounds.results import Features

TRUTH = simulation.mixture(4, 2, 12.0, 0)
PRIOR = simulation.prior(TRUTH)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["spherical", "diag", "full"])
def test_the_errors_are_those_of_whole_runs(form):
    """Intervals of 1.96 errors hold the mean over the runs of 95 % of the numbers, up to three standard deviations of a
    binomial with as many tries as runs: the numbers of one run share the noise of its counts."""
    runs = 48
    x, _ = simulation.sample(TRUTH, 4000, 0)
    known = {"radius": PRIOR.radius, "sigma_min": PRIOR.sigma_min, "least_weight": 0.3}
    config = PrivateGMMConfig(components=2, covariance=form, **known)
    shown, errors = ([], [], []), ([], [], [])
    for number in range(runs):
        state = learn(x, config, epsilon=2.0, delta=1e-6, noise=TestNoise(str(number))).state
        assert state.found
        order = np.argsort(state.means[:, 0])
        deviations = np.sqrt(column_variances(form, state.covariances, 4))
        found = zip((state.weights, state.means, deviations), errors_of(form, state), strict=True)
        for place, (values, own) in enumerate(found):
            shown[place].append(values[order].ravel())
            errors[place].append(own[order].ravel())
    for values, own in zip(map(np.array, shown), map(np.array, errors), strict=True):
        assert np.isfinite(own).all()
        inside = np.abs(values - values.mean(axis=0)) <= 1.96 * own
        assert inside.mean() >= 0.95 - 3 * np.sqrt(0.95 * 0.05 / runs)
        ratio = values.std(axis=0, ddof=1) / own.mean(axis=0)
        assert 0.6 < np.median(ratio) < 1.5  # so they are not merely wide
    tables = {table.name: table for table in result_of(form, state, Features(4, list("abcd"), ["m"] * 4)).tables}
    assert ("correlations" in tables) == (form == "full")
    assert tables["means"].columns[1].values == ["m"] * 4 and tables["means"].columns[2].errors is not None
