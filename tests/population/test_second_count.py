"""Each ingest counts its records twice and reads a sample twice; `population verify --against` reads everything."""

import csv
import io
import json
import random
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as parquet
import pytest
import scipy.sparse
from typer.testing import CliRunner

from fedcore.cli import app
from fedcore.errors import IngestError, SourceChanged
from fedcore.population import layout, manifest
from fedcore.population.describing import describe
from fedcore.population.ingest import (
    against,
    csv_blocks,
    dealing,
    parts,
    second_count,
    sources_table,
    spill,
    table_files,
    typed_files,
)
from fedcore.population.ingest.ingest import ingest
from fedcore.population.ingest.parts import Span
from fedcore.population.ingest.request import IngestRequest
from fedcore.population.ingest.sources import source_of
from fedcore.population.ingest.sources_array import DenseSource
from fedcore.population.ingest.sources_text import TextSource
from fedcore.population.store import Population
from fedcore.rounds.engine import InProcessBackend

ROWS = [(f"c{i * i % 7}", i, i * 0.5) for i in range(60)]


def table(folder, form="csv", rows=ROWS, name="a"):
    columns = dict(zip(("client", "x", "y"), zip(*rows, strict=True), strict=True))
    file = folder / f"{name}.{form}"
    if form == "csv":
        with open(file, "w", newline="") as handle:
            csv.writer(handle).writerows([("client", "x", "y"), *rows])
    elif form == "jsonl":
        file.write_text("".join(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows))
    elif form == "parquet":
        parquet.write_table(pa.table(columns), file, row_group_size=13)
    else:
        feather.write_feather(pa.table(columns), str(file), chunksize=13)
    return file


@contextmanager
def several():
    yield InProcessBackend(), 3


# --- the scanners -----------------------------------------------------------------------------------------------------


def by_csv(text, delimiter):
    return max(sum(1 for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter) if row) - 1, 0)


@pytest.mark.parametrize("piece", [1, 3, 64, 1 << 17])
def test_the_scanner_counts_the_records_that_the_csv_module_reads(tmp_path, monkeypatch, piece):
    monkeypatch.setattr(second_count, "PIECE", piece)
    draw, file = random.Random(piece), tmp_path / "a.csv"
    for _ in range(400):
        delimiter = draw.choice(",;§")
        parts = (
            *("\n", "\r\n", "\r", "a", "é", delimiter, '"', '""', f'{delimiter}"b\n"{delimiter}', '"c\r\n"\n', "\n\n"),
        )
        text = f"x{delimiter}y\n" + "".join(draw.choices(parts, k=draw.randrange(40)))
        file.write_bytes(b"\xef\xbb\xbf" * draw.randrange(2) + text.encode())
        assert second_count.look(file, _csv_file(file, delimiter)).records == by_csv(text, delimiter), text


def _csv_file(file, delimiter):
    made = object.__new__(table_files.CsvFile)  # its header may be what no ingest takes
    made.path, made.delimiter = file, delimiter
    return made


@pytest.mark.parametrize("piece", [1, 64, 1 << 17])
def test_the_scanner_counts_lines_that_are_not_blank(tmp_path, monkeypatch, piece):
    monkeypatch.setattr(second_count, "PIECE", piece)
    draw, file = random.Random(piece), tmp_path / "a.jsonl"
    for _ in range(300):
        data = b"".join(
            draw.choices((b"\n", b"\r\n", b"\r", b" ", b"\t", b'{"a": 1}', b"x", b"\0"), k=draw.randrange(30))
        )
        file.write_bytes(data)
        made = object.__new__(table_files.JsonFile)
        assert second_count.look(file, made).records == sum(1 for line in data.splitlines() if line.strip()), data


