"""Workplaces, and undisturbed runs to compare with."""

import pytest

from fedcore.runs.store import LoadedRun, load_run
from tests.faults.place import Place, template
from tests.sessions import to_end


@pytest.fixture(scope="session")
def templates(tmp_path_factory):
    """By (whether the ledger is for test noise, clients in a block)."""
    kinds = [(False, 64), (True, 64), (False, 16), (True, 16)]
    return {kind: template(tmp_path_factory.mktemp("template"), *kind) for kind in kinds}


@pytest.fixture
def place(templates, tmp_path, monkeypatch):
    """place(mode, clients per block): a workplace of this test. Blocks of 64 or 16 make 7 or 25."""
    folder = tmp_path / "place"
    monkeypatch.setenv("FEDCORE_LEDGER", f"sqlite:///{folder / 'ledger.sqlite'}")
    return lambda mode, block=64: Place.copy(templates[mode == "test noise", block], folder, mode)


@pytest.fixture(scope="session")
def undisturbed(templates, tmp_path_factory) -> dict[str, LoadedRun]:
    """A run in each mode whose result can be repeated."""
    found = {}
    for mode in ("plain", "test noise"):
        here = Place.copy(templates[mode == "test noise", 64], tmp_path_factory.mktemp("calm") / "place", mode)
        to_end(here.start())
        found[mode] = load_run(here.run_path)
    return found
