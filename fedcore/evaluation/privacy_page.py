"""The first page of a report, for whoever answers for the data: who is protected against what, what was published, what
an attacker gains by it, what it cost, what is not covered, what rests on somebody's word, and how to verify all that.

It is made from the privacy statement, run.json and the names of the columns, which are public, and from nothing else,
so that it can be made again and compared: `fedcore verify-statement`.
"""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import ROUND_CEILING, Context, Decimal
from fractions import Fraction
from typing import Any

from fedcore.errors import RunError
from fedcore.evaluation.figures import printable
from fedcore.evaluation.run_summary import features_of, kind_of, privacy_of
from fedcore.evaluation.templates import rendered
from fedcore.privacy.statement import RELATIONS, loss_in_words, no_privacy, spent_before_in_words
from fedcore.runs.store import Run
from fedcore.storage.parsing import JsonObject

FIRST_PAGE = re.compile(r'<section id="privacy">.*?</section>', re.DOTALL)
STATEMENT = re.compile(r'<pre id="statement">(.*?)</pre>', re.DOTALL)
OF_A_LIFE = ("A client active for ", "A client with data in every ")  # sentences of a statement by calendar period
CHANCES = (0.5, 0.1, 0.01)  # beforehand, as examples
WEAK = 0.9  # who is right more often than this is nearly sure
MOST_NAMES = 40  # of columns or words
LARGEST_TEXT = 1e9  # above it numbers are written with an exponent

QUESTIONS = {  # what an attacker who knows everything else might want to know
    ("client", "add_or_remove_one"): "whether a certain client, with everything it holds, is in the population or not",
    ("client", "replace_one"): "which of two things a certain client holds",
    ("record", "add_or_remove_one"): "whether a certain record is in the population or not",
    ("record", "replace_one"): "which of two records is in the population",
    ("client_period", "add_or_remove_one"): "whether the data of a certain client in a certain calendar period are in "
    "the population or not",
    ("client_period", "replace_one"): "which of two things a certain client holds of a certain calendar period",
}
UNITS = {
    "client": "A client is protected as a whole, with everything that it holds, held-out parts included.",
    "record": "A single record is protected, and not a whole client: somebody with many records is protected only as "
    "far as one record tells about him or her.",
    "client_period": "The data of one client in one calendar period are protected, and not a client for all time.",
}
ALSO_NOT_COVERED = (
    "What is true of many: a pattern in the whole population may be learnt, and then holds for its members too. That "
    "is the purpose of the run.",
    "What the data of others tell about the same person: of relatives or colleagues, here or in another data set.",
    "Those who run it: the owner of the data and of the machines, and their software, see the data themselves and the "
    "exact sums on the way.",
    "Names of columns, vocabulary, bounds, settings and the declared number of clients: they are published as they "
    "are.",
    "Scores on data whose owner declared them public: they are exact.",
)
NOBODY = (
    "Nobody is protected. Whoever sees the result may learn exact facts about single people in the data, and more from "
    "several results together. Treat this page and the folder of the run like the data themselves."
)


def privacy_page(run: Run, names: Sequence[str] | None = None) -> str:
    """The first page, as an HTML section. names: of the columns, or the vocabulary; None if they are not known.

    Raises RunError for an unreadable or damaged statement.
    """
    try:
        values = _values(run, names)
    except (TypeError, AttributeError, KeyError, ValueError, ArithmeticError, OSError) as error:
        raise RunError(
            f"statement.json of run {run.id!r} is damaged: it makes no page ({type(error).__name__}: {error}).",
            "Restore it from a backup. `fedcore verify-statement` says what is wrong with it.",
        ) from error
    return rendered("privacy_page.html", **values)


def _values(run: Run, names: Sequence[str] | None) -> dict[str, Any]:
    """What the template shows."""
    privacy = privacy_of(run)
    return {
        "privacy": privacy,
        "headline": _headline(privacy),
        "rows_used": _rows_used(run),
        "who": _who(run, privacy),
        "releases": list(published(privacy)),
        "columns": _columns(run, names),
        "gains": gains(privacy),
        "odds": _odds(privacy),
        "not_covered": [*(privacy.get("not_covered") or ()), *ALSO_NOT_COVERED],
        "vouched": list(_vouched(run, privacy)),
        "nobody": NOBODY,
        "embedded": _embedded(privacy),
    }


def statement_in(page: str) -> str | None:
    """The JSON of the statement that a report's first page holds; None if there is none."""
    found = STATEMENT.search(page)
    return None if found is None else html.unescape(found.group(1))


def _embedded(privacy: JsonObject) -> str:
    if privacy.get("pending"):
        return ""
    value = privacy if privacy["private"] else no_privacy(str(privacy["reason"])).to_json()
    return json.dumps(value, indent=1, ensure_ascii=False)


# --- who, and what was published --------------------------------------------------------------------------------------


def _headline(privacy: JsonObject) -> str:
    return str(privacy["text"]).split("\n", 1)[0]


