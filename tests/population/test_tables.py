"""Tables as people have them: dates, booleans, categories, decimal commas, bounds, records of nobody, other formats."""

import json
from datetime import date, datetime

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as parquet
import pytest

from fedcore.errors import ConfigError, IngestError
from fedcore.population.conversion import begin_cohorts
from fedcore.population.describing import describe
from fedcore.population.ingest import csv_blocks, typed_files
from fedcore.population.ingest.against import compare
from fedcore.population.ingest.ingest import ingest
from fedcore.population.ingest.request import IngestRequest
from fedcore.population.ingest.schema import read_schema
from fedcore.training.budget import check_records

from .contents import ids_of, rows_of, write_csv

MESSY = """person;age;joined;city;smokes;income;name
7;34;2020-01-31;Bern;yes;1,5;Ann
8;n/a;1970-01-01;Basel;no;-;Bob
7;130;;n/a;TRUE;-3,25;"Cy; the third"
9;12;1970-01-03T12:00:00;Zug;0;7;"Di"
"""
SAID = {
    "client": "person",
    "columns": ["age", "joined", "city", "smokes", "income"],
    "bounds": {"age": (0, 120), "joined": ("1970-01-01", "2010-01-01")},
    "units": {"age": "years", "income": "thousands"},
    "dates": {"joined": "days"},
    "categories": {"city": ["Bern", "Basel", "<other>"]},
    "booleans": ["smokes"],
    "na": ["n/a", "-"],
    "decimal": ",",
    "delimiter": ";",
}
TEN = 14610.0  # days from 1970 to 2010
EXPECTED = {
    "7": [(34.0, TEN, 1.0, 0.0, 0.0, 1.0, 1.5), (120.0, None, None, None, None, 1.0, -3.25)],
    "8": [(None, 0.0, 0.0, 1.0, 0.0, 0.0, None)],
    "9": [(12.0, 2.5, 0.0, 0.0, 1.0, 0.0, 7.0)],
}


def refused(match, *args, **kwargs):
    with pytest.raises(IngestError, match=match) as caught:
        ingest(*args, **kwargs)
    return caught.value


def text(path, content):
    path.write_text(content)
    return path


def test_a_messy_table(tmp_path):
    population = ingest(text(tmp_path / "a.csv", MESSY), tmp_path / "p", **SAID)
    assert rows_of(population) == EXPECTED
    names = ["age", "joined", "city=Bern", "city=Basel", "city=<other>", "smokes", "income"]
    assert population.manifest.column_names == tuple(names)
    age, joined, bern = population.manifest.columns[:3]
    assert (age.unit, age.low, age.high) == ("years", 0.0, 120.0)
    assert (joined.kind, joined.unit, joined.low, joined.high) == ("date", "days since 1970", 0.0, TEN)
    assert (bern.kind, bern.of, bern.value, bern.low, bern.high) == ("category", "city", "Bern", 0.0, 1.0)
    told = describe(population)
    assert told["clipped_values"] == population.manifest.provenance.clipped == 2
    assert told["columns"][:2] == ["age (years) from 0 to 120", "joined (days since 1970) from 0 to 14610"]
    assert "Ann" not in json.dumps(told) and "na" in population.manifest.provenance.options


def test_appending_reads_as_before_and_refuses_other_columns(tmp_path):
    file = text(tmp_path / "a.csv", MESSY)
    ingest(file, tmp_path / "p", **SAID)
    more = text(tmp_path / "b.csv", "income;city;smokes;joined;age;who;person\n2;Bern;f;2000-01-01;-5;;8\n")
    again = {name: SAID[name] for name in ("client", "na", "decimal", "delimiter")}
    grown = ingest(more, tmp_path / "p", append=True, **again)
    since = float((date(2000, 1, 1) - date(1970, 1, 1)).days)
    assert rows_of(grown)["8"] == [*EXPECTED["8"], (0.0, since, 1.0, 0.0, 0.0, 0.0, 2.0)]
    assert grown.manifest.provenance.clipped == 1
    ingest(file, tmp_path / "p", append=True, **SAID)  # the same, said again
    for name, other in (("bounds", {"age": (0, 100)}), ("columns", ["age"]), ("units", {"age": "months"})):
        said = {**again, name: other} if name == "columns" else SAID | {name: other}
        refused("7 columns|appended|not 7", file, tmp_path / "p", append=True, **said)
    np.savez(tmp_path / "x.npz", x=np.zeros((1, 7)), client=np.array(["7"]))
    refused("have none", tmp_path / "x.npz", tmp_path / "p", append=True)


