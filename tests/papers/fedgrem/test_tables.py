"""The tables of the paper, small ones."""

import numpy as np
import pytest
from fedcore.papers import experiment
from fedcore.papers.experiment import Options, Place, reproduce
from fedcore.papers.fedgrem.clusters import FedGrEMPenDigits
from fedcore.papers.fedgrem.simulations import FedGrEMGaussians

from fedcore.errors import ConfigError
from fedcore.rounds.engine import InProcessBackend
from tests.gradient_em.test_run import FAST


def place(path) -> Place:
    return Place(path, InProcessBackend(), 1 << 20)


class Fewer(FedGrEMGaussians):
    """Two lines of the quick table, fewer beginnings."""

    def lines(self, options):
        return {
            label: {**settings, **FAST}
            for label, settings in super().lines(options).items()
            if label in ("FedGrEM (default)", "FedGrEM (paper)", "FedEM")
        }


def test_the_simulation_table(tmp_path):
    table = reproduce(Fewer(), Options(quick=True, seeds=1), place(tmp_path / "x"))
    rows = {(row["method"], row["h"]): row for row in table.rows}
    assert len(rows) == 9 and rows["FedGrEM (paper)", "0"]["paper, θ"] == "1.13"
    assert float(rows["FedEM", "2"]["θ rms"]) > 2 * float(rows["FedGrEM (default)", "2"]["θ rms"])
    assert any(note.startswith("h = 0: the default relative") for note in table.notes)
    assert (tmp_path / "x" / "figure.png").stat().st_size > 1000


def test_the_table_of_clients_rows(tmp_path, monkeypatch):
    """Pen digits' table on made rows: three clusters, twelve clients."""

    class Made(FedGrEMPenDigits):
        components, clients = 3, 12

        def data(self, options):
            generator = np.random.default_rng(0)
            y = generator.integers(0, 3, 900)
            return 6.0 * np.eye(3, 4)[y] + generator.normal(size=(900, 4)), y, np.repeat(np.arange(12), 75)

        def lines(self, options):
            return {
                label: {**settings, **FAST}
                for label, settings in super().lines(options).items()
                if label in ("FedGrEM (default)", "FedGrEM (paper)", "Local-EM")
            }

        levels = (0, 3, 6, 9)

    table = reproduce(Made(), Options(quick=True, seeds=1), place(tmp_path / "x"))
    rows = {row["method"]: row for row in table.rows}
    assert float(rows["FedGrEM (default)"]["0 %"]) < 5.0 and rows["Local-EM"]["paper, 0 %"] == "13.3"
    assert float(rows["the same, plain loop over tasks"]["rounds' seconds"]) > 0
    monkeypatch.delenv("FEDCORE_DATA", raising=False)
    for name in ("fedgrem-pendigits", "fedgrem-mnist", "fedgrem-fashion"):
        with pytest.raises(ConfigError, match="FEDCORE_DATA|is not there"):
            experiment(name).cells(Options(), place(tmp_path / "y"))
