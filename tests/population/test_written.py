"""Tables as they are written: encodings, marks of numbers, several forms of dates, values out of bounds, spellings."""

import json

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from fedcore.errors import IngestError
from fedcore.population.ingest import csv_blocks
from fedcore.population.ingest.against import compare
from fedcore.population.ingest.batches import Account, keyed_batches
from fedcore.population.ingest.ingest import ingest
from fedcore.population.ingest.request import IngestRequest
from fedcore.population.ingest.schema import read_schema
from fedcore.population.ingest.sources import source_of
from fedcore.population.ingest.spellings import found_in, one_letter_apart, plain

from .contents import rows_of

NAMES = ["person", "income", "born", "city", "age"]
ROWS = [
    ("é1", "1.234,50", "31.01.1990", "Zürich", "34"),
    ("ü2", "-12", "1990-02-01", "zurich ", "-3"),
    ("é1", "n/a", "02/28/1991", "Züirch", "999"),
    ("p3", "1.234.567", "", "Berne", "n/a"),
]
DAY = 7335.0  # 31 January 1990, in days since 1970
SAID = {
    "client": "person",
    "columns": NAMES[1:],
    "na": ["n/a"],
    "marks": {"income": ",."},
    "dates": {"born": "days,%d.%m.%Y|iso|%m/%d/%Y"},
    "categories": {"city": ["Zürich", "Bern"]},
    "spelling": {"city": "typos"},
    "spellings": {"city": {"Berne": "Bern"}},
    "bounds": {"age": (0, 120)},
    "outside": {"age": "missing"},
}
EXPECTED = {
    "é1": [(1234.5, DAY, 1.0, 0.0, 34.0), (None, DAY + 393, 1.0, 0.0, None)],
    "ü2": [(-12.0, DAY + 1, 1.0, 0.0, None)],
    "p3": [(1234567.0, None, 0.0, 1.0, None)],
}
SCHEMA = """
[table]
client = "person"
na = ["n/a"]
encoding = "{}"
[columns.income]
decimal = ","
thousands = "."
[columns.born]
date = "days"
formats = ["%d.%m.%Y", "iso", "%m/%d/%Y"]
[columns.city]
values = ["Zürich", "Bern"]
spelling = "typos"
spellings = {{ "Berne" = "Bern" }}
[columns.age]
bounds = [0, 120]
outside = "missing"
"""


def written(path, rows=ROWS, encoding="utf-8", ends="\n"):
    if path.suffix == ".csv":
        lines = [";".join(row) for row in (NAMES, *rows)]
    elif path.suffix == ".jsonl":
        lines = [json.dumps(dict(zip(NAMES, row, strict=True)), ensure_ascii=False) for row in rows]
    else:
        parquet.write_table(pa.table(dict(zip(NAMES, map(list, zip(*rows, strict=True)), strict=True))), path)
        return path
    path.write_bytes("".join(f"{line}{ends}" for line in lines).encode(encoding))
    return path


def options(path, encoding="utf-8"):
    own = {"delimiter": ";"} if path.suffix == ".csv" else {}
    if path.suffix == ".parquet":
        own["marks"] = {**SAID["marks"], "age": "."}  # numbers in text
    return {**SAID, **own, **({} if encoding == "utf-8" else {"encoding": encoding})}