@pytest.mark.parametrize(
    ("changes", "line", "what"),
    [
        ({}, "7;1;31.12.2020;Bern;yes;1;", "joined is '31.12.2020', and no date in ISO form"),
        ({}, "7;1;;Bern;maybe;1;", "smokes is 'maybe', and neither true nor false"),
        ({}, "7;1;;Bern;yes;1.5;", "income is not a number: '1.5'"),
        ({}, "7;1;;Bern;yes;1.234,5;", "income is not a number"),
        ({}, "7;inf;;Bern;yes;1;", "age is infinite"),
        ({}, "n/a;1;;Bern;yes;1;", "the client id is missing"),
        ({"categories": {"city": ["Bern", "Basel"]}}, "7;1;;Zug;yes;1;", "city is 'Zug', which is not in its list"),
        ({"dates": {"joined": "years,%d.%m.%Y"}, "bounds": {}}, "7;1;2020-01-01;Bern;yes;1;", "no date of the form %d"),
    ],
)
def test_bad_values_name_file_and_line(tmp_path, changes, line, what):
    head, good = MESSY.splitlines()[0], "8;1;;Bern;no;2;x"
    file = text(tmp_path / "a.csv", f"{head}\n{good}\n{line}\n")
    refused(rf"1 bad row:\s+a\.csv, line 3: .*{what}", file, tmp_path / "p", **(SAID | changes))
    kept = ingest(file, tmp_path / "p", tolerance=1, **(SAID | changes))
    assert list(rows_of(kept)) == ["8"] and kept.manifest.provenance.bad_rows == 1


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"bounds": {"age": (5, 5)}}, "bounds of 'age'"),
        ({"bounds": {"age": ("a", "b")}}, "not a number"),
        ({"bounds": {"joined": ("then", "now")}}, "not an ISO date"),
        ({"bounds": {"age": (0, float("inf"))}}, "is inf"),
        ({"bounds": {"smokes": (0, 1)}}, "is a boolean"),
        ({"bounds": {"name": (0, 1)}}, "'name' has a declaration, but is not among the columns"),
        ({"dates": {"joined": "weeks"}}, "cannot be counted in 'weeks'"),
        ({"dates": {"joined": "days", "smokes": "days"}}, "is declared more than once"),
        ({"categories": {"city": ["a", "a"]}}, "twice"),
        ({"categories": {"city": ["<other>", "a"]}}, "not the last"),
        ({"units": {"city": "x"}}, "has no unit"),
        ({"unit": "record"}, "Every row is declared to be a separate record"),
        ({"delimiter": ","}, "between its columns"),
        ({"format": "parquet"}, "belongs to another format"),
    ],
)
def test_what_does_not_go_together(tmp_path, changes, what):
    refused(what, text(tmp_path / "a.csv", MESSY), tmp_path / "p", **(SAID | changes))
    assert not (tmp_path / "p").exists()


def test_text_columns_are_listed_with_what_to_do(tmp_path):
    file = write_csv(tmp_path / "a.csv", ["client", "x", "name", "city"], [("a", 1, "Ann", "Bern")] * 3)
    error = refused("name .3 rows., city .3 rows.", file, tmp_path / "p")
    assert "--columns x." in error.remedy and "--category" in error.remedy


# --- records of nobody ------------------------------------------------------------------------------------------------


