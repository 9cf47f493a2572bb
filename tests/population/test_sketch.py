"""Drafts of schemas: the votes of the first rows, and a draft without any of their values."""

import io
import json
import os
import pty
import subprocess
import sys
from datetime import datetime
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from fedcore.errors import IngestError
from fedcore.population.ingest.ingest import ingest
from fedcore.population.ingest.schema import read_schema
from fedcore.population.ingest.sketch import draft_of
from fedcore.population.ingest.votes import verdict_of
from tests.command import fedcore, works

from .contents import rows_of

MESSY = """person;age;joined;city;smokes;income;name
7;34;2020-01-31;Bern;yes;1,5;Ann
8;n/a;1970-01-01;Basel;no;-;Bob
7;130;;n/a;TRUE;-3,25;"Cy; the third"
9;12;1970-01-03T12:00:00;Zug;0;7;"Di"
"""


def text(path, content, encoding="utf-8"):
    path.write_bytes(content.encode(encoding))
    return path


# --- votes ------------------------------------------------------------------------------------------------------------


def voted(values, name="x"):
    return verdict_of(name, [one.strip() for one in values])


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        (["1.5", "2", "3e4"], "number", {"marks0": (".", ""), "whole": False}),
        (["1,5", "2", "-3,25"], "number", {"marks0": (",", "")}),
        (["1.234,5", "2.000", "12"], "number", {"marks0": (",", ".")}),
        (["1,234.5", "2,000", "12"], "number", {"marks0": (".", ",")}),
        (["1 234,5", "2\u00a0000", "12"], "number", {"marks0": (",", " ")}),
        (["1'234.5", "2'000.1", "12"], "number", {"marks0": (".", "'")}),
        (["1", "2", "30"], "number", {"whole": True}),
        (["0", "0", "0", "7"], "number", {"zeros": 0.75}),
        (["0", "1", "1"], "number", {"whole": True}),
        (["1"] * 18 + ["one", "?", "n/a"], "number", {"missing": 2, "strangers": ((1, "words"),)}),
        (["1"] * 18 + ["one", "two", "2020-01-31"], "text", {}),
        (["2020-01-31", "1999-12-31"], "date", {"formats": ("iso",)}),
        (["31.01.2020", "1.2.1999"], "date", {"formats": ("%d.%m.%Y",), "either": False}),
        (["01/02/2020", "03/04/1999"], "date", {"formats": ("%d/%m/%Y",), "either": True}),
        (["01/02/2020", "03/14/1999"], "date", {"formats": ("%m/%d/%Y",), "either": False}),
        (["31.01.2020", "2020-01-31", "01/31/2020"] * 4, "date", {"formats": ("iso", "%d.%m.%Y", "%m/%d/%Y")}),
        (["Ja", "nein", "JA"], "boolean", {}),
        (["yes", "no"] * 9 + ["perhaps"], "boolean", {"strangers": ((1, "words"),)}),
        (["Bern", "Basel"] * 5, "category", {"spelling": "exact"}),
        (["Zürich", "zurich", "ZÜRICH ", "Basel", "Basel"], "category", {"spelling": "alike"}),
        (["Lausanne"] * 300 + ["Basel"] * 300 + ["Lausane"], "category", {"spelling": "typos", "strangers": ()}),
        (["Lausanne"] * 300 + ["Basel"] * 300 + ["Rome"], "category", {"strangers": ((1, "words"),)}),
        ([f"once upon a time {n}" for n in range(30)] + ["the end"], "text", {}),
        (["", "n/a", "Keine Angabe", "-"], "empty", {"missing": 4}),
    ],
)
def test_a_kind_has_ninety_in_a_hundred_votes(values, kind, expected):
    found = voted(values)
    assert found.kind == kind and found.read == len(values), found
    for name, value in expected.items():
        one = found.marks[0] if name == "marks0" else getattr(found, name)
        assert sorted(one) == sorted(value) if name == "formats" else one == value, (name, found)