def test_a_sample_is_whole_records_of_a_large_file(tmp_path, monkeypatch):
    monkeypatch.setattr(second_count, "LEAST_SAMPLE", 200)
    rows = [(f'c{i}, "{i}"\r\n', i, 0.5) for i in range(20_000)]
    file = table(tmp_path, rows=rows)
    seen = second_count.look(file, table_files.CsvFile(file, ","))
    assert seen.records == 20_000 and len(seen.sample) == 3
    for span in seen.sample:
        text = file.read_bytes()[span.start : span.stop].decode()
        read = list(csv.reader(io.StringIO(text, newline=""), strict=True))
        assert len(read) > 5 and all(row[0] == f'c{row[1]}, "{row[1]}"\r\n' and len(row) == 3 for row in read)


# --- what an ingest compares ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet", "feather"])
def test_both_counts_are_in_the_manifest(tmp_path, form):
    made = ingest(table(tmp_path, form), tmp_path / "p")
    there = Population.open(tmp_path / "p").manifest.provenance
    assert (there.records, there.stored, there.skipped, there.bad_rows) == (60, 60, 0, 0)
    shown = describe(made)
    assert (shown["records_counted"], shown["records_stored"], shown["records_skipped"]) == (60, 60, 0)
    more = ingest(table(tmp_path, form, ROWS[:11], "b"), tmp_path / "p", append=True)
    assert (more.manifest.provenance.records, more.manifest.provenance.stored) == (11, 11)


def test_manifests_without_counts_are_read_as_they_were(tmp_path):
    made = ingest(table(tmp_path), tmp_path / "p").manifest
    bare = made.model_copy(update={"provenance": manifest.Provenance(sources=("a.csv",))})
    content = json.loads(manifest.encode(bare))
    assert not {"records", "stored", "skipped"} & {*content["provenance"]}
    assert manifest.decode(manifest.encode(bare), "here") == bare