def test_records_have_names_by_file_and_number(tmp_path):
    file = text(tmp_path / "a.csv", 'x,y\n1,2\n\n"3",oops\n5,6\n')
    population = ingest(file, tmp_path / "p", unit="record", tolerance=1)
    assert rows_of(population) == {"a.csv:0": [(1.0, 2.0)], "a.csv:2": [(5.0, 6.0)]}  # as without a tolerance
    assert population.manifest.records and "records" in population.manifest.needs
    more = text(tmp_path / "b.csv", "x,y\n7,8\n")
    grown = ingest(more, tmp_path / "p", append=True)
    assert rows_of(grown)["b.csv:0"] == [(7.0, 8.0)] and grown.manifest.records
    refused("Rows of a.csv are in", file, tmp_path / "p", append=True, tolerance=1)
    with pytest.raises(IngestError, match="holds clients"):
        ingest(write_csv(tmp_path / "c.csv", ["client", "x"], [("a", 1)]), tmp_path / "q")
        ingest(write_csv(tmp_path / "d.csv", ["x"], [(1,)]), tmp_path / "q", append=True, unit="record")


@pytest.mark.parametrize("form", ["npy", "npz"])
def test_arrays_without_clients_are_records(tmp_path, form):
    x = np.arange(12.0).reshape(4, 3)
    np.save(tmp_path / "a.npy", x)
    np.savez(tmp_path / "a.npz", x=x)
    (tmp_path / "b.csv").write_text("u,v,w\n" + "".join(",".join(map(str, row)) + "\n" for row in x.tolist()))
    with pytest.raises(IngestError, match="client") as caught:
        ingest(tmp_path / f"a.{form}", tmp_path / "p")
    assert "--unit record" in caught.value.remedy
    made = ingest(tmp_path / f"a.{form}", tmp_path / "p", unit="record")
    table = ingest(tmp_path / "b.csv", tmp_path / "q", unit="record")
    assert made.manifest.records and {name.partition(":")[0] for name in rows_of(made)} == {f"a.{form}"}
    assert sorted(rows_of(made).values()) == sorted(rows_of(table).values())
    assert (made.manifest.provenance.records, made.manifest.provenance.stored) == (4, 4)
    with pytest.raises(IngestError, match="the same ids"):
        ingest([tmp_path / f"a.{form}"] * 2, tmp_path / "r", unit="record")
    with pytest.raises(IngestError, match="dense rows"):
        ingest(tmp_path / f"a.{form}", tmp_path / "r", unit="record", kind="counts")
    assert compare(made, [tmp_path / f"a.{form}"], {}).ok


def test_records_that_come_again_get_no_new_budget(tmp_path):
    population = ingest(text(tmp_path / "a.csv", "x,y\n1,2\n"), tmp_path / "p", unit="record")
    begin_cohorts(population, lambda version, checksum, token: token)
    refused(
        "would be new clients, with a new budget", text(tmp_path / "b.csv", "x,y\n1,2\n"), tmp_path / "p", append=True
    )


def test_a_table_without_a_client_says_how_to_go_on(tmp_path):
    error = refused(
        "no column 'client' with the client of a row", text(tmp_path / "a.csv", "x,y\n1,2\n"), tmp_path / "p"
    )
    assert "--client" in error.remedy and "--unit record" in error.remedy


def test_names_of_another_file_are_not_told_where_values_are_not(tmp_path):
    """The first file has lost its header."""
    files = [text(tmp_path / "a.csv", "0.123,4.5\n1,2\n"), text(tmp_path / "b.csv", "x,y\n1,2\n")]
    error = refused("b.csv has no column '0.123'", files, tmp_path / "p", unit="record")
    assert "b.csv" in str(error.without_values) and "0.123" not in str(error.without_values)


def test_records_promise_nothing_to_clients(tmp_path):
    population = ingest(text(tmp_path / "a.csv", "x,y\n1,2\n"), tmp_path / "p", unit="record")
    check_records(population, "record")
    for unit in ("client", None, "client_period"):
        with pytest.raises(ConfigError, match="one person may own several rows"):
            check_records(population, unit)


# --- formats ----------------------------------------------------------------------------------------------------------

