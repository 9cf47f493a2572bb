"""What a run makes of its objective: how it ended, the best statistic, the way back of VR-FedEM, the boundary."""

import dataclasses

import numpy as np
import pytest

from fedcore.methods.federated_em import FederatedEM, looks
from fedcore.methods.federated_em.server import LEAST_RATIO, guarded_step
from fedcore.methods.federated_em.state import empty, pack
from fedcore.methods.mixture_models.gaussian import GaussianMixture
from fedcore.rounds.statistics import values
from tests.federated_em.direct_em import three_components
from tests.federated_em.run_in_memory import answer, block_of, facts, run
from tests.federated_em.varied import Varied


def ended(first, last, best=None, shortened=0, slope=0.0, exact_gain=None):
    return looks.status(
        Varied(),
        empty(
            round=100,
            first_objective=first,
            last_objective=last,
            best_objective=min(first, last) if best is None else best,
            best_round=30,
            shortened=shortened,
            slope=slope,
            exact_gain=exact_gain,
        ),
    )


def test_each_status_by_hand():
    assert ended(5.0, 4.0).startswith("converged")
    assert ended(5.0, 4.0, slope=2e-4).startswith("not converged: the objective still falls by 0.0002 a round")
    assert ended(5.0, 4.0, shortened=21, slope=1.0).startswith("cut back: 21 of 100 steps")
    assert ended(5.0, 4.0, shortened=20).startswith("converged")
    assert ended(5.0, 4.0, shortened=24).startswith("cut back: 24 of 100 steps had to be shortened.")
    assert "would gain about 0.12: set codec to identity" in ended(5.0, 4.0, shortened=24, slope=1.0, exact_gain=0.123)
    assert ended(5.0, 4.0, shortened=24, exact_gain=0.123).startswith("converged")
    assert ended(5.0, 4.0, shortened=20, slope=1.0, exact_gain=0.123).startswith("not converged")
    assert ended(5.0, 4.0, best=3.8).startswith("collapsed") and "those of round 30" in ended(5.0, 4.0, best=3.8)
    assert ended(5.0, 6.0).startswith("diverged") and "those of round 30" in ended(5.0, 6.0)
    assert ended(5.0, 5.0 + 1e-12).startswith("converged")  # it began where it ended
    assert looks.status(Varied(), empty()) == "" and FederatedEM().outcome(empty()) == ""


@pytest.mark.parametrize("algorithm, rounds, said", [("em", 2, "not converged"), ("em", 150, "converged")])
def test_a_run_says_how_it_ended(algorithm, rounds, said):
    y, _ = three_components(900)
    block = block_of(np.array_split(y, 9))
    config = Varied(algorithm=algorithm, rounds=rounds, trial_rounds=10)
    assert FederatedEM(config).outcome(run(config, block, facts(block)).state).startswith(said)


def test_a_run_that_compares_and_ends_elsewhere_looks_once_more():
    """The largest number of rounds counts that look too."""
    y, start = three_components(2000, seed=2)
    block = block_of(np.array_split(y, 40))
    settings = dict(components=3, start="given", regularisation=0.0, memories=False, codec=1, gamma=1.0)
    config = Varied(**settings, norms_by_part=False, rounds=20, monitor_every=1, validation=0.2)
    method, known = FederatedEM(config), facts(block, start=start)
    ran = run(config, block, known)
    assert "The parameters are those of round" in method.outcome(ran.state)
    counted = [method.total_rounds(state) for state in (method.init(known), ran.state)]
    assert counted == [len(ran.infos)] * 2


def test_the_best_statistic_is_what_a_run_ends_with():
    """Dithering with one level and without memories ruins the model; the start was better."""
    y, start = three_components(2000, seed=2)
    block = block_of(np.array_split(y, 40))
    settings = dict(components=3, start="given", regularisation=0.0, memories=False, codec=1, gamma=1.0)
    settings |= dict(norms_by_part=False, rounds=20, monitor_every=1)
    wild = run(Varied(**settings, safeguards=False), block, facts(block, start=start))
    assert wild.state.objective > wild.column("objective").min() + 0.01
    config = Varied(**settings)
    ran = run(config, block, facts(block, start=start))
    state, lowest = ran.state, ran.column("objective").min()
    assert state.objective == state.best_objective == lowest
    model = GaussianMixture(3, 4, "full")
    assert -model.log_likelihood(state.parameters(), y).mean() == pytest.approx(lowest, abs=1e-9)


def test_vr_fedem_goes_back_to_its_best_anchor():
    """The state is made worse between two full passes; the next one is at the best anchor, with half the step."""
    y, _ = three_components(1200)
    block = block_of(np.array_split(y, 12))
    config = Varied(algorithm="vr-fedem", rounds=60, inner_rounds=3, regularisation=0.01)
    method, memory = FederatedEM(config), None
    state, spoilt, objectives = method.init(facts(block)), False, []
    while (message := method.message(state)) is not None:
        statistics, memory = answer(method, message, block, 16, memory)
        before, (state, info) = state, method.server_update(state, values(statistics))
        if before.phase == "rounds" and before.since_full == 0:
            assert message.oracle == "full" and message.monitor
            objectives.append(info.scalars["objective"])
            if spoilt is True:
                assert np.array_equal(state.statistic, before.best) and state.since_full == 0
                assert state.gamma == before.gamma / 2 == 0.25
                spoilt = None
        if state.round == 9 and spoilt is False:
            model = GaussianMixture(3, 4, "full")
            theta = state.parameters() | {"means": state.parameters()["means"] + 2.0}
            s = model.statistic_of(theta)
            state, spoilt = dataclasses.replace(state, statistic=s, theta=pack(theta)[0]), True
    assert spoilt is None and objectives[4] == pytest.approx(min(objectives[:4])), "at the best anchor again"
    assert state.objective < min(objectives[:4])


@pytest.mark.parametrize("covariance", ["full", "tied", "diag", "spherical"])
def test_no_step_takes_a_weight_or_a_variance_far_down(covariance):
    model = GaussianMixture(2, 2, covariance)
    shapes = {
        "full": np.tile(np.eye(2), (2, 1, 1)),
        "tied": np.eye(2),
        "diag": np.ones((2, 2)),
        "spherical": np.ones(2),
    }
    theta = {"weights": np.full(2, 0.5), "means": np.array([[0.0, 0.0], [3.0, 0.0]]), "covariances": shapes[covariance]}
    s = model.statistic_of(theta)
    for change in ({"weights": np.array([0.01, 0.99])}, {"covariances": theta["covariances"] * 0.01}):
        field = model.statistic_of(theta | change) - s
        moved, after, gamma, halvings = guarded_step(model, theta, s, field, 1.0)
        assert halvings > 0 and gamma == 0.5**halvings and model.least_ratio(theta, after) >= LEAST_RATIO
        assert model.least_ratio(theta, model.maximise(s + 2 * gamma * field)) < LEAST_RATIO
        np.testing.assert_array_equal(moved, s + gamma * field)
        assert guarded_step(model, theta, s, field, 1.0, guarded=False)[2:] == (1.0, 0)
    calm = model.statistic_of(theta | {"weights": np.array([0.3, 0.7])}) - s
    assert guarded_step(model, theta, s, calm, 1.0)[2:] == (1.0, 0)
