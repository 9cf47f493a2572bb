"""Where records end: one definition, for the header and the rows, whatever the blocks and the parts."""

import csv
import io
import json
import random

import numpy as np
import pytest

from fedcore.errors import ConfigError, IngestError
from fedcore.population.ingest import csv_blocks
from fedcore.population.ingest.batches import Account, read_vocabulary
from fedcore.population.ingest.ingest import ingest
from fedcore.population.ingest.parts import joined
from fedcore.population.ingest.sketch import draft_of
from fedcore.population.ingest.table_files import CsvFile, JsonFile
from tests.population.contents import rows_of

ENDS = ["\n", "\r", "\r\n", "\r\r\n", "\n\r", "\n\n"]
FIELDS = ["a", "b c", "é", "", '"q"', '"two\nlines"', '"r\r"', '"r\r\ns"', '"say ""x"""', '""', '5" pipe', "\u2028"]
SPOILS = ['"', '""', "\r", "\n", '"x', 'x"y', '"a"b']


def messy(draw: random.Random, delimiter: str, columns: int = 3) -> str:
    """A table of mixed line ends and quotation marks, in some of which a stray mark stands."""
    text = draw.choice(["", "", *ENDS])
    for _ in range(draw.randrange(12)):
        fields = [draw.choice(FIELDS) for _ in range(draw.choice([columns] * 5 + [1, columns + 1]))]
        if draw.random() < 0.06:
            fields.insert(draw.randrange(len(fields)), draw.choice(SPOILS))
        text += delimiter.join(fields) + draw.choice(ENDS)
    return text[: -draw.randrange(3)] if draw.random() < 0.3 else text


def expected(text: str, delimiter: str):
    """([(line, fields)], whether a fault ends them) by the csv module alone."""
    reader, found, before = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True), [], 0
    try:
        for fields in reader:
            if fields:
                found.append((before + 1, fields))
            before = reader.line_num
    except csv.Error:
        return found, True
    return found, False


def read(file, blocks, delimiter):
    found = []
    try:
        for block in blocks:
            for record in csv_blocks.records(file, block, delimiter):
                found.append(record)
    except IngestError:
        return found, True
    return found, False


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5))])
def test_records_are_those_of_the_csv_module_for_any_block_and_any_span(tmp_path, seed):
    draw, file, faults, spans_read = random.Random(seed), tmp_path / "a.csv", 0, 0
    for _ in range(40):
        delimiter = draw.choice([",", ";", "\t", "§"])
        text = messy(draw, delimiter)
        file.write_bytes(draw.choice([b"", csv_blocks.MARK]) + text.encode())
        wanted, fault = expected(text, delimiter)
        faults += fault
        for size in (1, draw.randrange(2, 30), 1 << 20):
            blocks = list(csv_blocks.blocks(file, size, delimiter))
            assert b"".join(block.data for block in blocks) == text.encode()
            assert read(file, blocks, delimiter) == (wanted, fault), (text, size)
            if fault:
                continue
            assert sum(csv_blocks.count_records(block, delimiter) for block in blocks) == len(wanted)
            if not wanted:
                with pytest.raises(IngestError, match="is empty"):
                    csv_blocks.header(file, delimiter)
                continue
            assert csv_blocks.first_record(file, delimiter) == wanted[0][1]
            rows = list(csv_blocks.without_header(iter(blocks), delimiter))
            assert read(file, rows, delimiter) == (wanted[1:], False), (text, size)
            first = 0
            for span in joined(csv_blocks.spans(iter(rows), lambda b, d=delimiter: csv_blocks.count_records(b, d)), 20):
                spans_read += 1
                assert span.first == first
                found, _ = read(file, csv_blocks.blocks(file, draw.randrange(1, 30), delimiter, span), delimiter)
                assert found == wanted[1:][first : first + len(found)]
                first += len(found)
            assert first == len(wanted) - 1
    assert faults and spans_read > 60


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5))])
def test_arrow_reads_a_block_only_where_it_reads_what_the_csv_module_does(tmp_path, seed):
    """Pieces of a table, with the places of its records, at any size of block."""
    draw, file, quick = random.Random(seed), tmp_path / "a.csv", []
    for _ in range(40):
        ends = draw.sample(ENDS, draw.choice([1, 1, 2]))
        rows = [draw.sample(FIELDS, 2) for _ in range(draw.randrange(9))]
        rows = [["\ufeff" * (draw.random() < 0.1) + draw.choice("abc"), *row] for row in rows]
        text = "".join(",".join(row) + draw.choice(ends) for row in [["client", "x", "y"], *rows])
        file.write_bytes(text.encode())
        wanted, fault = expected(text, ",")
        assert not fault
        for size in (1, draw.randrange(2, 60), 1 << 20):
            found = []
            for piece in CsvFile(file, ",").pieces(dict.fromkeys(["client", "x", "y"], "text"), size, Account()):
                values = zip(*(column.to_pylist() for column in piece.columns), strict=True)
                found += [(piece.where(row), list(one)) for row, one in enumerate(values)]
                quick.append(isinstance(piece.records, np.ndarray) and len(piece.records) > 1)
            assert found == [(f"a.csv, line {line}", fields) for line, fields in wanted[1:]], (text, size)
    assert any(quick)


