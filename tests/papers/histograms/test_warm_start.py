"""Warm starts of Algorithm 2, and refusals of the others."""

import dataclasses

import pytest

from fedcore.errors import ConfigError
from fedcore.rounds.statistics import values
from tests.histograms.example_clients import distance, two_groups, warm_start
from tests.histograms.run_in_memory import answer, facts, run
from tests.papers.histograms.paper import paper


def test_algorithm_2_starts_where_it_is_told_to():
    block, truth = two_groups()
    known = dataclasses.replace(facts(12), warm_start={"centres": truth})
    config = dict(algorithm="algorithm2", clusters=2)
    state, infos = run(paper(**config), block, known)
    assert distance(state.centres, truth) < 0.05 and state.phase == "done"
    assert len(infos) <= 6, "one pass for the mean, and few rounds, since the start is good"
    reduced, _ = run(paper(**{**config, "reduction": "frequency", "keep": 8}), block, known)
    assert reduced.centres.shape == (2, 12) and len(reduced.kept) == 8


@pytest.mark.parametrize("given_centres, clusters, cells", [(5, 2, 5), (1, 3, 3), (4, None, 4), (12, None, 12)])
def test_algorithm_2_merges_and_fills_up(given_centres, clusters, cells):
    block, _ = two_groups()
    config = dict(algorithm="algorithm2", clusters=clusters)
    known = dataclasses.replace(facts(12), warm_start=warm_start(given_centres, 12))
    method = paper(**config)
    state = method.init(known)
    assert method.total_rounds(state) >= 1 + state.rounds
    message = method.message(state)
    state, _ = method.server_update(state, values(answer(method, message, block, 1024)))
    assert state.phase == "rounds" and len(state.centres) == cells and state.clients == block.clients
    last, _ = run(method, block, known)
    assert len(last.centres) == (clusters or min(given_centres, 10))


@pytest.mark.parametrize(
    "config, words",
    [
        ({"algorithm": "fedavg"}, "fedavg"),
        ({"algorithm": "ifca"}, "ifca"),
        ({"algorithm": "published"}, "published"),
        ({"algorithm": "algorithm2", "reduction": "eigenvectors"}, "eigenvectors"),
        ({"algorithm": "algorithm2", "clusters": 2, "rounds": 2}, "cannot be merged"),
    ],
)
def test_what_does_not_accept_a_warm_start(config, words):
    with pytest.raises(ConfigError, match=words) as refused:
        paper(**config).init(dataclasses.replace(facts(12), warm_start=warm_start(5, 12)))
    assert refused.value.remedy
