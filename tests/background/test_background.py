"""Robust sums find the scene behind what moves, whatever single clients hold."""

from dataclasses import replace

import numpy as np
import pytest
from fedcore.papers.perma import clips
from fedcore.papers.perma.truth import best_mask_scores, mask_scores, psnr

from fedcore.errors import ConfigError, PopulationError, RunError
from fedcore.methods.background import Background, BackgroundConfig
from fedcore.methods.background.codes import BOUND
from fedcore.methods.background.frames import exposures, histogram, quantile
from fedcore.randomness import stream
from fedcore.rounds import pictures
from fedcore.rounds.results import Features
from tests.background.run_in_memory import block_of, facts, run

HIGH, WIDE = 15, 20


def clip(seed=3, gain=0.06):
    return clips.surveillance(seed, 18, HIGH, WIDE, gain=gain)


def clients(frames, each=3):
    rows = frames.astype(np.float32).reshape(len(frames), -1)
    return block_of([rows[at : at + each] for at in range(0, len(rows), each)])


def miss(found, truth):
    """PSNR up to the brightness that nobody can tell from the frames' gains."""
    image, wanted = np.asarray(found, float).ravel(), truth.ravel()
    columns = np.stack([image, np.ones_like(image)], 1)
    return float(psnr(np.mean((columns @ np.linalg.lstsq(columns, wanted, rcond=None)[0] - wanted) ** 2)))


@pytest.mark.parametrize("gain", [0.0, 0.06])
def test_background_and_masks_are_found(gain):
    made = clip(gain=gain)
    ran = run(clients(made.frames))
    assert miss(ran.state.images, made.background) > 48
    out = ran.outputs()
    background = out["rows_global"].reshape(made.frames.shape)
    assert best_mask_scores(pictures.difference(made.frames, background), made.masks)[0].f1 > 0.98
    np.testing.assert_allclose(out["rows_global"] + out["rows_local"], made.frames.reshape(18, -1), atol=1e-6)
    assert out["rows_shown"].all()
    assert ran.column("spread")[-1] == pytest.approx(0.0103, rel=0.1)  # noise of .01
    assert ran.column("modes")[-1] == 0  # nothing sways
    if gain:
        median = np.median(made.frames, axis=0)
        assert miss(ran.state.images, made.background) > 5 + miss(median, made.background)


@pytest.mark.parametrize(
    "kind",
    ["huge", "shifted", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("black", "white", "noise", "moved"))],
)
def test_one_or_two_of_six_clients_cannot_ruin_it(kind):
    made = clip()
    frames, bad = made.frames.copy(), [3, 4, 5, 9, 10, 11][: 3 if kind in ("huge", "shifted") else 6]
    frames[bad] = {
        "huge": lambda: -1e30,
        "shifted": lambda: frames[bad] + 2e3,
        "black": lambda: 0.0,
        "white": lambda: 1.0,
        "noise": lambda: stream(1, "noise").random((len(bad), *made.background.shape)),
        "moved": lambda: np.roll(frames[bad], (7, 9), (1, 2)),
    }[kind]()
    ran = run(clients(frames))
    assert miss(ran.state.images, made.background) > 44
    assert np.abs(ran.state.images).max() < 4
    if kind not in ("moved", "shifted"):
        assert ran.column("strangers")[-1] == len(bad)
        assert not ran.outputs()["rows_shown"][bad].any()


def test_dark_frames_show_the_scene():
    """At a fifth of the light and in light that moves, as at dusk; a black frame does not."""
    made = clip(gain=0.0)
    frames, _ = lit(made)
    frames[[2, 10]] *= 0.2
    frames[14] = 0.0
    ran = run(clients(frames))
    out = ran.outputs()
    assert np.flatnonzero(out["rows_shown"] == 0).tolist() == [14]
    left = np.abs(out["rows_local"][[2, 10]].reshape(2, HIGH, WIDE, 3))[~made.masks[[2, 10]]]
    assert np.median(left) < 0.01


def test_a_client_moves_a_pixel_by_no_more_than_its_cut():
    made = clip()
    answers = []
    for value in (0.9, 1e6, 1e30):  # of a pixel in frames that show the scene otherwise
        frames = made.frames.astype(np.float32).reshape(18, -1)
        frames[3:6, 100] = value
        method = Background()
        state = run(clients(made.frames), rounds=3).state
        state = type(state)(**{n: getattr(state, n) for n in state.__slots__} | {"phase": "rounds"})
        message = method.message(state)
        statistics, memory = method.client_update(message, block_of([frames[3:6]]), None)
        answers.append(statistics["up"].value())
        assert memory is None
    assert np.abs(answers).max() <= 4 * message.cut  # three frames of weight 1/3, of gain up to 4
    np.testing.assert_allclose(answers[1][100], answers[2][100], rtol=1e-4)