def test_a_header_that_ends_in_a_lone_return_loses_nobody(tmp_path):
    lines = ["client,x,y", "a,1,2", "b,3,4", "c,5,6", "d,7,8"]
    for number, ends in enumerate(["\r \r \r \r\n \n", "\r \r \r \r \r", "\n \r \r\n \r \n", "\r\n \r \n \r "]):
        text = "".join(line + end for line, end in zip(lines, ends.split(" "), strict=True))
        (tmp_path / "a.csv").write_bytes(text.encode())
        assert sorted(rows_of(ingest(tmp_path / "a.csv", tmp_path / str(number)))) == [*"abcd"], ends


def test_a_mark_of_byte_order_in_a_row_stays_in_every_block(tmp_path):
    """Arrow drops it where a block begins with it."""
    (tmp_path / "a.csv").write_bytes(b"client,x\n" + b"".join(b"\xef\xbb\xbfa%d,1\n" % row for row in range(9)))
    for size in (1, 1 << 20):
        pieces = CsvFile(tmp_path / "a.csv", ",").pieces({"client": "id"}, size, Account())
        assert [one for piece in pieces for one in piece.columns[0].to_pylist()] == [f"\ufeffa{n}" for n in range(9)]


@pytest.mark.parametrize(
    ("kind", "one", "bad"), [("whole", "0x10", 1), ("number", "nan(ind)", 0), ("number", "-NaN(1)", 0)]
)
def test_a_number_is_one_in_every_block_or_in_none(tmp_path, kind, one, bad):
    (tmp_path / "a.csv").write_text(f"client,x,note\na,{one},\n")
    (tmp_path / "b.csv").write_text(f'client,x,note\na,{one},5" pipe\n')  # which Arrow does not read
    for name in ("a.csv", "b.csv"):
        account = Account()
        list(CsvFile(tmp_path / name, ",").pieces({"x": kind}, 1 << 20, account))
        assert account.bad == bad


def test_lines_of_json_end_as_records_do(tmp_path):
    one, two, three = (json.dumps({"client": name, "x": number}) for number, name in enumerate("abc"))
    for text, there, bad in (
        (f"{one}\r{two}\r{three}", "abc", 0),
        (f"{one}\r\n\r\n{two}\n{three}\r", "abc", 0),
        (f"{one} {two}\n\n{three}\n", "c", 1),  # two on a line
        (f"{one} {two}\n{three[:14]}\n{three[14:]}\n", "", 3),  # as many objects as lines
        (f"{one}\n{two[:14]}\r{two[14:]}\n{one} {three}\n", "a", 3),
        (f"{one} {two}\n \n{three}\n", "c", 1),
    ):
        (tmp_path / "a.jsonl").write_bytes(f'{{"client": "_"}}\n{text}'.encode())
        for size in (1, 1 << 20):
            account = Account()
            pieces = list(JsonFile(tmp_path / "a.jsonl").pieces({"client": "id"}, size, account))
            assert "".join(one for piece in pieces for one in piece.columns[0].to_pylist()) == f"_{there}", (text, size)
            assert account.bad == bad, (text, size)


def test_a_vocabulary_has_the_lines_of_any_other_text(tmp_path):
    """No line ends at the separators of Unicode, at which tokens would move to other numbers."""
    (tmp_path / "v").write_bytes("a\rb\u2028c\r\nd\x85e\x0c\nf".encode())
    assert read_vocabulary(tmp_path / "v") == ("a", "b\u2028c", "d\x85e\x0c", "f")


