"""What the values of a column are, by vote: a kind wins if at least 90 % of the values fit it.

Words that mean "no answer" do not vote. A verdict holds counts and forms, and none of the values.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from fedcore.population.choices import Spelling
from fedcore.population.ingest.csv_blocks import MISSING, number
from fedcore.population.ingest.readings import FALSE, ISO, TRUE, seconds_in
from fedcore.population.ingest.spellings import LEAST_LETTERS, one_letter_apart, plain

ENOUGH = 0.9  # of the votes
Kind = Literal["number", "boolean", "date", "category", "id", "text", "empty"]
Marks = tuple[str, str]  # before decimal places, between thousands
NOTHING = frozenset(  # words that mean "no answer", in small letters
    (
        "n/a",
        "#n/a",
        "na",
        "n.a.",
        "n. a.",
        "nan",
        "-",
        "--",
        "---",
        "\u2013",
        "\u2014",
        "?",
        "??",
        ".",
        "..",
        "none",
        "null",
    )
    + (
        "missing",
        "unknown",
        "no answer",
        "not available",
        "not applicable",
        "not known",
        "(blank)",
        "#null!",
        "#div/0!",
    )
    + (
        "keine angabe",
        "k.a.",
        "k. a.",
        "k.a",
        "ka",
        "unbekannt",
        "nicht bekannt",
        "fehlt",
        "(leer)",
        "#wert!",
        "#value!",
    )
    + (
        "#ref!",
        "inconnu",
        "non r\u00e9pondu",
        "sans r\u00e9ponse",
        "nsp",
        "desconocido",
        "sconosciuto",
        "nessuna risposta",
    )
)
MARKS: tuple[Marks, ...] = (
    *((".", ""), (",", ""), (".", ","), (",", "."), (",", " "), (".", " "), (".", "'"), (",", "'")),
)
FORMATS = (
    *(ISO, "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d", "%Y.%m.%d", "%d.%m.%y", "%d/%m/%y"),
    *("%m/%d/%y", "%d %b %Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y", "%d-%b-%Y", "%d-%b-%y", "%d.%m.%Y %H:%M"),
    *("%d.%m.%Y %H:%M:%S", "%d/%m/%Y %H:%M", "%m/%d/%Y %H:%M", "%d/%m/%Y %H:%M:%S", "%m/%d/%Y %H:%M:%S"),
)
LEAST_SHARE = 0.002  # of the votes that a further form of dates has
MOST_VALUES = 50  # of a category
OFTEN = 0.005  # share of the votes from which a value of a category is no slip of the pen
MANY_ZEROS = 0.3
NEARLY = 0.9  # of the values are different
LONGEST_DATE = 40  # characters
FORMS = 3  # of ids that are stable
NAMES_OF_IDS = frozenset(
    (
        "id",
        "ids",
        "uid",
        "uuid",
        "guid",
        "client",
        "patient",
        "person",
        "user",
        "customer",
        "member",
        "account",
        "subject",
    )
    + (
        "participant",
        "proband",
        "kunde",
        "kunden",
        "mitglied",
        "konto",
        "case",
        "fall",
        "nr",
        "no",
        "key",
        "pid",
        "who",
    )
)
NO_IDS = frozenset(
    ("phone", "tel", "telephone", "telefon", "mobile", "mail", "email", "street", "address", "url", "iban")
)


@dataclass(frozen=True)
class Verdict:
    """What a column is. read: rows; missing: of them without an answer; strangers: (how many, what they are) of the
    values that do not fit

    marks: all that fit equally many numbers, the plainest first; unclear: a mark that could be before decimal places or
    between thousands, as in 1.234; whole: every number is a whole one; zeros: share of
    the numbers that are 0; formats: of dates; either: whether day and month could be the other way round; spelling: of
    a category; unique: share of the values that are different; likely: how well the column would name clients, 0: not
    """

    name: str
    kind: Kind
    read: int
    missing: int
    strangers: tuple[tuple[int, str], ...] = ()
    marks: tuple[Marks, ...] = ()
    unclear: str = ""
    whole: bool = False
    zeros: float = 0.0
    formats: tuple[str, ...] = ()
    either: bool = False
    spelling: Spelling = "exact"
    unique: float = 0.0
    likely: int = 0

    @property
    def in_words(self) -> str:
        """One line for the operator's terminal, with counts and no value."""
        what: str = self.kind
        if self.kind == "number":
            what = "whole numbers" if self.whole else "numbers"
            what += f", {100 * self.zeros:.0f} % of them 0" if self.zeros >= MANY_ZEROS else ""
        elif self.kind == "date":
            what = f"dates ({', '.join(self.formats)})" if self.formats else "dates"
        elif self.kind == "id":
            what = f"ids, {100 * self.unique:.0f} % different"
        rest = [f"{count:,} of {self.read:,}: {what}" for count, what in self.strangers]
        missing = [f"{self.missing:,} missing"] if self.missing else []
        return "; ".join([what, *missing, *rest])


