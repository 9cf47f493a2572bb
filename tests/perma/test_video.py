"""Frames as samples, clips, and the robust separation of background and foreground."""

import numpy as np
import pytest
from fedcore.papers.perma import baselines, clips
from fedcore.papers.perma.truth import energy_inside, mask_scores
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcore.errors import ConfigError, IngestError
from fedcore.methods.dictionary_learning.operators import random_atoms
from fedcore.methods.perma.robust import RobustCoder
from fedcore.rounds import pictures
from tests.perma.robust_loop import TO_KEEP, client_atoms, learn_background, separate

# --- layouts --------------------------------------------------------------------------------------------------------


@given(
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(1, 5),
    st.integers(1, 5),
    st.sampled_from([1, 3]),
    st.sampled_from(["polyphase", "tiles"]),
)
@settings(max_examples=40, deadline=None)
def test_a_frame_comes_back(down, across, high, wide, channels, layout):
    frame = np.random.default_rng(0).random((down * high, across * wide, channels))
    rows = clips.to_rows(frame, (high, wide), layout)
    number = high * wide if layout == "polyphase" else down * across
    assert rows.shape == (number, frame.size // number)
    np.testing.assert_array_equal(clips.to_frame(rows, frame.shape, (high, wide), layout), frame)


def test_where_a_pixel_goes():
    frame = np.random.default_rng(1).random((480, 640, 3))
    rows = clips.to_rows(frame, (40, 40))
    assert rows.shape == (1600, 576)
    down, across, u, v, channel = 3, 7, 11, 29, 2  # a block of 12 x 16, an offset in it
    assert rows[u * 40 + v, channel * 192 + down * 16 + across] == frame[down * 40 + u, across * 40 + v, channel]
    tiles = clips.to_rows(frame, (12, 16), "tiles")
    assert tiles.shape == (1600, 576)
    np.testing.assert_array_equal(tiles[2 * 40 + 5].reshape(12, 16, 3), frame[24:36, 80:96])


@pytest.mark.parametrize("block", [(7, 10), (10, 7), (0, 10)])
def test_blocks_must_fill_the_frame(block):
    with pytest.raises(ConfigError, match="do not fill"):
        clips.to_rows(np.zeros((40, 60, 3)), block)


# --- clips ----------------------------------------------------------------------------------------------------------


def test_the_truth_of_a_clip():
    clip = clips.surveillance(3, 10, 60, 80, gain=0.0)
    assert clip.frames.shape == (10, 60, 80, 3) and clip.masks.shape == (10, 60, 80)
    rest = clip.frames - clip.background
    still = rest[~clip.masks]
    assert abs(still.std() - 0.01) < 5 * 0.01 / np.sqrt(2 * still.size)
    assert np.abs(rest[clip.masks]).mean() > 0.1
    assert 0.02 < clip.masks.mean() < 0.1
    assert (clip.masks[1:] != clip.masks[:-1]).any(axis=(1, 2)).all()  # they never stop
    np.testing.assert_array_equal(clip.frames, clips.surveillance(3, 10, 60, 80, gain=0.0).frames)


def test_clips_from_files(tmp_path):
    frames = np.random.default_rng(0).integers(0, 256, (4, 6, 8, 3)).astype(np.uint8)
    np.savez(tmp_path / "clip.npz", frames=frames, other=np.zeros(3))
    np.savez(tmp_path / "one.npz", whatever=frames)
    np.save(tmp_path / "grey.npy", frames[..., 0] / 255.0)
    np.testing.assert_array_equal(clips.read_clip(tmp_path / "clip.npz"), frames / 255.0)
    np.testing.assert_array_equal(clips.read_clip(tmp_path / "one.npz", 2), frames[::2] / 255.0)
    assert clips.read_clip(tmp_path / "grey.npy").shape == (4, 6, 8, 1)
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "folder").mkdir()
    for at in (2, 0, 1):
        image.fromarray(frames[at]).save(tmp_path / "folder" / f"frame{at}.png")
    (tmp_path / "folder" / "notes.txt").write_text("not a frame")
    np.testing.assert_array_equal(clips.read_clip(tmp_path / "folder"), frames[:3] / 255.0)
    image.fromarray(frames[0, :5]).save(tmp_path / "folder" / "frame3.png")
    with pytest.raises(IngestError, match="another size"):
        clips.read_clip(tmp_path / "folder")
    (tmp_path / "folder" / "frame3.png").write_bytes(b"nonsense")
    with pytest.raises(IngestError, match="frame3.png"):
        clips.read_clip(tmp_path / "folder")


@pytest.mark.parametrize(
    "make",
    [
        lambda path: np.save(path, np.zeros((3, 4))),
        lambda path: np.save(path, np.zeros((0, 4, 4, 3))),
        lambda path: np.save(path, np.full((2, 4, 4), np.nan)),
        lambda path: np.save(path, np.array(["a"])),
        lambda path: np.savez(path, a=np.zeros(1), b=np.zeros(1)),
        lambda path: path.write_bytes(b"nonsense"),
        lambda path: path.mkdir(),
        lambda path: None,
    ],
)
def test_bad_clips_are_refused(tmp_path, make):
    make(tmp_path / "clip")
    name = next((entry for entry in tmp_path.iterdir()), tmp_path / "clip")
    with pytest.raises(IngestError):
        clips.read_clip(name)


