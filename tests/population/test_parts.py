"""A source that several processes read in parts: the same population, and the same errors, as if one had read all."""

import csv
import json
import os
import pickle
import random
import traceback
from contextlib import contextmanager, nullcontext
from functools import partial

import numpy as np
import pytest

from fedcore.errors import IngestError, WorkerFailed
from fedcore.population import layout
from fedcore.population.ingest import append as appending
from fedcore.population.ingest import csv_blocks, dealing, parts
from fedcore.population.ingest import ingest as ingest_module
from fedcore.population.ingest.ingest import ingest
from fedcore.population.ingest.request import MEMORY, IngestRequest
from fedcore.population.ingest.table_files import CsvFile
from fedcore.rounds.engine import InProcessBackend

from .contents import rows_of

ITS_OWN = {"population_id", "secret", "checksum"}  # of every population, or made of what is
LONG = ["client", "token", "count"]


class OneAfterAnother(InProcessBackend):
    """In an odd order, and each part twice, as after the death of a worker; the first answers are thrown away. What is
    asked and answered is copied as on its way to other processes.
    """

    asked = 0

    def map_blocks(self, function, message, blocks, sizes=None):
        mixed = random.Random(7).sample(list(blocks), len(blocks))
        type(self).asked = len(mixed)
        here = copied(function)
        for block in mixed:
            here(message, block)
        return copied(super().map_blocks(here, message, mixed, sizes))


def copied(value):
    return pickle.loads(pickle.dumps(value))


@contextmanager
def several(most):
    yield OneAfterAnother(), most


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(parts, "LEAST_BYTES", 100)
    monkeypatch.setattr(OneAfterAnother, "asked", 0)


def bits(population) -> dict:
    """What is in the folder of the population, but for what is its own."""
    found = {}
    for file in population.path.rglob("*"):
        name = str(file.relative_to(population.path))
        if name.startswith("versions/"):
            found[name] = {key: value for key, value in json.loads(file.read_text()).items() if key not in ITS_OWN}
            found[name]["cohorts"] = [
                cohort | {"opened": None, "token": None} for cohort in found[name].get("cohorts", ())
            ]
        elif file.is_file():
            found[name] = file.read_bytes()
    assert len(found) > 5 and not (population.path / layout.SPILL).exists()
    return found


def written(file, header, rows, **options):
    with open(file, "w", newline="", encoding=options.pop("encoding", "utf-8")) as handle:
        csv.writer(handle, **options).writerows([header, *rows])
    return file


def numbers(rows=60, clients=7):
    return [(f"c{i * i % clients}", i, i * 0.5) for i in range(rows)]


def rows_plain(folder):
    return written(folder / "a.csv", ["client", "x", "y"], numbers()), {}


def rows_with_line_breaks(folder):
    """In quotes, with a byte order mark and CRLF; and two files, the second with blank lines."""
    rows = [(f'c{i % 5} "{i % 3}",', i, "" if i % 4 else 1.5, f'\r\n"{i}",') for i in range(40)]
    folder = folder / "in"
    folder.mkdir()
    written(folder / "a.csv", ["client", "x", "y", "note"], rows, encoding="utf-8-sig")
    (folder / "b.csv").write_text("\n\nclient,x,y\n" + "\n".join(f"c{i},{i},1\n" for i in range(20)))
    return folder, {"columns": ["x", "y"]}


def counts(folder):
    """With a vocabulary that lacks tokens, and held-out files of other clients too."""
    draw = random.Random(1)
    lines = [(f"c{draw.randrange(9)}", draw.choice("abcdefg"), draw.randrange(4)) for _ in range(80)]
    held = written(folder / "held.csv", LONG, [("z", "a", 1), *lines[:40]])
    return written(folder / "a.csv", LONG, lines), {"vocabulary": ["b", "a", "c"], "heldout": held}


def words(folder):
    rows = [(f"c{i % 4}", f"w{i % 11}", 1 + i % 3) for i in range(60)]
    return written(folder / "a.csv", LONG, rows), {"kind": "words"}


def parquet(folder):
    import pyarrow as pa
    import pyarrow.parquet as parquet

    whose, x, y = zip(*numbers(100), strict=True)
    parquet.write_table(pa.table({"client": whose, "x": x, "y": y}), folder / "a.parquet", row_group_size=13)
    return folder / "a.parquet", {}


