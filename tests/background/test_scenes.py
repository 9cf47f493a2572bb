"""Clients of several cameras in one population: each has the background of its camera."""

from dataclasses import replace

import numpy as np
import pytest
from fedcore.papers.perma import clips

from fedcore.errors import ConfigError
from fedcore.methods.background.scenes import FEWEST_FRAMES, leaders_of, signature
from fedcore.randomness import stream
from fedcore.rounds.results import Features
from tests.background.run_in_memory import block_of, run

HIGH, WIDE, FRAMES = 15, 20, 15
EACH = 3  # frames of a client


def camera(seed, frames=FRAMES):
    made = clips.surveillance(seed, frames, HIGH, WIDE, gain=0.06)
    rows = made.frames.astype(np.float32).reshape(frames, -1)
    return made, [rows[at : at + EACH] for at in range(0, frames, EACH)]


def mixed(*seeds):
    """(block of clients of these cameras in turns, number of the camera of each)."""
    cameras = [camera(seed)[1] for seed in seeds]
    return block_of([part for turn in zip(*cameras, strict=True) for part in turn]), np.tile(
        np.arange(len(seeds)), FRAMES // EACH
    )


@pytest.mark.slow
def test_each_camera_ends_where_it_does_alone():
    block, cameras = mixed(1, 2, 3)
    ran = run(block)
    out = ran.outputs()
    assert ran.column("scenes").tolist() == [3]
    for own, seed in enumerate((1, 2, 3)):
        alone = run(block_of(camera(seed)[1])).outputs()
        rows = np.repeat(cameras == own, EACH)
        np.testing.assert_allclose(out["rows_global"][rows], alone["rows_global"], atol=1e-5)
        np.testing.assert_allclose(out["noise"][cameras == own][0], alone["noise"][0], rtol=1e-3)
        assert len({*out["scene"][cameras == own].tolist()}) == 1
    shown = ran.method.result(ran.state, Features(HIGH * WIDE * 3, image=(HIGH, WIDE)))
    assert shown.figures[0].images.shape == (3, HIGH, WIDE, 3) and len(shown.tables[0].columns) == 4


@pytest.mark.slow
def test_leaves_do_not_matter():
    block, _ = mixed(1, 2)
    whole, parts = run(block), run(block, clients_per_leaf=2)
    np.testing.assert_allclose(whole.state.images, parts.state.images, atol=1e-6)


@pytest.mark.slow
def test_a_run_starts_from_the_images_of_the_same_cameras():
    block, _ = mixed(1, 2)
    first = run(block, rounds=6)
    left = first.method.checked_warm_start(first.method.warm_start_of(first.state), "it", HIGH * WIDE * 3)
    assert left["background"].shape == (2, HIGH * WIDE * 3)
    warm = run(mixed(2, 1)[0], given=left)
    assert warm.state.given and len(warm.infos) == 20
    np.testing.assert_allclose(warm.state.images, run(mixed(2, 1)[0]).state.images, atol=3e-3)
    other = run(mixed(1, 3)[0], given=left)  # a camera that was replaced: from the mean, as without a start
    assert not other.state.given and len(other.infos) == 21
    with pytest.raises(ConfigError, match="has shape"):
        first.method.checked_warm_start({"background": left["background"][:, 1:]}, "it", HIGH * WIDE * 3)


def test_few_frames_are_no_scene():
    block, _ = mixed(1, 2)
    few = camera(3, FEWEST_FRAMES - EACH)[1]
    parts = [np.asarray(block.x[low:high]) for low, high in zip(block.ptr[:-1], block.ptr[1:], strict=True)]
    assert run(block_of([*few, *parts])).column("scenes").tolist() == [2]


def test_scores_and_new_clients_are_by_scene():
    block, cameras = mixed(1, 2)
    ran = run(block, rounds=6)
    statistics = ran.method.score_block(ran.state, replace(block, heldout=block), None)
    table = ran.method.score_table({name: one.value() for name, one in statistics.items()})
    with_exposure, alone, flat = (line["mse"] for line in table.to_json("x")["rows"])
    assert with_exposure < alone < 0.5 * flat
    later = block_of([camera(2)[1][0], camera(1)[1][0]])
    found = ran.method.personalise(ran.state, later, None)["scene"]
    known = ran.outputs()["scene"]
    assert found.tolist() == [known[cameras == 1][0], known[cameras == 0][0]]


def test_leaders():
    generator = stream(1, "leaders")
    centres = generator.standard_normal((3, 200))
    numbers = generator.integers(3, size=60)
    frames = centres[numbers][:, None] + 0.8 * generator.standard_normal((60, 4, 200))
    own = np.stack([signature(3 * one + 7) for one in frames])
    np.testing.assert_allclose(own, np.stack([signature(one) for one in frames]), atol=1e-6)
    found = leaders_of(own, np.full(60, 4.0))
    assert len(found) == 3
    assert np.bincount((own @ found.T).argmax(axis=1)).tolist() == sorted(np.bincount(numbers).tolist(), reverse=True)
    assert len(leaders_of(np.zeros((5, 200), np.float32), np.ones(5))) == 1
    assert not signature(np.full((2, 50), 0.3)).any()
