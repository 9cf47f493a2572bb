"""Streams of clients that come and leave, and whose law drifts."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.series.stream import Stream, StreamSettings

SETTINGS = StreamSettings(weeks=60, clients=2000, features=40, clusters=3, tokens=30)


@pytest.fixture(scope="module")
def stream() -> Stream:
    return Stream(SETTINGS, 5)


def test_any_week_is_made_by_itself(stream):
    ids, counts = stream.arrived(7)
    again_ids, again = Stream(SETTINGS, 5).arrived(7)
    assert ids == again_ids and (counts != again).nnz == 0
    assert counts.shape == (len(ids), 40) and (counts.sum(axis=1) == 30).all()
    assert (Stream(SETTINGS, 6).arrived(7)[1][:1] != counts[:1]).nnz


def test_clients_come_once_and_leave_once(stream):
    came, leaves = stream.calendar
    ids = [name for week in range(1, 61) for name in stream.arrived(week)[0]]
    assert len(ids) == len(set(ids)) == len(came)
    gone = [name for week in range(1, 61) for name in stream.left(week)]
    assert len(gone) == len(set(gone)) == int((leaves <= 60).sum())
    assert (leaves > came).all() and (came == 1).sum() == 2000
    present = int(((came <= 60) & (leaves > 60)).sum())
    # 59 weeks of 1.03 * 0.98, all but exactly: the standard deviation of the number that stay is below sqrt(2 n).
    expected = 2000 * 0.98 * (0.98 * 1.03) ** 59
    assert abs(present - expected) < 4 * np.sqrt(2 * expected)


def test_laws_move_by_the_drift(stream):
    laws = stream.laws
    assert np.allclose(laws.sum(axis=2), 1) and laws.shape == (62, 3, 40)
    moved = (laws[1:] * np.log(laws[1:] / laws[:-1])).sum(axis=2)
    # One step is near drift * sum of p_i X_i, X_i chi-squared: deviation drift sqrt(2 sum p^2) < .8 drift, of 183 .06.
    assert 0.8 * SETTINGS.drift < moved.mean() < 1.2 * SETTINGS.drift


def test_the_loss_of_the_truth_is_nothing(stream):
    assert stream.loss(stream.laws[9], 9) == pytest.approx(0, abs=1e-12)
    assert stream.loss(stream.laws[9][[2, 0, 1, 1]], 9) == pytest.approx(0, abs=1e-12)
    assert stream.loss(np.full((1, 40), 1 / 40), 9) > 0.1
    p, q = stream.laws[9], stream.laws[3][:1]
    by_hand = sum(w * (law * np.log(law / q[0])).sum() for w, law in zip(stream.weights, p, strict=True))
    assert stream.loss(q, 9) == pytest.approx(by_hand)