def refused(match, *args, **kwargs):
    with pytest.raises(IngestError, match=match) as caught:
        ingest(*args, **kwargs)
    return caught.value


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.parquet"])
def test_the_same_values_in_every_format(tmp_path, name):
    file = written(tmp_path / name)
    population = ingest(file, tmp_path / "p", **options(file))
    assert rows_of(population) == EXPECTED and population.manifest.provenance.clipped == 2
    assert population.manifest.columns[-1].outside == "missing"
    assert compare(population, [file], {}).ok
    changed = written(tmp_path / "b" / name if (tmp_path / "b").mkdir() is None else file, [("é1", *ROWS[1][1:])])
    assert not compare(population, [changed], {}).ok


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16", "utf-16-be"])
@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
def test_encodings(tmp_path, name, encoding, ends):
    file = written(tmp_path / name, ROWS, encoding, ends)
    if encoding == "utf-16-be":
        file.write_bytes(b"\xfe\xff" + file.read_bytes())
    said = options(file, encoding.removesuffix("-be"))
    population = ingest(file, tmp_path / "p", **said)
    assert rows_of(population) == EXPECTED and population.manifest.provenance.records == 4
    assert compare(population, [file], {}).ok
    request = IngestRequest.of(said)
    for size in (1, 40, 90):
        source, found = source_of(file, request, 24 * 64), []
        parts = source.portions(size)
        assert len(parts) > 1 or size > 1
        for part in parts:
            for batch in keyed_batches(source.batches(Account(), (part,)), Account()):
                found += [batch.ids[code] for code in batch.codes.tolist()]
        assert found == [row[0] for row in ROWS], size


def test_another_encoding_names_the_line_and_the_option(tmp_path):
    file = written(tmp_path / "a.csv", [("p0", "1", "", "Bern", ""), *ROWS], "latin-1")
    error = refused("a.csv, line 3: not UTF-8 text", file, tmp_path / "p", **options(file))
    assert "encoding" in error.remedy and "cp1252" in error.remedy
    file.write_bytes(file.read_bytes() + b"\x81;1;;Bern;\n")
    refused("a.csv, line 7: not cp1252 text", file, tmp_path / "p", **options(file, "cp1252"))
    whole = written(tmp_path / "b.csv", ROWS, "utf-16").read_bytes()
    (tmp_path / "b.csv").write_bytes(whole[:-1])
    refused("b.csv, line 5: not utf-16 text", tmp_path / "b.csv", tmp_path / "p", **options(file, "utf-16"))


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16"])
def test_a_schema_says_how_a_table_is_written(tmp_path, encoding):
    file = written(tmp_path / "a.csv", ROWS, encoding)
    (tmp_path / "a.toml").write_text(SCHEMA.format(encoding).replace("[table]", '[table]\ndelimiter = ";"'))
    population = ingest(file, tmp_path / "p", schema_file=tmp_path / "a.toml")
    assert rows_of(population) == EXPECTED
    again = ingest(file, tmp_path / "p", append=True, schema_file=tmp_path / "a.toml")
    assert len(rows_of(again)["p3"]) == 2
    said = {name: SAID[name] for name in ("client", "na", "marks", "spelling", "spellings")}
    once_more = ingest(file, tmp_path / "p", append=True, delimiter=";", encoding=encoding, **said)
    assert rows_of(once_more)["p3"] == EXPECTED["p3"] * 3
    assert compare(once_more, [file] * 3, {}).ok


def test_thousands_go_with_the_decimal_mark_of_the_table(tmp_path):
    (tmp_path / "a.toml").write_text(
        '[table]\ndecimal = ","\n[columns.a]\nthousands = "."\n[columns.b]\ndecimal = "."\n'
    )
    assert read_schema(tmp_path / "a.toml")["marks"] == {"a": ",.", "b": "."}


def test_what_is_appended_has_the_same_rule_for_values_out_of_bounds(tmp_path):
    file = written(tmp_path / "a.csv")
    population = ingest(file, tmp_path / "p", **options(file))
    other = {**options(file), "outside": {"age": "invalid"}}
    refused("outside invalid.*outside missing", file, tmp_path / "p", append=True, **other)
    assert population.manifest.provenance.options["spellings"] == SAID["spellings"]


