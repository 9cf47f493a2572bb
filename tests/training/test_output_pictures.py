"""Personalised outputs of rows that are pictures: as arrays, and as picture files."""

import csv
import json
import stat
from html import escape

import numpy as np
import pytest
from fedcore.papers.perma import clips
from fedcore.papers.perma.truth import mask_scores
from PIL import Image

from fedcore.errors import ConfigError
from fedcore.evaluation.export import export_run
from fedcore.population.ingest.ingest import ingest
from fedcore.population.ingest.sources_frames import video_frames
from fedcore.rounds.pictures import foreground
from fedcore.training.output_pictures import folder_name
from fedcore.training.personalise import personalise
from tests.training.test_personalise import train


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    place = tmp_path_factory.mktemp("frames")
    clip = clips.surveillance(3, 9, 15, 20, gain=0.06)
    np.save(place / "clip.npy", np.clip(clip.frames, 0, 1))
    population = ingest(place / "clip.npy", place / "p", format="frames", frames_per_client=4)
    return clip, population, train(population, place, "background", rounds=6), place


def test_arrays_of_pictures(trained):
    clip, population, run, place = trained
    personalise(run.path, population.path, place / "out.npz")
    with np.load(place / "out.npz") as out:
        assert out["clients"].tolist() == [f"clip.npy:{first:06d}" for first in (0, 4, 8)]
        assert out["ptr"].tolist() == [0, 4, 8, 9] and json.loads(str(out["about"]))["sensitive"]
        assert out["rows_global"].shape == clip.frames.shape and out["rows_gain"].shape == (9,)
        np.testing.assert_allclose(out["rows_global"] + out["rows_local"], np.clip(clip.frames, 0, 1), atol=1e-6)
        assert mask_scores(out["mask"], clip.masks).f1 > 0.95
        frames, settings = np.clip(clip.frames, 0, 1).astype(np.float32), json.loads(str(out["about"]))["settings"]
        assert out["noise"].shape == (3, 15, 20, 3)
        assert settings == {"least_change": pytest.approx(20 / 255), "shadows": True} and out["shadows"].all()
        assert (out["least_change"] == settings["least_change"]).all()
        masks = foreground(frames, out["rows_global"], out["noise"][0], 20 / 255)
        assert (out["mask"] != masks).mean() < 1e-3  # frames that are put together again differ in the last bit
        expected = np.rint(np.clip(out["rows_global"][5], 0, 1) * 255), out["mask"][5]
    assert stat.S_IMODE((place / "out.npz").stat().st_mode) == 0o600
    told = personalise(run.path, population.path, place / "out.pngs")
    folder = place / "out.pngs" / "clip.npy:000004"
    assert told["clients"] == 3 and len(list(folder.iterdir())) == 8
    np.testing.assert_array_equal(np.asarray(Image.open(folder / "0001-background.png")), expected[0])
    np.testing.assert_array_equal(np.asarray(Image.open(folder / "0001-mask.png")), expected[1])
    with open(place / "out.pngs" / "frames.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["row"] for line in lines] == ["0", "1", "2", "3", "0", "1", "2", "3", "0"]
    with open(place / "out.pngs" / "objects.csv", newline="") as file:
        objects = list(csv.DictReader(file))
    with np.load(place / "out.npz") as out:
        assert sum(int(line["pixels"]) for line in objects) == out["mask"].sum()
    assert objects[0].keys() == {"client", "row", "track", "top", "left", "height", "width", "pixels"}
    followed = [line["client"] for line in objects if line["track"] == "0"]
    assert {"clip.npy:000000", "clip.npy:000004"} <= {*followed}
    assert all(0.7 < float(line["gain"]) < 1.4 and line["shown"] == "1" for line in lines)
    assert np.asarray(Image.open(place / "out.pngs" / "contact.png")).shape == (4 * 15 + 3 * 4, 8 * 20 + 7 * 4, 3)
    page = (place / "out.pngs" / "contact.html").read_text()
    about = json.loads((place / "out.pngs" / "about.json").read_text())
    assert 'src="contact.png"' in page and "Sensitive" in page and escape(about["note"]) in page
    assert stat.S_IMODE((place / "out.pngs" / "contact.html").stat().st_mode) == 0o600
    assert stat.S_IMODE((place / "out.pngs").stat().st_mode) == 0o700
    assert not list(place.glob(".*"))
    export_run(run, place / "background.png")
    image = run.read_state()["images"].reshape(15, 20, 3)
    np.testing.assert_array_equal(np.asarray(Image.open(place / "background.png")), np.rint(np.clip(image, 0, 1) * 255))


def test_videos_hold_the_same_masks_and_backgrounds(trained, tmp_path):
    pytest.importorskip("av")
    _, population, run, _ = trained
    seen: list[tuple[int, int]] = []
    plain = {"settings": {"shadows": False}}
    personalise(run.path, population.path, tmp_path / "out.npz", **plain)
    personalise(run.path, population.path, tmp_path / "out.videos", lambda *step: seen.append(step), **plain)
    names = {"clip.npy-background.mkv", "clip.npy-mask.mkv", "frames.csv", "objects.csv", "contact.png", "contact.html"}
    names |= {"about.json"}
    assert {file.name for file in (tmp_path / "out.videos").iterdir()} == names and seen[-1] == (9, 9)
    with np.load(tmp_path / "out.npz") as out:
        expected = np.rint(np.clip(out["rows_global"], 0, 1) * 255), out["mask"]
        assert not out["shadows"].any()
    for what, frames in zip(("background", "mask"), expected, strict=True):
        file = tmp_path / "out.videos" / f"clip.npy-{what}.mkv"
        found = np.rint(np.stack(list(video_frames(file))) * 255)
        np.testing.assert_array_equal(found, 255 * frames if what == "mask" else frames)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    personalise(run.path, population.path, tmp_path / "again.videos", **plain)
    for file in (tmp_path / "out.videos").glob("*.mkv"):
        assert file.read_bytes() == (tmp_path / "again.videos" / file.name).read_bytes()


def test_grey_videos_of_two_sequences(tmp_path):
    pytest.importorskip("av")
    for name in "ab":
        clip = clips.surveillance(3, 8, 15, 20)
        np.save(tmp_path / f"{name}.npy", np.clip(clip.frames, 0, 1).mean(axis=-1))
    population = ingest([tmp_path / "a.npy", tmp_path / "b.npy"], tmp_path / "p", format="frames", frames_per_client=5)
    run = train(population, tmp_path, "background", rounds=4)
    personalise(run.path, population.path, tmp_path / "out.videos")
    for name in "ab":
        for what in ("background", "mask"):
            assert np.stack(list(video_frames(tmp_path / "out.videos" / f"{name}.npy-{what}.mkv"))).shape == (8, 15, 20)


def test_frames_of_two_cameras(tmp_path):
    made = [clips.surveillance(seed, 15, 15, 20, gain=0.06) for seed in (3, 6)]
    for name, clip in zip("ab", made, strict=True):
        np.save(tmp_path / f"{name}.npy", np.clip(clip.frames, 0, 1))
    population = ingest([tmp_path / "a.npy", tmp_path / "b.npy"], tmp_path / "p", format="frames", frames_per_client=5)
    run = train(population, tmp_path, "background")
    personalise(run.path, population.path, tmp_path / "out.npz")
    with np.load(tmp_path / "out.npz") as out:
        scenes = {name: out["scene"][[one.startswith(name) for one in out["clients"]]].tolist() for name in "ab"}
        assert sorted(scenes.values()) == [[0] * 3, [1] * 3]
        order = np.argsort(out["clients"], kind="stable")
        masks = np.concatenate([out["mask"][out["ptr"][one] : out["ptr"][one + 1]] for one in order])
    assert mask_scores(masks, np.concatenate([clip.masks for clip in made])).f1 > 0.95
    export_run(run, tmp_path / "backgrounds.png")


@pytest.mark.slow
def test_rows_that_are_no_pictures_are_refused(trained, tmp_path):
    _, population, run, _ = trained
    rows = [population.read(index) for index in range(len(population.blocks))]
    np.savez(tmp_path / "x.npz", x=np.concatenate([block.x for block in rows]) * 255, client=np.arange(9))
    plain = ingest(tmp_path / "x.npz", tmp_path / "plain")
    with pytest.raises(ConfigError, match="no pictures"):
        personalise(run.path, plain.path, tmp_path / "out.pngs")
    bytes_ = ingest(tmp_path / "x.npz", tmp_path / "bytes", image="15x20")
    with pytest.raises(ConfigError, match="from 0 to 1"):
        personalise(train(bytes_, tmp_path, "background", rounds=2).path, bytes_.path, tmp_path / "out.pngs")
    assert not (tmp_path / "out.pngs").exists() and not list(tmp_path.glob(".*"))


def test_names_of_folders():
    assert [folder_name(one) for one in ("a/b", "..", "clip.mp4:000008", "é", "frames.csv")] == [
        "a%2Fb",
        "%2E%2E",
        "clip.mp4:000008",
        "%C3%A9",
        "frames%2Ecsv",
    ]
    with pytest.raises(ConfigError, match="too long"):
        folder_name("x" * 201)