def is_nothing(one: str) -> bool:
    """Whether a stripped text means that there is no answer."""
    return one in MISSING or one.lower() in NOTHING


def verdict_of(name: str, values: Sequence[str], typed: Kind | None = None) -> Verdict:
    """What a column is. values: stripped texts of the rows that were read; typed: what the file says that it is"""
    votes = Counter(one for one in values if not is_nothing(one))
    total = votes.total()
    known: dict[str, Any] = {"name": name, "read": len(values), "missing": len(values) - total}
    if not total:
        return Verdict(kind=typed or "empty", **known)
    known["unique"] = len(votes) / total
    known["likely"] = _likely(name, votes, total)
    if typed is not None:
        read = (_number_or_none(votes) if typed == "number" else None) or {}
        kept = {key: read[key] for key in ("whole", "zeros") if key in read}
        return Verdict(kind="id" if _is_id(known, True) and kept.get("whole") else typed, **known, **kept)
    tests = (_boolean, _compact_date if words_of(name) & DATES else None, _number_or_none, _date, _category)
    for test in filter(None, tests):
        if (found := test(votes)) is not None:
            if found["kind"] == "number" and found["whole"] and _is_id(known, True):
                return Verdict(kind="id", **known)
            if found["kind"] == "category" and known["likely"] > 2:
                return Verdict(kind="id", **known)
            fits = found.pop("fits")
            return Verdict(**known, **found, strangers=_strangers(votes, fits))
    return Verdict(kind="id" if _is_id(known, False) else "text", **known)


def words_of(name: str) -> set[str]:
    """The words in the name of a column, in small letters."""
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name)
    return {word.lower() for word in re.split(r"[\W_\d]+", apart) if word}


# --- kinds ------------------------------------------------------------------------------------------------------------

DATES = frozenset(("date", "datum", "day", "tag", "born", "birth", "birthday", "birthdate", "geburtstag", "dob"))
MIRRORED = {one: one.replace("%d", "%_").replace("%m", "%d").replace("%_", "%m") for one in FORMATS}


def _boolean(votes: Counter[str]) -> dict[str, Any] | None:
    def fits(one: str) -> bool:
        return one.lower() in (*TRUE, *FALSE)

    words = sum(times for one, times in votes.items() if fits(one) and one not in "01")
    return {"kind": "boolean", "fits": fits} if _won(votes, fits) and words >= (1 - ENOUGH) * votes.total() else None


def _number_or_none(votes: Counter[str]) -> dict[str, Any] | None:
    counts = {marks: sum(times for one, times in votes.items() if reads_number(one, marks)) for marks in MARKS}
    most = max(counts.values())
    if most < ENOUGH * votes.total():
        return None
    best = tuple(marks for marks in MARKS if counts[marks] == most)
    read = {one: number(one, (), *best[0]) for one in votes if reads_number(one, best[0])}
    zeros = sum(votes[one] for one, value in read.items() if value == 0)
    return {
        "kind": "number",
        "fits": read.__contains__,
        "marks": best,
        "unclear": next((mark for mark in ".," if _is_unclear(mark, best, read)), ""),
        "whole": all(value.is_integer() for value in read.values()),
        "zeros": zeros / most,
    }


def _is_unclear(mark: str, best: Sequence[Marks], texts: Iterable[str]) -> bool:
    both = (mark, "") in best and any(thousands == mark for _, thousands in best)
    return both and any(mark in one for one in texts)


def reads_number(one: str, marks: Marks) -> bool:
    """Whether a text is a finite number with these marks."""
    try:
        return abs(number(one, (), *marks)) < float("inf")
    except ValueError:
        return False


def _compact_date(votes: Counter[str]) -> dict[str, Any] | None:
    def fits(one: str) -> bool:
        return re.fullmatch(r"(?:19|20)\d{6}", one) is not None and _reads_date(one, "%Y%m%d")

    return {"kind": "date", "formats": ("%Y%m%d",), "fits": fits} if _won(votes, fits) else None


