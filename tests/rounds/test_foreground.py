"""Objects before a background: two thresholds, shifts of an edge, and connected parts."""

import numpy as np
import pytest

from fedcore.randomness import stream
from fedcore.rounds.pictures import foreground

HIGH, WIDE = 40, 50
NOISE, LEAST = 0.01, 20 / 255


def scene(colours=3):
    shape = (HIGH, WIDE, 3) if colours == 3 else (HIGH, WIDE)
    picture = np.full(shape, 0.4, np.float32)
    picture[:, 25:] = 0.8
    return picture


def masks(frame, background=None, noise=NOISE, least=LEAST):
    background = scene() if background is None else background
    return foreground(frame[None], background[None], np.full(background.shape, noise), least)[0]


@pytest.mark.parametrize("colours", [1, 3])
def test_an_object_and_nothing_else(colours):
    frame = scene(colours) + NOISE * stream(1, "noise").standard_normal(scene(colours).shape)
    frame[5:15, 5:20] += 0.15
    found = masks(frame, scene(colours))
    assert found.dtype == bool and found[5:15, 5:20].all() and found.sum() == 150
    assert not masks(scene(colours), scene(colours)).any()


def test_an_edge_that_moves_by_two_pixels_is_no_object():
    frame = np.roll(scene(), 2, axis=1)
    frame[:, :2] = 0.4
    assert np.abs(frame - scene()).max() > 0.3 and not masks(frame).any()
    assert masks(np.roll(scene(), 4, axis=1)).any()


def test_what_is_weak_belongs_to_an_object_that_it_touches():
    frame = scene()
    frame[5:15, 5:15] += 0.2
    frame[5:15, 15:20] += 0.06  # 6 deviations, and more than half of the least change
    frame[25:35, 5:15] += 0.06
    found = masks(frame)
    assert found[5:15, 5:20].all() and found.sum() == 150


def test_the_least_change_and_the_least_object():
    frame = scene()
    frame[5:15, 5:15] += 0.07
    assert LEAST > 0.07 and not masks(frame, noise=0.001).any() and masks(frame, noise=0.001, least=0.05).sum() == 100
    frame = scene()
    frame[5, 5:8] += 0.3
    assert not masks(frame).any()
    assert foreground(np.zeros((0, 4, 5)), np.zeros((0, 4, 5)), np.ones((4, 5)), 0.1).shape == (0, 4, 5)


def test_shadows_are_left_out_and_dark_objects_stay():
    """A shadow darkens all channels alike; an object of another colour, or one that is black, is no shadow."""
    behind = np.broadcast_to(np.array([0.6, 0.5, 0.4], np.float32), (20, 30, 3)).copy()
    frame = behind.copy()
    frame[2:8, 2:10] *= 0.7
    frame[10:18, 2:10] = (0.3, 0.5, 0.1)
    frame[10:18, 15:25] *= 0.3
    noise = np.full(behind.shape, 0.01)
    frame += 0.005 * stream(1, "noise").standard_normal(frame.shape).astype(np.float32)
    with_them, without = (foreground(frame[None], behind[None], noise, 20 / 255, shadows=s)[0] for s in (True, False))
    assert with_them[2:8, 2:10].all() and not without[:9].any()
    assert (with_them[9:] == without[9:]).all() and without[10:18, 2:10].all() and without[10:18, 15:25].all()