def test_a_sketch_finds_the_header_as_the_ingest_does(tmp_path):
    (tmp_path / "a.csv").write_bytes(b'\r"who, and where; or when";x\r1;2\r3;4\r')
    drafted = draft_of(tmp_path / "a.csv").toml()
    assert 'delimiter = ";"' in drafted and '[columns."x"]\n# unit' in drafted
    assert 'who, and where; or when"' in drafted


# --- records that are too long ----------------------------------------------------------------------------------------


STRAY = ["client,x\n", *(f"c{row},1\n" for row in range(999)), 'c999,"1\n', *(f"d{row},1\n" for row in range(200_000))]


@pytest.mark.parametrize("size", [1 << 12, 1 << 16, 1 << 22])
def test_a_stray_quotation_mark_costs_linear_time(tmp_path, monkeypatch, size):
    """Each byte is looked at once to find the ends of records, and once more in a block that is checked for long ones,
    whatever may be allowed.
    """
    scanned = []
    take = csv_blocks._Scan._take
    monkeypatch.setattr(csv_blocks._Scan, "_take", lambda scan, piece: scanned.append(len(piece)) or take(scan, piece))
    (tmp_path / "a.csv").write_text("".join(STRAY))
    length = (tmp_path / "a.csv").stat().st_size
    for longest in (csv_blocks.LONGEST_RECORD, 64 << 20):
        scanned.clear()
        with pytest.raises(IngestError, match="a.csv, line 1001: ") as told:
            for block in csv_blocks.blocks(tmp_path / "a.csv", size, ",", longest=longest):
                list(csv_blocks.records(tmp_path / "a.csv", block, ","))
        assert ("more than 1,048,576 bytes" in str(told.value)) == (longest < length)
        assert length // 2 < sum(scanned) <= 2 * length
        assert longest > length or size > length or sum(scanned) < longest + 2 * size + 9999


@pytest.mark.parametrize(
    ("name", "head", "row"), [("a.csv", "client,x\n", "{},{}\n"), ("a.jsonl", "", '{{"client": "{}", "x": {}}}\n')]
)
def test_a_record_may_be_as_long_as_is_allowed(tmp_path, name, head, row):
    """Its line end included, at any size of block; in the header too."""
    rows = [row.format("a", 1), row.format("b" * 90, 2), row.format("c", 3)]
    (tmp_path / name).write_text(head + "".join(rows))
    longest = len(rows[1])
    for size in (1, 20, len(rows[0]) + 50, 1 << 20):
        for allowed in (longest, longest - 1):
            blocks = csv_blocks.blocks(tmp_path / name, size, "," if head else None, longest=allowed)
            if allowed == longest:
                assert b"".join(block.data for block in blocks) == (tmp_path / name).read_bytes()
                continue
            with pytest.raises(IngestError, match=f"{name}, line {2 + bool(head)}: .* more than {allowed} bytes"):
                list(blocks)
    assert len(rows_of(ingest(tmp_path / name, tmp_path / "p", longest_record=longest))) == 3
    with pytest.raises(IngestError, match="longest_record=BYTES"):
        ingest(tmp_path / name, tmp_path / "q", longest_record=longest - 1)
    with pytest.raises(IngestError, match="belongs to another format"):
        ingest(written_array(tmp_path), tmp_path / "q", longest_record=longest)
    (tmp_path / "b.csv").write_text("x" * 99 + ",y\n1,2\n")
    with pytest.raises(IngestError, match="b.csv, line 1: "):
        ingest(tmp_path / "b.csv", tmp_path / "q", longest_record=99)


def written_array(folder):
    np.savez(folder / "a.npz", x=np.ones((2, 2)), client=np.arange(2))
    return folder / "a.npz"


@pytest.mark.parametrize("given", [0, -1, 1 << 31])
def test_a_length_of_records_that_cannot_be(tmp_path, given):
    (tmp_path / "a.csv").write_text("client,x\na,1\n")
    with pytest.raises(ConfigError, match="'longest_record' cannot be"):
        ingest(tmp_path / "a.csv", tmp_path / "p", longest_record=given)
    assert not (tmp_path / "p").exists()