@pytest.mark.parametrize(
    ("name", "values", "kind", "likely"),
    [
        ("PatientID", [f"P{n:05d}" for n in range(50)], "id", 4),
        ("patient", [f"P{n % 20:05d}" for n in range(200)], "id", 3),
        ("case_no", [str(70_000 + 7 * n) for n in range(50)], "id", 4),
        ("code", [f"A-{n}" for n in range(50)], "id", 1),
        ("income", [str(70_000 + 7 * n) for n in range(50)], "number", 0),
        ("phone", [f"+41 31 {n:03d} 00 00" for n in range(50)], "text", 0),
        ("customer type", ["gold", "silver"] * 50, "category", 0),
        ("remark", [f"Was here {n} times" for n in range(50)], "text", 0),
        ("remark", [f"what {n} said" * (n % 7) for n in range(50)], "text", 0),
    ],
)
def test_ids_by_name_and_shape(name, values, kind, likely):
    found = voted(values, name)
    assert (found.kind, found.likely) == (kind, likely)


def test_what_does_not_fit_is_counted_and_not_shown():
    found = voted(["1"] * 94 + ["one", "two", "2020-01-31", "1,234,567", "1.234.567", ""], "age")
    assert found.in_words == "whole numbers; 1 missing; 2 of 100: words; 1 of 100: dates in another form; " + (
        "1 of 100: numbers in another form"
    )


# --- drafts -----------------------------------------------------------------------------------------------------------


def test_a_draft_has_names_and_kinds_and_no_value(tmp_path):
    draft = draft_of(text(tmp_path / "a.csv", MESSY))
    drafted = draft.toml()
    assert 'delimiter = ";"' in drafted and 'decimal = ","' in drafted and 'na = ["-", "n/a"]' in drafted
    assert 'client = "person"' in drafted and '[columns."age"]' in drafted and "boolean = true" in drafted
    assert 'date = "days"' in drafted and '# Left out (text, ids, or nothing): "city", "name"' in drafted
    nameless = (drafted + json.dumps(draft.to_json())).replace(str(tmp_path), "")
    for value in ("Ann", "Bern", "Basel", "34", "130", "1,5", "Cy", "2020-01"):
        assert value not in nameless
    said = read_schema(text(tmp_path / "s.toml", drafted))
    assert said["columns"] == ["age", "joined", "smokes", "income"]
    assert rows_of(ingest(tmp_path / "a.csv", tmp_path / "p", **said))["9"] == [(12.0, 2.5, 0.0, 7.0)]


def test_a_draft_takes_no_first_row_for_names(tmp_path):
    with pytest.raises(IngestError, match="not the names of columns"):
        draft_of(text(tmp_path / "a.csv", "7,34,Ann,2020-01-31\n8,1,Bob,2020-01-31\n"))


