"""Objects keep their number from mask to mask."""

import numpy as np

from fedcore.rounds.tracks import Box, Tracker


def mask(*boxes):
    made = np.zeros((30, 40), bool)
    for top, left, height, width in boxes:
        made[top : top + height, left : left + width] = True
    return made


def tracks(tracker, *boxes):
    return {box[1:5]: box.track for box in tracker.boxes(mask(*boxes))}


def test_boxes():
    made = mask((2, 3, 4, 5), (20, 30, 3, 6))
    made[6, 8] = True  # joined by its corner
    assert Tracker().boxes(made) == [Box(0, 2, 3, 5, 6, 21), Box(1, 20, 30, 3, 6, 18)]
    assert Tracker().boxes(mask()) == []


def test_objects_are_followed():
    tracker = Tracker()
    assert tracks(tracker, (2, 3, 4, 5), (20, 30, 4, 5)) == {(2, 3, 4, 5): 0, (20, 30, 4, 5): 1}
    assert tracks(tracker, (4, 5, 4, 5), (20, 26, 4, 5)) == {(4, 5, 4, 5): 0, (20, 26, 4, 5): 1}  # one by its centre
    assert tracks(tracker, (4, 5, 4, 5), (12, 15, 4, 5)) == {(4, 5, 4, 5): 0, (12, 15, 4, 5): 2}  # too far: another
    assert tracks(tracker) == {}
    assert tracks(tracker, (4, 5, 4, 5)) == {(4, 5, 4, 5): 3}


def test_each_object_has_one_successor():
    tracker = Tracker()
    tracks(tracker, (5, 5, 6, 12))
    assert tracks(tracker, (5, 5, 6, 7), (5, 13, 6, 4)) == {(5, 5, 6, 7): 0, (5, 13, 6, 4): 1}
    tracker.begin()
    assert tracks(tracker, (5, 5, 6, 7)) == {(5, 5, 6, 7): 2}