def test_records_are_stored_invalid_or_skipped(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("client,token,count\na,x,1\n\nb,y,2\nb,z,1\nc,x,-1\n,x,1\nc,x,0\n\r\na,x,3")
    made = ingest(file, tmp_path / "p", vocabulary=["x", "y"], tolerance=2).manifest.provenance
    assert (made.records, made.stored, made.skipped, made.bad_rows) == (7, 3, 2, 2)


def test_arrays_matrices_frames_and_texts_are_counted(tmp_path):
    np.savez(tmp_path / "d.npz", x=np.ones((9, 2)), client=np.arange(9) % 4)
    assert ingest(tmp_path / "d.npz", tmp_path / "d").manifest.provenance.records == 9
    scipy.sparse.save_npz(tmp_path / "m.npz", scipy.sparse.csr_matrix(np.eye(5)))
    assert ingest(tmp_path / "m.npz", tmp_path / "m").manifest.provenance.records == 5
    np.save(tmp_path / "f.npy", np.zeros((7, 3, 2), np.uint8))
    made = ingest(tmp_path / "f.npy", tmp_path / "f", format="frames", frame_stride=3).manifest.provenance
    assert (made.records, made.stored, made.skipped) == (7, 3, 4)
    (tmp_path / "t" / "in").mkdir(parents=True)
    for name in ("a", "b", "in/c"):
        (tmp_path / "t" / name).write_text("some words")
    assert ingest(tmp_path / "t", tmp_path / "w", kind="words").manifest.provenance.records == 3


def test_records_of_files_with_one_stored_name_are_refused(tmp_path):
    """Ids of records are made of the names as they are stored: two rows with one id would be one person."""
    rows = [(1.5, 2.5), (3.5, 4.5)]
    for folder, name in (("one", "b.csv"), ("two", " b.csv")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text("x,y\n" + "".join(f"{x},{y}\n" for x, y in rows))
        np.save(tmp_path / folder / name.replace("csv", "npy"), np.array(rows))
        np.savez(tmp_path / folder / name.replace("csv", "npz"), frames=np.zeros((2, 3, 2), np.uint8))
        scipy.sparse.save_npz(tmp_path / folder / f"{name}.npz", scipy.sparse.csr_matrix(np.eye(3)))
    for form, options in (
        ("csv", {"unit": "record"}),
        ("npy", {"unit": "record"}),
        ("npz", {"format": "frames"}),
        ("csv.npz", {}),
    ):
        files = [tmp_path / "one" / f"b.{form}", tmp_path / "two" / f" b.{form}"]
        with pytest.raises(IngestError, match="the same ids"):
            ingest(files, tmp_path / "p", **options)


def test_records_that_became_one_client_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr(sources_table, "record_ids", lambda file, numbers, rule: [f"{n // 2}" for n in numbers])
    with pytest.raises(IngestError, match="60 records were stored, and became 30 clients"):
        ingest(table(tmp_path), tmp_path / "p", unit="record", columns=["x", "y"])


def test_frames_are_counted_whatever_their_array_is_called(tmp_path):
    np.savez(tmp_path / "f.npz", video=np.zeros((7, 3, 2), np.uint8))
    assert ingest(tmp_path / "f.npz", tmp_path / "f", format="frames").manifest.provenance.records == 7


def test_texts_may_be_held_out_of_their_own_folder(tmp_path):
    (tmp_path / "t" / "in").mkdir(parents=True)
    for name in ("a", "in/b"):
        (tmp_path / "t" / name).write_text("some words")
    made = ingest(tmp_path / "t", tmp_path / "w", kind="words", heldout=tmp_path / "t" / "in").manifest.provenance
    assert (made.records, made.stored) == (3, 3)


def test_a_text_that_comes_while_others_are_read_is_no_fault(tmp_path, monkeypatch):
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "a").write_text("some words")
    before = TextSource.batches

    def batches(*given):
        yield from before(*given)
        (tmp_path / "t" / "b").write_text("more words")

    monkeypatch.setattr(TextSource, "batches", batches)
    with pytest.raises(SourceChanged, match="t/b"):
        ingest(tmp_path / "t", tmp_path / "w", kind="words")


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet", "feather"])
def test_columns_that_change_before_the_first_count_are_found(tmp_path, form):
    source = source_of(table(tmp_path, form), IngestRequest(), 1 << 20)
    columns = {"client": ["a"], "y": [1.0], "x": [2.0]}
    if form == "csv":
        (tmp_path / "a.csv").write_text("client,y,x\na,1,2\n")
    elif form == "jsonl":
        (tmp_path / "a.jsonl").write_text('{"client": "a", "y": 1, "x": 2}\n')
    elif form == "parquet":
        parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    else:
        feather.write_feather(pa.table(columns), str(tmp_path / "a.feather"))
    with pytest.raises(SourceChanged):
        second_count.SecondCount(source)


def test_large_counts_are_added_exactly(tmp_path):
    rows = "".join(f"c{i},x,{2**53}\n" for i in range(1100))
    (tmp_path / "a.csv").write_text("client,token,count\n" + rows)
    made = ingest(tmp_path / "a.csv", tmp_path / "p", vocabulary=["x"], clients_per_leaf=64, clients_per_block=64)
    assert sum(int(entry.train.total) for entry in made.blocks) == 1100 * 2**53 > 2**63


def test_of_very_many_files_some_are_read_again(tmp_path, monkeypatch):
    for number in range(5):
        table(tmp_path, name=f"a{number}")
    source = source_of(sorted(tmp_path.glob("*.csv")), IngestRequest(), 1 << 20)
    monkeypatch.setattr(second_count, "MOST_FILES", 2)
    chosen = second_count.SecondCount(source)._sampled_files(source)
    assert [file.name for file, _ in chosen] == ["a0.csv", "a3.csv"]


def test_numbers_beyond_the_largest_float_are_invalid_rows(tmp_path):
    huge = "1" + "0" * 400
    (tmp_path / "a.jsonl").write_text(f'{{"client": "a", "x": {huge}}}\n{{"client": "b", "x": 1}}\n\n')
    made = ingest(tmp_path / "a.jsonl", tmp_path / "p", tolerance=1).manifest
    assert (made.n_clients, made.provenance.bad_rows) == (1, 1)
    (tmp_path / "b.jsonl").write_text(f'{{"client": "a", "token": "t", "count": {huge}}}\n' + '{"client": "b"}\n')
    with pytest.raises(IngestError, match="2 bad rows"):
        ingest(tmp_path / "b.jsonl", tmp_path / "q", vocabulary=["t"])


def test_blanks_beside_objects_of_json_lines_cost_nothing():
    one_a_line = table_files._an_object_a_line
    assert one_a_line(b' {"a": 1}\t \n  {"a": 2} \r\n{"a": 3}\n')
    assert not one_a_line(b'{"a": 1}\n 2\n') and not one_a_line(b'{"a":\n1}\n') and not one_a_line(b"\n\n")
    assert not one_a_line(b'{"a": 1}' + b" " * 100 + b'\n{"a": 2}\n')  # read record by record


def lose_a_record(monkeypatch):
    before = csv_blocks.parse_quickly

    def parse(block, *rest):
        read = before(block, *rest)
        return None if read is None else read.slice(1)

    monkeypatch.setattr(csv_blocks, "parse_quickly", parse)


def double_a_record(monkeypatch):
    before = table_files.CsvFile.pieces

    def pieces(self, wanted, size, account, span=None):
        for piece in before(self, wanted, size, account, span):
            yield piece
            yield table_files.Piece([column[:1] for column in piece.columns], piece.where, piece.records[:1])

    monkeypatch.setattr(table_files.CsvFile, "pieces", pieces)


def cut_a_part_short(monkeypatch):
    before = csv_blocks.blocks

    def blocks(file, *rest, **options):
        for block in before(file, *rest, **options):
            cut = block.data.rstrip().rfind(b"\n") + 1
            of_a_part = any(isinstance(one, Span) for one in (*rest, *options.values()))
            yield replace(block, data=block.data[:cut]) if of_a_part else block

    monkeypatch.setattr(csv_blocks, "blocks", blocks)


def change_a_value(monkeypatch):
    before = table_files.CsvFile.pieces

    def pieces(self, *rest):
        for piece in before(self, *rest):
            x = piece.columns[1].to_numpy().copy()
            x[0] += 1
            yield table_files.Piece([piece.columns[0], pa.array(x), piece.columns[2]], piece.where, piece.records)

    monkeypatch.setattr(table_files.CsvFile, "pieces", pieces)


def exchange_clients(monkeypatch):
    before = table_files.CsvFile.pieces

    def pieces(self, *rest):
        for piece in before(self, *rest):
            turned = piece.columns[0].take(pa.array(range(len(piece.records))[::-1]))
            yield table_files.Piece([turned, *piece.columns[1:]], piece.where, piece.records)

    monkeypatch.setattr(table_files.CsvFile, "pieces", pieces)


def lose_a_bucket(monkeypatch):
    before = spill.Spill.take

    def take(self, parts, heldout):
        before(self, parts[:-1], heldout)

    monkeypatch.setattr(spill.Spill, "take", take)


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (lose_a_record, "The files have 60 records, and 59 were read"),
        (double_a_record, "The files have 60 records, and 61 were read"),
        (cut_a_part_short, "The files have 60 records, and"),
        (change_a_value, "Another reader finds other clients or values"),
        (exchange_clients, "Another reader finds other clients or values"),
        (lose_a_bucket, "60 rows were read, and"),
    ],
)
@pytest.mark.parametrize("append", [False, True])
def test_a_fault_of_the_reading_is_found_and_nothing_is_visible(tmp_path, monkeypatch, fault, told, append):
    monkeypatch.setattr(parts, "LEAST_BYTES", 100)
    monkeypatch.setattr(table_files, "SCANNED", 100)
    if append:
        ingest(table(tmp_path, rows=ROWS[:5], name="before"), tmp_path / "p")
    fault(monkeypatch)
    sharing = several if fault in (lose_a_bucket, cut_a_part_short) else None
    with pytest.raises(IngestError, match=told):
        ingest(table(tmp_path), tmp_path / "p", append=append, sharing=sharing)
    assert layout.versions(tmp_path / "p") == ([1] if append else [])