def test_a_draft_of_files_that_know_their_types(tmp_path):
    table = {
        "person": [*range(7, 27)],
        "x": [1.5, None] * 10,
        "when": [datetime(1970, 1, 2), None] * 10,
        "city": ["Bern", "Zug"] * 10,
        "yes": [True, False] * 10,
        "amount": ["1.234,5", "12"] * 10,
        "plain": ["1.5", "12"] * 10,
    }
    parquet.write_table(pa.table(table), tmp_path / "a.parquet")
    draft = draft_of(tmp_path / "a.parquet")
    assert draft.table == {"client": "person"}
    assert draft.columns == {
        "x": {},
        "when": {"date": "days"},
        "city": {},
        "yes": {"boolean": True},
        "amount": {"decimal": ",", "thousands": "."},
        "plain": {"decimal": "."},
    }
    rows = [{**dict(zip(table, row, strict=True)), "when": "1970-01-02"} for row in zip(*table.values(), strict=True)]
    text(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    draft = draft_of(tmp_path / "a.jsonl")
    assert draft.columns["amount"] == {"decimal": ",", "thousands": "."} and draft.columns["plain"] == {}
    for name in ("a.parquet", "a.jsonl"):
        schema = text(tmp_path / "s.toml", draft_of(tmp_path / name).toml())
        rows = rows_of(ingest(tmp_path / name, tmp_path / f"p{name}", schema_file=schema))
        assert rows["7"] == [(1.5, 1.0, 1.0, 1234.5, 1.5)]
    with pytest.raises(IngestError, match="no table"):
        draft_of(text(tmp_path / "a.txt", "words").parent / "a.txt", "text")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252", "utf-16"])
def test_the_encoding_is_found(tmp_path, encoding):
    draft = draft_of(text(tmp_path / "a.csv", "id,größe\nä,180\nö,170\n", encoding))
    assert draft.table.get("encoding", "utf-8") == encoding.removesuffix("-sig") and "größe" in draft.columns


def test_marks_of_columns_that_differ(tmp_path):
    rows = "".join(f"{n},5;{n}.5;1.234;{n}.{n}00,5;{n}\n" for n in range(1, 9))
    draft = draft_of(text(tmp_path / "a.csv", f"a;b;c;d;e\n{rows}"))
    assert draft.table == {"delimiter": ";", "decimal": ","}
    assert draft.columns == {"a": {}, "b": {"decimal": "."}, "c": {"thousands": "."}, "d": {"thousands": "."}, "e": {}}


def test_usual_bounds_come_from_names_alone(tmp_path):
    names = ["id", "age", "Year of birth", "percentOk", "lat", "GEO_LONGITUDE", "stage", "day"]
    draft = draft_of(text(tmp_path / "a.csv", ",".join(names) + "\n" + "a1,999,7,-5,500,6,7,2020-01-31\n" * 3))
    usual = {one["column"]: one.get("usual") for one in draft.asks() if one["key"] == "bounds"}
    assert usual == {
        "age": [0, 120],
        "Year of birth": [1900, 2100],
        "percentOk": [0, 100],
        "lat": [-90, 90],
        "GEO_LONGITUDE": [-180, 180],
        "stage": None,
        "day": ["1900-01-01", "2100-01-01"],
    }


# --- the command ------------------------------------------------------------------------------------------------------

PEOPLE = "id;age;city;born;score\n" + "".join(
    f"P{n:03d};{20 + n % 50};{'Bern' if n % 2 else 'Basel'};0{1 + n % 9}/0{1 + n % 8}/1990;{n},5\n" for n in range(100)
)
ANSWERS = ["", "1000", "month", "", "", "Bern, Basel", "missing", "-", "x", "0 200"]


def typed(answers):
    return mock.patch("sys.stdin", io.StringIO("".join(f"{answer}\n" for answer in answers)))


def test_counts_go_to_the_terminal_and_to_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text(tmp_path / "a.csv", PEOPLE.replace("21;Bern", "young;Bern"))
    done = works("population", "sketch", "a.csv", "a.toml")
    assert "age    whole numbers; 2 of 100: words" in done.err and "young" not in done.err
    assert "id     client; ids, 100 % different" in done.err
    assert "To fill in: age: bounds (usual: 0, 120)" in done.err
    drafted = (tmp_path / "a.toml").read_text()
    assert "words" not in drafted and "different" not in drafted and "young" not in drafted
    assert works("population", "sketch", "a.csv").out.splitlines()[0] in drafted
    told = works("population", "sketch", "a.csv", "--json").json
    assert told["table"]["client"] == "id" and told["columns"]["born"] == {"date": "days", "formats": ["%d/%m/%Y"]}
    assert told["kinds"]["age"] == "number" and "words" not in str(told)
    assert {"column": "age", "key": "bounds", "usual": [0, 120]} in told["asks"] and "city" not in told["columns"]


def test_answers_make_a_schema(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text(tmp_path / "a.csv", PEOPLE)
    with typed(ANSWERS):
        done = works("population", "sketch", "a.csv", "a.toml", "--interactive")
    assert "Give two" in done.err  # the answer x
    said = read_schema(tmp_path / "a.toml")
    assert (said["client"], said["declared_clients"]) == ("id", 1000)
    assert said["bounds"] == {"age": (0, 120), "score": (0, 200)}
    assert said["outside"] == {"age": "missing", "city": "missing", "score": "missing"}
    assert said["categories"] == {"city": ["Bern", "Basel"]} and said["dates"] == {"born": "days,%m/%d/%Y"}
    told = works("population", "ingest", "a.csv", "p", "--schema", "a.toml", "--json").json
    assert told["clients"] == 100 and "age (years) from 0 to 120" in told["columns"]


def test_an_answer_may_be_that_every_row_is_a_record(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text(tmp_path / "a.csv", "x,y\n1,2\n3,4\n")
    with typed(["", "-", "-", "0:9", ""]):
        works("population", "sketch", "a.csv", "a.toml", "--interactive")
    said = read_schema(tmp_path / "a.toml")
    assert said == {"unit": "record", "columns": ["x", "y"], "bounds": {"y": (0, 9)}, "outside": {"y": "missing"}}
    with typed(["x"]):
        assert fedcore("population", "sketch", "a.csv", "b.toml", "--interactive").code != 0
    assert not (tmp_path / "b.toml").exists()


@pytest.mark.parametrize(("answer", "value"), [("", 1.25), ("thousands", 1250.0)])
def test_a_mark_that_could_be_two_is_asked_for(tmp_path, monkeypatch, answer, value):
    monkeypatch.chdir(tmp_path)
    text(tmp_path / "a.csv", "id;x\na1;1.250\nb2;12.500\n")
    with typed(["", "-", answer, "-"]):
        done = works("population", "sketch", "a.csv", "a.toml", "--interactive")
    assert "'.' could also be between thousands" in done.err
    rows = rows_of(ingest(tmp_path / "a.csv", tmp_path / "p", schema_file=tmp_path / "a.toml"))
    assert rows["a1"] == [(value,)]


def test_a_mark_is_between_thousands_where_the_table_has_decimal_commas(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text(tmp_path / "a.csv", "id;x;y;w;z\na1;1.250;0,5;2,5;0.125\nb2;12.500;1,5;2;1.250\n")
    draft = draft_of(tmp_path / "a.csv")
    assert draft.columns == {"x": {"thousands": "."}, "y": {}, "w": {}, "z": {"decimal": "."}}
    with typed(["", "-", "decimal", "-", "-", "-", "-"]):
        works("population", "sketch", "a.csv", "a.toml", "--interactive")
    assert read_schema(tmp_path / "a.toml")["marks"] == {"x": ".", "z": "."}


@pytest.mark.slow
def test_questions_on_a_terminal(tmp_path):
    """Of a real terminal, with an interpreter that nothing is replaced in."""
    text(tmp_path / "a.csv", PEOPLE)
    mine, its = pty.openpty()
    call = [sys.executable, "-m", "fedcore.cli", "population", "sketch", "a.csv", "a.toml", "--interactive"]
    environment = {**os.environ, "PYTHONPATH": os.getcwd(), "TERM": "dumb"}
    with subprocess.Popen(call, stdin=its, stdout=its, stderr=its, cwd=tmp_path, env=environment) as process:
        os.close(its)
        shown, answers = "", iter(ANSWERS)
        while True:
            try:
                data = os.read(mine, 1 << 12).decode(errors="replace")
            except OSError:  # the other end is closed
                break
            shown += data
            if data.rstrip(" ").endswith("]:"):
                os.write(mine, (next(answers) + "\n").encode())
    os.close(mine)
    assert process.returncode == 0, shown
    assert "age: lowest and highest value that is possible [0 120]:" in shown
    assert read_schema(tmp_path / "a.toml")["bounds"] == {"age": (0, 120), "score": (0, 200)}
