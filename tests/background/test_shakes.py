"""A camera that shakes: frames are moved back onto the background, with real borders and fractions of a pixel."""

from dataclasses import replace

import numpy as np
import pytest
from fedcore.papers.perma.clips import CONDITIONS, surveillance
from fedcore.papers.perma.shaken import shaken
from fedcore.papers.perma.truth import mask_scores

from fedcore.methods.background.shakes import Registration, outside
from fedcore.randomness import stream
from fedcore.rounds.pictures import foreground, shifted
from tests.background.run_in_memory import block_of, run

SIZE = (36, 48)
EACH = 4


def clients(frames, each=EACH):
    rows = frames.astype(np.float32).reshape(len(frames), -1)
    return [rows[at : at + each] for at in range(0, len(rows), each)]


def masks(ran, made, least=20 / 255):
    out = ran.outputs()
    background = out["rows_global"].reshape(made.frames.shape)
    noise, shifts = out["noise"][0].reshape(made.frames.shape[1:]), np.stack([out["rows_down"], out["rows_across"]], 1)
    np.testing.assert_allclose(out["rows_global"] + out["rows_local"], made.frames.reshape(len(shifts), -1), atol=1e-6)
    return foreground(made.frames.astype(np.float32), background, noise, least, shifts)


def still(frames=16):
    return replace(CONDITIONS["still"], frames=frames)


@pytest.mark.parametrize("by", [(0, 0), (2, 0), (-1, 3), (0, -2)])
def test_a_picture_is_moved_without_cycles(by):
    picture = stream(1, "picture").random((6, 7, 3))
    down, across = by
    moved = shifted(picture, np.array(by), beyond=-1.0)
    for row, column in np.ndindex(6, 7):
        inside = 0 <= row - down < 6 and 0 <= column - across < 7
        assert (moved[row, column] == (picture[row - down, column - across] if inside else -1.0)).all()
        nearest = picture[min(max(row - down, 0), 5), min(max(column - across, 0), 6)]
        assert (shifted(picture, np.array(by))[row, column] == nearest).all()
    free = np.zeros((6, 7), int)
    for part in outside(-np.array(by), (6, 7)):
        free[part] += 1
    assert (free == (moved[..., 0] == -1.0)).all()


def test_shifts_are_found():
    """Whole pixels exactly, with an object in front and another gain; fractions to a tenth of a pixel."""
    wide = surveillance(3, 1, 60, 70).background
    moves = np.array([[0, 0], [2, -1], [-3, 3], [1, 2]])
    seen = np.stack([wide[10 - down : 46 - down, 10 - across : 58 - across] for down, across in moves])
    frames = 1.1 * seen + 0.01 * stream(1, "noise").standard_normal(seen.shape)
    frames[:, 5:15, 20:32] = 0.9
    image = wide[10:46, 10:58].reshape(1, -1).astype(np.float32)
    found = Registration(image, np.zeros(0), np.arange(image.size), SIZE)(clients(frames)[0])
    np.testing.assert_array_equal(found.whole, moves)
    np.testing.assert_allclose(found.shifts, moves, atol=0.03)
    half = (0.5 * (frames[:1, 1:] + frames[:1, :-1]))[:, :-1]
    half = np.concatenate([half, frames[:1, -2:]], axis=1)  # seen half a pixel farther up
    found = Registration(image, np.zeros(0), np.arange(image.size), SIZE)(clients(half)[0])
    np.testing.assert_allclose(found.shifts, [[-0.5, 0.0]], atol=0.1)


@pytest.mark.parametrize("pixels", [1.0, 2.0])
@pytest.mark.slow
def test_masks_of_a_camera_that_shakes(pixels):
    made = shaken(5, still(), pixels, *SIZE)
    ran = run(block_of(clients(made.frames)), image=SIZE)
    assert ran.state.shaken and ran.column("moved")[0] > 0.5 * len(made.frames)
    f1 = mask_scores(masks(ran, made), made.masks).f1
    assert f1 > 0.95
    if pixels == 2:
        plain = run(block_of(clients(made.frames)))
        assert not plain.state.shaken and mask_scores(masks(plain, made), made.masks).f1 < f1 - 0.03


@pytest.mark.slow
def test_a_camera_that_stands_still_keeps_its_bits():
    made = shaken(5, still(), 0.0, *SIZE)
    looked, plain = (run(block_of(clients(made.frames)), image=image) for image in (SIZE, None))
    assert not looked.state.shaken and not looked.column("moved").any()
    for name in ("images", "energies", "noise", "spread"):
        np.testing.assert_array_equal(getattr(looked.state, name), getattr(plain.state, name))
    assert not looked.outputs()["rows_down"].any() and not looked.outputs()["rows_across"].any()


@pytest.mark.slow
def test_one_of_two_cameras_shakes():
    """Each ends as alone, and leaves of clients do not matter."""
    made = [shaken(seed, still(), pixels, *SIZE) for seed, pixels in ((5, 2.0), (6, 0.0))]
    parts = [part for turn in zip(*(clients(one.frames) for one in made), strict=True) for part in turn]
    ran = run(block_of(parts), image=SIZE, clients_per_leaf=3, modes=0)
    assert sorted(ran.state.shakes.tolist()) == [0, 1]
    out, cameras = ran.outputs(), np.repeat(np.arange(len(parts)) % 2, EACH)
    assert out["rows_down"][cameras == 0].any() and not out["rows_down"][cameras == 1].any()
    for camera, one in enumerate(made):
        alone = run(block_of(clients(one.frames)), image=SIZE, modes=0).outputs()
        np.testing.assert_allclose(out["rows_global"][cameras == camera], alone["rows_global"], atol=1e-4)


def test_what_comes_in_at_a_border_has_no_weight():
    """A frame that is moved by 2 pixels adds to no pixel that it does not show, whatever its own border holds."""
    made = shaken(5, still(), 2.0, *SIZE)
    ran = run(block_of(clients(made.frames)), image=SIZE, rounds=6)
    method, state = ran.method, replace(ran.state, phase="rounds", round=5)
    out = ran.outputs()
    number = int(np.argmax(np.abs(out["rows_down"])))
    down = int(np.rint(out["rows_down"][number]))
    one = clients(made.frames[number : number + 1])[0]
    statistics, _ = method.client_update(method.message(state), block_of([one]), None)
    free = slice(SIZE[0] - down, None) if down > 0 else slice(0, -down)
    answer = {name: statistics[name].value().reshape(*SIZE, 3)[free] for name in ("up", "down")}
    assert abs(down) == 2 and np.abs(answer["up"]).max() < 1e-5 and answer["down"].max() < 1e-5


def test_small_pictures_are_not_registered():
    made = surveillance(3, 12, 8, 10)
    ran = run(block_of(clients(made.frames)), image=(8, 10), rounds=3)
    assert ran.state.picture is None and not ran.state.shaken