def test_with_workers_each_record_is_counted_once(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "LEAST_BYTES", 100)
    for form in ("csv", "jsonl", "parquet"):
        made = ingest(table(tmp_path, form), tmp_path / form, sharing=several).manifest.provenance
        assert (made.records, made.stored) == (60, 60)


def test_a_sabotaged_reader_of_parquet_is_found(tmp_path, monkeypatch):
    file = table(tmp_path, "parquet")
    before = typed_files.ParquetFile._records

    def skips(self, columns, rows, span):
        yield from (batch.slice(1) for batch in before(self, columns, rows, span))

    monkeypatch.setattr(typed_files.ParquetFile, "_records", skips)
    with pytest.raises(IngestError, match="The files have 60 records, and 59 were read"):
        ingest(file, tmp_path / "p")


@pytest.mark.parametrize("change", ["longer", "same size", "same size and time", "gone"])
@pytest.mark.parametrize("form", ["csv", "npz"])
def test_a_source_that_changes_while_it_is_read_is_refused(tmp_path, monkeypatch, change, form):
    import os

    if form == "csv":
        file, cls = table(tmp_path), dealing.Dealing
    else:
        file, cls = tmp_path / "a.npz", DenseSource
        np.savez(file, x=np.ones((9, 2)), client=np.arange(9))
    name = "fill" if form == "csv" else "batches"
    before = getattr(cls, name)

    def then_changed(*given):
        done = before(*given)
        done = done if done is None else [*done]
        data, state = file.read_bytes(), file.stat()
        if change == "gone":
            file.unlink()
        else:
            file.write_bytes(data + b"z,1,2\n" if change == "longer" else data[:-3] + b"9" + data[-2:])
        if change == "same size and time":
            os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))
        return done

    monkeypatch.setattr(cls, name, then_changed)
    with pytest.raises(SourceChanged, match=f"Changed while it was read: {file}"):
        ingest(file, tmp_path / "p")
    assert layout.versions(tmp_path / "p") == []