@pytest.mark.parametrize(("outside", "ages", "bad"), [("clip", [34, 0, 120], 0), ("missing", [34, None, None], 0)])
def test_values_out_of_bounds(tmp_path, outside, ages, bad):
    file = written(tmp_path / "a.csv")
    population = ingest(file, tmp_path / "p", **{**options(file), "outside": {"age": outside}})
    rows = rows_of(population)
    assert [rows["é1"][0][-1], rows["ü2"][0][-1], rows["é1"][1][-1]] == ages
    assert population.manifest.provenance.bad_rows == bad


def test_an_invalid_row_names_its_line_and_the_option(tmp_path):
    file, said = written(tmp_path / "a.csv"), {**SAID, "delimiter": ";", "outside": {"age": "invalid"}}
    error = refused("2 bad rows", file, tmp_path / "p", **said)
    assert "a.csv, line 3: age is outside of 0 to 120 (see bounds, outside)" in error.message
    population = ingest(file, tmp_path / "p", tolerance=2, **said)
    assert rows_of(population) == {"é1": EXPECTED["é1"][:1], "p3": EXPECTED["p3"]}
    assert compare(population, [file], {}).ok


@pytest.mark.parametrize(
    ("row", "what"),
    [
        (("p", "1,234.5", "", "Bern", ""), "income is '1,234.5', and no number with the marks ',' and '.' (see marks"),
        (("p", "12.34,5", "", "Bern", ""), "income is '12.34,5', and no number"),
        (("p", "1", "31/12/1990", "Bern", ""), "of the form %d.%m.%Y or iso or %m/%d/%Y (see formats"),
        (("p", "1", "", "Basel", ""), "city is 'Basel', which is not in its list (see outside, spelling"),
    ],
)
@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.parquet"])
def test_what_cannot_be_read_names_the_line_and_the_option(tmp_path, name, row, what):
    file = written(tmp_path / name, [*ROWS, row])
    error = refused("1 bad row", file, tmp_path / "p", **options(file))
    place = {"a.csv": "line 6", "a.jsonl": "line 5", "a.parquet": "row 4"}[name]
    assert f"{name}, {place}: " in error.message and what in error.message


def test_a_category_without_a_value_of_its_list_is_missing_where_that_is_said(tmp_path):
    file = written(tmp_path / "a.csv", [("p", "1", "", "Basel", "1")])
    population = ingest(file, tmp_path / "p", **{**options(file), "outside": {"city": "missing"}})
    assert rows_of(population) == {"p": [(1.0, None, None, None, 1.0)]}
    grown = ingest(file, tmp_path / "p", append=True, client="person", delimiter=";", marks=SAID["marks"])
    assert rows_of(grown)["p"][1] == (1.0, None, None, None, 1.0)


def test_numbers_of_json_are_no_text_with_marks(tmp_path):
    """1.234 is a number of JSON, and not 1234 by the mark between thousands."""
    (tmp_path / "a.jsonl").write_text('{"client": "a", "x": "1.234"}\n{"client": "b", "x": 1.234}\n')
    error = refused("1 bad row", tmp_path / "a.jsonl", tmp_path / "p", marks={"x": ",."})
    assert "line 2: x is not text with the marks of the column" in error.message
    (tmp_path / "a.jsonl").write_text('{"client": "a", "x": "1.234"}\n{"client": "b", "x": 12}\n{"client": "c"}\n')
    population = ingest(tmp_path / "a.jsonl", tmp_path / "p", marks={"x": ",."})
    assert rows_of(population) == {"a": [(1234.0,)], "b": [(12.0,)], "c": [(None,)]}


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"marks": {"income": ",,"}}, "marks ',,'"),
        ({"marks": {"income": "1"}}, "marks '1'"),
        ({"marks": {"city": ","}}, "marks ','"),
        ({"marks": {"name": ","}}, "'name' has a declaration"),
        ({"outside": {"income": "missing"}}, "has no bounds to be outside of"),
        ({"outside": {"city": "clip"}}, "cannot have outside = 'clip'"),
        ({"categories": {"city": ["Bern", "<other>"]}, "outside": {"city": "missing"}}, "cannot have outside"),
        ({"spelling": {"income": "alike"}}, "has spellings, and no list"),
        ({"spellings": {"city": {"Genf": "Genève"}}}, "'Genève', which is not in its list"),
    ],
)
def test_what_does_not_go_together(tmp_path, changes, what):
    file = written(tmp_path / "a.csv")
    refused(what, file, tmp_path / "p", **(options(file) | changes))


