"""Outputs and scores of a private run's clients fail and warn for nobody's rows: whether they do would tell of them."""

import warnings
from dataclasses import replace

import numpy as np
import pytest

from fedcore.rounds.clients import redacted
from tests.audit import dictionary_releases, em_releases
from tests.federated_em.run_in_memory import block_of

ROWS = [np.array([[1.0, 2.0], [0.0, 1.0], [2.0, 1.0]])] * 4
ABSURD = ([[1e200, 1.0]], [[np.nan, 1.0]], [[np.inf, -np.inf]], [[1e308, 1e308], [-1e308, 1e308]], [[0.0, 5e-324]])


def trained(name):
    case = (em_releases.CASES | dictionary_releases.CASES)[name]
    method = case.method
    state = replace(method.init(case.public(2)), round=1, phase="rounds")
    if name == "dictionaries":
        method = type(method)(method.config.model_copy(update={"atoms": 4}))
        state = replace(state, common=np.eye(2), energies=np.ones(2))
    return method, state


@pytest.mark.parametrize("name", ["em, full", "dictionaries"])
@pytest.mark.parametrize("rows", ABSURD, ids=str)
def test_nothing_is_told_of_absurd_rows(name, rows):
    method, state = trained(name)
    good, bad = block_of([*ROWS, ROWS[0]]), block_of([*ROWS, np.array(rows)])
    for block in (replace(bad, heldout=good), replace(good, heldout=bad)):
        with warnings.catch_warnings(), redacted(method, 0):
            warnings.simplefilter("error")
            method.score_block(state, block, None)
            method.personalise(state, block, None)
