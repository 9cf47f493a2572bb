"""Workplaces, and undisturbed runs to compare with."""

import pytest

from fedcore.runs import LoadedRun, load_run
from tests.faults.place import Place, template, to_end


@pytest.fixture(scope="session")
def templates(tmp_path_factory):
    return {test: template(tmp_path_factory.mktemp("template"), test) for test in (False, True)}


@pytest.fixture
def place(templates, tmp_path, monkeypatch):
    """place(mode): a workplace of this test."""
    folder = tmp_path / "place"
    monkeypatch.setenv("FEDCORE_LEDGER", f"sqlite:///{folder / 'ledger.sqlite'}")
    return lambda mode: Place.copy(templates[mode == "test noise"], folder, mode)


@pytest.fixture(scope="session")
def undisturbed(templates, tmp_path_factory) -> dict[str, LoadedRun]:
    """A run in each mode whose result can be repeated."""
    found = {}
    for mode in ("plain", "test noise"):
        here = Place.copy(templates[mode == "test noise"], tmp_path_factory.mktemp("calm") / "place", mode)
        to_end(here.start())
        found[mode] = load_run(here.run_path)
    return found