def _rows_used(run: Run) -> str:
    """That the run has used few of the rows, by released and declared numbers; empty if not, or if it is unknown."""
    noted = run.head.get("rows_used")
    if not noted:
        return ""
    share, error = (100.0 * float(one) for one in noted)
    return (
        f"This run has used about {share:.1f} % of the rows (± {error:.1f} %, one standard error of the privacy "
        "noise). The others miss a number or were invalid, or there are fewer than the declared number."
    )


def _who(run: Run, privacy: JsonObject) -> list[str]:
    if not privacy["private"]:
        return []
    unit, relation = str(privacy.get("unit")), str(privacy.get("relation"))
    hidden = RELATIONS.get((unit, relation))
    said = [UNITS.get(unit, f"The unit that is protected: {unit}.")]
    said.append(f"What is hidden: {hidden} ({relation})." if hidden else f"Relation: {relation}.")
    said.append(
        "Against whom: anybody who sees everything that was published, now or later, and may know everything else, the "
        "data of all others included."
    )
    clients = run.info.get("nominal_clients")
    if isinstance(clients, int):
        said.append(f"Declared number of clients: {clients:,}.".replace(",", "\u202f"))
    return said


def published(privacy: JsonObject) -> Iterator[dict[str, Any]]:
    """The charged releases, in the order of their first rounds; those of one kind whose names differ in their number
    together: names, rounds, shape, drawn, what, argument, thresholded."""
    kinds: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for entry in privacy.get("releases") or ():
        if isinstance(entry, Mapping):
            stem = str(entry.get("name")).rstrip("0123456789")
            kinds.setdefault((stem, *_kind_of_release(entry)), []).append(entry)
    for (_, shape, what, argument, thresholded), alike in kinds.items():
        first, last = alike[0], alike[-1]
        yield {
            "names": _joined(str(first.get("name")), str(last.get("name")), len(alike)),
            "count": len(alike),
            "rounds": _joined(str(first.get("round")), str(last.get("round")), len(alike)),
            "shape": shape,
            "again": sum(entry["attempts"] - 1 for entry in alike if isinstance(entry.get("attempts"), int)),
            "what": what,
            "argument": argument,
            "thresholded": thresholded,
        }


def _joined(first: str, last: str, count: int) -> str:
    return first if count == 1 else f"{first} and {last}" if count == 2 else f"{first} to {last}"


def _kind_of_release(entry: JsonObject) -> tuple[str, str, str, bool]:
    shape = " × ".join(map(str, entry.get("shape") or ()))
    return shape, str(entry.get("composition", "")), str(entry.get("argument", "")), bool(entry.get("delta"))


def _columns(run: Run, names: Sequence[str] | None) -> str:
    """What the run read of each client, as far as it is public."""
    count = run.info.get("features")
    what = {"counts": "words or other tokens", "rows": "columns"}.get(kind_of(run), "features")
    said = f"{count} {what}" if count is not None else ""
    names = names or features_of(run).names
    if not names:
        return said
    shown = ", ".join(printable(str(name)) for name in names[:MOST_NAMES])
    rest = len(names) - MOST_NAMES
    return f"{said}: {shown}{f' and {rest} more' if rest > 0 else ''}"


# --- what an attacker gains -------------------------------------------------------------------------------------------


def gains(privacy: JsonObject) -> list[dict[str, str]]:
    """Of this run, of all runs so far and of all that the budget allows: epsilon, delta, the factor of the odds, how
    many of 100 decisions are right at most, mu; rounded up. Empty if a statement of another kind does not say.
    """
    if not privacy["private"]:
        return []
    budget = privacy.get("population") or {}
    conv: Any = budget.get("delta_conv")
    extra: Any = budget.get("delta_extra")
    delta: Any = privacy.get("delta")
    own = (Fraction(delta) - Fraction(conv) if _numbers(delta, conv) else None, privacy.get("mu"))
    worst = "all runs so far"
    if privacy.get("cohorts"):
        worst += f", the most of any {'period' if privacy.get('periods') else 'cohort'}"
    spent, largest = _mu(budget.get("rho_spent")), _mu(budget.get("rho_max"))
    rows: tuple[tuple[str, Any, Any, Any, Any], ...] = (
        ("this run", privacy.get("epsilon"), delta, *own),
        (worst, budget.get("epsilon_spent"), budget.get("delta"), extra, spent),
        ("at most: the budget", budget.get("epsilon"), budget.get("delta"), extra, largest),
    )
    return [_gain(*row) for row in rows if _numbers(row[1], row[2]) and row[2] <= 1]


def _mu(rho: Any) -> float | None:
    """None of a statement that does not say."""
    from fedcore.privacy.gdp import mu_of

    return mu_of(rho) if _numbers(rho) and rho >= 0 else None