def delivered(ran, made, least=20 / 255):
    """Masks of a clip as files of outputs have them."""
    out = ran.outputs()
    background = out["rows_global"].reshape(made.frames.shape)
    return pictures.foreground(
        made.frames.astype(np.float32), background, out["noise"][0].reshape(made.background.shape), least
    )


def test_masks_are_those_of_the_noise_of_each_pixel():
    """A third of the picture is 3 times as noisy as the rest: its noise is in no mask, and objects are."""
    made = clip()
    noisy = np.s_[:, :, : WIDE // 3]
    rest = stream(7, "noise").standard_normal(made.frames[noisy].shape)
    made.frames[noisy] += 0.0283 * rest
    ran = run(clients(made.frames))
    noise = ran.state.noise.reshape(made.background.shape)
    assert np.median(noise[:, : WIDE // 3]) == pytest.approx(0.03, rel=0.25)
    assert np.median(noise[:, WIDE // 3 :]) == pytest.approx(0.01, rel=0.15)
    assert ran.column("noise").shape == (3,) and ran.column("noise")[-1] == np.median(noise)
    masks = delivered(ran, made)
    assert not (masks & ~made.masks).mean() > 1e-3
    assert mask_scores(masks, made.masks).f1 > 0.95
    background = ran.outputs()["rows_global"].reshape(made.frames.shape)
    change = pictures.difference(made.frames, background)
    assert mask_scores(change > pictures.own_threshold(change), made.masks).f1 < 0.8


def test_a_client_adds_bounded_squares_to_the_noise():
    made = clip()
    method = Background()
    state = replace(run(clients(made.frames)).state, phase="noise")
    bad = made.frames[3:6].astype(np.float32).reshape(3, -1)
    bad[:, 100:120] = 1e6
    statistics, _ = method.client_update(method.message(state), block_of([bad]), None)
    assert (statistics["squares"].value()[100:120] == 0).all() and (statistics["weights"].value()[100:120] == 0).all()
    assert (statistics["squares"].value() <= 0.15 * (4.685 * state.noise) ** 2 * (1 + 1e-5)).all()


@pytest.mark.parametrize("scale", [1.0, 255.0])
def test_the_least_change_follows_the_range_of_the_pixels(scale):
    made = clip()
    method = Background()
    state = run(clients(made.frames * scale), rounds=4).state
    found = method.free_settings_in_force(state)["least_change"]
    assert found == pytest.approx(20 / 255 if scale == 1 else 8 * np.median(state.noise))
    given = Background(BackgroundConfig(least_change=0.5))
    assert given.free_settings_in_force(state) == {"least_change": 0.5, "shadows": True}
    assert method.free_settings_in_force(method.init(facts(clients(made.frames))))["least_change"] is None


def test_a_run_without_a_noise_image_has_its_median_spread_for_it():
    ran = run(clients(clip().frames))
    state = replace(ran.state, noise=np.zeros(0))
    np.testing.assert_allclose(ran.method.personalise(state, ran.block, None)["noise"], state.spread, rtol=1e-6)


def lit(made, size=0.15):
    """Its frames and backgrounds, with light that moves over them."""
    down, across = np.mgrid[-1 : 1 : HIGH * 1j, -1 : 1 : WIDE * 1j]
    sides = stream(4, "light").standard_normal((18, 2)) * size
    light = 1 + np.einsum("tk,khw->thw", sides, np.stack([down, across]))[..., None]
    return light * made.frames, light * made.background


def test_light_that_moves_is_background():
    frames, truth = lit(clip(gain=0.0))
    ran = run(clients(frames))
    assert list(ran.column("modes")[5:7]) == [0, 4] and ran.column("modes")[-1] in (2, 3)
    errors = [
        np.mean((made.outputs()["rows_global"].reshape(truth.shape) - truth) ** 2)
        for made in (ran, run(clients(frames), modes=0))
    ]
    assert psnr(errors[0]) > psnr(errors[1]) + 10
    images = ran.state.images
    np.testing.assert_allclose(images[1:] @ images[1:].T / images.shape[1], np.eye(len(images) - 1), atol=1e-9)
    np.testing.assert_allclose(images[1:] @ np.stack([images[0], np.ones(HIGH * WIDE * 3)]).T, 0, atol=1e-9)


def test_what_a_client_adds_to_the_modes_is_bounded():
    frames, _ = lit(clip())
    method = Background()
    state = replace(run(clients(frames), rounds=12).state, phase="rounds", round=12)
    message, answers = method.message(state), []
    assert len(message.energies) >= 2
    for value in (0.9, 1e6):
        bad = frames.astype(np.float32).reshape(18, -1)[3:6]
        bad[:, :300] = value
        bad[0] += 40 * np.sqrt(message.energies[0]) * message.images[1].astype(np.float32)
        statistics, _ = method.client_update(message, block_of([bad]), None)
        bound = BOUND * np.sqrt(message.energies)
        assert (np.abs(statistics["modes"].value()) <= bound[:, None] * message.cut * (1 + 1e-5)).all()
        assert (np.abs(statistics["gram"].value()) <= np.outer(bound, bound) * (1 + 1e-9)).all()
        answers.append(statistics["codes"].value())
    assert all((answer.sum(axis=1) <= 1 + 1e-9).all() for answer in answers)


def test_a_run_from_an_earlier_one_ends_where_one_from_scratch_does():
    made = clip()
    first = run(clients(made.frames[:12]), rounds=6)
    left = first.method.checked_warm_start(first.method.warm_start_of(first.state), "a run", HIGH * WIDE * 3)
    warm, cold = (run(clients(made.frames), given=given) for given in (left, None))
    assert len(warm.infos) == len(cold.infos) - 1 == 20
    np.testing.assert_allclose(warm.state.images[0], cold.state.images[0], atol=2e-3)
    assert miss(warm.state.images[0], made.background) > 48


def test_exposures_are_those_of_most_pixels():
    image = stream(2, "image").random(4000)
    gains, offsets = np.array([0.7, 1.0, 1.6]), np.array([0.1, 0.0, -0.05])
    frames = gains[:, None] * image + offsets[:, None]
    frames[:, :800] = 0.95
    found = exposures(frames, image)
    np.testing.assert_allclose(found[0], gains, atol=1e-2)
    np.testing.assert_allclose(found[1], offsets, atol=1e-2)
    assert not exposures(np.zeros((1, 4000)), image)[0].any()
    np.testing.assert_array_equal(exposures(frames, np.full(4000, 0.3))[0], 1.0)  # no gain to be told


@pytest.mark.parametrize("values", [[-3.0, 0.01, 5.0, 1e5, 1e-7], [-2.0, -1.0, 0.0, 0.0, 4.0]])
def test_quantiles_of_histograms(values):
    counts = histogram(np.array(values))
    assert counts.sum() == pytest.approx(1.0)
    assert quantile(counts, 0.5) == pytest.approx(np.median(values), rel=0.03)
    assert quantile(counts, 1.0) == pytest.approx(max(values), rel=0.03)


def test_the_last_quantile_is_where_the_last_values_are():
    counts = np.zeros_like(histogram(np.zeros(1)))
    counts[1300:1360] = 0.1  # whose sums in turn and in pairs differ in the last bit
    assert np.cumsum(counts)[-1] < counts.sum()
    assert quantile(counts, 1.0) == quantile(counts, 0.999)


def test_what_it_does_not_take():
    frames = clip().frames[:6]
    frames[4, 2, 3, 1] = np.nan
    with pytest.raises(PopulationError, match="client number 1 has frames"):
        run(clients(frames))
    with pytest.raises(PopulationError, match="all pixels"):
        run(clients(np.full((6, 4, 4, 1), 0.5)))
    method, block = Background(), clients(np.ones((2, 2, 2, 3)))
    for wrong in ({"global": np.ones((1, 12))}, {"background": np.ones(11)}):
        with pytest.raises(ConfigError, match="of it|it has no"):
            method.checked_warm_start(wrong, "it", 12)
    with pytest.raises(ConfigError, match="before it had"):
        method.warm_start_of(method.init(facts(block)))
    with pytest.raises(RunError, match="before it had a background"):
        method.personalise(method.init(facts(block)), block, None)


def test_the_result_is_the_image_in_colour():
    made = clip()
    ran = run(clients(made.frames), rounds=4)
    method = Background()
    shown = method.result(ran.state, Features(HIGH * WIDE * 3, image=(HIGH, WIDE)))
    assert shown.figures[0].images.shape == (1, HIGH, WIDE, 3) and shown.figures[0].brightness
    assert Features(12, image=(2, 2)).name(11) == "pixel 1,1 blue"


def test_scores_of_held_out_frames():
    made = clip()
    ran = run(clients(made.frames[:12]), rounds=5)
    method = Background()
    block = replace(clients(made.frames[:6]), heldout=clients(made.frames[12:]))
    statistics = {name: one.value() for name, one in method.score_block(ran.state, block, None).items()}
    with_exposure, alone, flat = (line["mse"] for line in method.score_table(statistics).to_json("x")["rows"])
    image = made.frames[12:].reshape(6, -1)
    assert with_exposure < 0.9 * alone < alone < flat
    assert flat == pytest.approx(((image - image.mean(1, keepdims=True)) ** 2).mean(), rel=1e-4)
