"""Rows of the clients that take no part in training, and their loss among the metrics."""

import numpy as np
import pytest
from pydantic import ValidationError

from fedcore.errors import PopulationError
from fedcore.methods.federated_em import models
from fedcore.methods.mixture_models.validation import Split, training_part, validation_part
from tests.federated_em.run_in_memory import block_of, facts, run
from tests.federated_em.varied import Varied

SHORT = dict(components=2, rounds=4, restarts=1, cluster_rounds=1, monitor_every=2)


def population(seed=0):
    generator = np.random.default_rng(seed)
    return block_of(
        [
            10 + 3 * generator.normal(size=(size, 3)) + 8 * generator.integers(0, 2, (size, 1))
            for size in (1, 2, 40, 0, 25)
        ]
    )


@pytest.mark.parametrize(
    "changes", [{"algorithm": "em", "pseudo_rows": 0.01}, {"participation": 0.6}, {"batch": 4}, {"model": "regression"}]
)
def test_a_run_is_that_of_the_other_rows_alone(changes):
    block, config = population(), Varied(**SHORT, **changes, validation=0.2)
    ran = run(config, block, facts(block, seed=5), clients_per_leaf=2)
    rest = training_part(block, Split(5, 0.2))
    alone = run(config.model_copy(update={"validation": 0.0}), rest, facts(rest, seed=5), clients_per_leaf=2)
    assert np.array_equal(ran.state.theta, alone.state.theta) and ran.state.rows == len(rest.x) < len(block.x)
    told = alone.column("objective")  # one more look, if the run ended with other parameters than its last ones
    assert np.array_equal(ran.column("objective")[: len(told)], told)
    assert ran.state.bits_up == alone.state.bits_up


@pytest.mark.parametrize("covariance", ["full", "spherical"])
def test_the_loss_of_rows_held_out(covariance):
    block, config = population(), Varied(**SHORT, covariance=covariance, validation=0.2)
    ran = run(config, block, facts(block, seed=5), clients_per_leaf=2)
    state, held = ran.state, validation_part(block, Split(5, 0.2)).x
    assert len(ran.column("held_out_loss")) == len(ran.column("objective")) == 3
    model = models.model_of(config, state.scaling())
    loss = -model.log_likelihood(state.parameters(), (held - state.centre) / state.scale).mean()
    assert ran.column("held_out_loss")[-1] == pytest.approx(loss, rel=1e-12)
    in_data_units = ran.column("held_out_loss_in_data_units")[-1]
    assert in_data_units == pytest.approx(loss + np.log(state.scale).sum(), rel=1e-12)


def test_a_population_of_small_clients_has_nothing_to_hold_back():
    block = block_of([np.ones((2, 2)), np.zeros((1, 2))])
    with pytest.raises(PopulationError, match="no row is held back"):
        run(Varied(**SHORT, validation=0.2), block, facts(block))


@pytest.mark.parametrize(
    "settings, words",
    [({"algorithm": "private"}, "not private"), ({"model": "poisson", "kind": "counts"}, "not for counts")],
)
def test_where_there_are_no_such_rows(settings, words):
    with pytest.raises(ValidationError, match=words):
        Varied(**settings, validation=0.2)