TABLE = {
    "person": [7, 8, 7],
    "x": [1.5, None, -2.0],
    "when": [datetime(1970, 1, 2), None, datetime(1970, 1, 1, 12)],
    "city": ["Bern", "Zug", None],
    "yes": [True, False, None],
}
TYPED = {
    "client": "person",
    "dates": {"when": "days"},
    "categories": {"city": ["Bern", "<other>"]},
    "booleans": ["yes"],
}
READ = {"7": [(1.5, 1.0, 1.0, 0.0, 1.0), (-2.0, 0.5, None, None, None)], "8": [(None, None, 0.0, 1.0, 0.0)]}


def json_lines(path):
    columns = {**TABLE, "when": [None if one is None else one.isoformat() for one in TABLE["when"]]}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    path.write_text("".join(json.dumps({**row, "more": [1]}) + "\n" for row in rows))


def stream(path):
    table = pa.table(TABLE)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("a.parquet", lambda path: parquet.write_table(pa.table(TABLE), path, row_group_size=2)),
        ("a.feather", lambda path: feather.write_feather(pa.table(TABLE), str(path))),
        ("a.arrow", stream),
        ("a.jsonl", json_lines),
    ],
)
def test_formats_that_know_types(tmp_path, name, write):
    write(tmp_path / name)
    wanted = ["x", "when", "city", "yes"]
    assert rows_of(ingest(tmp_path / name, tmp_path / "p", columns=wanted, **TYPED)) == READ
    assert f"{name}:1" in ids_of(ingest(tmp_path / name, tmp_path / "r", unit="record", columns=["x"]))
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-40])
    refused("whole|damaged|bad row", tmp_path / name, tmp_path / "q", columns=wanted, **TYPED)


def test_json_lines_name_what_is_bad(tmp_path):
    lines = ['{"client": "a", "x": 1}', "", '{"client": "b", "x": "one"}', "[1]", '{"client": "c"', '{"client": "d"}']
    file = text(tmp_path / "a.jsonl", "\n".join(lines) + "\n")
    error = refused("3 bad rows", file, tmp_path / "p")
    for line, what in ((3, "x is not a number: 'one'"), (4, "not a JSON object"), (5, "not a JSON object")):
        assert f"a.jsonl, line {line}: {what}" in error.message.replace('"', "'")
    assert rows_of(ingest(file, tmp_path / "p", tolerance=3)) == {"a": [(1.0,)], "d": [(None,)]}
    refused("holds no JSON object", text(tmp_path / "b.jsonl", "\n"), tmp_path / "q")


def test_folders_of_hive_partitions_are_columns(tmp_path):
    for year, month in ((2024, 1), (2024, 2), (2025, "__HIVE_DEFAULT_PARTITION__")):
        folder = tmp_path / "in" / f"year={year}" / f"month={month}"
        folder.mkdir(parents=True)
        parquet.write_table(pa.table({"client": ["a"], "x": [float(year)]}), folder / "part-0.parquet")
    (tmp_path / "in" / "_SUCCESS").write_text("")
    population = ingest(tmp_path / "in", tmp_path / "p")
    assert population.manifest.column_names == ("x", "year", "month")
    assert rows_of(population) == {"a": [(2024.0, 2024.0, 1.0), (2024.0, 2024.0, 2.0), (2025.0, 2025.0, None)]}
    records = ingest(tmp_path / "in", tmp_path / "r", unit="record", columns=["x"])
    assert "year=2024/month=1/part-0.parquet:0" in ids_of(records) and records.n_clients == 3
    words = ingest(tmp_path / "in", tmp_path / "q", columns=["x", "year"], categories={"year": ["2024", "2025"]})
    assert words.manifest.column_names == ("x", "year=2024", "year=2025")


