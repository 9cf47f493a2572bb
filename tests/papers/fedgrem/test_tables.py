"""The tables of the paper, small ones."""

from dataclasses import replace

import numpy as np
import pytest
from fedcore.papers import experiment
from fedcore.papers.fedgrem import tables
from fedcore.papers.table import Options, Place, Seeds, reproduce

from fedcore.errors import ConfigError
from fedcore.rounds.engine import InProcessBackend
from tests.gradient_em.test_run import FAST


def place(path) -> Place:
    return Place(path, InProcessBackend(), 1 << 20)


def fewer(of, labels):
    """The conditions of these lines, with fast starts."""

    def conditions(options):
        return {
            key: replace(one, settings={**one.settings, "settings": {**one.settings["settings"], **FAST}})
            for key, one in of(options).items()
            if one.labels["method"] in labels
        }

    return conditions


@pytest.mark.slow
def test_the_simulation_table(tmp_path):
    lines = ("FedGrEM (default)", "FedGrEM (paper)", "FedEM")
    small = replace(tables.GAUSSIAN_MIXTURES, conditions=fewer(tables.GAUSSIAN_MIXTURES.conditions, lines))
    table = reproduce(small, Options(quick=True, seeds=1), place(tmp_path / "x"))
    rows = {(row["method"], row["h"]): row for row in table.rows}
    assert len(rows) == 9 and rows["FedGrEM (paper)", "0"]["paper, θ"] == "1.13"
    assert float(rows["FedEM", "2"]["θ rms"]) > 2 * float(rows["FedGrEM (default)", "2"]["θ rms"])
    assert any(note.startswith("h = 0: the default relative") for note in table.notes)
    assert (tmp_path / "x" / "figure.png").stat().st_size > 1000


def test_the_table_of_clients_rows(tmp_path, monkeypatch):
    """Pen digits' table on made rows: three clusters, twelve clients."""

    class Made(tables.ClientsRows):
        def lines(self, options):
            return {
                label: {**settings, **FAST}
                for label, settings in super().lines(options).items()
                if label in ("FedGrEM (default)", "FedGrEM (paper)", "Local-EM")
            }

    def read(quick):
        generator = np.random.default_rng(0)
        y = generator.integers(0, 3, 900)
        return 6.0 * np.eye(3, 4)[y] + generator.normal(size=(900, 4)), y, np.repeat(np.arange(12), 75)

    pen = tables.PEN_DIGITS_BY_WRITER
    of = Made(read, 3, 12, pen.levels, pen.paper, pen.paper_seconds, by_client=True, weak=True)
    made = tables.table_of_rows("made", "Made rows", ("none",), of, Seeds(), ())
    table = reproduce(replace(made, needs=()), Options(quick=True, seeds=1), place(tmp_path / "x"))
    rows = {row["method"]: row for row in table.rows}
    assert float(rows["FedGrEM (default)"]["0 %"]) < 5.0 and rows["Local-EM"]["paper, 0 %"] == "13.3"
    assert float(rows["the same, plain loop over tasks"]["rounds' seconds"]) > 0
    monkeypatch.delenv("FEDCORE_DATA", raising=False)
    for name in ("fedgrem-pendigits", "fedgrem-mnist", "fedgrem-fashion"):
        with pytest.raises(ConfigError, match="FEDCORE_DATA|is not there"):
            experiment(name).cells(Options())
