"""Tables as spreadsheets and people write them, and what a person answers who knows the form that they were made of.

Each table has 2,000 people or more, and a column of each kind of trouble that it is about. What was meant is known: the
kind of each column, and how many rows can be used at all.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet

PEOPLE = 3000
GAPS = ("", "NA", "n/a", "-", "?", "keine Angabe")
CITIES = ("Zürich", "Genève", "Basel", "Lausanne", "Neuchâtel")
Cell = Callable[[random.Random, int], str]


@dataclass
class Column:
    """cell: the text of a row; kind: what it is; bounds, values: what a person answers; None: the usual bounds, or the
    column is left out
    """

    name: str
    cell: Cell
    kind: str
    bounds: str | None = None
    values: str | None = None


@dataclass
class Table:
    """A file, and what is known of it. unusable: whether no reading of a row can use it"""

    name: str
    columns: list[Column]
    client: str = "person"
    encoding: str = "utf-8"
    delimiter: str = ";"
    form: str = "csv"
    ends: str = "\n"
    unusable: Callable[[list[str]], bool] = field(default=lambda row: False)
    people: int = PEOPLE

    def rows(self) -> list[list[str]]:
        draw = random.Random(self.name)
        return [[column.cell(draw, number) for column in self.columns] for number in range(self.people)]

    def usable(self) -> list[dict[str, str]]:
        """The rows that can be used."""
        names = [column.name for column in self.columns]
        return [dict(zip(names, row, strict=True)) for row in self.rows() if not self.unusable(row)]

    def write(self, folder: Path) -> Path:
        rows = self.rows()
        names = [column.name for column in self.columns]
        path = folder / f"table.{self.form}"
        if self.form == "parquet":
            columns = [list(column) for column in zip(*rows, strict=True)]
            parquet.write_table(pa.table(dict(zip(names, columns, strict=True))), path)
        elif self.form == "jsonl":
            lines = [json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False) for row in rows]
            path.write_bytes("".join(f"{line}{self.ends}" for line in lines).encode(self.encoding))
        else:
            lines = [self.delimiter.join(f'"{one}"' if self.delimiter in one else one for one in row) for row in rows]
            text = "".join(f"{line}{self.ends}" for line in [self.delimiter.join(names), *lines])
            path.write_bytes(text.encode(self.encoding))
        return path


# --- cells ------------------------------------------------------------------------------------------------------------


def gaps(cell: Cell, share: float = 0.05, words: tuple[str, ...] = GAPS) -> Cell:
    """With words for "no answer" in some rows."""
    return lambda draw, n: draw.choice(words) if draw.random() < share else cell(draw, n)


def rarely(other: str, cell: Cell, share: float) -> Cell:
    return lambda draw, n: other if draw.random() < share else cell(draw, n)


def person(draw: random.Random, n: int) -> str:
    return f"P{n:05d}"


def padded(draw: random.Random, n: int) -> str:
    return draw.choice((f"P{n:05d}", f" P{n:05d}", f"P{n:05d}  "))


def visits(draw: random.Random, n: int) -> str:
    """Several rows of each person."""
    return f"AB-{n // 3:06d}"


def age(draw: random.Random, n: int) -> str:
    return str(draw.randrange(100))


def bad_age(draw: random.Random, n: int) -> str:
    return draw.choice(("-3", "999")) if draw.random() < 0.04 else age(draw, n)


def marked(decimal: str, thousands: str, places: int = 2) -> Cell:
    def cell(draw: random.Random, n: int) -> str:
        text = f"{draw.random() * 10 ** draw.randrange(2, 7):,.{places}f}"
        return text.translate({ord(","): thousands, ord("."): decimal})

    return cell


def dates(*forms: str) -> Cell:
    def cell(draw: random.Random, n: int) -> str:
        year, month, day = draw.randrange(1950, 2020), draw.randrange(1, 13), draw.randrange(1, 29)
        return draw.choice(forms).format(y=year, m=month, d=day)

    return cell


DOTS, ISO, US, SHORT = "{d:02}.{m:02}.{y}", "{y}-{m:02}-{d:02}", "{m:02}/{d:02}/{y}", "{d}.{m}.{y}"


def city(draw: random.Random, n: int) -> str:
    return draw.choice(CITIES)


def spelled(draw: random.Random, n: int) -> str:
    """In any case, with blanks, without accents, and rarely with a slip."""
    one = draw.choice(CITIES)
    if draw.random() < 0.01:
        at = draw.randrange(1, len(one) - 1)
        return one[:at] + one[at + 1 :]
    plain = one.translate(str.maketrans("üèâ", "uea"))
    return draw.choice((one, one, one.lower(), one.upper(), f" {one} ", plain))


def flag(*words: str) -> Cell:
    return lambda draw, n: draw.choice(words)


def zeros(draw: random.Random, n: int) -> str:
    return str(draw.choice((0, 0, 0, 0, 1, 2, 7)))


def lattice(draw: random.Random, n: int) -> str:
    return f"{draw.randrange(0, 40) * 0.25:.2f}"


def remark(draw: random.Random, n: int) -> str:
    return f"Was here {draw.randrange(10**6)} times, and {draw.choice(('left', 'stayed'))}" if n % 3 else ""


def decimal_point(draw: random.Random, n: int) -> str:
    return f"{draw.gauss(0, 10):.3f}"


# --- tables -----------------------------------------------------------------------------------------------------------

WHO = Column("person", person, "client")
AGE = Column("age", age, "number")
LISTED = ", ".join(CITIES)


def number(name: str, cell: Cell, bounds: str = "-1000 10000000") -> Column:
    return Column(name, cell, "number", bounds)


TABLES = (
    Table("decimal commas", [WHO, number("income", marked(",", "")), AGE]),
    Table("continental thousands", [WHO, number("income", marked(",", ".")), number("rent", marked(",", "", 1))]),
    Table("English thousands", [WHO, number("income", marked(".", ",")), AGE], delimiter="\t"),
    Table("Swiss and spaced thousands", [WHO, number("a", marked(".", "'")), number("b", marked(",", "\u00a0"))]),
    Table("marks that differ by column", [WHO, number("x", marked(",", ".")), number("y", decimal_point), AGE]),
    Table("three forms of dates", [WHO, Column("joined", dates(DOTS, ISO, US), "date"), AGE], delimiter=","),
    Table("short dates, and Latin-1", [WHO, Column("né", dates(SHORT), "date"), AGE], encoding="latin-1"),
    Table(
        "gaps in six spellings",
        [WHO, Column("age", gaps(age), "number"), Column("ok", gaps(flag("ja", "nein")), "boolean")],
    ),
    Table(
        "gaps in dates and categories",
        [WHO, Column("born", gaps(dates(DOTS)), "date"), Column("city", gaps(city), "category", values=LISTED)],
    ),
    Table("categories with typos", [WHO, Column("city", spelled, "category", values=LISTED), AGE]),
    Table(
        "categories in cp1252",
        [WHO, Column("city", gaps(spelled), "category", values=LISTED)],
        encoding="cp1252",
        ends="\r\n",
    ),
    Table(
        "UTF-16 with tabs",
        [WHO, Column("city", city, "category", values=LISTED), AGE],
        encoding="utf-16",
        delimiter="\t",
    ),
    Table("padded ids", [Column("Patient ID", padded, "client"), AGE], client="Patient ID"),
    Table(
        "several rows a person",
        [Column("case_no", visits, "client"), AGE, number("x", decimal_point)],
        client="case_no",
    ),
    Table("ages of -3 and 999", [WHO, Column("age", gaps(bad_age), "number"), number("x", marked(",", "."))]),
    Table("lattices and zeros", [WHO, number("score", lattice), number("visits", zeros, "0 50"), AGE], delimiter=","),
    Table(
        "words among numbers",
        [WHO, Column("age", rarely("old", age, 0.01), "number"), number("x", decimal_point)],
        unusable=lambda row: row[1] == "old",
    ),
    Table(
        "free text",
        [WHO, Column("remark", remark, "text"), Column("e-mail", lambda d, n: f"p{n}@example.org", "text"), AGE],
    ),
    Table(
        "JSON lines of texts",
        [
            WHO,
            number("income", marked(",", ".")),
            Column("born", dates(DOTS, ISO), "date"),
            Column("city", gaps(spelled), "category", values=LISTED),
        ],
        form="jsonl",
    ),
    Table(
        "Parquet of texts",
        [
            WHO,
            number("income", marked(".", ",")),
            Column("born", dates(US), "date"),
            Column("ok", gaps(flag("yes", "no")), "boolean"),
            AGE,
        ],
        form="parquet",
    ),
)


def answers(table: Table) -> list[str]:
    """What a person types at the prompts of `population sketch --interactive`."""
    typed = ["", str(len({row[table.client].strip() for row in table.usable()}))]
    first = {"values": True, "bounds": True}
    for column in table.columns:
        if column.kind == "category":
            typed += [column.values or "-", *(["missing"] if first["values"] else [])]
            first["values"] = False
        elif column.kind in ("number", "date"):
            typed += [column.bounds or "", *(["missing"] if first["bounds"] else [])]
            first["bounds"] = False
    return typed
