"""Experiments of dictionary learning: the stacked rounds against the method, and small tables."""

import json
import os

import numpy as np
import pytest
from fedcore.papers import experiment
from fedcore.papers.data import rows_population
from fedcore.papers.perma import background_clips as perma_clip
from fedcore.papers.perma import clips, learning
from fedcore.papers.perma import mnist as perma_mnist
from fedcore.papers.perma import rg as perma_rg
from fedcore.papers.perma import synthetic as perma_synthetic
from fedcore.papers.perma import video as perma_video
from fedcore.papers.perma.learning import train
from fedcore.papers.perma.truth import shared_atoms
from fedcore.papers.table import Options, Place, reproduce

from fedcore.errors import ConfigError, IngestError
from fedcore.evaluation.images import displayed, grid_figure
from fedcore.rounds.engine import InProcessBackend

NAMES = ("perma-synthetic", "perma-mnist", "perma-video", "perma-rg")
QUICK = Options(quick=True)
REAL = os.environ.get("FEDCORE_DATA")


def here(tmp_path) -> Place:
    return Place(tmp_path / "experiment", InProcessBackend(), 2**24)


def finished(tmp_path, name, options=QUICK):
    table = reproduce(experiment(name), options, here(tmp_path))
    folder = tmp_path / "experiment"
    assert (folder / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert "privacy: none" in (folder / "table.md").read_text()
    assert not list((folder / "runs").glob("*")) and all(list(row) == list(table.rows[0]) for row in table.rows)
    return table


# --- what is shared -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile, starts", [("paper", 1), ("recommended", 2)])
def test_stacked_rounds_are_those_of_the_method(tmp_path, profile, starts):
    """Two problems, one with garbage, learnt together and by runs of the method."""
    seeds = [3, 4]
    problems = [shared_atoms(3, 4, samples=60), shared_atoms(4, 4, samples=60, garbage=1)]
    norm, align = ("none", "greedy") if profile == "paper" else ("unit", "lsa")
    matcher, aggregate = ("path", "mean") if profile == "paper" else ("star", "median")
    started = learning.start(problems, seeds, starts)
    learnt = learning.learn(started, 4, matcher, aggregate, norm, align)
    for s, (seed, problem) in enumerate(zip(seeds, problems, strict=True)):
        population = rows_population(here(tmp_path), f"p{seed}", lambda own=problem: own.samples, "drawn")
        settings = {"profile": profile, "starts": starts, "rounds": 4}
        ran = train(here(tmp_path), "run", settings, population, seed)
        np.testing.assert_allclose(learnt.common[s], ran.common, atol=1e-9)
        np.testing.assert_allclose(learnt.local[s], ran.local, atol=1e-9)
        assert len(ran.infos) == 5 and ran.seconds > 0
        np.testing.assert_array_equal(ran.atoms(1), np.concatenate([ran.common, ran.local[1]]))


def test_clients_of_fewer_samples_are_filled_up():
    """Zeros change nothing: a client's dictionary is the one that it has among equals."""
    one, other = shared_atoms(5, 3, samples=[50, 50, 50]), shared_atoms(5, 3, samples=[50, 50, 80])
    a, b = learning.start([one], [5], 1), learning.start([other], [5], 1)
    np.testing.assert_allclose(a.atoms[:2], b.atoms[:2], atol=1e-10)
    assert a.samples.shape == (3, 50, 6) and b.samples.shape == (3, 80, 6)


def test_errors_of_clients_alone():
    problem = shared_atoms(1, 3)
    started = learning.start([problem], [1], 1)
    every = learning.alone(started, 3, every_round=True)
    assert every.shape == (4, 1, 3)
    np.testing.assert_array_equal(every[-1:], learning.alone(started, 3))


@pytest.mark.parametrize("name", [name for name in NAMES if name != "perma-video"])
def test_a_population_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match="own populations"):
        experiment(name).cells(Options(population="somewhere"))


def test_missing_images_are_an_error_that_says_what_to_set(tmp_path, monkeypatch):
    monkeypatch.delenv("FEDCORE_DATA", raising=False)
    with pytest.raises(ConfigError, match="mnist.npz") as caught:
        experiment("perma-mnist").cells(QUICK)
    assert "FEDCORE_DATA" in str(caught.value.remedy)


@pytest.mark.parametrize("name", NAMES)
def test_every_line_has_its_cell(tmp_path, name, monkeypatch):
    monkeypatch.setattr("fedcore.papers.table.needed_data", lambda *parts: None)
    counts = []
    for options in (Options(seeds=2), QUICK):
        cells = experiment(name).cells(options)
        assert len({cell.key for cell in cells}) == len(cells)
        json.dumps([dict(cell.arguments) for cell in cells])
        counts.append(len(cells))
    assert counts[1] <= counts[0]


