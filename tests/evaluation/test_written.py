"""How tables of a result are written: units, errors, what is cut, and the same whole in JSON."""

import json

import numpy as np
import pytest

from fedcore.evaluation.positions import _heading, positions_figure
from fedcore.evaluation.written import ERRORS, shown_table, shown_tables
from fedcore.rounds.results import Column, Features, Positions, Table, of_coefficient, of_columns


def one(value, error=None, unit=""):
    shown = shown_table(Table("t", "T", (Column("x", [value], unit, None if error is None else [error]),)))
    return shown.cells[0][0]


@pytest.mark.parametrize(
    ("value", "error", "unit", "written"),
    [
        (3.21875, 0.0512, "", "3.219 ± 0.051"),
        (1234.5, 87.0, "kg", "1234 ± 87"),
        (123456.0, 8700.0, "", "123500 ± 8700"),
        (0.31234, 0.0041, "%", "31.23 ± 0.41 %"),
        (1e-12, 2e-14, "", "1e-12 ± 2e-14"),
        (3.0, float("nan"), "", "3 ± –"),
        (None, 1.0, "", "–"),
        (float("nan"), None, "", "–"),
        (0.5, None, "%", "50 %"),
        (0.0, 0.0, "", "0 ± 0"),
    ],
)
def test_numbers_have_as_many_places_as_their_errors(value, error, unit, written):
    assert one(value, error, unit) == written


def test_long_and_wide_tables_are_cut_and_whole_in_json():
    columns = tuple(Column(f"c{j}", list(range(100)), "m" if j == 0 else "") for j in range(20))
    table = Table("wide", "Wide", columns, "A note.")
    shown = shown_table(table, rows=5, columns=3)
    assert shown.headings == ["c0 (m)", "c1", "c2"] and len(shown.cells) == 5
    assert shown.notes == ["A note.", "And 95 more rows and 17 more columns, which the table has as JSON."]
    whole = json.loads(json.dumps(table.to_json(), allow_nan=False))
    assert len(whole["columns"]) == 20 and len(whole["columns"][0]["values"]) == 100
    assert shown_table(Table("none", "None", ())).cells == []


def test_json_has_none_for_what_is_not_finite():
    column = Column("x", [1.0, float("inf"), np.float64("nan"), ["a"]], errors=[0.1, float("nan"), None, None])
    assert column.to_json() == {
        "name": "x",
        "unit": "",
        "values": [1.0, None, None, ["a"]],
        "errors": [0.1, None, None, None],
    }


def test_columns_have_the_units_of_the_data():
    assert [column.name for column in of_columns(Features(2, ["a", "b"]), 2)] == ["column"]
    names, units = of_columns(Features(2, ["a", "b"], ["", "kg"]), 2)
    assert (names.values, units.values) == (["a", "b"], ["", "kg"])
    assert [of_coefficient("kg", "m"), of_coefficient("", "m"), of_coefficient("kg", ""), of_coefficient("", "")] == [
        "kg / m",
        "1 / m",
        "kg",
        "",
    ]


@pytest.mark.parametrize("count", [1, 3, 20])
def test_positions_are_drawn(count):
    means = np.arange(2.0 * count).reshape(2, count)
    spread = np.ones((2, count))
    errors = np.full((2, count), 0.1)
    errors[0, 0] = np.nan
    names = tuple(f"$column_{j}$ \U0001f600" for j in range(count))
    png = positions_figure(Positions("p", "Where", "c", names, ("component 1", "component 2"), means, spread, errors))
    assert png.startswith(b"\x89PNG")
    assert positions_figure(Positions("p", "Where", "c", names, ("a", "b"), means)).startswith(b"\x89PNG")


def test_a_long_heading_of_a_panel_keeps_its_two_ends():
    assert _heading("body height while standing (cm)", 0, 24) == "body height…tanding (cm)"
    assert _heading("weight (kg)", 0, 24) == "weight (kg)" and len(_heading("a" * 51, 0, 36)) == 36


def test_what_errors_mean_is_said_once_and_tables_of_a_figure_are_left_out():
    with_errors = [Table(name, name, (Column("x", [1.0], "", [0.1]),), "A note.") for name in "abc"]
    drawn = Table("d", "In a figure", (Column("x", [1]),), shown=False)
    written = shown_tables([with_errors[0], drawn, *with_errors[1:]])
    assert [one.title for one in written] == ["a", "b", "c"]
    assert [one.notes for one in written] == [["A note.", ERRORS], ["A note."], ["A note."]]
    assert "shown" not in drawn.to_json()
