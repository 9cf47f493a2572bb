"""Figures are whole PNGs for every input, also for those with little or odd in them; what they share is right."""

import base64
import io
import math
import warnings

import matplotlib.image
import numpy as np
import pytest

from fedcore.evaluation.figures import (
    budget_figure,
    data_uri,
    evaluation_figure,
    printable,
    rounds_figure,
    row_labels,
    seconds_figure,
)
from fedcore.evaluation.profiles import profiles_figure
from fedcore.rounds.results import distinguishing, heaviest

ODD_TOKENS = ["$x^2$", "$", "中文", "a" * 300, "", " ", "\n", "<b>", "naïve", "\\frac{", "%", "_x_"]


def pixels(png: bytes) -> np.ndarray:
    """(height, width, channels); fails if it is no whole PNG, has no sensible size, or shows nothing."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    image = matplotlib.image.imread(io.BytesIO(png))
    assert 80 <= image.shape[0] <= 3000 and 300 <= image.shape[1] <= 2000
    assert image[..., :3].std() > 0.01
    return image


def colour_share(image: np.ndarray, colour: tuple[int, int, int]) -> float:
    return float(np.all(np.abs(image[..., :3] * 255 - colour) < 3, axis=-1).mean())


PLAN = [{"name": f"r{i}", "round": i, "rho": 0.1} for i in range(1, 6)]
BLUE, ORANGE = (0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00)


def rows(count: int) -> list[dict]:
    return [
        {"round": r, "movement": 0.5**r, "seconds_clients": 1.0, "seconds_release": 0.2, "seconds_server": 0.1}
        for r in range(1, count + 1)
    ]


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize("count", [0, 1, 2, 30, 300])
def test_any_number_of_rounds(count):
    pixels(rounds_figure(rows(count), ["movement"], "Movement"))
    pixels(seconds_figure(rows(count)))


def test_time_that_no_part_covers_is_drawn():
    grey = (0xBD, 0xBD, 0xBD)
    assert colour_share(pixels(seconds_figure(rows(3))), grey) < 0.01  # the edges of letters
    assert colour_share(pixels(seconds_figure([{**row, "seconds_round": 2.6} for row in rows(3)])), grey) > 0.1


def test_few_and_many_releases_before():
    pixels(budget_figure(PLAN, set(), 1.0, 0.01))  # a band too thin for its text
    pixels(budget_figure(PLAN * 20, set(), None))


def test_values_that_are_missing_are_skipped():
    full = [{"round": r, "movement": 0.1 * r} for r in (2, 3)]
    holes = [{"round": 1}, *full, {"round": 4, "movement": None}, {"round": 5, "movement": math.nan}]
    assert rounds_figure(holes, ["movement"], "Movement") == rounds_figure(full, ["movement"], "Movement")


def test_several_columns_are_several_lines():
    table = [{"round": r, "a_first": 1.0 * r, "b_second": 9.0 - r} for r in range(1, 6)]
    image = pixels(rounds_figure(table, ["a_first", "b_second", "absent"], "Two"))
    assert colour_share(image, BLUE) > 0.001 and colour_share(image, ORANGE) > 0.001


def test_constant_and_zero_values():
    for value in (0.0, -1.0, 3.0):
        pixels(rounds_figure([{"round": r, "movement": value} for r in (1, 2)], ["movement"], "Constant"))
    pixels(seconds_figure([{"round": 1, "seconds_clients": 0.0}]))


@pytest.mark.parametrize("published", [set(), {"r1"}, {"r1", "r2", "r3", "r4", "r5"}])
@pytest.mark.parametrize("rho_max", [None, 1.0])
@pytest.mark.parametrize("before", [0.0, 0.4])
def test_budgets(published, rho_max, before):
    image = pixels(budget_figure(PLAN, published, rho_max, before))
    assert (colour_share(image, ORANGE) > 0.001) == (rho_max is not None)  # the limit is drawn if there is one


def test_more_releases_fill_more_of_the_budget():
    pale = [
        colour_share(pixels(budget_figure(PLAN, {f"r{i}" for i in range(1, n + 1)}, 1.0)), (0xD9, 0xEA, 0xF4))
        for n in (0, 2, 5)
    ]
    assert pale[0] < pale[1] < pale[2]


def test_a_plan_without_releases():
    pixels(budget_figure([], set(), 1.0))


def test_distinguishing_tokens_by_hand():
    tokens, scores = distinguishing(np.array([0.5, 0.25, 0.25, 0.0]), np.array([0.25, 0.125, 0.5, 0.125]), 8)
    assert tokens.tolist() == [0, 1]  # token 2 is below the mean, token 3 absent
    np.testing.assert_allclose(scores, [0.5 * math.log(2), 0.25 * math.log(2)])
    assert distinguishing(np.array([0.5, 0.25, 0.25, 0.0]), np.array([0.25, 0.125, 0.5, 0.125]), 1)[0].tolist() == [0]
    tokens, scores = distinguishing(np.array([0.0, 1.0]), np.array([1.0, 0.0]), 8)  # a mean without the token
    assert tokens.tolist() == [1] and np.isfinite(scores).all()


def test_heaviest_centres_come_first():
    assert heaviest(3, np.array([0.2, 0.5, 0.3]), 12) == [1, 2, 0]
    assert heaviest(3, None, 12) == [0, 1, 2]
    assert heaviest(40, None, 12) == list(range(12))


@pytest.mark.parametrize(("count", "vocabulary"), [(1, None), (2, ODD_TOKENS[:3]), (4, ODD_TOKENS), (13, ODD_TOKENS)])
def test_profiles_of_any_number_of_centres(count, vocabulary):
    centres = np.random.Generator(np.random.Philox(count)).dirichlet(np.full(12, 0.3), count)
    pixels(profiles_figure(centres, np.full(12, 1 / 12), None if count == 2 else np.full(count, 1 / count), vocabulary))


def test_profiles_of_centres_equal_to_the_mean():
    mean = np.full(12, 1 / 12)
    image = pixels(profiles_figure(mean[None], mean, np.ones(1), ODD_TOKENS))
    assert colour_share(image, BLUE) == 0  # no bars


@pytest.mark.parametrize("first", range(0, len(ODD_TOKENS), 6))
def test_odd_tokens_are_drawn_as_text(first):
    tokens = ODD_TOKENS[first : first + 6]
    centres = np.array([[0.15] * 6 + [0.1]])
    assert colour_share(pixels(profiles_figure(centres, np.full(7, 0.1), None, [*tokens, "other"])), BLUE) > 0.01


def test_invisible_tokens_are_spelt_out():
    assert [printable(t) for t in ("word", "", " ", "a\nb", "naïve")] == ["word", "''", "' '", r"'a\nb'", "naïve"]


EVALUATION = [
    {"method": "Local", "kl": 5.5, "se": 0.02},
    {"method": "FedAvg", "kl": 1.06, "se": 0.01},
    {"method": "Algorithm 2 $x$", "kl": 0.92, "se": 0.01},
]


def test_a_method_far_off_becomes_text_and_does_not_squeeze_the_others():
    far = pixels(evaluation_figure(EVALUATION))
    assert colour_share(far, ORANGE) > 0.0001
    near = pixels(evaluation_figure(EVALUATION[1:]))
    assert colour_share(near, ORANGE) == 0


@pytest.mark.parametrize(
    "table",
    [
        [],
        EVALUATION[:1],
        [{"method": "zero", "kl": 0.0, "se": 0.0}],
        [{"method": "m" * 200, "kl": 1.0}],
        [{"method": "none", "kl": None, "se": None}],
        [{"method": "same", "kl": 1.0, "se": 0.0}] * 3,
    ],
)
def test_odd_evaluations(table):
    pixels(evaluation_figure(table))


def test_rows_of_one_method_are_told_apart_by_what_differs():
    table = [
        {"method": "Local", "kl": 5.5, "smoothing": 1e-10, "chosen_by": ""},
        {"method": "Local", "kl": 4.1, "smoothing": 1e-8, "chosen_by": ""},
        {"method": "FT", "kl": 0.9, "smoothing": 1e-10, "prior_tokens": 500.0, "chosen_by": ""},
        {"method": "FT", "chosen_by": "validation clients", "kl": 0.8, "smoothing": 1e-10, "prior_tokens": 1000.0},
        {"method": "FedAvg", "kl": 1.0, "smoothing": 1e-10, "chosen_by": ""},
    ]
    assert row_labels(table) == [
        ("Local", "smoothing 1e-10"),
        ("Local", "smoothing 1e-08"),
        ("FT", "prior tokens 500"),
        ("FT", "prior tokens 1000, chosen by validation clients"),
        ("FedAvg", ""),
    ]


def test_same_input_same_bytes_and_no_global_state():
    import matplotlib

    before = dict(matplotlib.rcParams)
    first = rounds_figure(rows(5), ["movement"], "Movement")
    assert first == rounds_figure(rows(5), ["movement"], "Movement")
    assert dict(matplotlib.rcParams) == before


def test_a_data_uri_holds_the_png():
    png = seconds_figure(rows(2))
    head, body = data_uri(png).split(",", 1)
    assert head == "data:image/png;base64" and base64.b64decode(body) == png


def test_centres_of_nobody_take_no_room():
    centres, mean = np.eye(4) + 0.1, np.ones(4) / 4
    all_there = pixels(profiles_figure(centres, mean, np.array([0.4, 0.3, 0.2, 0.1])))
    assert pixels(profiles_figure(centres, mean, np.array([0.5, 0.3, 0.2, 0.0]))).shape[0] < all_there.shape[0]
    assert len(pixels(profiles_figure(centres, mean, np.zeros(4))))
