"""Values of tables as they are written, and what they mean, written down a second time: for `differential`."""

from __future__ import annotations

import itertools
import json
import random
import re
import unicodedata
from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import pyarrow as pa

from fedcore.population.ingest.csv_blocks import MISSING

OPTIONS: dict[str, Any] = {
    "kind": "rows",
    "columns": ["amount", "born", "city", "age", "years"],
    "na": ["n/a"],
    "marks": {"amount": ",."},
    "dates": {"born": "days,%d.%m.%Y|iso"},
    "categories": {"city": ["Zürich", "Bern"]},
    "spelling": {"city": "typos"},
    "spellings": {"city": {"Berne": "Bern"}},
    "bounds": {"age": (0, 120), "years": (0, 120)},
    "outside": {"city": "missing", "age": "missing", "years": "invalid"},
}
VALUES = {  # usual ones, odd ones
    "amount": (
        ("1.234,5", "-12,25", "1.234.567", "0", "7", "1000,5", "", "NA", "n/a"),
        ("1,234.5", "12.34", " 1.000 ", "1 000", "x", "1,5e2", "nan", "inf", "1.234.5", "1_0", "１.000"),
    ),
    "born": (
        ("31.12.1990", "1990-12-31", "1.2.2003", "2003-02-01T12:00:00", "", "n/a"),
        ("12/31/1990", "31.02.1990", " 1990-12-31 ", "1990", "?", "1.2.03"),
    ),
    "city": (
        ("Zürich", "Bern", "zurich", " BERN ", "Zürihc", "Berne", "brne", "", "n/a", "Basel"),
        ("Zürichh", "Brn", "Zurihcc", "ß", "null", "Z u rich", "Züric\u0301h"),
    ),
    "age": (("34", "0", "120", "-3", "999", "", "n/a", "1e2", "119.5"), ("old", "12_0", "inf", "1,5")),
    "years": (("34", "0", "120", "7", "1", "", "n/a"), ("-3", "999", "121", "120.5")),
}


def encoded(draw: random.Random, text: str) -> tuple[str, bytes]:
    """(encoding, the text in it, as far as it has the characters)."""
    if draw.random() < 0.5:
        encoding = draw.choice(("latin-1", "cp1252"))
        return encoding, text.encode(encoding, "replace")
    codec, mark = draw.choice((("utf-16-le", b""), ("utf-16-le", b"\xff\xfe"), ("utf-16-be", b"\xfe\xff")))
    data = mark + text.encode(codec)
    return "utf-16", data[:-1] if draw.random() < 0.02 else data


def decoded(data: bytes, encoding: str) -> str:
    if encoding == "utf-8":
        return data.decode("utf-8-sig")
    if encoding != "utf-16":
        return data.decode(encoding)
    return data.decode("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-16-le")


def array(draw: random.Random, name: str, rows: int) -> Any:
    """A column of Parquet."""
    if name in ("age", "years"):
        values: Any = (34, 0, 120, None, 7) + ((-3, 999) if name == "age" else ())
        return pa.array([draw.choice(values) for _ in range(rows)], draw.choice((pa.int32(), pa.float64())))
    if draw.random() < 0.4 and name == "amount":
        return pa.array([draw.choice((1.5, 1234.0, None)) for _ in range(rows)], pa.float64())
    if draw.random() < 0.4 and name == "born":
        forms = (pa.date32(), pa.timestamp("us"), pa.timestamp("ms", "UTC"))
        return pa.array([draw.choice((datetime(1990, 12, 31), None)) for _ in range(rows)], draw.choice(forms))
    usual, odd = VALUES[name]
    values = (*usual, None, *(odd if draw.random() < 0.3 else ()))
    made = pa.array([draw.choice(values) for _ in range(rows)], draw.choice((pa.string(), pa.large_string())))
    return made.dictionary_encode() if draw.random() < 0.3 else made


def meant(values: list[Any], from_json: bool) -> tuple[float | None, ...]:
    """The row that is stored. Raises ValueError if there is none."""
    amount, born, city, age, years = values
    found = (_amount(amount, from_json), _born(born), *_city(city), _number(age), _number(years))
    if found[4] is not None and not 0 <= found[4] <= 120:
        found = (*found[:4], None, found[5])
    if found[5] is not None and not 0 <= found[5] <= 120:
        raise ValueError
    return found


def _text(one: Any) -> str | None:
    """Stripped; None for nothing."""
    if isinstance(one, (list, dict)):
        raise ValueError
    if one is None:
        return None
    one = one if isinstance(one, str) else json.dumps(one)
    one.encode()
    return None if one.strip() in (*MISSING, "n/a") else one.strip()


def _number(one: Any) -> float | None:
    if isinstance(one, str):
        one = _text(one)
        if one is not None and "_" in one:
            raise ValueError
        if one is not None and re.fullmatch(r"[+-]?nan\(\w*\)", one, re.ASCII | re.IGNORECASE):
            return None
    if isinstance(one, (list, dict)):
        raise ValueError
    value = np.nan if one is None else float(one)
    if np.isinf(value):
        raise ValueError
    return None if np.isnan(value) else value


def _amount(one: Any, from_json: bool) -> float | None:
    if isinstance(one, (float, bool)):
        if from_json:
            raise ValueError
        return _number(one)
    text = _text(one)
    if text is None:
        return None
    whole, comma, places = text.partition(",")
    if "." in places:
        raise ValueError
    if "." in whole:
        first, *groups = whole.lstrip("+-").split(".")
        if len(whole) - len(whole.lstrip("+-")) > 1 or not (1 <= len(first) <= 3 and all(len(g) == 3 for g in groups)):
            raise ValueError
        if first.startswith("0") or not all(g.isascii() and g.isdigit() for g in (first, *groups)):
            raise ValueError
    return _number(whole.replace(".", "") + ("." if comma else "") + places)


def _born(one: Any) -> float | None:
    if isinstance(one, date):
        moment = one if isinstance(one, datetime) else datetime(one.year, one.month, one.day)
    else:
        text = _text(one)
        if text is None:
            return None
        if part := re.fullmatch(r"(\d{1,2})\.(\d{1,2})\.(\d{4})", text, re.ASCII):
            day, month, year = map(int, part.groups())
            moment = datetime(year, month, day)
        else:
            moment = datetime.fromisoformat(text)
    return (moment.replace(tzinfo=moment.tzinfo or UTC) - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() / 86400


def _city(one: Any) -> tuple[float | None, float | None]:
    text = _text(one)
    if text is None:
        return None, None
    apart = unicodedata.normalize("NFKD", text.casefold())
    mine = " ".join("".join(sign for sign in apart if unicodedata.category(sign) != "Mn").split())
    if mine == "zurich" or (mine not in ("bern", "berne") and mine in _near("zurich", mine)):
        return 1.0, 0.0
    if mine in ("bern", "berne") or mine in _near("berne", mine):
        return 0.0, 1.0
    return None, None


def _near(word: str, letters: str) -> set[str]:
    """All texts that are one letter from a word."""
    cuts = [(word[:at], word[at:]) for at in range(len(word) + 1)]
    made = {a + b[1:] for a, b in cuts if b} | {a + b[1] + b[0] + b[2:] for a, b in cuts if len(b) > 1}
    for (a, b), letter in itertools.product(cuts, letters):
        made |= {a + letter + b, a + letter + b[1:]}
    return made
