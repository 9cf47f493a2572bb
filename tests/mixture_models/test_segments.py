"""Segments: names from the largest on, sizes with intervals, and sentences that say no more than the noise allows."""

import numpy as np

from fedcore.methods.mixture_models.segments import Columns, of_numbers, segments_table
from fedcore.methods.mixture_models.tables import correlations_table
from fedcore.rounds.results import Features, segment_names

WEIGHTS = np.array([0.2, 0.5, 0.3])
MEANS = np.array([[60.0, 5.0], [30.0, 5.0], [45.0, 5.01]])
SPREAD = np.full((3, 2), 5.0)
FEATURES = Features(2, ["age", "stay"], ["years", ""])


def columns(table) -> dict:
    return {column.name: column.values for column in table.columns}


def test_names_after_z_have_two_letters():
    assert segment_names(28)[:2] == ["A", "B"] and segment_names(28)[25:] == ["Z", "AA", "AB"]


def test_a_segment_has_a_size_with_an_interval_and_a_sentence_in_units():
    noise = np.full((3, 2), 0.1)
    given = [of_numbers(FEATURES, MEANS, SPREAD, noise)]
    errors = np.array([0.01, 0.02, np.nan])
    table = segments_table(WEIGHTS, [1, 2, 0], given, errors=errors, people=1000)
    shown = columns(table)
    assert shown["segment"] == ["A", "B", "C"] and shown["component"] == [1, 2, 0]
    assert shown["clients"] == [500, 300, 200] and shown["95 % interval"] == ["461 to 539", None, "180 to 220"]
    assert table.columns[2].errors == [0.02, None, 0.01]
    assert shown["how it differs"][2] == "Higher age (60.0 years, 59.8 to 60.2; others 35.6)."
    assert shown["how it differs"][0].startswith("Lower age (30.0 years")
    assert table.title == "3 segments" and "1,000 declared clients" in table.note and "95 % interval" in table.note


def test_what_is_within_the_noise_is_not_said():
    given = [of_numbers(FEATURES, MEANS, SPREAD, np.full((3, 2), 40.0))]
    assert set(columns(segments_table(WEIGHTS, [1, 2, 0], given))["how it differs"]) == {
        "No column differs from the other segments by more than its noise."
    }


def test_an_unknown_noise_gives_no_interval():
    table = segments_table(WEIGHTS, [1, 2, 0], [of_numbers(FEATURES, MEANS, SPREAD)])
    assert columns(table)["how it differs"][2] == "Higher age (60.0 years; others 35.6)."
    assert "clients" not in columns(table) and "interval" not in table.note


def test_shares_of_categories_are_percentages():
    answers = Columns(["city = Bern"], ["%"], np.array([[0.9], [0.1], [0.1]]))
    said = columns(segments_table(WEIGHTS, [1, 2, 0], [answers]))["how it differs"]
    assert said[2] == "More often city = Bern (90.0 %; others 10.0)." and said[0].startswith("Less often city = Bern")


def test_segments_that_no_test_separated_are_named():
    groups = np.array([0, 1, 0])
    table = segments_table(WEIGHTS, [1, 2, 0], [], groups=groups)
    note = table.note
    assert table.title == "3 segments in 2 groups"
    assert segments_table(WEIGHTS, [1, 2, 0], [], groups=np.zeros(3)).title == "3 segments of 1 group"
    assert "No density dip separates B and C: they may be one group." in note and "A and" not in note
    alone = segments_table(np.ones(1), [0], [of_numbers(FEATURES, MEANS[:1], SPREAD[:1])], groups=np.zeros(1))
    assert columns(alone)["how it differs"] == ["Holds all rows."] and alone.title == "1 segment"


def test_only_correlations_beyond_their_noise_are_shown():
    covariances = np.array([[[1.0, 0.5, 0.1], [0.5, 1.0, 0.0], [0.1, 0.0, 1.0]]] * 2)
    features, errors = Features(3, ["a", "b", "c"]), np.full((2, 3, 3), 0.1)
    errors[1] = np.nan
    table = correlations_table(features, covariances, [0, 1], errors)
    assert columns(table) == {"column": ["a"], "other column": ["b"], "A": [0.5], "B": [None]}
    assert correlations_table(features, covariances, [0, 1], np.full((2, 3, 3), 0.2)) is None  # 2.5 errors of 6 pairs
    assert len(correlations_table(features, covariances)) == 3