def test_threshold_by_hand():
    assert pictures.own_threshold(np.array([1.0, 2.0, 3.0, 4.0, 100.0])) == 3.0 + 6.0 * 1.0
    frames, background = np.zeros((1, 1, 1, 3)), np.array([[[0.1, -0.4, 0.2]]])
    assert pictures.difference(frames, background)[0, 0, 0] == 0.4


# --- separation -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scene():
    """Low-rank samples of six clients, a tenth of the numbers of each replaced by something large."""
    generator = np.random.default_rng(5)
    atoms = random_atoms(generator, 4, 40)
    clean = generator.normal(size=(6, 60, 4)) @ atoms
    gross = generator.random(clean.shape) < 0.1
    return atoms, clean, np.where(gross, clean + generator.uniform(1, 3, clean.shape), clean)


def test_robust_codes_see_through_gross_errors(scene):
    atoms, clean, seen = scene
    coder = RobustCoder(estimates=12, steps=20)
    codes, cleaned = coder(seen[0], atoms)
    plain = seen[0] @ atoms.T
    truth = clean[0] @ atoms.T
    assert np.abs(codes - truth).max() < 0.05 < 0.5 < np.abs(plain - truth).max()
    assert np.abs(cleaned - clean[0]).max() < 0.1


def test_clean_samples_are_coded_as_ever(scene):
    atoms, clean, _ = scene
    codes, cleaned = TO_KEEP(clean[0], atoms)
    np.testing.assert_allclose(codes, clean[0] @ atoms.T, atol=1e-9)
    np.testing.assert_allclose(cleaned, clean[0], atol=1e-9)


def test_a_client_without_samples_keeps_the_common_atoms(scene):
    atoms, _, _ = scene
    np.testing.assert_allclose(client_atoms(np.zeros((0, 40)), atoms, RobustCoder()), atoms, atol=1e-12)


def test_robust_rounds_find_the_span_that_least_squares_misses(scene):
    atoms, _, seen = scene
    generator = np.random.default_rng(0)
    start = atoms + 0.1 * generator.normal(size=atoms.shape)

    def miss(found):
        return np.linalg.norm(atoms - atoms @ found.T @ found, 2)

    robust = learn_background(list(seen), start, 10)
    plain = learn_background(list(seen), start, 10, RobustCoder(cut=1e9))
    assert miss(robust) < 0.1 < 0.5 < miss(plain)
    np.testing.assert_allclose(robust @ robust.T, np.eye(4), atol=1e-10)
    assert miss(learn_background(list(seen), start, 10, how="median")) < 0.1


def test_it_is_no_median_over_frames(scene):
    """Shuffled samples of every client change nothing; the median over clients would be lost."""
    atoms, clean, seen = scene
    generator = np.random.default_rng(1)
    shuffled = [own[generator.permutation(len(own))] for own in seen]
    kept, moved = (learn_background(list(rows), atoms, 2) for rows in (seen, shuffled))
    np.testing.assert_allclose(kept, moved, atol=1e-10)
    one = client_atoms(seen[0], atoms, RobustCoder())
    np.testing.assert_allclose(client_atoms(shuffled[0], atoms, RobustCoder()), one, atol=1e-10)


@pytest.mark.slow
def test_a_small_clip():
    clip = clips.surveillance(2, 10, 60, 80)
    rows = np.stack([clips.to_rows(frame, (10, 10)) for frame in clip.frames])  # 100 samples of 144 numbers
    start = np.linalg.svd(rows.reshape(-1, rows.shape[2]), full_matrices=False)[2][:20]
    scores = {}
    for name, coder in (("robust", RobustCoder()), ("plain", RobustCoder(cut=1e9))):
        atoms = learn_background(list(rows), start, 6, coder)
        parts = [separate(own, atoms, 10, 5, 3, TO_KEEP if name == "robust" else coder) for own in rows]
        background = np.stack([clips.to_frame(part.background, clip.frames.shape[1:], (10, 10)) for part in parts])
        difference = pictures.difference(clip.frames, background)
        scores[name] = mask_scores(difference > pictures.own_threshold(difference), clip.masks).f1
    assert scores["robust"] > 0.9 and scores["robust"] > scores["plain"], scores
    foreground = clips.to_frame(parts[0].foreground, clip.frames.shape[1:], (10, 10))[None]
    assert energy_inside(foreground, clip.masks[:1]) > 3 * clip.masks[0].mean()


def test_frame_statistics():
    frames = np.arange(12.0).reshape(3, 2, 2, 1) ** 2
    np.testing.assert_array_equal(baselines.frame_median(frames), frames[1])
    np.testing.assert_allclose(baselines.frame_mean(frames), frames.sum(axis=0) / 3)