def feather(folder):
    import pyarrow as pa
    import pyarrow.feather as feather

    whose, x, y = zip(*numbers(100), strict=True)
    feather.write_feather(pa.table({"client": whose, "x": x, "y": y}), str(folder / "a.feather"), chunksize=13)
    return folder / "a.feather", {}


def lines(folder):
    text = [json.dumps({"client": client, "x": x, "y": y}) for client, x, y in numbers(30)]
    (folder / "a.jsonl").write_text("\n".join([*text[:13], "", " ", *text[13:]]))
    return folder / "a.jsonl", {}


def records(folder):
    """Rows without clients, which are called by their number; blank lines and those in quotes are none."""
    rows = [(i, "yes" if i % 3 else "no\nand no") for i in range(30)]
    file = written(folder / "a.csv", ["x", "y"], rows)
    file.write_text(file.read_text().replace("\r", "").replace("\n7,", "\n\n7,").replace("\n20,", "\n\n\n20,"))
    return file, {"unit": "record", "categories": {"y": ["yes", "no\nand no"]}}


def records_of_lines(folder):
    file, _ = lines(folder)
    return file, {"unit": "record", "columns": ["x", "y"]}


def periods(folder):
    rows = [(f"c{i % 5}", f"2026-0{1 + i % 3}-15", i % 4) for i in range(80)]
    file = written(folder / "a.csv", ["client", "when", "token"], rows)
    return file, {"features": 4, "period": "month", "time": "when", "first": "2026-01", "through": "2026-03"}


def documents(folder):
    rows = [(f"c{i % 5}", i % 13, i % 4) for i in range(80)]
    return written(folder / "a.csv", ["client", "page", "token"], rows), {"features": 4, "documents": "page"}


def folders(folder):
    for year in (2024, 2025):
        (folder / "in" / f"year={year}").mkdir(parents=True)
        written(folder / "in" / f"year={year}" / "a.csv", ["client", "x"], [(f"c{i % 3}", i) for i in range(30)])
    return folder / "in", {}


def tolerated(folder):
    rows = [(f"c{i % 5}", i, "many" if i % 20 == 13 else i) for i in range(60)]
    return written(folder / "a.csv", ["client", "x", "y"], rows), {"tolerance": 9, "bounds": {"x": (10, 20)}}


def records_of_lone_returns(tmp_path):
    """At which records end as well."""
    ends = ["\n", "\r", "\r\n"]
    text = "".join(f"{number},{number % 7}{ends[number % 3]}" for number in range(200))
    (tmp_path / "a.csv").write_bytes(b"x,y\n" + text.encode())
    return tmp_path / "a.csv", {"unit": "record"}


CASES = [
    *(rows_plain, rows_with_line_breaks, counts, words, parquet, feather, lines, records, records_of_lines),
    records_of_lone_returns,
    *(periods, documents, folders, tolerated),
]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.slow
def test_a_population_read_in_parts_is_the_same(tmp_path, case):
    source, options = case(tmp_path)
    given = options | {"clients_per_leaf": 2, "clients_per_block": 8}
    shared = ingest(source, tmp_path / "shared", sharing=partial(several, 5), **given)
    assert bits(shared) == bits(ingest(source, tmp_path / "alone", **given))
    assert 2 <= OneAfterAnother.asked <= 5


