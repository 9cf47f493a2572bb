"""A camera that shakes, day after day: frames are appended, and a run starts from the background of the one before."""

from dataclasses import replace

import numpy as np
import pytest
from fedcore.papers.perma.clips import CONDITIONS
from fedcore.papers.perma.shaken import shaken
from fedcore.papers.perma.truth import mask_scores

from fedcore.population.ingest.ingest import ingest
from fedcore.rounds.engine import InProcessBackend
from fedcore.training.personalise import personalise
from fedcore.training.session import resume
from tests import sessions

HIGH, WIDE, FRAMES = 24, 32, 12


@pytest.fixture
def days(tmp_path):
    """Masks of two days of a camera, and its population with the first one."""
    clip = shaken(3, replace(CONDITIONS["still"], frames=2 * FRAMES), 1.5, HIGH, WIDE)
    for day in range(2):
        np.save(tmp_path / f"day{day}.npy", clip.frames[day * FRAMES : (day + 1) * FRAMES])
    return clip.masks, ingest(tmp_path / "day0.npy", tmp_path / "p", format="frames", frames_per_client=4)


def test_a_day_is_appended(tmp_path, days):
    masks, first = days
    sessions.train(first, tmp_path, "background", {"rounds": 12})
    ingest(tmp_path / "day1.npy", first.path, format="frames", frames_per_client=4, append=True)
    start = {"run_id": "second", "start_from": str(tmp_path / "runs" / "r")}
    run = sessions.train(first.path, tmp_path, "background", {"rounds": 12}, **start)
    state = run.read_state()
    assert (
        state["given"] and state["shaken"] and state["rows"] == 2 * FRAMES and run.round == 1 + 12 + 3
    )  # no pass for the mean
    personalise(run.path, first.path, tmp_path / "out.npz")
    with np.load(tmp_path / "out.npz") as out:
        assert mask_scores(out["mask"], masks).f1 > 0.95 and not out["scene"].any()


@pytest.mark.parametrize("stops", [3, 14])
def test_a_run_that_was_stopped_ends_in_the_same_bits(tmp_path, days, stops):
    """14: within the passes for the noise."""
    _, population = days
    whole = sessions.train(population, tmp_path, "background", {"rounds": 12}).read_state()
    session = sessions.begin(population, tmp_path, "background", {"rounds": 12}, run_id="stopped")
    for _ in range(stops):
        session.training.step()
    session.close()
    again = sessions.to_end(resume(session.run.path, InProcessBackend())).read_state()
    for name, value in whole.items():
        np.testing.assert_array_equal(again[name], value, err_msg=name)
