"""Random files of tables are read alike by fedcore and by other readers: see `differential`."""

import pytest

from . import differential


@pytest.mark.slow
def test_six_hundred_files_are_read_alike():
    counts = differential.run(600, 1)
    assert not counts["different"]
    assert min(counts[f"{form}: equal"] for form in differential.READERS) > 150
    assert min(counts[f"{form}: equal to DuckDB"] for form in differential.READERS) > 75


@pytest.mark.heavy
def test_a_hundred_thousand_files_are_read_alike():
    counts = differential.run(100_000, 2)
    assert not counts["different"]
