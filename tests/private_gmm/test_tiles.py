"""Tiles end anywhere, also within a client: the sums have the same bits."""

import numpy as np
import pytest
from fedcore.papers.private_gmm.runs import learn
from fedcore.papers.private_gmm.simulation import mixture, prior, sample

from fedcore.methods.private_gmm import integer_rows, method
from fedcore.methods.private_gmm.config import PrivateGMMConfig
from fedcore.privacy.mechanisms import TestNoise

ROWS = 3000


@pytest.mark.parametrize("unit", ["record", "client"])
@pytest.mark.parametrize("covariance", ["full", "diag"])
def test_short_tiles_change_no_sum(monkeypatch, unit, covariance):
    truth = mixture(4, 2, 12.0, 1)
    known, (x, _) = prior(truth), sample(truth, ROWS, 1)
    x[7, 2] = np.nan
    ends = np.sort(np.random.default_rng(0).integers(0, ROWS, 900))
    ptr = np.concatenate([[0], ends, [ROWS, ROWS]]) if unit == "client" else None
    config = PrivateGMMConfig(components=2, radius=known.radius, sigma_min=known.sigma_min, covariance=covariance)
    tiles, answer = [], method.clients.client_update

    def twice(message, block):
        usual = answer(message, block)
        with monkeypatch.context() as patched:
            patched.setattr(integer_rows, "CACHED_NUMBERS", 1)
            patched.setattr(integer_rows, "FEWEST_ROWS", 97)
            short = answer(message, block)
        for name in usual:
            np.testing.assert_array_equal(usual[name].value(), short[name].value(), err_msg=name)
        tiles.append(sum(len(list(group.tiles)) for group in integer_rows.groups(block, unit == "client", 1)))
        return usual

    monkeypatch.setattr(method.clients, "client_update", twice)
    learned = learn(x, config, epsilon=8.0, delta=1e-6, unit=unit, ptr=ptr, noise=TestNoise("tiles"))
    assert learned.mixture.found and len(tiles) == len(learned.infos)
    assert set(tiles) == {1}  # the usual tile is one here, the short ones are thirty