@pytest.mark.parametrize(
    ("section", "what"),
    [
        ("date = 'days'\nformat = '%d'\nformats = ['%d']", "format and formats"),
        ("formats = ['%d']", "a format, and no date"),
        ("decimal = ',,'", "decimal is not"),
        ("outside = 'away'", "outside is not"),
        ("outside = 'clip'", "no bounds to be outside of"),
        ("thousands = '.'\ndecimal = '.'", "marks '..'"),
        ("spelling = 'loose'", "spelling is not"),
    ],
)
def test_errors_of_a_schema_name_the_key(tmp_path, section, what):
    (tmp_path / "a.toml").write_text(f"[columns.a]\n{section}\n")
    with pytest.raises(IngestError) as caught:
        read_schema(tmp_path / "a.toml")
    assert "[columns.a]" in caught.value.message and what in caught.value.message


# --- one value --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "decimal", "thousands", "value"),
    [
        ("1.234,56", ",", ".", 1234.56),
        ("1,234.56", ".", ",", 1234.56),
        ("1 234,56", ",", " ", 1234.56),
        ("1\u00a0234\u202f567", ",", " ", 1234567.0),
        ("1'234.5", ".", "'", 1234.5),
        ("-1\u2019234", ".", "'", -1234.0),
        ("1234,5", ",", ".", 1234.5),
        ("12,5", ",", ".", 12.5),
        ("1.23,4", ",", ".", None),
        ("1.2345", ",", ".", None),
        ("1.234.5", ",", ".", None),
        ("1,5", ".", ",", None),
        ("0.125", ",", ".", None),
        (".234", ",", ".", None),
        ("1,234,", ".", ",", None),
    ],
)
def test_marks_of_a_number(text, decimal, thousands, value):
    if value is not None:
        assert csv_blocks.number(text, (), decimal, thousands) == value
        return
    with pytest.raises(ValueError):
        csv_blocks.number(text, (), decimal, thousands)


def test_spellings():
    cities = ["Zürich", "Bern", "Genève", "Biel"]
    assert plain(" ZÜRICH  (Kreis\u00a04)") == "zurich (kreis 4)"
    for one, spelling, found in (
        ("Bern", "exact", "Bern"),
        ("bern", "exact", None),
        ("bern", "alike", "Bern"),
        ("GENEVE ", "alike", "Genève"),
        ("Zurihc", "alike", None),
        ("Zurihc", "typos", "Zürich"),
        ("Zuerich", "typos", "Zürich"),
        ("Zuriich", "typos", "Zürich"),
        ("Berne", "typos", None),  # of a short word another one is made too easily
        ("Basel", "typos", None),
    ):
        assert found_in(one, cities, spelling) == found, one
    assert found_in("M", ["m", "M"], "alike") == "M" and found_in("e\u0301", ["é", "e"], "alike") is None
    assert found_in("tests", ["testa", "testb"], "typos") is None  # it could be both
    assert found_in("Genf", cities, "exact", [("Genf", "Genève")]) == "Genève"
    assert found_in("genf", cities, "alike", [("Genf", "Genève")]) == "Genève"


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [("abc", "abc", False), ("abc", "ab", True), ("abc", "bc", True), ("abc", "acb", True), ("abc", "cba", False)]
    + [("abc", "axc", True), ("abcd", "ab", False), ("", "a", True), ("abcd", "acbd", True), ("abcd", "badc", False)],
)
def test_one_letter_apart(one, other, apart):
    assert one_letter_apart(one, other) is one_letter_apart(other, one) is apart