# --- what random files showed (`differential`) ------------------------------------------------------------------------


def test_half_a_surrogate_pair_in_json_is_no_text(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'{"client": "a", "x": 1}\n{"client": "b", "x": "\xed\xa0\x80"}\n')
    with pytest.raises(IngestError, match=r"a.jsonl, line 2: not UTF-8 text"):
        ingest(file, tmp_path / "p", tolerance=1)


@pytest.mark.parametrize("one", ['{"client": "\\ud800", "x": 1}', '{"client": "b", "x": 1, "client": "\\udc00"}'])
def test_half_an_escaped_surrogate_pair_is_an_invalid_row(tmp_path, one):
    file = tmp_path / "a.jsonl"
    file.write_text('{"client": "a", "x": 1}\n' + one + "\n")
    with pytest.raises(IngestError, match="a.jsonl, line 2: client is not text or a whole number"):
        ingest(file, tmp_path / "p")
    assert ingest(file, tmp_path / "p", tolerance=1).manifest.provenance.bad_rows == 1


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet", "feather"])
def test_bytes_that_are_no_text_are_refused(tmp_path, form):
    file = tmp_path / f"a.{form}"
    if form in ("csv", "jsonl"):
        file.write_bytes(
            b"client,x\na\xff,1\n" if form == "csv" else b'{"client": "b", "x": 1}\n{"client": "a\xff", "x": 1}\n'
        )
    else:
        columns = pa.table({"client": pa.array([b"a\xff"]).view(pa.string()), "x": [1]})
        parquet.write_table(columns, file) if form == "parquet" else feather.write_feather(columns, str(file))
    with pytest.raises(IngestError, match="damaged" if form in ("parquet", "feather") else "line .+: not UTF-8 text"):
        ingest(file, tmp_path / "p")


