"""Runs of the private pipeline with its options: relations, reduced tokens, the adaptive clip, weights."""

import dataclasses
import math

import numpy as np
import pytest

from fedcore.methods.histograms import Histograms, HistogramsConfig
from fedcore.methods.histograms.clients import client_update
from fedcore.methods.histograms.reduction import reduce_block
from fedcore.methods.histograms.state import all_tokens
from fedcore.storage.arrays import read_values, state_values, write_values
from tests.histograms.example_clients import (
    EVERYTHING,
    RELATIONS,
    D,
    block_of,
    distance,
    facts_of_two_groups,
    public,
    random_counts,
    two_groups,
    warm_start,
)
from tests.histograms.run_in_memory import answer, rounded_normal, run


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("settings_", [{}, {"reduction": "frequency", "keep": 8}], ids=["plain", "frequency"])
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_two_clusters_are_found(relation, settings_, warm):
    block, truth = two_groups()
    start = {"centres": 0.7 * truth + 0.3 * truth.mean(axis=0)} if warm else None
    sizes = {} if warm else {"rounds": 5, "overseed": 4, "merge_after": 2}
    config = HistogramsConfig(clusters=2, **sizes, **settings_)
    known = facts_of_two_groups(relation=relation, warm_start=start)
    state, infos = run(Histograms(config), block, known, rounded_normal(np.random.default_rng(0)))
    assert state.phase == "done" and state.centres.shape == (2, 12) and state.mean.shape == (12,)
    np.testing.assert_allclose(state.centres.sum(axis=1), 1.0)
    # sampling moves a centre by about sqrt(d / (200 * 60)) / 2 = .016; a lift adds what F gets wrong in the bucket
    assert distance(state.centres, truth) < (0.25 if "reduction" in settings_ else 0.08)
    start_apart = distance(np.tile(truth.mean(axis=0), (2, 1)), truth)
    assert distance(state.centres, truth) < start_apart
    assert (len(state.kept) > 0) == ("reduction" in settings_)


@pytest.mark.parametrize("case", EVERYTHING)
def test_every_state_survives_the_run_store_and_serves_all_tokens(tmp_path, case):
    config, start = EVERYTHING[case]
    method, block = Histograms(config), block_of(random_counts(np.random.default_rng(0), 30, D))
    known = public(start=start)
    state, plan = method.init(known), {release.name: release for release in method.plan(known)}
    noise = rounded_normal(np.random.default_rng(0))
    for number in range(100):
        write_values(tmp_path / str(number), state_values(state))
        again = type(state)(**read_values(tmp_path / str(number)))
        for name, value in state_values(state).items():
            assert np.array_equal(getattr(again, name), value), name
        outputs = method.personalise(again, block, None)
        assert outputs["estimate"].shape == (30, D)
        np.testing.assert_allclose(outputs["estimate"].sum(axis=1), 1.0, atol=1e-4)
        message = method.message(again)
        if message is None:
            break
        grid = method.release_values(message, answer(method, message, block, 1024))
        state, info = method.server_update(again, {name: noise(plan[name], value) for name, value in grid.items()})
        assert all(math.isfinite(value) for value in info.scalars.values())
    assert state.phase == "done"


def test_clients_of_a_reduced_run_answer_with_the_reduced_vocabulary():
    block, _ = two_groups()
    config = HistogramsConfig(clusters=2, rounds=2, overseed=2, reduction="frequency", keep=4)
    method = Histograms(config)
    known = facts_of_two_groups(warm_start=warm_start(2, 12))
    message = method.message(method.init(known))
    assert len(message.kept) == 4 and message.whitening.shape == (5,) and message.log_centres.shape == (5, 2)
    sums = answer(method, message, block, 1024)["clusters_001"].value()
    assert sums.shape == (2, 5) == method.plan(known)[0].shape
    plain = dataclasses.replace(message, kept=all_tokens())
    assert np.array_equal(sums, client_update(plain, reduce_block(block, message.kept))["clusters_001"].value())