# --- small tables ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_shared_atoms_table(tmp_path, monkeypatch):
    monkeypatch.setattr(perma_synthetic, "QUICK_SWEEPS", ("d-4", "weak-10"))
    monkeypatch.setattr(perma_synthetic, "QUICK_ROUNDS", 8)
    monkeypatch.setattr(perma_synthetic, "QUICK_RATES", ("count", "threshold"))
    table = finished(tmp_path, "perma-synthetic", Options(quick=True, seeds=4))
    rows = {(row["setting"], row["start"]): row for row in table.rows}
    assert len(rows) == 4
    good = rows["1 start", "to threshold"]
    assert good["star, median: failed"] == "0.000" and good["problems"] == 4
    # a start that stops by count leaves more clients stuck than one that goes down to the threshold
    assert float(rows["Figure 2: 1 start", "by count"]["alone: failed"]) > float(good["alone: failed"])


def test_rules_table(tmp_path, monkeypatch):
    monkeypatch.setattr(perma_rg, "TRUE", (0, 3, 6))
    monkeypatch.setattr(perma_rg, "FEATURES", 6)
    monkeypatch.setattr(perma_rg, "SAMPLES", 200)
    monkeypatch.setattr(perma_rg, "CLIENTS", 6)
    monkeypatch.setattr(perma_rg, "STARTS", 2)
    table = finished(tmp_path, "perma-rg")
    rows = {row["rule"]: row for row in table.rows}
    assert rows[perma_rg.JUMP]["0 global"] == 0 and rows[perma_rg.JUMP]["6 global"] == 0  # it cannot say so
    assert rows[perma_rg.NULL]["hits"] >= 5 and {row["of"] for row in table.rows} == {6}
    assert perma_rg.leading(np.array([True, True, False, True])) == 2 and perma_rg.leading(np.ones(3, bool)) == 3


@pytest.mark.slow
def test_clip_table(tmp_path, monkeypatch):
    monkeypatch.setattr(perma_video, "QUICK", perma_video.Size(120, 160, 6, 2, 8))
    monkeypatch.setattr(perma_video, "data_file", lambda *parts: None)
    table = finished(tmp_path, "perma-video")
    rows = {row["background"]: row for row in table.rows}
    robust = rows["PerMA, robust, polyphase, 30 global"]
    assert float(robust["F1, own threshold"]) > float(rows["mean of the frames"]["F1, own threshold"])
    image = rows["background: image, gains, offsets; brightness 6 %"]
    assert float(image["PSNR, exposure fitted"]) > 40
    assert float(image["F1, best threshold"]) > 0.02 + float(
        rows["median of the frames; brightness 6 %"]["F1, best threshold"]
    )
    printed, tiles = (rows[f"PerMA as printed, {layout}, 10 global"] for layout in ("polyphase", "tiles"))
    assert float(printed["F1, best threshold"]) > float(tiles["F1, best threshold"])
    for row in table.rows:
        f1, iou = float(row["F1, own threshold"]), float(row["IoU, own threshold"])
        assert f1 == pytest.approx(2 * iou / (1 + iou), abs=2e-3)


@pytest.mark.slow
def test_a_clip_of_ones_own(tmp_path):
    """From a file and from a folder of images; a clip that cannot be read is refused before anything is computed."""
    clip = clips.surveillance(2, 8, 48, 64)
    np.savez(tmp_path / "clip.npz", frames=clip.frames)
    table = finished(tmp_path, "perma-video", Options(quick=True, population=str(tmp_path / "clip.npz")))
    rows = {row["background"]: row for row in table.rows}
    moving = {name: float(row["pixels that move"]) for name, row in rows.items()}
    assert abs(moving["PerMA, robust"] - clip.masks.mean()) < 0.02 and len(rows) == 4
    assert float(rows["PerMA, robust"]["spread left"]) < float(rows["mean of the frames"]["spread left"])
    assert abs(moving[perma_clip.BACKGROUNDS["background"]] - clip.masks.mean()) < 0.01
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "folder").mkdir()
    for at, frame in enumerate(clip.frames[:3]):
        image.fromarray((np.clip(frame, 0, 1) * 255).astype(np.uint8)).save(tmp_path / "folder" / f"{at}.png")
    assert perma_clip.read(Options(population=str(tmp_path / "folder"))).shape == (3, 48, 64, 3)
    with pytest.raises(IngestError):
        experiment("perma-video").cells(Options(population=str(tmp_path / "nothing")))