def test_a_large_client_without_held_out_rows_has_an_empty_part_as_it_has_where_it_fits(tmp_path, monkeypatch):
    rows = [("big", number, number) for number in range(300)] + [(f"c{number}", 1, 2) for number in range(9)]
    source = written(tmp_path / "a.csv", ["client", "x", "y"], rows)
    held = written(tmp_path / "held.csv", ["client", "x", "y"], rows[-9:])
    options = {"heldout": held, "clients_per_leaf": 1, "clients_per_block": 1}
    found = [bits(ingest(source, tmp_path / "whole", **options))]
    for module in (ingest_module, appending):
        monkeypatch.setattr(module, "SPILL_SHARE", MEMORY // 4000)
    found.append(bits(ingest(source, tmp_path / "large", **options)))
    assert found[0] == found[1]
    population = ingest(source, tmp_path / "large", append=True, heldout=held)
    assert all(entry.heldout is not None for entry in population.blocks)


def test_what_is_wrong_with_a_part_is_told_without_what_rows_hold(tmp_path, monkeypatch):
    source, options = rows_plain(tmp_path)

    def fail(*arguments):
        raise ValueError("Mrs Smith, 0171 555")

    monkeypatch.setattr(dealing, "spill_batch", fail)
    with pytest.raises(WorkerFailed, match="ValueError") as told:
        ingest(source, tmp_path / "p", sharing=partial(several, 5), **options)
    assert "Smith" not in "".join(traceback.format_exception(told.value))


@pytest.mark.parametrize("case", [rows_plain, counts, periods])
def test_what_is_appended_in_parts_is_the_same(tmp_path, case):
    source, options = case(tmp_path)
    found = []
    for name, more in (("alone", {}), ("shared", {"sharing": partial(several, 3)})):
        ingest(source, tmp_path / name, clients_per_leaf=2, clients_per_block=4, **options)
        again = {key: value for key, value in options.items() if key in ("heldout", "through")}
        found.append(bits(ingest(source, tmp_path / name, append=True, **again, **more)))
    assert found[0] == found[1] and OneAfterAnother.asked == 3


@pytest.mark.slow
def test_clients_larger_than_memory(tmp_path, monkeypatch):
    """Rows in tiles, counts and words added up, from the files of several parts; other buckets are dealt out again."""
    rows = [(f"c{i % 300}" if i % 3 else "large", i % 7, i) for i in range(3000)]
    file = written(tmp_path / "a.csv", LONG, rows)
    kinds = {"rows": {"kind": "rows"}, "counts": {"features": 7}, "words": {"kind": "words"}}
    for name, options in kinds.items():
        request = IngestRequest.of(options).model_copy(update={"memory": 60_000})  # less than may be requested
        alone = ingest(file, tmp_path / name, request)
        shared = ingest(file, tmp_path / f"{name} in parts", request, sharing=partial(several, 4))
        assert bits(shared) == bits(alone)


def faults(folder):
    """Of several kinds, some in the same part, and more than are shown."""
    rows = [[f"c{i % 5}", i, i] for i in range(200)]
    for number in (30, 31, 170, 90):
        rows[number][2] = "many"
    for number in (29, 33, 34, 91, 120, 121, 122):
        rows[number][0] = ""
    for number in (28, 32, 89, 199):
        rows[number].append("more")
    return written(folder / "a.csv", ["client", "x", "y"], rows), {"tolerance": 3}


def strangers(folder):
    rows = [(f"c{i % 5}", "abcdefghij"[i // 12]) for i in range(100)]
    return written(folder / "a.csv", ["client", "token"], rows), {"vocabulary": ["zebra"]}


def late_text(folder):
    """No UTF-8 in the middle, and a record of the wrong form at the end."""
    file, options = rows_plain(folder)
    file.write_bytes(file.read_bytes().replace(b"c4,33", b"\xff\xfe,33") + b'"c4,1')
    return file, options


def negative(folder):
    return written(folder / "a.csv", LONG, [(f"c{i % 5}", i, i % 2) for i in range(60)]), {"features": 50}


def lost_column(folder):
    """Found when the second file is read."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    (folder / "in").mkdir()
    for number, x in enumerate([list(range(40)), ["a"] * 40]):
        table = pa.table({"client": ["c"] * 40, "x": x})
        parquet.write_table(table, folder / "in" / f"{number}.parquet", row_group_size=10)
    return folder / "in", {"columns": ["x"], "bounds": {"x": (0, 1)}}


@pytest.mark.parametrize("case", [faults, strangers, late_text, negative, lost_column])
def test_errors_are_the_same(tmp_path, case):
    source, options = case(tmp_path)
    told = []
    for name, more in (
        ("alone", {}),
        ("two", {"sharing": partial(several, 2)}),
        ("5", {"sharing": partial(several, 5)}),
    ):
        with pytest.raises(IngestError) as caught:
            ingest(source, tmp_path / "p", **options, **more)
        told.append([str(caught.value), str(caught.value.without_values)])
        assert not list((tmp_path / "p").glob("**/x")), name
    assert told[0] == told[1] == told[2]


def test_small_sources_and_others_than_tables_start_nobody(tmp_path, monkeypatch):
    def nobody():
        raise AssertionError("workers were started")

    monkeypatch.undo()
    folder, options = rows_with_line_breaks(tmp_path)
    ingest(folder, tmp_path / "p", sharing=nobody, **options)  # two files
    file, _ = rows_plain(tmp_path)
    ingest(file, tmp_path / "o", sharing=nobody)
    monkeypatch.setattr(parts, "LEAST_BYTES", 1)
    np.savez(tmp_path / "a.npz", x=np.ones((5, 2)), client=np.arange(5))
    ingest(tmp_path / "a.npz", tmp_path / "q", sharing=nobody)
    ingest(f"SELECT * FROM '{file}'", tmp_path / "r", format="sql", sharing=nobody)


def test_spans_hold_every_record_once(tmp_path):
    """Whatever their size; with the numbers of their lines and records."""
    file, _ = rows_with_line_breaks(tmp_path)
    for path in sorted(file.iterdir()):
        opened = CsvFile(path, ",")
        block = next(csv_blocks.without_header(csv_blocks.blocks(path, 1 << 20, ","), ","))
        whole = list(csv_blocks.records(path, block, ","))
        for size in (1, 20, 50, 333):
            spans, first = opened.spans(size, numbered=True), 0
            assert [(a.stop, b.line > a.line) for a, b in zip(spans, spans[1:], strict=False)] == [
                (b.start, True) for b in spans[1:]
            ]
            for span in spans:
                assert span.first == first
                for part in csv_blocks.blocks(path, 64, ",", span):
                    found = list(csv_blocks.records(path, part, ","))
                    assert found == whole[first : first + len(found)]
                    first += len(found)
            assert first == len(whole)


def test_a_failed_attempt_leaves_nothing(tmp_path):
    """An interruption while parts are dealt out."""
    file, _ = rows_plain(tmp_path)

    class Interrupted(InProcessBackend):
        def map_blocks(self, function, message, blocks, sizes=None):
            function(message, blocks[0])
            raise KeyboardInterrupt

    @contextmanager
    def interrupted():
        yield Interrupted(), 4

    with pytest.raises(KeyboardInterrupt):
        ingest(file, tmp_path / "p", sharing=interrupted)
    assert not (tmp_path / "p" / layout.SPILL).exists() and not list(tmp_path.glob("p/versions/*.json"))
    assert rows_of(ingest(file, tmp_path / "p"))


# ---- on workers


def large_enough(folder):
    """Some parts of some thousand rows, so that workers have something to do."""
    rows = [(f"client {i * i % 997}", i, i * 0.25, "" if i % 5 else 1) for i in range(40_000)]
    return written(folder / "a.csv", ["client", "x", "y", "z"], rows)


@pytest.mark.slow
def test_two_workers_make_the_same_population(tmp_path, monkeypatch):
    from fedcore.tasks.dask_backend import sharing

    monkeypatch.chdir(tmp_path)  # paths may be relative
    file = large_enough(tmp_path).relative_to(tmp_path)
    bad = written(tmp_path / "bad.csv", ["client", "x"], [("c", "?" if i % 90 == 80 else i) for i in range(300)])
    with pytest.raises(IngestError) as alone:
        ingest(bad, "p")
    with sharing(2) as started:
        again = partial(nullcontext, started)
        assert bits(ingest(file, "shared", sharing=again)) == bits(ingest(file, "alone"))
        with pytest.raises(IngestError) as shared:
            ingest(bad, "p", sharing=again)
    assert (str(shared.value), str(shared.value.without_values)) == (str(alone.value), str(alone.value.without_values))


class _Deadly(dealing.DealPart):
    """Ends its process in the middle of the first part, but only once."""

    def __call__(self, message, number):
        mark = self.dealing.folder.parents[1] / "was here"
        if number == 0 and not mark.exists():
            mark.mkdir()
            started = self.dealing.folder / "part-0000-left"
            started.mkdir()
            (started / "train").write_bytes(b"half a record")
            os._exit(1)
        return super().__call__(message, number)


@pytest.mark.slow
def test_the_part_of_a_worker_that_died_is_read_again(tmp_path, monkeypatch):
    from fedcore.tasks.dask_backend import sharing

    file = large_enough(tmp_path)
    alone = bits(ingest(file, tmp_path / "alone"))
    monkeypatch.setattr(dealing, "DealPart", _Deadly)
    assert bits(ingest(file, tmp_path / "shared", sharing=partial(sharing, 2))) == alone
    assert (tmp_path / "was here").is_dir()