def test_a_query(tmp_path):
    pytest.importorskip("duckdb")
    parquet.write_table(pa.table(TABLE), tmp_path / "a.parquet")
    query = f"SELECT person, 2 * x AS x, city FROM '{tmp_path}/a.parquet' WHERE x IS NOT NULL;"
    population = ingest(query, tmp_path / "p", format="sql", client="person", columns=["x"])
    assert rows_of(population) == {"7": [(3.0,), (-4.0,)]} and population.manifest.provenance.sources == ("query",)
    file = text(tmp_path / "ask.sql", query)
    again = ingest(file, tmp_path / "q", client="person", columns=["x"])
    assert rows_of(again) == rows_of(population) and again.manifest.provenance.sources == ("ask.sql",)
    assert refused("city .string. hold no numbers", file, tmp_path / "r", client="person").remedy
    refused("The query failed", "SELECT nothing FROM nowhere", tmp_path / "r", format="sql")
    refused("The query failed.*abc", "SELECT 1 AS client, 'abc'::INT AS x", tmp_path / "r", format="sql")
    assert not (tmp_path / ".tmp").exists()


# --- quotes: what Arrow may read of CSV -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "plain"),
    [
        (b'"a",1\n"b ""c""",2\n', True),
        (b'x,"1,5"\r\n"",""\r\n', True),
        (b'"a\nb",1\n', True),
        (b'5" pipe,1\n', False),
        (b'"a"b,1\n', False),
        (b'""a,1\n', False),
        (b'"x,"y,"z"\n', False),
        (b'a"",1\n', False),
    ],
)
def test_quotes_that_arrow_and_the_csv_module_read_alike(data, plain):
    assert csv_blocks._plainly_quoted(data, ",") is plain


def test_quoted_blocks_are_read_at_once_as_line_by_line(tmp_path, monkeypatch):
    rows = [('a "b", c', "1.5", "x"), ("plain", '"', ""), ("de", "2", "y\nz")]
    file = write_csv(tmp_path / "a.csv", ["client", "name", "x"], [(who, what, 1) for who, _, what in rows])
    names, types = ["client", "name", "x"], {"client": pa.string(), "x": pa.float64()}
    quoted = csv_blocks.Block(1, b'"a ""b"", c",1.5,1\nplain,"""",2\n')
    table = csv_blocks.parse_quickly(quoted, names, types, ",")
    assert table.to_pydict() == {"client": ['a "b", c', "plain"], "x": [1.0, 2.0]}
    assert csv_blocks.parse_quickly(csv_blocks.Block(1, b'"a\nb",1,1\n'), names, types, ",") is None  # lines are lost
    whole = rows_of(ingest(file, tmp_path / "p", columns=["x"]))
    monkeypatch.setattr(csv_blocks, "parse_quickly", lambda *args: None)
    assert rows_of(ingest(file, tmp_path / "q", columns=["x"])) == whole


# --- schemas ----------------------------------------------------------------------------------------------------------


def test_a_schema_says_everything(tmp_path):
    schema = """
[table]
client = "person"
decimal = ","
delimiter = ";"
na = ["n/a", "-"]
[columns.age]
unit = "years"
bounds = [0, 120]
[columns.joined]
date = "days"
bounds = ["1970-01-01", "2010-01-01"]
[columns.city]
values = ["Bern", "Basel", "<other>"]
[columns.smokes]
boolean = true
[columns.income]
unit = "thousands"
"""
    said = read_schema(text(tmp_path / "s.toml", schema))
    population = ingest(text(tmp_path / "a.csv", MESSY), tmp_path / "p", **said)
    assert rows_of(population) == EXPECTED
    for line, what in (("[columns.x]\nvalue = 1", "value"), ("[tables]", "tables"), ("x = [", "not valid TOML")):
        with pytest.raises(IngestError, match=what):
            read_schema(text(tmp_path / "bad.toml", f"{schema}\n{line}"))
    with pytest.raises(IngestError, match="cannot be read"):
        read_schema(tmp_path / "none.toml")


def test_float32_rounds_bounds_inwards(tmp_path):
    file = write_csv(tmp_path / "a.csv", ["client", "x"], [("a", 0.1), ("a", 5), ("b", -5)])
    population = ingest(file, tmp_path / "p", dtype="float32", bounds={"x": (-0.1, 0.1)})
    values = np.array([row[0] for rows in rows_of(population).values() for row in rows])
    assert (np.abs(values) <= 0.1).all() and population.verify().ok


