"""The notebooks of docs/notebooks do what they show: a kernel runs each of them, and prints what is stored.

python -m tests.docs.test_notebooks      runs them, and stores what they print and draw
"""

import re
import tempfile
from pathlib import Path

import pytest

from tests.tutorial import NUMBER, Block, compare, executed, printed_by

nbformat = pytest.importorskip("nbformat")
STORED = sorted((Path(__file__).parents[2] / "docs" / "notebooks").glob("*.ipynb"))
BYTES = 300_000  # of a file, pictures included
of_each = pytest.mark.parametrize("stored", STORED, ids=lambda stored: stored.stem)


def test_the_notebooks_are_found():
    assert len(STORED) == 3


@of_each
def test_a_notebook_has_the_outputs_that_its_text_states(stored):
    book = nbformat.read(stored, 4)
    nbformat.validate(book)
    *before, last = book.cells
    outputs = [output for cell in before for output in cell.get("outputs", [])]
    assert last.source.startswith("## What came out") and NUMBER.findall(last.source)
    printed = {number for cell in before if cell.cell_type == "code" for number in NUMBER.findall(printed_by(cell))}
    assert set(NUMBER.findall(last.source)) <= printed
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not any(output.get("name") == "stderr" for output in outputs)
    assert not re.search(r"/(home|tmp|root|work)/", stored.read_text())
    assert stored.stat().st_size < BYTES


@pytest.mark.slow
@pytest.mark.parametrize(
    "stored",
    [
        pytest.param(stored, id=stored.stem, marks=[pytest.mark.heavy] * (stored.stem == "larger-than-memory"))
        for stored in STORED
    ],
)
def test_a_kernel_prints_what_a_notebook_shows(stored, tmp_path):
    shown, made = nbformat.read(stored, 4), executed(nbformat.read(stored, 4), tmp_path)
    for before, cell in zip(shown.cells, made.cells, strict=True):
        if cell.cell_type == "code":
            compare(Block("python", cell.source, printed_by(before)), printed_by(cell))
            pictures = [["image/png" in output.get("data", {}) for output in each.outputs] for each in (before, cell)]
            assert any(pictures[0]) == any(pictures[1])


def renew() -> None:
    for stored in STORED:
        with tempfile.TemporaryDirectory() as folder:
            book = executed(nbformat.read(stored, 4), Path(folder))
        for cell in book.cells:
            cell.metadata.clear()  # times
        book.metadata.pop("language_info", None)
        nbformat.write(book, stored)


if __name__ == "__main__":
    renew()
