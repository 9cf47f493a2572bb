"""Experiments of the method `dictionaries`: generated rows, public cosines, and small tables."""

import numpy as np
import pytest
from fedcore.papers import experiment
from fedcore.papers.perma import generated, private_dictionaries, sizes
from fedcore.papers.table import Options, Place, reproduce

from fedcore.rounds.engine import InProcessBackend

FAMILIES = ("planted", "patches", "gabor", "genes", "sounds", "spectra")
QUICK = Options(quick=True)


def finished(tmp_path, name):
    return reproduce(experiment(name), QUICK, Place(tmp_path / "experiment", InProcessBackend(), 2**24)).rows


@pytest.mark.parametrize("name", FAMILIES)
def test_rows_follow_from_the_seed_and_the_client(name):
    make = getattr(generated, name)
    training, fresh = make(3, clients=2, rows=(7, 5))
    assert [part.shape[0] for part in (*training, *fresh)] == [7, 7, 5, 5]
    assert len({part.shape[1] for part in (*training, *fresh)}) == 1
    again, _ = make(3, clients=3, rows=(7, 5))
    for own, other in zip(training, again, strict=False):
        np.testing.assert_array_equal(own, other)
    assert np.isfinite(training[0]).all() and not np.array_equal(training[0], make(4, clients=1, rows=(7, 5))[0][0])


def test_cosines_are_a_basis():
    atoms = private_dictionaries.cosines(4, 16)
    np.testing.assert_allclose(atoms @ atoms.T, np.eye(16), atol=1e-12)
    assert private_dictionaries.cosines(4, 60, per=2).shape == (60, 16) and np.ptp(atoms[0]) < 1e-12


@pytest.mark.slow
def test_odd_clients_change_little(tmp_path):
    rows = finished(tmp_path, "dictionary-influence")
    assert [row["clients"] for row in rows] == list(sizes.ODD.values())
    assert all(float(row["worst"]) < 0.1 for row in rows)


@pytest.mark.slow
def test_sizes_are_found_or_refused(tmp_path):
    planted, patches = finished(tmp_path, "dictionary-sizes")
    found, fixed = (float(planted[way].split(" / ")[0]) for way in ("found", "fixed"))
    assert found < 0.3 * fixed and planted["shared, own, length"].endswith(", 4")
    assert patches["shared, own, length"].startswith("refused: 0%") and patches["fixed"] == patches["found"]


@pytest.mark.slow
def test_private_atoms_are_better_than_components(tmp_path):
    small = {"patches-5": private_dictionaries.TASKS["patches-5"]}
    one = private_dictionaries.private("dictionary-private", "small", small, private_dictionaries.Seeds(1))
    exact, noisy = reproduce(one, QUICK, Place(tmp_path / "experiment", InProcessBackend(), 2**24)).rows
    assert float(noisy["4: dictionary"]) < float(exact["cosines"]) < float(noisy["4: pca"])
    assert exact["15: pca"] and not noisy["cosines"]