WRONG = [  # in the file of a schema, what the error names, and what to write
    ("[table\n", "not valid TOML", "line"),
    ("[tabel]\n[columns.a]\n", "'tabel'", "[columns.NAME]"),
    ("[table]\nclinet = 'p'\n[columns.a]\n", "[table]: there is no key 'clinet'", "client, unit"),
    ("[table]\ndeclared_clients = 'many'\n[columns.a]\n", "'declared_clients' cannot be 'many'", "a whole number"),
    ("[table]\ndelimiter = ';;'\n[columns.a]\n", "[table]: the option 'delimiter' cannot be ';;'", "one character"),
    ("[table]\nclient = 'p'\n", "no column has a section", "sketch"),
    ("[columns]\na = 3\n", "[columns.a] is no section", "sketch"),
    ("[columns.a]\nunits = 'm'\n", "[columns.a]: there is no key 'units'", "unit, bounds"),
    ("[columns.'the a']\nboolean = 'yes'\n", '[columns."the a"]: boolean is not', "boolean = true"),
    ("[columns.a]\nbounds = [5]\n", "[columns.a]: bounds is too", "bounds = [0, 120]"),
    ("[columns.a]\nbounds = [9, 5]\n", "[columns.a]: the bounds of 'a' are 9 and 5", "smaller"),
    ("[columns.a]\nbounds = ['x', 'y']\n", "[columns.a]: the bound 'x'", "two numbers"),
    ("[columns.a]\ndate = 'fortnights'\n", "[columns.a]: date is not", "seconds, minutes"),
    (
        "[columns.a]\nboolean = true\nvalues = ['1']\n",
        "[columns.a]: the column 'a' is declared more than once",
        "Declare it once",
    ),
    ("[columns.a]\nformat = '%d'\n", "[columns.a]: a format, and no date", "date ="),
    (
        "[table]\nclient = 'p'\nunit = 'record'\n[columns.a]\n",
        "[table] that every row is a separate record",
        "one of the two",
    ),
]


@pytest.mark.parametrize(("wrong", "named", "remedy"), WRONG)
def test_errors_of_a_schema_name_file_key_and_remedy(tmp_path, wrong, named, remedy):
    with pytest.raises(IngestError) as caught:
        read_schema(text(tmp_path / "wrong.toml", wrong))
    assert "wrong.toml" in caught.value.message and named in caught.value.message and remedy in str(caught.value)


def _bits(population):
    return [(entry.first, entry.clients, entry.digest) for entry in population.blocks]


def _coded(ids, texts):
    return pa.DictionaryArray.from_arrays(pa.array(ids, pa.int32()), pa.array(texts))


@pytest.mark.parametrize("form", ["parquet", "feather"])
def test_codes_of_a_file_are_read_as_the_texts_that_they_stand_for(tmp_path, monkeypatch, form):
    """Ids and a category; in pieces, so that a piece lacks some of the file's texts; one text is in no row at all."""
    generator, rows = np.random.default_rng(3), 3000
    who, city = np.sort(generator.integers(0, 300, rows)), generator.integers(0, 3, rows)
    ids, cities = [f"client {one}" for one in range(300)], ["Bern", "Zug", "Basel"]
    columns = {"x": generator.normal(size=rows)}
    plain = {"client": [ids[one] for one in who], "city": [cities[one] for one in city], **columns}
    coded = {"client": _coded(who, ids), "city": _coded(city, [*cities, "nowhere"]), **columns}
    write = parquet.write_table if form == "parquet" else lambda table, file: feather.write_feather(table, str(file))
    found, pieces = [], []
    monkeypatch.setattr(
        typed_files, "_of_use", lambda column, real=typed_files._of_use: pieces.append(real(column)) or pieces[-1]
    )
    for name, table, kinds in (("plain", plain, ()), ("coded", coded, typed_files.AS_CODES)):
        write(pa.table(table), file := tmp_path / f"{name}.{form}")
        monkeypatch.setattr(typed_files, "AS_CODES", kinds)
        request = IngestRequest.of({"categories": {"city": cities}, "clients_per_leaf": 50})
        found.append(_bits(ingest(file, tmp_path / name, request.model_copy(update={"memory": 200_000}))))
    assert found[0] == found[1] and len(found[0]) > 1
    assert any(3 < len(piece.dictionary) < 300 for piece in pieces)
    assert not any("nowhere" in piece.dictionary.to_pylist() for piece in pieces)


