"""The sketch of ids: noise has its law, one id changes odds by at most 8/3, common ids are estimated without bias."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from fedcore.privacy import id_sketch
from fedcore.privacy.id_sketch import CONTINUE, OUTCOMES, VARIANCE, Sketch, keyed_names, noise, overlap

ALPHA = CONTINUE / OUTCOMES
KEY = bytes(range(32))


def pair(one, other, common, rng, parts=1):
    """Sketches of populations of these sizes, which have so many ids in common."""
    names = rng.integers(0, 2**64, one + other - common, dtype=np.uint64)
    found = []
    for mine in (names[:one], names[one - common :]):
        sketch = Sketch.empty(len(mine))
        for some in np.array_split(mine, parts):
            sketch = sketch.with_ids(some)
        found.append(sketch)
    return found


# --- privacy --------------------------------------------------------------------------------------------------------


def test_the_noise_is_two_sided_geometric():
    drawn, cells = noise(400_000), 400_000
    values = np.arange(-8, 9)
    expected = (1 - ALPHA) / (1 + ALPHA) * ALPHA ** np.abs(values) * cells
    counts = np.array([(drawn == value).sum() for value in values])
    assert (np.abs(counts - expected) < 5 * np.sqrt(expected) + 5).all()
    assert abs(drawn.var() - VARIANCE) < 0.05 and math.log(1 / ALPHA) < 1
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 0.01


def test_one_id_changes_one_cell_by_one(monkeypatch):
    monkeypatch.setattr(id_sketch, "noise", lambda cells: np.zeros(cells, np.int64))
    names = keyed_names([f"c{i}" for i in range(500)], KEY)
    with_it, without = (Sketch.empty(500).with_ids(some).cells for some in (names, names[1:]))
    assert np.abs(with_it - without).sum() == 1
    assert np.abs(with_it).sum() > 0 and abs(int(with_it.sum())) < 120  # signs of both kinds


@pytest.mark.slow
def test_the_likelihood_ratio_of_one_id_is_bounded():
    """Who knows the key and all other ids looks at the cell of one id: at no value are the odds above 8/3."""
    names = keyed_names([f"c{i}" for i in range(40)], KEY)
    place = int(names[0] & np.uint64(63))
    trials, seen = 8_000, []
    for some in (names, names[1:]):
        cells = [Sketch.empty(40).with_ids(some).cells[place] for _ in range(trials)]
        seen.append(np.bincount(np.array(cells) + 40, minlength=80))
    often = (seen[0] > 200) & (seen[1] > 200)
    ratio = seen[0][often] / seen[1][often]
    slack = 1 + 5 * np.sqrt(1 / seen[0][often] + 1 / seen[1][often])
    assert (ratio < slack / ALPHA).all() and (ratio > ALPHA / slack).all()
    assert max(ratio.max(), 1 / ratio.min()) > 0.85 / ALPHA, "and the bound is reached"


def test_additions_have_noise_of_their_own():
    """Two backups of a ledger, before and after an addition: their difference is noisy in every cell."""
    before = Sketch.empty(1000).with_ids(keyed_names([f"c{i}" for i in range(1000)], KEY))
    after = before.with_ids(keyed_names(["one more"], KEY))
    assert 0.4 < np.count_nonzero(after.cells - before.cells) / len(after.cells) < 0.7  # 1 - P(0) = 0.545
    assert (after.ids, after.parts) == (1001, 2)


# --- what is found --------------------------------------------------------------------------------------------------
# The noise of these tests has a seed: their bounds are narrow. The law of the operating system's noise is tested above.


@pytest.fixture
def seeded(monkeypatch):
    bits = np.random.default_rng(6)
    monkeypatch.setattr(id_sketch, "os", SimpleNamespace(urandom=bits.bytes))


@pytest.mark.parametrize("sizes", [(2000, 2000), (6000, 1200)])
def test_populations_without_a_common_id_are_not_flagged(seeded, sizes):
    """Measured over 60,000 pairs of 2000: 0.003 %."""
    rng, scores, flagged = np.random.default_rng(1), [], 0
    for _ in range(200):
        found = overlap(*pair(*sizes, 0, rng))
        scores.append(found.ids / found.error)
        flagged += found.many
    assert flagged <= 1
    assert np.percentile(scores, 84) < 1.4  # in standard errors


def test_common_ids_are_estimated_within_their_error(seeded):
    rng, scores = np.random.default_rng(2), []
    for one, other, common in [(3000, 3000, 1500), (3000, 3000, 3000), (20_000, 4000, 3000)] * 40:
        found = overlap(*pair(one, other, common, rng))
        scores.append((found.ids - common) / found.error)
    assert abs(np.mean(scores)) < 0.4 and 0.8 < np.std(scores) < 1.2


def test_a_tenth_of_a_large_population_is_found(seeded):
    rng = np.random.default_rng(3)
    assert all(overlap(*pair(50_000, 50_000, 5000, rng)).many for _ in range(10))
    assert not any(overlap(*pair(50_000, 50_000, 200, rng)).many for _ in range(10))  # fewer than one in a hundred


def test_the_same_people_are_found_from_some_hundred_on(seeded):
    rng = np.random.default_rng(4)
    assert all(overlap(*pair(600, 600, 600, rng)).many for _ in range(40))
    assert not any(overlap(*pair(60, 60, 60, rng)).many for _ in range(40)), "of a few nothing is said"


def test_additions_are_in_the_error(seeded):
    rng = np.random.default_rng(5)
    scores = [found.ids / found.error for found in (overlap(*pair(4000, 4000, 2000, rng, parts=5)) for _ in range(60))]
    centred = np.array(scores) - np.mean(scores)
    assert 0.7 < centred.std() < 1.3


# --- ids and bytes --------------------------------------------------------------------------------------------------


def test_spellings_of_one_id_have_one_name():
    spellings = ["Zoë Müller 7", "  zoë  MÜLLER 7\t", "Zoe\u0308 Mu\u0308ller 7", "Ｚoë Müller\u00a0７", "ZOË MÜLLER 7"]
    assert len({int(name) for name in keyed_names(spellings, KEY)}) == 1
    assert len({int(name) for name in keyed_names(["7", "07", "7a", "Zoë"], KEY)}) == 4
    assert (keyed_names(["7"], KEY) != keyed_names(["7"], KEY[::-1])).all()
    assert keyed_names(["P 1"], KEY) == keyed_names([" p  1 "], KEY)  # the path for ASCII
    assert keyed_names(["P 1", "é"], KEY)[0] == keyed_names(["P 1"], KEY)[0]


def test_a_sketch_is_read_back_and_anything_else_refused():
    sketch = Sketch.empty(3000).with_ids(keyed_names(["a", "b"], KEY))
    np.testing.assert_array_equal(Sketch.of_bytes(sketch.to_bytes(), 2, 1).cells, sketch.cells)
    for data in (b"x", id_sketch.zlib.compress(b"\0" * 4 * 100), id_sketch.zlib.compress(b"\0" * 4), b""):
        with pytest.raises(ValueError):
            Sketch.of_bytes(data, 2, 1)


def test_cells_are_about_half_as_many_as_ids():
    assert [len(Sketch.empty(n).cells) for n in (0, 5, 1000, 10**6, 10**8)] == [64, 64, 512, 2**18, 2**18]
    assert not Sketch(np.zeros(64, np.int64), 2048, 1).outgrown and Sketch(np.zeros(64, np.int64), 2049, 1).outgrown
