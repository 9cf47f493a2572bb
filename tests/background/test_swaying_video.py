"""Generated clips with texture that sways, light that moves, and objects that stay or are large."""

from dataclasses import replace

import numpy as np
import pytest
from fedcore.papers.perma.background_clips import (
    CLIPS,
    CLIPS_TABLE,
    LINES,
    OPENCV,
    QUICK_CLIPS,
    clip_names,
    estimated,
    scores,
    subtracted,
    subtractors,
)
from fedcore.papers.perma.clips import CONDITIONS, Conditions, pasted, swaying
from fedcore.papers.perma.truth import mask_scores
from fedcore.papers.table import Options, Place

from fedcore.rounds.engine import InProcessBackend

SIZE = (32, 40)
STILL = Conditions(10, gain=0.0, objects=1)


def moves(clip):
    """(F - 1,) largest change of the background from frame to frame."""
    return np.abs(np.diff(clip.background, axis=0)).max(axis=(1, 2, 3))


def test_the_truth_of_a_clip():
    clip = swaying(1, replace(STILL, noise=0.01), *SIZE)
    assert clip.frames.shape == clip.background.shape == (10, *SIZE, 3) and clip.masks.shape == (10, *SIZE)
    assert clip.frames.min() >= 0 and clip.frames.max() <= 1 and clip.masks.dtype == bool
    np.testing.assert_allclose(clip.frames * 255, np.rint(clip.frames * 255), atol=1e-9)
    still = (clip.frames - clip.background)[~clip.masks]
    assert abs(still.std() - 0.01) < 0.001 and moves(clip).max() == 0
    assert np.abs(clip.frames - clip.background)[clip.masks].mean() > 0.05
    assert 0.02 < clip.masks.mean() < 0.12 and clip.masks.any(axis=(1, 2)).all()
    np.testing.assert_array_equal(clip.frames, swaying(1, replace(STILL, noise=0.01), *SIZE).frames)
    assert not np.array_equal(clip.background, swaying(2, STILL, *SIZE).background)


@pytest.mark.parametrize("change", [{"sway": 2.0, "fields": 5}, {"light": 0.05}, {"gain": 0.05}])
def test_backgrounds_that_change(change):
    assert moves(swaying(1, replace(STILL, **change), *SIZE)).min() > 1e-3


def test_objects_that_stay_or_are_large():
    stays = swaying(1, replace(STILL, frames=16, stay=6), *SIZE).masks
    same = (stays[1:] == stays[:-1]).all(axis=(1, 2))
    assert same.sum() == 6
    large = swaying(1, replace(STILL, objects=0, large=0.22), *SIZE).masks.mean(axis=(1, 2))
    assert (large[:8] == 0).all() and (large[8:] > 0.03).all() and large.max() < 0.3


def test_noise_of_a_codec_is_where_there_is_texture():
    clip = swaying(1, replace(STILL, objects=0, noise=0.0, shot=0.01, codec=0.02), *SIZE)
    error, detail = np.abs(clip.frames - clip.background).mean(axis=(0, 3)), np.abs(np.diff(clip.background[0], axis=0))
    assert np.corrcoef(error[1:].ravel(), detail.mean(axis=-1).ravel())[0, 1] > 0.1


def test_every_cell_has_its_conditions():
    cells = CLIPS_TABLE.cells(Options())
    names, lines = clip_names(Options()), {**LINES, **subtractors()}
    assert {cell.arguments["clip"] for cell in cells} == {*names} and {*CLIPS} == {
        *CONDITIONS,
        "pasted",
        "shakes-1",
        "shakes-2",
    }
    assert len({cell.key for cell in cells}) == len(cells) == 3 * len(names) * len(lines)
    assert len(CLIPS_TABLE.cells(Options(quick=True))) == len(QUICK_CLIPS) * len(lines)


def test_objects_that_are_pasted_before_frames():
    truth = swaying(1, replace(STILL, objects=0), *SIZE).frames
    clip = pasted(2, truth)
    assert (clip.background == truth).all() and 0.03 < clip.masks.mean() < 0.12
    assert np.abs(clip.frames - truth)[~clip.masks].max() < 1e-9
    assert (np.abs(clip.frames - truth).max(axis=-1)[clip.masks] > 0.02).mean() > 0.9


@pytest.mark.parametrize("line", OPENCV)
def test_rivals_find_objects(line):
    pytest.importorskip("cv2")
    frames, masks = np.full((40, *SIZE, 3), 0.4), np.zeros((40, *SIZE), bool)
    for at in range(40):
        masks[at, 5:11, at : at + 3] = True
    frames[masks] = 0.8
    assert mask_scores(subtracted(frames, line), masks).f1 > 0.8


@pytest.mark.slow
def test_modes_follow_what_sways(tmp_path):
    clip = swaying(1, replace(CONDITIONS["sways"], frames=24), 48, 64)
    found = {}
    for line in LINES:
        background, masks, modes = estimated(Place(tmp_path, InProcessBackend(), 2**24), line, clip.frames, line, 1)
        found[line] = scores(clip, background, masks)
        assert (modes > 0) == (line == "default")
    assert found["default"]["psnr"] > 1 + max(found["no-modes"]["psnr"], found["median"]["psnr"])
    assert found["default"]["inside"] > found["no-modes"]["inside"]
    assert found["default"]["own_f1"] > 0.05 + found["median"]["own_f1"]