def _gain(what: str, epsilon: float, delta: float, thresholds: Any, mu: Any) -> dict[str, str]:
    from fedcore.privacy import odds
    from fedcore.privacy.accounting import rounded_up

    right = odds.best_accuracy_of_dp(epsilon, delta)
    if _numbers(mu) and isinstance(thresholds, (int, float, Fraction)):
        right = min(right, odds.best_accuracy(mu, rounded_up(max(Fraction(thresholds), Fraction(0)))))
    return {
        "what": what,
        "epsilon": at_most(epsilon, 4),
        "delta": at_most(delta, 3),
        "factor": at_most(odds.odds_factor(epsilon), 3),
        "right": hundredths(right),
        "mu": at_most(mu, 4) if _numbers(mu) else "–",
    }


def _odds(privacy: JsonObject) -> list[str]:
    """The same in sentences, of this run."""
    epsilon: Any = privacy.get("epsilon")
    delta: Any = privacy.get("delta")
    if not (privacy["private"] and _numbers(epsilon, delta) and delta <= 1):
        return []
    from fedcore.privacy.odds import chance_after, odds_factor

    asked = (str(privacy.get("unit")), str(privacy.get("relation")))
    question = QUESTIONS.get(asked, "which of two neighbours the population is")
    factor, chance = at_most(odds_factor(epsilon), 3), at_most(delta, 3)
    examples = [
        f"{100 * before:g} % beforehand is at most {hundredths(chance_after(before, epsilon))} %" for before in CHANCES
    ]
    right = gains(privacy)[0]["right"]
    said = [
        f"Suppose somebody wants to know {question}, and knows everything else. From all that this run published he or "
        f"she learns no more than from an informant who with probability {chance} tells the truth outright, and "
        f"otherwise says something that multiplies or divides the odds by {factor} at most.",
        f"In the second case a chance of {examples[0]} afterwards, one of {', and one of '.join(examples[1:])}.",
        f"If both answers are equally likely beforehand, the best decision is right at most {right} of 100 "
        "times. Guessing is right 50 of 100 times.",
        "Whoever has seen what other runs published as well has gained by all of them: the second line of the table, "
        "and never more than the third, unless the owner raises the budget, which the ledger shows for ever.",
    ]
    if privacy.get("start"):
        said.append("The run started from something that had told its part before: all this is on top of it.")
    said += [line for line in str(privacy["text"]).splitlines() if line.startswith(OF_A_LIFE)]
    if float(right) >= 100 * WEAK:
        said.append("That is nearly certainty: at this epsilon the promise is weak.")
    return said


def _numbers(*values: Any) -> bool:
    return all(type(value) in (int, float) and math.isfinite(value) and value >= 0 for value in values)


def at_most(value: float, digits: int) -> str:
    """The number with so many significant digits, rounded up."""
    if math.isinf(value):
        return "more than can be written"
    up = float(Context(prec=digits, rounding=ROUND_CEILING).create_decimal(Decimal(value)))
    if up < 1000 or up >= LARGEST_TEXT:
        return f"{up:.{digits}g}"
    return f"{math.ceil(up):,}".replace(",", "\u202f")


def hundredths(share: float) -> str:
    """A share as so many of 100, with a digit after the point, rounded up."""
    return f"{math.ceil(Fraction(share) * 1000) / 10:g}"


# --- what it rests on -------------------------------------------------------------------------------------------------


def _vouched(run: Run, privacy: JsonObject) -> Iterator[tuple[str, str]]:
    """(what is taken as true, on whose word or why) which nothing in fedcore checks."""
    if not privacy["private"]:
        return
    schema = str(privacy.get("public_schema") or "").rstrip(".")
    yield (
        "Columns or vocabulary, bounds and thresholds were chosen without the data of these people.",
        f"The owner of the budget: {schema}." if schema else "Nobody said why. If it is not so, the promise is void.",
    )
    if isinstance(clients := run.info.get("nominal_clients"), int):
        yield (
            f"The declared number of clients ({clients}) was not found by counting them.",
            "The owner of the population. It is published as it is, and an exact count would tell the count.",
        )
    for word in privacy.get("vouched") or ():
        yield f"{str(word)[:1].upper()}{str(word)[1:].rstrip('.')}.", "Whoever started the run."
    if privacy.get("start") and not privacy.get("vouched"):
        yield "What the run started from was paid for where it was released.", f"{privacy['start']}."
    yield (
        "The settings of the run were not chosen by looking at the data.",
        "Whoever started the run. The settings are on this page.",
    )
    unit = "record" if privacy.get("unit") == "record" else "client"
    yield (
        f"Each person is one {unit}, and in one population only.",
        f"Whoever ingested the data. Who is k {unit}s counts with k times mu, and with the sum of several budgets.",
    )
    before = privacy.get("spent_before")
    if isinstance(before, Mapping) and {"rho", "reason"} <= before.keys():
        yield (
            "What was spent on these people before this account began.",
            spent_before_in_words(before["rho"], before["reason"]),
        )
    for loss in privacy.get("losses") or ():
        if isinstance(loss, Mapping) and {"at", "reason"} <= loss.keys():
            yield "The ledger holds all that was spent.", loss_in_words(loss["at"], loss["reason"])
