"""The tutorials do what they say: each from an empty folder, word for word."""

import csv
import json
import re
import runpy

import pyarrow.parquet as pq
import pytest

from tests.tutorial import PAGES, alike, blocks, compare, executed, in_a_shell, printed_by


def test_lines_are_compared_with_a_tolerance():
    assert alike("clients    4000", "clients 4000")
    assert alike("share,0.50,12.1", "share,0.52,11.9") and not alike("share,0.50,12.1", "share,0.72,12.1")
    assert alike("since ... by hand", "since 20260101 by hand") and not alike("rows 4000", "rows 4001")
    assert alike("0.00 nats", "-0.01 nats") and not alike("0.5", "half")


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.prefect
def test_the_engineer_s_schedule_trains_on_a_population_that_grows(tmp_path):
    folder = tmp_path / "empty"
    folder.mkdir()
    printed = in_a_shell("engineer.md", folder)
    assert pq.read_metadata(folder / "forecasts.parquet").num_rows == 4500
    before_it_was_stopped = (folder / "serve.log").read_text().partition("SIGTERM received")[0]
    assert "Traceback" not in before_it_was_stopped
    spent = {cohort: float(rho) for cohort, rho in re.findall(r"│ ([12]) +│ ([\d.]+) +│ [\d.]+ +│ [\d.]+ +│", printed)}
    assert spent["1"] - spent["2"] == pytest.approx(0.027, abs=1e-4)  # of one run: the first


@pytest.mark.slow
def test_the_analyst_gets_a_private_result(tmp_path):
    folder = tmp_path / "empty"
    folder.mkdir()
    in_a_shell("analyst.md", folder)
    with (folder / "groups.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["column"] for row in rows] == ["glucose", "pressure", "stay", "born"]
    assert sum(name.endswith("(standard error)") and float(value) > 0 for name, value in rows[0].items()) == 3
    assert "differential privacy" in (folder / "runs/stays/report.html").read_text()


@pytest.mark.slow
def test_three_hospitals_share_no_rows(tmp_path):
    folder = tmp_path / "empty"
    folder.mkdir()
    in_a_shell("hospitals.md", folder)
    with (folder / "c/groups.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["share"]) for row in rows] == pytest.approx([17 / 30, 13 / 30], abs=0.03)
    assert sum(int(row["records"]) for row in rows) == pytest.approx(12_000, abs=400)
    (statement,) = (folder / "a/runs").glob("study-*-1/statement.json")
    assert json.loads(statement.read_text())["sites"]["collusion"] == 1


@pytest.mark.slow
def test_a_kernel_executes_the_notebook_that_the_site_offers(tmp_path):
    """The researcher's tutorial, cell by cell, as a reader runs it. Cells print what the page shows."""
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("mkdocs")
    hooks = runpy.run_path(str(PAGES.parent / "site" / "hooks.py"))
    page = (PAGES / "researcher.md").read_text()
    made = nbformat.from_dict(hooks["notebook"](page))
    nbformat.validate(made)
    cells = [cell for cell in executed(made, tmp_path).cells if cell.cell_type == "code"]
    shown = [block for block in blocks("researcher.md") if block.language == "python"]
    assert len(cells) == len(shown) > 5
    for block, cell in zip(shown, cells, strict=True):
        compare(block, printed_by(cell))
    assert (tmp_path / "privacy.png").stat().st_size > 5000
