"""The method against the paper's Algorithm 1 in plain NumPy (`fedcore.papers.fedgrem.reference`)."""

import numpy as np
import pytest
from fedcore.papers.fedgrem import reference
from fedcore.papers.fedgrem.simulation import simulated_clients
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcore.methods.gradient_em.memory import WEIGHT_FLOOR
from tests.papers.fedgrem.run_in_memory import block_of, run

START = {"starts": 2, "start_steps": 8}
EXACT = {"preset": "paper", "smallest_cluster": 0.0, "tolerance": 0.0, **START}  # without guards, to the last round
NEAR = {"atol": 1e-5, "rtol": 1e-5}  # the central update is solved up to 1e-9 in each round


def population(seed, clients, components, d, outliers):
    """Ragged clients with components that are some way apart."""
    generator = np.random.default_rng(seed)
    sizes = generator.integers(20 * components, 40 * components, clients)
    centres = 5.0 * generator.normal(size=(components, d))
    h = generator.uniform(0.0, 1.0)
    return simulated_clients(seed, clients=clients, outliers=outliers, h=h, rows=sizes, centres=centres).rows


def started(block, **start):
    """w, theta of the clients' own fits, components in one order."""
    memory = run(block, algorithm="local-fit", **start).memory
    return memory["w"], memory["theta"]


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    clients=st.integers(3, 7),
    components=st.integers(1, 3),
    d=st.integers(2, 4),
    outliers=st.integers(0, 1),
    rounds=st.integers(1, 6),
    step_size=st.floats(0.3, 1.0),
    penalty=st.floats(1.0, 4.0),
    decay=st.floats(0.0, 0.5),
    first=st.floats(0.0, 3.0),
    leaf=st.sampled_from([1, 2, 1024]),
)
def test_the_preset_is_algorithm_1(
    seed, clients, components, d, outliers, rounds, step_size, penalty, decay, first, leaf
):
    rows = population(seed, clients, components, d, outliers)
    block, model = block_of(rows), {"components": components, "clients_per_leaf": leaf}
    ran = run(
        block,
        rounds=rounds,
        step_size=step_size,
        penalty=penalty,
        penalty_decay=decay,
        first_penalty=first,
        **model,
        **EXACT,
    )
    w, theta = started(block, **model, **START)
    eta = step_size / np.maximum(w, WEIGHT_FLOOR)
    penalties = reference.schedule(rounds, d, clients, first, decay, penalty)
    w, theta, centres = reference.fedgrem(rows, w, theta, eta, penalties)
    out = ran.outputs()
    np.testing.assert_allclose(out["centres"], theta, **NEAR)
    np.testing.assert_allclose(out["weights"], w, **NEAR)
    np.testing.assert_allclose(ran.state.centres, centres, **NEAR)
    assert ran.state.penalty == penalties[-1]


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6), step_size=st.floats(0.5, 1.0))
def test_steps_by_present_weights(seed, step_size):
    """eta = C / w[t], for which the reference's E-step is made beforehand."""
    rows = population(seed, 6, 3, 4, 1)
    block = block_of(rows)
    ran = run(block, rounds=5, step_size=step_size, components=3, **{**EXACT, "step_of_start": False})
    w, theta = started(block, components=3, **START)
    for penalty in reference.schedule(5, 4, 6):
        present = reference.fedgrem(rows, w, theta, np.zeros_like(w), [penalty])[0]
        eta = step_size / np.maximum(present, WEIGHT_FLOOR)
        w, theta, centres = reference.fedgrem(rows, w, theta, eta, [penalty])
    np.testing.assert_allclose(ran.outputs()["centres"], theta, **NEAR)
    np.testing.assert_allclose(ran.state.centres, centres, **NEAR)