@pytest.mark.parametrize("end", [b"\xff\n", b"plain\xff", b"plain\xff\n"])
def test_bytes_that_are_no_text_are_refused_in_a_column_that_is_not_read(tmp_path, end):
    file = tmp_path / "a.csv"
    file.write_bytes(b"client,x,note\na,1,fine\nb,2," + end)
    with pytest.raises(IngestError, match="line 3: not UTF-8 text"):
        ingest(file, tmp_path / "p", columns=["x"])


# --- verify --against -------------------------------------------------------------------------------------------------


def found(*arguments):
    done = CliRunner().invoke(app, ["population", "verify", *map(str, arguments), "--json"])
    return done.exit_code, json.loads(done.stdout)["against"] if done.stdout else repr(done.exception)


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet", "feather"])
def test_a_population_and_its_sources_are_the_same(tmp_path, form):
    ingest(table(tmp_path, form), tmp_path / "p")
    ingest(table(tmp_path, form, [("new", 1, 2.0), *ROWS[:3]], "b"), tmp_path / "p", append=True)
    both = ("--against", tmp_path / f"a.{form}", "--against", tmp_path / f"b.{form}")
    same = dict.fromkeys(("missing", "added", "different", "forgotten", "bad_rows"), 0)
    assert found(tmp_path / "p", *both) == (0, {"clients": 5, "rows": 64, **same})
    assert found(tmp_path / "p", "--version", 1, *both[:2]) == (0, {"clients": 4, "rows": 60, **same})
    code, told = found(tmp_path / "p", *both[:2])
    assert code == 2 and (told["added"], told["different"], told["missing"]) == (1, 3, 0)


def test_a_lost_client_a_changed_value_and_another_row_are_found(tmp_path):
    ingest(table(tmp_path), tmp_path / "p")
    changed = [("c0", 0, 0.25), *ROWS[1:], ("c1", 1, 1.0), ("z", 0, 0.0)]
    code, told = found(tmp_path / "p", "--against", table(tmp_path, rows=changed))
    assert code == 2 and (told["missing"], told["added"], told["different"]) == (1, 0, 2)
    without = [row for row in ROWS if row[0] != "c4"]
    code, told = found(tmp_path / "p", "--against", table(tmp_path, rows=without))
    assert code == 2 and (told["missing"], told["added"], told["different"]) == (0, 1, 0)
    shown = CliRunner().invoke(app, ["population", "verify", str(tmp_path / "p"), "--against", str(tmp_path / "a.csv")])
    assert shown.exit_code == 2 and "Clients that differ:\n  'c4'" in shown.output


def test_other_kinds_options_and_forgotten_clients_are_compared(tmp_path, monkeypatch):
    monkeypatch.setattr(against, "MEMORY", 1000)
    file, held = tmp_path / "a.csv", tmp_path / "held.csv"
    file.write_text("who;w;n\na;x;1\nb;y;2\nb;z;1\na;x;3\nb;x;1\n")
    held.write_text("who;w;n\nb;x;7\n")
    for kind in ("counts", "words"):
        said = {"vocabulary": ["x", "y"]} if kind == "counts" else {}
        said |= {"kind": kind, "client": "who", "token": "w", "count": "n", "delimiter": ";"}
        ingest(file, tmp_path / kind, heldout=held, **said)
        code, told = found(tmp_path / kind, "--against", file, "--option", f"heldout={held}")
        assert code == 0 and told["clients"] == 2 and told["rows"] == (14 if kind == "counts" else 15)
        assert found(tmp_path / kind, "--against", file)[0] == 2
    one = ingest(table(tmp_path, name="rows"), tmp_path / "p", bounds={"x": (0, 10)}, columns=["x", "y"])
    assert one.manifest.provenance.clipped and found(one.path, "--against", tmp_path / "rows.csv")[0] == 0
    each = ingest(table(tmp_path, name="records"), tmp_path / "q", unit="record", columns=["x"])
    assert found(each.path, "--against", tmp_path / "records.csv")[0] == 0
    with pytest.raises(IngestError, match="no option 'nothing'"):
        against.compare(each, [tmp_path / "records.csv"], {"nothing": 1})
