"""What changed in a result: beyond noise, by label, and nothing where the noise is not known."""

import numpy as np

from fedcore.evaluation.changes import _equal
from fedcore.evaluation.result_changes import FALSE_LINES, MOST, sizes_changed, values_changed
from fedcore.rounds.results import Column, Result, Table


def result(shares, errors=None, labels=None, others=()):
    names = [f"s{i}" for i in range(len(shares))] if labels is None else labels
    columns = (Column("segment", names), Column("share", [float(v) for v in shares], "%", errors))
    return Result((Table("segments", "Segments", columns), *others))


def test_a_value_changed_if_it_differs_by_more_than_noise_explains():
    errors = [0.01] * 3
    before, now = result([0.2, 0.3, 0.5], errors), result([0.21, 0.45, 0.34], errors)
    found, every = values_changed(before, now, private=True)
    assert every == 2 and [one.what for one in found] == ["Segments: s2, share", "Segments: s1, share"]
    assert np.isclose(found[0].errors, 0.16 / np.hypot(0.01, 0.01)) and (found[0].before, found[0].now) == (0.5, 0.34)


def test_noise_alone_is_reported_as_seldom_as_is_said():
    rng, size, errors = np.random.default_rng(1), 200, [1.0] * 200
    many = [
        values_changed(result(rng.normal(size=size), errors), result(rng.normal(size=size), errors), True)[1]
        for _ in range(400)
    ]
    # Poisson of this mean; six standard deviations
    assert abs(np.mean(many) - FALSE_LINES) < 6 * np.sqrt(FALSE_LINES / 400)


def test_values_without_known_noise_are_compared_only_where_no_run_is_private():
    before, now = result([0.2, 0.8]), result([0.4, 0.81])
    assert values_changed(before, now, private=True) == ([], 0)
    (one,), every = values_changed(before, now, private=False)
    assert (one.what, one.errors, every) == ("Segments: s0, share", None, 1)
    unknown = result([0.2, 0.8], [None, float("nan")])
    assert values_changed(unknown, result([0.4, 0.1], [0.1, 0.1]), private=True) == ([], 0)


def test_rows_are_matched_by_label_and_labels_of_several_rows_are_left_out():
    before = result([0.1, 0.2, 0.3], labels=["a", "b", "b"])
    now = result([0.2, 0.9, 0.1], labels=["b", "a", "b"])
    found, _ = values_changed(before, now, private=False)
    assert [(one.what, one.before, one.now) for one in found] == [("Segments: a, share", 0.1, 0.9)]
    many = values_changed(result(np.full(20, 0.1)), result(np.full(20, 0.9)), private=False)
    assert len(many[0]) == MOST and many[1] == 20


def test_sizes_of_lists_and_not_of_tables_that_follow_from_them():
    def tokens(count):
        return Table("tokens", "Tokens", (Column("segment", [i // 2 for i in range(count)]),))

    before, now = result([0.5, 0.5], others=[tokens(4)]), result([0.3, 0.3, 0.4], others=[tokens(6)])
    assert sizes_changed(before, now) == [("Segments", 2, 3)] and sizes_changed(before, before) == []
    assert sizes_changed(Result(), now) == []


def test_numbers_that_differ_by_rounding_are_equal():
    assert _equal(0.9803263654753589, 0.980326365475359) and not _equal(0.98, 0.9801) and not _equal(1.0, "1.0")
