"""Random files of tables, read by fedcore and by other readers, which must agree:

    python -m tests.population.differential 100000 --seed 1

Each file is read whole, in pieces of a few hundred bytes, and in parts as workers get them; then by Python's `csv` and
`json` or by `pyarrow.parquet`, and by DuckDB. What is read must be equal: clients, rows, invalid rows. A file may be
refused, in every way of reading it. The second count and the sample of an ingest must find no difference either. DuckDB
declines some files that fedcore reads, such as mixed line ends, and is compared where the file is an ordinary one.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import random
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

from fedcore.errors import IngestError
from fedcore.population.ingest import table_files
from fedcore.population.ingest.batches import Account, keyed_batches
from fedcore.population.ingest.csv_blocks import MISSING
from fedcore.population.ingest.reading_ahead import nothing_ahead
from fedcore.population.ingest.request import IngestRequest
from fedcore.population.ingest.second_count import SecondCount
from fedcore.population.ingest.sources import source_of

from . import as_written

Read = tuple[int, dict[str, list]]  # (invalid rows, the rows of each client, sorted)
SPARE = 16 << 20  # bytes: every file is one piece
VOCABULARY = ("a", "b", "c,d", 'e"f', "g\nh", "é")
IDS = ("a", "b", "C 1", "client-3", "7", "007", "é", "Zürich 4", "日本", "x,y", 'say "hi"', "two\nlines", "a;b", "t\tt")
ODD_IDS = ("", " ", " a", "a ", "NA", "null", "a\0b", "e\u0301", "\ufeffa", "\u200b")
NUMBERS = ("1", "2.5", "-3", "0", "-0", "1e3", "1.25e-3", "123456789.125", "", "NA", "nan", "null")
ODD_NUMBERS = (" 4 ", "+5", "1_0", "abc", "0x1F", "nan(1)", "-nan", "inf", "1e999", "1,5", "１", "1 2", "NaN ", "true")
ODD_NUMBERS += (".5", "5.")
WHOLE = ("0", "1", "2", "3")
ODD_WHOLE = ("+1", " 1", "0x1", "1.0", "1_0", "-1", "9", "", "1e0", "99999999999999999999", "01", "１")


@dataclass
class Case:
    """A file, and how it is read. ordinary: DuckDB reads it as fedcore does; rows: for reports"""

    path: Path
    options: dict[str, Any]
    ordinary: bool
    what: list[str] = field(default_factory=list)


# --- CSV --------------------------------------------------------------------------------------------------------------


def csv_case(draw: random.Random, path: Path) -> Case:
    kind = draw.choice(("rows", "rows", "rows", "whole", "tokens", "words", "written", "written"))
    odd = draw.random() < 0.5
    what = [kind] + (["odd"] if odd else [])
    delimiter = draw.choice(",,,;\t|")
    names, options = _columns(kind)
    if draw.random() < 0.3:
        names = [*names, "note"]
    draw.shuffle(names)
    quoting = draw.choice((csv.QUOTE_MINIMAL, csv.QUOTE_MINIMAL, csv.QUOTE_ALL, None))
    ends = draw.choice((["\n"], ["\n"], ["\r\n"], ["\r"], ["\n", "\r\n"], ["\n", "\r\n", "\r"]))
    text, ordinary = "", len(ends) == 1
    rows = [[_value(draw, kind, name, odd) for name in names] for _ in range(draw.choice((0, 1, 2, 5, 12, 40)))]
    for number, fields in enumerate([names, *rows]):
        while draw.random() < (0.04 if odd else 0.0):
            text, ordinary = text + draw.choice(("", "", " ")) + draw.choice(ends), False
        line = _line(draw, fields, delimiter, quoting)
        if odd and number and draw.random() < 0.06:
            line, ordinary = draw.choice((f"{line}{delimiter}1", line.partition(delimiter)[0])), False
        if odd and number and draw.random() < 0.03:
            at, ordinary = draw.randrange(len(line) + 1), False
            line = line[:at] + draw.choice(('"', '""', '"a"', "\r", "\n", "\0")) + line[at:]
        last = number == len(rows)
        text += line + ("" if last and draw.random() < 0.3 else draw.choice(ends))
    data = text.encode("utf-8", "surrogatepass")
    if draw.random() < 0.2:
        data, what = b"\xef\xbb\xbf" + data, [*what, "mark"]
    if draw.random() < 0.02:
        data, ordinary = draw.choice((text.encode("utf-16"), text.encode("latin-1", "replace"), data + b"\xff")), False
    elif kind == "written" and draw.random() < 0.7:
        (options["encoding"], data), ordinary = as_written.encoded(draw, text), False
    path = path.with_suffix(".csv")
    path.write_bytes(data)
    if delimiter != ",":
        options["delimiter"] = delimiter
    return Case(path, options, ordinary and not odd, what)


def _columns(kind: str) -> tuple[list[str], dict[str, Any]]:
    if kind == "written":
        return ["client", *as_written.VALUES], {**as_written.OPTIONS}
    if kind == "rows":
        return ["client", "x", "y"], {"kind": "rows", "columns": ["x", "y"]}
    if kind == "whole":
        return ["client", "token", "count"], {"kind": "counts", "count": "count", "features": 5}
    if kind == "tokens":
        return ["client", "token", "count"], {"kind": "counts", "count": "count", "vocabulary": VOCABULARY}
    return ["client", "token", "count"], {"kind": "words", "count": "count"}


def _value(draw: random.Random, kind: str, name: str, odd: bool) -> str:
    strange = odd and draw.random() < 0.05
    if name == "client":
        return draw.choice(ODD_IDS if strange else IDS)
    if name == "note":
        return draw.choice(("", "plain", 'with "quotes"', "a,b;c\td|e", "lines\nin\r\nit\r", '"'))
    if kind == "written":
        return draw.choice(as_written.VALUES[name][strange])
    if name in ("x", "y"):
        return draw.choice(ODD_NUMBERS if strange else NUMBERS)
    if name == "count":
        return draw.choice(ODD_NUMBERS if strange else ("0", "1", "2", "3.0", "17"))
    if kind == "whole":
        return draw.choice(ODD_WHOLE if strange else WHOLE)
    return draw.choice(("", " ", "zzz", "a ", "A") if strange else VOCABULARY)


def _line(draw: random.Random, fields: list[str], delimiter: str, quoting: int | None) -> str:
    if quoting is None:  # any of them
        quoted = [_quoted(one) if draw.random() < 0.5 or _must(one, delimiter) else one for one in fields]
        return delimiter.join(quoted)
    out = io.StringIO()
    csv.writer(out, delimiter=delimiter, quoting=quoting, lineterminator="").writerow(fields)  # type: ignore[arg-type]
    return out.getvalue()


def _must(one: str, delimiter: str) -> bool:
    return any(sign in one for sign in (delimiter, '"', "\n", "\r"))


def _quoted(one: str) -> str:
    return '"' + one.replace('"', '""') + '"'


def csv_records(case: Case) -> Iterator[list[str] | None]:
    """Fields of the columns that are read, of each record; None where there is another number of them."""
    file = io.StringIO(_text_of(case), newline="")
    rows = filter(None, csv.reader(file, delimiter=case.options.get("delimiter", ","), strict=True))
    names = next(rows)
    if len(set(names)) < len(names):
        raise ValueError("names")
    for row in rows:
        yield [row[names.index(name)] for name in _wanted(case)] if len(row) == len(names) else None


def _text_of(case: Case) -> str:
    return as_written.decoded(case.path.read_bytes(), case.options.get("encoding", "utf-8"))


def csv_by_duckdb(case: Case, names: list[str]) -> list[list[str] | None]:
    delimiter = case.options.get("delimiter", ",")
    columns = {name: "VARCHAR" for name in names}
    found = duckdb.read_csv(
        str(case.path), header=True, delimiter=delimiter, quotechar='"', escapechar='"', columns=columns
    )  # type: ignore[call-arg]
    places = [names.index(name) for name in _wanted(case)]
    return [["" if row[place] is None else row[place] for place in places] for row in found.fetchall()]


# --- JSON lines -------------------------------------------------------------------------------------------------------


def json_case(draw: random.Random, path: Path) -> Case:
    kind = draw.choice(("rows", "rows", "whole", "tokens", "words", "written", "written"))
    odd = draw.random() < 0.5
    names, options = _columns(kind)
    lines: list[bytes] = []
    for _ in range(draw.choice((1, 2, 5, 12, 40))):
        value: dict[str, Any] = {name: _json_value(draw, kind, name, odd) for name in names}
        if draw.random() < 0.1:
            value["other"] = draw.choice(([1, {"a": "}\n{"}], {"b": None}, 'x"y', "\u2028"))
        if odd and draw.random() < 0.05:
            value.pop(draw.choice(names))
        separators = draw.choice(((",", ":"), (", ", ": "), (" ,\t", " : ")))
        line = json.dumps(value, ensure_ascii=draw.random() < 0.5, separators=separators)
        if odd and draw.random() < 0.06:
            line = draw.choice(
                (
                    line + line,
                    line + " x",
                    line[:-1],
                    "[1]",
                    "3",
                    "null",
                    line.replace(":", ":\n", 1),
                    "{}",
                    line + "\r" + line,
                )
            )
        if odd and draw.random() < 0.03:
            line = line.replace('"x"', '"x": 1, "x"', 1)
        data = line.encode("utf-8", "surrogatepass")
        lines.append(data + draw.choice((b"", b"", b"\r", b" ")))
        while draw.random() < (0.1 if odd else 0.0):
            lines.append(draw.choice((b"", b" ", b"\r", b"\t\r")))
    data = b"\n".join(lines) + (b"" if draw.random() < 0.3 else b"\n")
    mark = draw.random() < 0.15
    if odd and draw.random() < 0.03:
        data = data.replace(b'"a"', b'"\xff"', 1)
    data = b"\xef\xbb\xbf" * mark + data
    if kind == "written" and draw.random() < 0.4:
        options["encoding"], data = as_written.encoded(draw, data.decode("utf-8-sig", "replace"))
        mark = True
    path = path.with_suffix(".jsonl")
    path.write_bytes(data)
    return Case(path, options, not odd and not mark, [kind])


def _json_value(draw: random.Random, kind: str, name: str, odd: bool) -> Any:
    strange = odd and draw.random() < 0.06
    if strange and draw.random() < 0.5:
        return draw.choice(
            (None, True, 1.5, 10**20, [1], {"a": 1}, float("nan"), float("inf"), "\ud800", -0.0, 2**60 + 1)
        )
    if name == "client":
        return draw.choice((*(ODD_IDS if strange else IDS), 7, 123456789))
    if kind == "written":
        whole = draw.choice((1, 34, 120, None)) if name in ("amount", "age", "years") and draw.random() < 0.4 else ""
        return draw.choice(as_written.VALUES[name][strange]) if whole == "" else whole
    if name in ("x", "y"):
        return draw.choice(ODD_NUMBERS) if strange else draw.choice((1, 2.5, -3, 1e300, 0.1, 123456789.125, 2**53 + 1))
    if name == "count":
        return draw.choice(ODD_NUMBERS) if strange else draw.choice((0, 1, 2, 3.0))
    if kind == "whole":
        return draw.choice(ODD_WHOLE) if strange else draw.choice((0, 1, 2, 3))
    return draw.choice(("", " ", "zzz", "a ", 3) if strange else VOCABULARY)


def json_records(case: Case) -> Iterator[list[Any] | None]:
    for line in _text_of(case).encode().splitlines():
        if line.strip():
            try:
                value = json.loads(line.decode())
            except json.JSONDecodeError:
                value = None
            yield [value.get(name) for name in _wanted(case)] if isinstance(value, dict) else None


def json_by_duckdb(case: Case) -> list[list[Any] | None]:
    columns = {name: "JSON" for name in _wanted(case)}
    found = duckdb.read_json(str(case.path), format="newline_delimited", columns=columns)  # type: ignore[arg-type]
    return [[None if one is None else json.loads(one) for one in row] for row in found.fetchall()]


# --- Parquet ----------------------------------------------------------------------------------------------------------


def parquet_case(draw: random.Random, path: Path) -> Case:
    kind = draw.choice(("rows", "rows", "whole", "tokens", "words", "written", "written"))
    names, options = _columns(kind)
    rows = draw.choice((1, 2, 7, 30, 200))
    arrays = [_array(draw, kind, name, rows) for name in names]
    if draw.random() < 0.3:
        names, arrays = [*names, "note"], [*arrays, pa.array([draw.choice(("", "é", None)) for _ in range(rows)])]
    path = path.with_suffix(".parquet")
    parquet.write_table(
        pa.table(dict(zip(names, arrays, strict=True))),
        path,
        row_group_size=draw.choice((1, 3, 10, 1000)),
        compression=draw.choice(("none", "snappy", "gzip", "zstd")),
        use_dictionary=draw.random() < 0.5,
        data_page_version=draw.choice(("1.0", "2.0")),
        data_page_size=draw.choice((64, 1 << 20)),
        store_schema=draw.random() < 0.7,
    )
    return Case(path, options, True, [kind])


def _array(draw: random.Random, kind: str, name: str, rows: int) -> Any:
    if kind == "written" and name != "client":
        return as_written.array(draw, name, rows)
    gaps = draw.random() < 0.3

    def some(values: Any) -> list:
        return [None if gaps and draw.random() < 0.2 else draw.choice(values) for _ in range(rows)]

    if name == "client" or (name == "token" and kind != "whole"):
        if name == "client" and draw.random() < 0.3:
            return pa.array(
                some((1, 2, 3, -4, 10**12)), draw.choice((pa.int64(), pa.int64(), pa.uint64() if 0 else pa.int64()))
            )
        texts = IDS + (ODD_IDS[:8] if draw.random() < 0.2 else ()) if name == "client" else (*VOCABULARY, "zzz", "")
        made = pa.array(some(texts), draw.choice((pa.string(), pa.large_string())))
        return made.dictionary_encode() if draw.random() < 0.3 else made
    if name == "token":
        places = (0, 1, 2, 3, 4, 5, -1) if draw.random() < 0.3 else (0, 1, 2)
        forms = (pa.int32(), pa.int64(), pa.int8(), pa.uint64())
        return pa.array(some(places), draw.choice(forms[: 3 if -1 in places else 4]))
    if name == "count":
        return pa.array(some((0, 1, 2, 3)), draw.choice((pa.int32(), pa.int64(), pa.float64())))
    form = draw.choice((pa.float64(), pa.float32(), pa.int32(), pa.int64(), pa.bool_(), pa.float64()))
    values: tuple = (0.5, -1.25, 0.1, float("nan"))
    if not pa.types.is_floating(form):
        values = (True, False) if form == pa.bool_() else (0, 1, -7, 123456)
    if pa.types.is_floating(form) and draw.random() < 0.2:
        values = (*values, float("inf"))
    return pa.array(some(values), form)


def parquet_records(case: Case) -> Iterator[list[Any] | None]:
    table = parquet.read_table(case.path, columns=_wanted(case))
    yield from ([row[name] for name in _wanted(case)] for row in table.to_pylist())


def parquet_by_duckdb(case: Case) -> list[list[Any] | None]:
    found = duckdb.read_parquet(str(case.path)).select(*(f'"{name}"' for name in _wanted(case)))
    return [list(row) for row in found.fetchall()]


# --- what a record means ----------------------------------------------------------------------------------------------


def _wanted(case: Case) -> list[str]:
    rows = case.options["kind"] == "rows"
    return ["client", *case.options["columns"]] if rows else ["client", "token", "count"]


def meaning(case: Case, records: Any) -> Read:
    """The rows of each client, by the rules of docs/ingest.md, written down a second time."""
    bad, found = 0, dict[str, Any]()
    for record in records:
        try:
            if record is None:
                raise ValueError
            client, row, amount = _meant(case, record)
        except (ValueError, OverflowError):
            bad += 1
            continue
        mine = found.setdefault(client, Counter())
        if amount:
            mine[row] += amount
    return bad, found


def _meant(case: Case, record: list[Any]) -> tuple[str, Any, int]:
    from fedcore.population import identifiers

    client, *rest = record
    if client is None or isinstance(client, (list, dict)):
        raise ValueError
    client = client if isinstance(client, str) else json.dumps(client)
    [client], faults = identifiers.spelled_or_why([client], identifiers.STRIPPED)
    if any(faults) or client in case.options.get("na", ()):
        raise ValueError
    client.encode()
    if "marks" in case.options:
        return client, as_written.meant(rest, case.path.suffix == ".jsonl"), 1
    if case.options["kind"] == "rows":
        return client, tuple(_number(one) for one in rest), 1
    token, count = rest
    if case.options["kind"] == "counts" and "features" in case.options:
        place: Any = _whole(token)
        if not 0 <= place < case.options["features"]:
            raise ValueError
    else:
        if token is None or isinstance(token, (list, dict)):
            raise ValueError
        place = token if isinstance(token, str) else json.dumps(token)
        if not place:
            raise ValueError
        place.encode()
    amount = _number(count)
    if amount is None or amount < 0 or amount != int(amount) or amount > 2**53:
        raise ValueError
    if case.options["kind"] == "counts" and "features" not in case.options:
        return client, VOCABULARY.index(place) if place in VOCABULARY else -1, int(amount) if place in VOCABULARY else 0
    if case.options["kind"] == "words":
        from fedcore.population.words import as_word

        place = as_word(place)
    return client, place, int(amount)


def _number(one: Any) -> float | None:
    if isinstance(one, (list, dict)):
        raise ValueError
    if isinstance(one, str):
        one = one.strip()
        if one in MISSING:
            return None
        if re.fullmatch(r"[+-]?nan\(\w*\)", one, re.ASCII | re.IGNORECASE):
            return None
        if "_" in one:
            raise ValueError
    if one is None:
        return None
    value = float(one)
    if np.isinf(value):
        raise ValueError
    return None if np.isnan(value) else value


def _whole(one: Any) -> int:
    if one is None or isinstance(one, (float, list, dict)) or "_" in str(one):
        raise ValueError
    return int(one)


# --- what fedcore reads -----------------------------------------------------------------------------------------------


def by_fedcore(source: Any, split: list | None) -> Read:
    """split: the parts, one after the other; None: the source as a whole"""
    account, found = Account(), dict[str, Any]()
    for part in [None] if split is None else split:
        for batch in keyed_batches(source.batches(account, part), account):
            ids = [*batch.ids]
            for one in ids:
                found.setdefault(one, Counter())
            for place, code in enumerate(batch.codes.tolist()):
                if batch.x is None:
                    row, amount = int(batch.tokens[place]), int(batch.amounts[place])
                elif batch.x.dtype.names:
                    row, amount = bytes(batch.x["word"][place]), int(batch.x["count"][place])
                else:
                    row, amount = tuple(None if np.isnan(one) else one for one in batch.x[place].tolist()), 1
                found[ids[code]][row] += amount
    return account.bad, found


def in_every_way(case: Case, draw: random.Random) -> Read | str:
    """What fedcore reads; "refused" if it does so in every way. Raises Differs."""
    ways = []
    for memory, split in ((SPARE, False), (draw.choice((200, 1000)) * 24, False), (SPARE, True)):
        try:
            source = source_of(case.path, IngestRequest.of(case.options), memory)
            with nothing_ahead() if split else nullcontext():
                cut = [(one,) for one in source.portions(draw.choice((30, 100, 300)))] if split else None
                ways.append(by_fedcore(source, cut))
        except IngestError:
            ways.append("refused")
    if ways[0] != ways[1] or ways[0] != ways[2]:
        raise Differs("whole, in pieces, in parts", *ways)
    return ways[0]


class Differs(AssertionError):
    """Two readers read one file differently."""

    def __init__(self, what: str, *read: Read | str):
        shown = [str(one if isinstance(one, str) else (one[0], self._rest(one, read))) for one in read]
        super().__init__(f"{what}: {'; '.join(shown)}")

    @staticmethod
    def _rest(mine: Read, read: tuple[Read | str, ...]) -> dict[str, Any]:
        """Clients that are not the same everywhere."""
        others = [one[1] if isinstance(one, tuple) else {} for one in read]
        return {key: rows for key, rows in mine[1].items() if any(other.get(key) != rows for other in others)}


READERS = {
    "csv": (csv_case, csv_records, csv_by_duckdb),
    "jsonl": (json_case, json_records, json_by_duckdb),
    "parquet": (parquet_case, parquet_records, parquet_by_duckdb),
}


def check(case: Case, form: str, draw: random.Random) -> list[str]:
    """What became of the file: names of counts. Raises Differs."""
    _, records, duck = READERS[form]
    mine = in_every_way(case, draw)
    if isinstance(mine, str):
        return ["refused"]
    try:
        theirs = meaning(case, records(case))
    except (ValueError, csv.Error, StopIteration) as error:
        raise Differs(f"fedcore reads it, and another reader does not ({error!r})", mine) from None
    if mine != theirs:
        raise Differs("fedcore, other", mine, theirs)
    done = ["equal", *(["with invalid rows"] if mine[0] else [])]
    try:
        by_duckdb = meaning(case, duck(case, _header(case)) if form == "csv" else duck(case))
    except (duckdb.Error, ValueError):
        done.append("declined by DuckDB")
    else:
        if by_duckdb == mine:
            done.append("equal to DuckDB")
        elif case.ordinary:
            raise Differs("fedcore, DuckDB", mine, by_duckdb)
        else:
            done.append("DuckDB alone differs")
    _count_again(case)
    return done


def _header(case: Case) -> list[str]:
    file = io.StringIO(_text_of(case), newline="")
    return next(filter(None, csv.reader(file, delimiter=case.options.get("delimiter", ","))))


def _count_again(case: Case) -> None:
    """The second count and the sample of an ingest. Raises Differs."""
    source, account = source_of(case.path, IngestRequest.of(case.options), SPARE), Account()
    second = SecondCount(source)
    for _ in keyed_batches(source.batches(account), account):
        pass
    try:
        second.settle(account, account.handed_on)
    except IngestError as error:
        raise Differs(error.message) from None


def run(files: int, seed: int, forms: tuple[str, ...] = tuple(READERS), keep: Path | None = None) -> Counter[str]:
    """Counts of what became of the files; those that differ are kept in a folder, if one is named."""
    counts = Counter[str]()
    before, table_files.SCANNED = table_files.SCANNED, 64
    try:
        with tempfile.TemporaryDirectory() as folder:
            for number in range(files):
                form = forms[number % len(forms)]
                draw = random.Random(f"{seed} {number}")
                case = READERS[form][0](draw, Path(folder) / "table")
                counts[form] += 1
                try:
                    counts.update(f"{form}: {one}" for one in check(case, form, draw))
                except Exception as error:
                    counts[f"{form}: different"] += 1
                    counts["different"] += 1
                    print(
                        f"file {number} of seed {seed} ({form}): {type(error).__name__}: {str(error)[:600]}", flush=True
                    )
                    if keep is not None:
                        keep.mkdir(exist_ok=True)
                        (keep / f"{seed}-{number}{case.path.suffix}").write_bytes(case.path.read_bytes())
    finally:
        table_files.SCANNED = before
    return counts


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--form", choices=tuple(READERS), action="append")
    parser.add_argument("--keep", type=Path, help="folder for files that differ")
    said = parser.parse_args(arguments)
    counts = run(said.files, said.seed, tuple(said.form or READERS), said.keep)
    for name, number in sorted(counts.items()):
        print(f"{number:8d}  {name}")
    return int(counts["different"] > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