def test_blocks_for_a_clip():
    assert perma_clip.block_for((480, 640, 3)) == (40, 40)  # the paper's
    assert perma_clip.block_for((120, 160, 3)) == (10, 10)
    down, across = perma_clip.block_for((97, 101, 1))  # prime: a pixel of a block, or all of them
    assert 97 % down == 0 and 101 % across == 0
    assert perma_clip.settings_for((10, 10), (120, 160, 3), 5)["atoms"] == 50
    few = perma_clip.settings_for((1, 4), (97, 100, 1), 5)
    assert (few["global_atoms"], few["atoms"]) == (2, 4)


def test_pictures_survive_their_text():
    images = np.linspace(0, 1, 4 * 2 * 3 * 3).reshape(4, 2, 3, 3)
    back = perma_clip.images_from(perma_clip.to_text(images), (2, 3, 3))
    assert np.abs(back - images).max() <= 0.5 / 255 + 1e-12
    masks = np.random.default_rng(0).random((4, 5, 7)) > 0.5
    np.testing.assert_array_equal(perma_clip.masks_from(perma_clip.to_text(masks), (5, 7)), masks)


@pytest.mark.skipif(not REAL, reason="FEDCORE_DATA names no folder of data sets")
def test_clients_of_digits():
    samples, images, digits = perma_mnist.data(1, perma_mnist.FULL)
    assert len(samples) == 10 and {own.shape for own in samples} == {(500, 784)}
    assert np.bincount(digits).tolist() == [100] * 10 and images.shape == (1000, 784)
    together = np.concatenate(samples)
    assert together.min() == 0.0 and together.max() == 1.0
    small, *_ = perma_mnist.data(1, perma_mnist.QUICK)
    np.testing.assert_allclose(small[3].mean(axis=1), samples[3].mean(axis=1), rtol=1e-12)


@pytest.fixture
def small_digits(tmp_path, monkeypatch):
    folder = tmp_path / "data" / "mnist"
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    y = np.tile(np.arange(10), 700).astype(np.uint8)
    strokes = generator.random((10, 28, 28)) > 0.8
    x = (strokes[y] * generator.integers(100, 255, (len(y), 28, 28))).astype(np.uint8)
    np.savez(folder / "mnist.npz", x_train=x, y_train=y, x_test=x[:200], y_test=y[:200])
    monkeypatch.setenv("FEDCORE_DATA", str(tmp_path / "data"))
    perma_mnist.stored.cache_clear()
    yield
    perma_mnist.stored.cache_clear()


@pytest.mark.slow
def test_images_table(tmp_path, monkeypatch, small_digits):
    monkeypatch.setattr(perma_mnist, "QUICK", perma_mnist.Size(14, 5, 1, 1, 2, 1, 1))
    monkeypatch.setattr(
        perma_mnist,
        "QUICK_LINES",
        ("zero", "mean", "svd-first", "svd", "perpca", "local", "path", "consensus", "k-svd", "online", "sklearn"),
    )
    monkeypatch.setattr(
        perma_mnist.baselines,
        "mini_batch_dictionary",  # is held against the truth in its own test
        lambda samples, atoms, seed, passes: perma_mnist.baselines.singular_vectors([samples], atoms),
    )
    table = finished(tmp_path, "perma-mnist")
    rows = {row["method"]: row for row in table.rows}
    mse = {name: float(row["MSE k10"]) for name, row in rows.items()}
    assert mse["pooled SVD, best k of 100"] < mse["pooled SVD, first k"] < mse["pooled mean image"] < mse["zero image"]
    assert rows["PerMA, path, 100 global, polar"]["paper MSE k10 / k20"] == "0.0319 / 0.0207"
    assert all(float(row["MSE k20"]) <= float(row["MSE k10"]) + 1e-9 for row in table.rows)
    samples, _, _ = perma_mnist.data(1, perma_mnist.QUICK)
    assert [perma_mnist.own_digit(i) for i in range(10)] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]
    assert len(samples) == 10 and {own.shape for own in samples} == {(500, 196)}


# --- pictures -------------------------------------------------------------------------------------------------------


def test_displayed():
    np.testing.assert_allclose(displayed(np.array([[-1.0, 2.0]])), [[0.25, 1.0]])
    np.testing.assert_allclose(displayed(np.array([[-0.01, 2.0]])), [[0.0, 1.0]])  # noise below 0 is cut
    np.testing.assert_allclose(displayed(np.array([[True, False]])), [[1.0, 0.0]])


def test_rows_of_pictures():
    grey, colour = np.random.default_rng(0).random((3, 6, 6)), np.random.default_rng(1).random((2, 6, 6, 3))
    one, two = grid_figure({"grey": grey}, "one"), grid_figure({"grey": grey, "colour": colour}, "two")
    assert one.startswith(b"\x89PNG") and len(two) > len(one)
    assert grid_figure({"a single image": grey[:1]}, "one").startswith(b"\x89PNG")