def test_codes_that_are_missing_bad_or_of_equal_texts(tmp_path):
    """As where the rows hold the texts themselves: with the same clients, the same bad rows, and their places."""
    texts, codes = ["ann", "bob", "ann", " ", None, "cy"], [0, 1, 2, 3, None, 1, 4, 2, 0]
    plain = [None if code is None else texts[code] for code in codes]
    found = []
    for name, ids in (
        ("plain", pa.array(plain)),
        ("coded", _coded(codes, texts)),
        ("no null", _coded(codes, [*texts[:4], "", "cy"])),
    ):
        table = pa.table({"client": ids, "x": np.arange(len(codes), dtype=float)})
        (folder := tmp_path / name).mkdir()
        feather.write_feather(table, str(folder / "a.feather"))
        with pytest.raises(IngestError, match="3 bad rows") as refused:
            ingest(folder / "a.feather", folder / "no")
        places = [line.strip().split(":")[0] for line in str(refused.value).splitlines() if "row " in line]
        found.append((places, _bits(ingest(folder / "a.feather", folder / "p", tolerance=3))))
    assert found[0] == found[1] == found[2]
    assert found[0][0] == ["a.feather, row 3", "a.feather, row 4", "a.feather, row 6"]


def test_parquet_with_small_row_groups_is_read_without_codes(tmp_path, monkeypatch):
    monkeypatch.setattr(typed_files, "CODED_GROUP", 100)
    table = pa.table({"client": [f"c{one % 7}" for one in range(1000)], "x": np.arange(1000.0)})
    found = []
    for size in (10, 100, 1000):
        parquet.write_table(table, file := tmp_path / f"{size}.parquet", row_group_size=size)
        assert typed_files.ParquetFile(file).coded == (size >= 100)
        found.append(_bits(ingest(file, tmp_path / str(size))))
    assert found[0] == found[1] == found[2]


NARROW = [pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16(), pa.uint32(), pa.float32(), pa.bool_()]


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("kind", NARROW, ids=str)
def test_narrow_numbers_are_those_of_float64(tmp_path, kind, missing):
    generator = np.random.default_rng(1)
    values = generator.integers(0, 2 if kind == pa.bool_() else 120, 900)
    lost = generator.random(900) < 0.1 if missing else None
    who, found = generator.integers(0, 40, 900), []
    for name, column in (
        ("wide", pa.array(values.astype(float), mask=lost)),
        ("narrow", pa.array(values, mask=lost).cast(kind)),
    ):
        parquet.write_table(pa.table({"client": who, "x": column, "y": values}), file := tmp_path / f"{name}.parquet")
        found.append(_bits(ingest(file, tmp_path / name)))
        counts = pa.table(
            {"client": who, "token": values % 7, "count": column.fill_null(pa.scalar(0).cast(column.type))}
        )
        parquet.write_table(counts, file := tmp_path / f"{name} counts.parquet")
        found.append(_bits(ingest(file, tmp_path / f"{name} counts", features=7)))
    assert found[:2] == found[2:]


def test_ids_that_are_whole_numbers_are_their_digits(tmp_path):
    """Also negative ones, missing ones, and each as text in another file."""
    who = [12, -3, 0, None, 12, 2**40, -3]
    texts = [None if one is None else str(one) for one in who]
    found = []
    for name, ids in (("numbers", pa.array(who)), ("texts", pa.array(texts))):
        parquet.write_table(pa.table({"client": ids, "x": np.arange(7.0)}), file := tmp_path / f"{name}.parquet")
        with pytest.raises(IngestError, match=f"{name}.parquet, row 3: the client id is missing"):
            ingest(file, tmp_path / "no")
        found.append(_bits(ingest(file, tmp_path / name, tolerance=1)))
    assert found[0] == found[1]
