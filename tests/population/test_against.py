"""`population verify --against`: which options it takes, which version a source belongs to, and older rules of ids."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedcore.errors import IngestError
from fedcore.population.erasing import forget
from fedcore.population.ingest.against import compare
from fedcore.population.ingest.ingest import ingest
from fedcore.population.store import Population
from fedcore.population.writer import PopulationWriter
from tests.command import fedcore, works

ROWS = [("a", 1, 0.5), ("b", 2, 1.5), ("c", 3, 2.5)]


def table(folder, rows=ROWS, name="a.csv", names=("client", "x", "y"), delimiter=","):
    folder.mkdir(exist_ok=True)
    lines = [names, *rows]
    (folder / name).write_text("".join(delimiter.join(map(str, line)) + "\n" for line in lines))
    return folder / name


def options(**said):
    return [part for name, value in said.items() for part in ("--option", f"{name}={value}")]


def verified(where, *sources, **said):
    named = [part for source in sources for part in ("--against", source)]
    return fedcore("population", "verify", where, *named, *options(**said), "--json")


# --- options ----------------------------------------------------------------------------------------------------------

OF_THE_MANIFEST = {
    **{"fold_ids": "true", "kind": "counts", "features": 3, "dtype": "float32"},
    **{"unit": "record", "time": "when", "vocabulary": 5, "bounds": 5, "units": "x", "dates": "x", "categories": "x"},
    **{"booleans": "x", "image": "2x2", "halves": "entry"},
}
OF_THE_WRONG_TYPE = [
    *[("longest_record", one) for one in ("abc", 0, "1.5", "true", '"5"', str(2**62))],
    *[("delimiter", one) for one in ("ab", 5, '""')],
    *[("heldout", one) for one in (5, "true", "[1]", "2026-01-01", "{x=1}")],
    *[("na", one) for one in (5, "[1]", "{x=1}")],
    *[("client", one) for one in (5, '["a"]', "nan")],
    *[("format", "xlsx"), ("tokeniser", "x"), ("decimal", ".."), ("frame_stride", 0), ("frames_per_client", "1e3")],
]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    file = table(folder)
    ingest(file, folder / "p")
    return folder / "p", file


@pytest.mark.parametrize(("name", "value"), OF_THE_WRONG_TYPE)
def test_an_option_of_the_wrong_type_is_one_message(made, name, value):
    refused = verified(*made, **{name: value})
    assert refused.code == 2 and refused.err.startswith(f"ConfigError: The option {name!r} cannot be "), refused.err
    assert refused.err.count("\n") == 2 and "alidation" not in refused.err


@pytest.mark.parametrize("name", OF_THE_MANIFEST)
def test_what_the_manifest_states_is_no_option(made, name):
    refused = verified(*made, **{name: OF_THE_MANIFEST[name]})
    assert refused.code == 2 and f"decides the option {name!r}." in refused.err, refused.err


def test_options_are_checked_before_anything_is_read(made, monkeypatch):
    monkeypatch.setattr(Population, "verify", lambda *_: pytest.fail("it was read"))
    assert "'heldout'" in verified(*made, heldout=5).err
    assert "Name the source: --against SOURCE." in verified(made[0], heldout="x").err
    with pytest.raises(IngestError, match="There is no option 'nothing'"):
        compare(Population.open(made[0]), [made[1]], {"nothing": 1})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("delimiter", one) for one in ('"\\n"', "'\"'", '"\\r"', '"\\u0000"', '" "', "ä", ".", "x", '"1"')],
        *[("decimal", one) for one in (",", "x", '"1"', '"\\u0000"')],
        *[("heldout", one) for one in ("nowhere.csv", ".", '""', '"\\u0000"', "x" * 5000)],
        *[("client", one) for one in ("nobody", "x", '""')],
        *[("format", one) for one in ("npz", "npy", "text", "frames", "parquet", "arrow", "jsonl", "sql")],
        *[("na", one) for one in ("a,1", '["0.5"]', "[]")],
        *[("longest_record", one) for one in (1, 10, 2**30)],
        *[("array", "x"), ("prefix", "x"), ("heldout_prefix", "x"), ("token", "x"), ("count", "x")],
        *[("documents", "x"), ("tokeniser", "identifiers"), ("frame_stride", 2), ("frames_per_client", 2)],
    ],
)
def test_any_value_of_the_right_type_is_compared_or_refused(made, name, value):
    ended = verified(*made, **{name: value})
    told = json.loads(ended.out)
    assert (ended.code, told.get("ok")) in ((0, True), (2, False)) or ended.err.startswith("IngestError: ")


def test_lists_are_written_as_for_an_ingest(tmp_path):
    file = table(tmp_path / "a", [*ROWS, ("d", "n/a", "-")])
    lines = [json.dumps({"client": one, "x": x, "y": y, "note": "fine"}) for one, x, y in ROWS]
    (tmp_path / "lines.jsonl").write_text("\n".join(lines))
    of_table = ingest(file, tmp_path / "p", na=["n/a", "-"])
    forgotten = forget(of_table, clients=["a"]).population
    for said in ("n/a, -", '["n/a", "-"]'):
        assert verified(forgotten.path, file, na=said).code == 0
    assert verified(forgotten.path, file).code == 2
    np.savez(tmp_path / "a.npz", rows=np.arange(6).reshape(3, 2), who=np.array(["a", "b", "c"]))
    of_arrays = forget(ingest(tmp_path / "a.npz", tmp_path / "q", array="rows", client="who"), clients=["a"]).population
    assert verified(of_arrays.path, tmp_path / "a.npz", array="rows", client="who").json["against"]["clients"] == 2
    refused = verified(of_table.path, file, columns="x,y")
    assert refused.code == 2 and "decides the option 'columns'" in refused.err


def test_columns_are_named_where_no_manifest_has_them(tmp_path):
    file = table(tmp_path / "a", [(*row, "text") for row in ROWS], names=("client", "x", "y", "note"))
    with PopulationWriter(tmp_path / "p", "rows", 2) as writer:
        writer.write(["a", "b", "c"], (np.arange(4), np.array([row[1:] for row in ROWS], np.float32)))
        writer.commit()
    for said in ("x, y", '["x", "y"]'):
        assert verified(tmp_path / "p", file, columns=said).code == 0
    for said in (5, "[1]", "{x=1}"):
        assert "The option 'columns' cannot be " in verified(tmp_path / "p", file, columns=said).err
    for said in ("x", "x,x", "nothing,x", "client,x", "[]", '""'):
        assert verified(tmp_path / "p", file, columns=said).err.startswith("IngestError: ")


# --- the version that a source belongs to ----------------------------------------------------------------------------


def of_semicolons(folder, rows):
    return table(folder, rows, delimiter=";")


def test_sources_of_one_name_belong_to_their_versions_in_order(tmp_path):
    """Each with the options of the version that was made of it."""
    days = [
        table(tmp_path / "1"),
        of_semicolons(tmp_path / "2", [("d", 1, 2), ("a", 4, 5)]),
        table(tmp_path / "3", [("e", "none", 3)]),
    ]
    ingest(days[0], tmp_path / "p")
    ingest(days[1], tmp_path / "p", append=True, delimiter=";")
    ingest(days[2], tmp_path / "p", append=True, na=["none"])
    told = verified(tmp_path / "p", *days)
    assert told.code == 0 and told.json["against"]["clients"] == 5
    assert (
        works(
            *("population", "verify", tmp_path / "p", "--version", 2, "--against", days[0], "--against", days[1])
        ).code
        == 0
    )
    assert works("population", "verify", tmp_path / "p", "--version", 1, "--against", days[0]).code == 0
    assert verified(tmp_path / "p", *reversed(days)).code == 2, "in their order"


def test_sources_of_other_names_may_be_in_any_order_and_be_several_of_a_version(tmp_path):
    first = [table(tmp_path / "1", name="a.csv"), table(tmp_path / "1", [("d", 1, 1)], name="b.csv")]
    second = [
        of_semicolons(tmp_path / "2", [("d", 1, 2)]),
        table(tmp_path / "2", [("f", 1, 2)], name="b.csv", delimiter=";"),
    ]
    third = table(tmp_path / "3", [("g", 1, 2)], name="c.csv", delimiter="|")
    ingest(first, tmp_path / "p")
    ingest(second, tmp_path / "p", append=True, delimiter=";")
    ingest(third, tmp_path / "p", append=True, delimiter="|")
    for given in ([*first, *second, third], [third, first[1], first[0], second[1], second[0]]):
        assert verified(tmp_path / "p", *given).code == 0
    assert verified(tmp_path / "p", tmp_path / "1", tmp_path / "2", third).code == 0


def test_renamed_sources_belong_to_the_versions_in_order(tmp_path):
    first, second = table(tmp_path / "1"), of_semicolons(tmp_path / "2", [("d", 1, 2)])
    ingest(first, tmp_path / "p")
    ingest(second, tmp_path / "p", append=True, delimiter=";")
    renamed = [first.rename(tmp_path / "one.csv"), second.rename(tmp_path / "two.csv")]
    assert verified(tmp_path / "p", *renamed).code == 0


def test_versions_that_are_gone_are_the_oldest(tmp_path):
    """Sources are matched from the newest on; `forget` has removed the manifest of the first."""
    first, second = table(tmp_path / "1"), of_semicolons(tmp_path / "2", [("d", 1, 2)])
    third = table(tmp_path / "3", [("e", 1, 2)], delimiter="|")
    forget(ingest(first, tmp_path / "p"), clients=["a"])
    ingest(second, tmp_path / "p", append=True, delimiter=";")
    ingest(third, tmp_path / "p", append=True, delimiter="|")
    assert verified(tmp_path / "p", second, third).json["against"]["missing"] == 0
    told = verified(tmp_path / "p", first, second, third)
    assert told.code == 2 and "has one column, 'client,x,y'" in told.json["message"], "the first is read as the second"


# --- rules of ids -----------------------------------------------------------------------------------------------------


def test_a_folded_population_is_compared_folded(tmp_path):
    file = table(tmp_path / "a", [("A", 1, 2), ("a", 3, 4), (" B  C", 5, 6)])
    ingest(file, tmp_path / "p", fold_ids=True)
    assert verified(tmp_path / "p", file).json["against"]["clients"] == 2
