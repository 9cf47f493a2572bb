"""Rows that are pictures: declared when they are ingested, known to every version, shown in results."""

import json

import numpy as np
import pytest

from fedcore.errors import IngestError
from fedcore.evaluation.report import run_figures
from fedcore.evaluation.run_summary import result_of
from fedcore.population.describing import describe
from fedcore.population.erasing import forget
from fedcore.population.ingest.ingest import ingest
from fedcore.population.store import Population
from tests.training.test_personalise import train

GENERATOR = np.random.default_rng(0)
SQUARES = GENERATOR.random((24, 3, 4))
IDS = np.array([f"p{i % 6}" for i in range(24)])


def saved(path, x, ids=IDS):
    np.savez(path, x=x, client=ids[: len(x)])
    return path


def test_arrays_of_pictures_say_so_in_every_version(tmp_path):
    made = ingest(saved(tmp_path / "a.npz", SQUARES), tmp_path / "p")
    assert made.manifest.image == (3, 4) and "image" in made.manifest.needs and made.features == 12
    assert describe(made)["image"] == "3 x 4"
    more = saved(tmp_path / "b.npz", SQUARES[:4].reshape(4, 12), np.array(["q", "q", "r", "r"]))
    assert ingest(more, tmp_path / "p", append=True).manifest.image == (3, 4)
    saved(tmp_path / "c.npz", SQUARES[:4].reshape(4, 4, 3), np.array(["s"] * 4))
    with pytest.raises(IngestError, match="pictures of 4 x 3, and its rows are pictures of 3 x 4"):
        ingest(tmp_path / "c.npz", tmp_path / "p", append=True)
    forget(Population.open(tmp_path / "p"), clients=["q"])
    assert Population.open(tmp_path / "p").manifest.image == (3, 4)


def test_flat_rows_are_pictures_if_somebody_says_so(tmp_path):
    flat = saved(tmp_path / "a.npz", SQUARES.reshape(24, 12))
    plain = ingest(flat, tmp_path / "plain").manifest
    assert plain.image is None and "image" not in plain.needs
    assert ingest(flat, tmp_path / "p", image="2x6").manifest.image == (2, 6)
    table = tmp_path / "t.csv"
    table.write_text("client,a,b,c,d\nx,1,2,3,4\ny,5,6,7,8\n")
    assert ingest(table, tmp_path / "t", image="2x2").manifest.image == (2, 2)
    for wrong, said in (
        ("5x5", "5 x 5 is not a row of 12"),
        ("12", "HEIGHTxWIDTH"),
        ("0x0", "has no pixel"),
        ("-3x4", "HEIGHTx"),
    ):
        with pytest.raises(IngestError, match=said):
            ingest(flat, tmp_path / "no", image=wrong)
    with pytest.raises(IngestError, match="pictures are of 3 x 4, not 4x3"):
        ingest(saved(tmp_path / "s.npz", SQUARES), tmp_path / "no", image="4x3")
    with pytest.raises(IngestError, match="go with kind 'rows'"):
        ingest(saved(tmp_path / "n.npz", np.ones((24, 12), np.int64)), tmp_path / "no", kind="counts", image="3x4")


def test_atoms_are_shown_as_pictures(tmp_path):
    population = ingest(saved(tmp_path / "a.npz", SQUARES), tmp_path / "p")
    run = train(population, tmp_path, "dictionaries", atoms=4, global_atoms=2, rounds=2)
    assert json.loads((run.path / "run.json").read_text())["image"] == [3, 4]
    found = result_of(run)
    (shown,) = found.figures
    assert shown.labels == ("atom 0", "atom 1") and shown.images.shape == (2, 3, 4)
    atom = next(column for column in found.tables[1].columns if column.name == "atom 0")
    assert atom.values == shown.images[0].ravel().tolist()
    assert found.tables[1].columns[0].values[5] == "pixel 1,1"
    assert run_figures(run)["atoms"].startswith(b"\x89PNG")
