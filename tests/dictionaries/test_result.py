"""What a run shows: a table of the global atoms."""

from dataclasses import replace

import numpy as np

from fedcore.methods.dictionaries import Dictionaries, DictionariesState
from fedcore.rounds.results import Features, Result


def state(common, xx=(), phase="rounds"):
    common = np.array(common, np.float64)
    found = DictionariesState(phase, 1, 0, common.shape[1], 4, common=common)
    return replace(found, xx=np.diag(xx)) if xx else found


def columns(found):
    table = found.tables[0]
    return {column.name: column.values for column in table.columns}


def test_global_atoms():
    method, names = Dictionaries(), Features(3, ["height", "width"])
    shown = columns(method.result(state([[0, 0.6, -0.8], [1, 0, 0]]), names))
    assert shown == {
        "atom": [0, 1],
        "norm": [1.0, 1.0],
        "largest weights": [["column 2 (-0.80)", "width (+0.60)"], ["height (+1.00)"]],
    }
    shown = columns(method.result(state([[0, 3, 4], [1, 0, 0]], (1, 75)), names))
    assert shown["norm"] == [5.0, 1.0] and shown["share of energy"] == [0.25, 0.75]
    many = method.result(state(np.eye(120)), Features(120))
    assert len(columns(many)["atom"]) == 120 and len(many.tables[1].columns) == 121


def test_atoms_have_their_weights_in_the_units_of_the_columns():
    found = Dictionaries().result(state([[0, 0.6, -0.8], [1, 0, 0]]), Features(3, ["a", "b", "c"], ["m", "", "s"]))
    assert [(column.name, list(column.values)) for column in found.tables[1].columns] == [
        ("column", ["a", "b", "c"]),
        ("unit", ["m", "", "s"]),
        ("atom 0", [0.0, 0.6, -0.8]),
        ("atom 1", [1.0, 0.0, 0.0]),
    ]


def test_nothing_before_the_matching_and_without_global_atoms():
    method = Dictionaries()
    for nothing in (state([[1, 0]], phase="start"), state(np.zeros((0, 2)))):
        assert method.result(nothing, Features(2)) == Result()