def _date(votes: Counter[str]) -> dict[str, Any] | None:
    """By the form that reads most values, then the one that reads most of the rest, and so on. Where day and month
    could be exchanged in a form that is chosen, the other one is not added."""
    total, left, formats = votes.total(), votes, list[str]()
    least, either = max(2, LEAST_SHARE * total), False
    while left and len(formats) < 6:
        counts = {
            form: sum(times for one, times in left.items() if _reads_date(one, form))
            for form in FORMATS
            if form not in formats and MIRRORED[form] not in formats
        }
        best = max(counts, key=lambda form: counts[form])
        if counts[best] < (least if formats else ENOUGH * total / 6):
            break
        either |= best != MIRRORED[best] and counts.get(MIRRORED[best]) == counts[best]
        formats.append(best)
        left = Counter({one: times for one, times in left.items() if not _reads_date(one, best)})
    if left.total() > (1 - ENOUGH) * total:
        return None
    return {"kind": "date", "formats": tuple(formats), "either": either, "fits": lambda one: one not in left}


@lru_cache(maxsize=1 << 16)
def _reads_date(one: str, form: str) -> bool:
    if len(one) > LONGEST_DATE or not any(sign.isdigit() for sign in one) or (form == ISO and one.isdigit()):
        return False
    try:
        seconds_in(one, form)
    except (ValueError, OverflowError):
        return False
    return True


def _category(votes: Counter[str]) -> dict[str, Any] | None:
    total, plainly = votes.total(), Counter[str]()
    for one, times in votes.items():
        plainly[plain(one)] += times
    often = {one for one, times in plainly.items() if times >= max(2, OFTEN * total)}
    if not often or len(often) > MOST_VALUES:
        return None
    long = [one for one in often if len(one) >= LEAST_LETTERS]
    slips = {one for one in plainly.keys() - often if any(one_letter_apart(one, other) for other in long)}
    if sum(plainly[one] for one in often | slips) < ENOUGH * total:
        return None
    varied = len({one for one in votes if plain(one) in often}) > len(often)
    spelling: Spelling = "typos" if slips else "alike" if varied else "exact"
    return {"kind": "category", "spelling": spelling, "fits": lambda one: plain(one) in often | slips}


def _won(votes: Mapping[str, int], fits: Callable[[str], bool]) -> bool:
    return sum(times for one, times in votes.items() if fits(one)) >= ENOUGH * sum(votes.values())


# --- ids --------------------------------------------------------------------------------------------------------------


def _likely(name: str, votes: Counter[str], total: int) -> int:
    """How well the values would name clients: by the name of the column, and by their form if most are different."""
    words = words_of(name)
    if words & NO_IDS:
        return 0
    named = bool(words & NAMES_OF_IDS) or any(word.endswith(("id", "nr")) and len(word) > 4 for word in words)
    shapes = Counter[str]()
    for one, times in votes.items():
        shapes[_shape(one)] += times
    stable = sum(times for _, times in shapes.most_common(FORMS)) >= ENOUGH * total
    unique, digits = len(votes) / total, all(any(sign.isdigit() for sign in shape) for shape in shapes)
    letters = any(sign.isalpha() for shape in shapes for sign in shape)
    code = digits and letters and not any(len(shape.split()) > 1 for shape in shapes)
    if named and (words <= NAMES_OF_IDS or digits or unique >= NEARLY):
        return 2 + int(stable) + int(unique >= NEARLY)
    return 1 if stable and code and unique >= NEARLY and total > FORMS else 0


def _shape(one: str) -> str:
    return re.sub(r"9+", "9", re.sub(r"[^\W\d_]", "A", re.sub(r"\d", "9", one)))


def _is_id(known: Mapping[str, Any], whole: bool) -> bool:
    """Whether the column names things, if no other kind won, or if it holds whole numbers."""
    likely = int(known["likely"])
    return likely >= (3 if whole else 1) and known["unique"] >= (NEARLY if whole else 0.0)


# --- what does not fit ------------------------------------------------------------------------------------------------


def _strangers(votes: Counter[str], fits: Callable[[str], bool]) -> tuple[tuple[int, str], ...]:
    found = Counter[str]()
    for one, times in votes.items():
        if not fits(one):
            found[_class_of(one)] += times
    return tuple((times, what) for what, times in found.most_common())


def _class_of(one: str) -> str:
    if any(reads_number(one, marks) for marks in MARKS):
        return "numbers in another form" if not one.lstrip("+-").isdigit() else "whole numbers"
    if any(_reads_date(one, form) for form in FORMATS):
        return "dates in another form"
    letters, digits = (any(map(test, one)) for test in (str.isalpha, str.isdigit))
    return (
        "letters and digits"
        if letters and digits
        else "words"
        if letters
        else "digits and signs"
        if digits
        else "signs"
    )


def nothing_in(columns: Iterable[Collection[str]]) -> list[str]:
    """Words for "no answer" that occur and are not understood anyway, as they are spelled there."""
    found = {one for values in columns for one in values if one not in MISSING and one.lower() in NOTHING}
    return sorted(found)
