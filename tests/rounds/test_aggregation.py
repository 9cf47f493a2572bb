"""The laws of addition: any cut into blocks, any order, the same bits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.rounds.statistics import ArgMax, FloatSum, IntegerSum, KeyedIntegerSum, Stack, merge, merge_all, size_of


@st.composite
def cuts(draw):
    """(values of the leaves, an order and grouping of them)"""
    count = draw(st.integers(1, 40))
    values = draw(st.lists(st.floats(-1e9, 1e9), min_size=count, max_size=count))
    order = draw(st.permutations(range(count)))
    edges = sorted(draw(st.sets(st.integers(1, count - 1), max_size=6))) if count > 1 else []
    groups = [list(part) for part in np.split(np.array(order), edges)]
    return values, groups


@given(cuts())
def test_float_sums_have_the_same_bits_for_every_cut_and_order(case):
    values, groups = case
    whole = merge_all({"s": FloatSum.at(i, v)} for i, v in enumerate(values))["s"].value()
    parts = [merge_all({"s": FloatSum.at(i, values[i])} for i in group) for group in groups]
    again = merge_all(parts)["s"].value()
    assert whole.tobytes() == again.tobytes()
    assert np.isclose(whole, np.sum(values), rtol=1e-12, atol=1e-3)


def test_the_tree_of_five_leaves_worked_by_hand():
    a, b, c, d, e = 0.1, 0.2, 0.3, 1e16, -1e16
    total = merge_all({"s": FloatSum.at(i, v)} for i, v in enumerate([a, b, c, d, e]))["s"].value()
    assert total == ((a + b) + (c + d)) + e


def test_a_leaf_cannot_be_counted_twice():
    with pytest.raises(ValueError, match="twice"):
        merge({"s": FloatSum.at(0, 1.0)}, {"s": FloatSum.at(0, 1.0)})


def test_integer_sums_refuse_to_wrap_around():
    big = IntegerSum(np.array([2**61], np.int64))
    with pytest.raises(OverflowError):
        big.merge(IntegerSum(np.array([2**61], np.int64)))
    with pytest.raises(TypeError):
        IntegerSum(np.array([1.0]))


@given(st.lists(st.dictionaries(st.sampled_from(["a", "b", 3]), st.integers(-(2**40), 2**40)), min_size=1, max_size=6))
def test_keyed_sums_count_a_missing_key_as_zero(parts):
    total = KeyedIntegerSum({})
    for part in parts:
        total = total.merge(KeyedIntegerSum({key: np.array([value], np.int64) for key, value in part.items()}))
    expected = {key: sum(part.get(key, 0) for part in parts) for key in {k for part in parts for k in part}}
    assert {key: int(value[0]) for key, value in total.value().items()} == expected


@given(st.permutations(range(6)))
def test_argmax_breaks_ties_by_the_lowest_client_in_any_order(order):
    scores = [1.0, 5.0, 5.0, 2.0, 5.0, 0.0]
    total = merge_all({"m": ArgMax(scores[i], i, {})} for i in order)["m"]
    assert (total.score, total.client) == (5.0, 1)


def test_a_stack_keeps_client_order():
    one, two = Stack({4: np.array([[4], [5]])}), Stack({0: np.array([[0], [1], [2], [3]])})
    assert one.merge(two).value().ravel().tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(ValueError, match="twice"):
        one.merge(one)


def test_statistics_must_agree_in_their_names():
    with pytest.raises(ValueError, match="names"):
        merge({"a": FloatSum.at(0, 1)}, {"b": FloatSum.at(1, 1)})


def test_sizes_are_those_of_all_arrays():
    statistics = {
        "a": FloatSum.at(0, np.ones(3)),
        "b": IntegerSum(np.ones((2, 2), np.int64)),
        "c": KeyedIntegerSum({1: np.ones(4, np.int64)}),
        "d": Stack({0: np.ones((5, 1), np.float32)}),
        "e": ArgMax(1.0, 2, {"x": np.ones(6)}),
    }
    assert size_of(statistics) == 24 + 32 + 32 + 20 + (48 + 8 + 8) and size_of(None) == 0
