"""The first page of a report, for the person who answers for the data: one screen with the guarantee in plain words,
the budget, the assumptions and who declared them, what is not protected, and how to verify it. Details are folded.

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
from itertools import pairwise
from typing import Any

from fedcore.errors import RunError
from fedcore.evaluation.figures import printable
from fedcore.evaluation.run_summary import features_of, kind_of, privacy_of
from fedcore.evaluation.templates import rendered
from fedcore.evaluation.written import show
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

ASKED = {  # two things that an attacker wants to distinguish
    "add_or_remove_one": "presence and absence",
    "replace_one": "two possible contents",
}
QUESTIONS = {  # what an attacker who knows everything else might want to know
    ("client", "add_or_remove_one"): "whether a certain client, with everything it holds, is in the population or not",
    ("client", "replace_one"): "which of two things a certain client holds",
    ("record", "add_or_remove_one"): "whether a certain record is in the population or not",
    ("record", "replace_one"): "which of two records is in the population",
    ("client_period", "add_or_remove_one"): "whether the data of a certain client in a certain calendar period are in "
    "the population or not",
    ("client_period", "replace_one"): "which of two things a certain client holds of a certain calendar period",
}
FOR_EACH = {
    "client": "client, with all its data",
    "record": "record, not for a whole client",
    "client_period": "client's data of one calendar period, not for a client for all time",
}
UNITS = {
    "client": "A client is protected as a whole, with everything that it holds, held-out parts included.",
    "record": "A single record is protected, and not a whole client. A person with many records is protected only as "
    "far as one record reveals information.",
    "client_period": "The data of one client in one calendar period are protected, and not a client for all time.",
}
IN_SHORT = (
    "The operator and its software see the data and exact sums.",
    "Numbers of clients and rows, and run times, are exact.",
    "Per-client outputs contain the client's own data.",
    "The same people in other populations have other budgets. Their losses add up.",
    "What holds for the whole group can be learnt: the purpose of the run.",
)
ALSO_NOT_COVERED = (
    "What is true of many: a pattern in the whole population may be learnt, and then holds for its members too. That "
    "is the purpose of the run.",
    "What the data of others reveal about the same person: of relatives or colleagues, here or in another data set.",
    "The operator: the owner of the data and of the machines, and their software, see the data themselves and the "
    "exact sums on the way.",
    "Names of columns, vocabulary, bounds, settings and the declared number of clients: they are published as they "
    "are.",
    "Scores on data whose owner declared them public: they are exact.",
)
UNPROTECTED = (
    "This run protects no person. Its result may reveal exact facts about single people in the data, and several "
    "results reveal more. Treat this page and the folder of the run like the data themselves."
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
    releases = list(published(privacy))
    return {
        "privacy": privacy,
        "guarantee": _guarantee(run, privacy),
        "assumptions": list(_assumptions(run, privacy)),
        "in_short": IN_SHORT,
        "who": _who(privacy),
        "releases": releases,
        "count": sum(row["count"] for row in releases),
        "columns": _columns(run, names),
        "gains": gains(privacy),
        "odds": _odds(privacy),
        "not_covered": [*(privacy.get("not_covered") or ()), *ALSO_NOT_COVERED],
        "paragraphs": paragraphs(privacy),
        "unprotected": UNPROTECTED,
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


def paragraphs(privacy: JsonObject) -> list[str]:
    """The statement's text without its lists, which are shown as tables."""
    lines = [line for line in str(privacy["text"]).splitlines() if line.strip()]
    pairs = pairwise([*lines, ""])
    return [line for line, after in pairs if not line.startswith(" ") and not after.startswith(" ")]


# --- the guarantee, in short ------------------------------------------------------------------------------------------


def _guarantee(run: Run, privacy: JsonObject) -> list[str]:
    """What is promised and what it means, in a few sentences; the first is the promise itself."""
    epsilon: Any = privacy.get("epsilon")
    delta: Any = privacy.get("delta")
    if not (privacy["private"] and _numbers(epsilon, delta) and delta <= 1):
        return []
    unit, relation = str(privacy.get("unit")), str(privacy.get("relation"))
    promise = f"({at_most(epsilon, 4)}, {at_most(delta, 3)})-differential privacy for each {FOR_EACH.get(unit, unit)}"
    row, so_far, whole = (*gains(privacy), None, None)[:3]
    assert row is not None
    said = [
        f"{promise}{_with_words(privacy)}.",
        f"An attacker who knows everything else, and finds {ASKED.get(relation, 'two neighbouring populations')} "
        f"equally likely, guesses right at most {row['right']} times in 100 (50 by chance).",
    ]
    if so_far is not None and whole is not None:
        where = so_far["what"].partition(", ")[2]
        said.append(
            f"All runs so far{f' ({where})' if where else ''}: epsilon {so_far['epsilon']} of {whole['epsilon']}. At "
            f"the full budget the attacker guesses right at most {whole['right']} times in 100."
        )
    if privacy.get("start"):
        said.append("The run started from published values. What they reveal comes in addition.")
    said += [line for line in str(privacy["text"]).splitlines() if line.startswith(OF_A_LIFE)]
    if float(row["right"]) >= 100 * WEAK:
        said.append("At this epsilon the guarantee is weak: the attacker is nearly sure.")
    return [*said, *filter(None, [_rows_used(run)])]


def _with_words(privacy: JsonObject) -> str:
    """The end of the promise where the vocabulary was released from the same budget."""
    both = (privacy.get("vocabulary") or {}).get("together") or {}
    if not _numbers(both.get("epsilon"), both.get("delta")):
        return ""
    numbers = f"({at_most(both['epsilon'], 4)}, {at_most(both['delta'], 3)})"
    return f", {numbers} together with the release of its vocabulary"


def _rows_used(run: Run) -> str:
    """That the run has used few of the rows, by released and declared numbers; empty if not, or if it is unknown."""
    noted = run.head.get("rows_used")
    if not noted:
        return ""
    share, error = (100.0 * float(one) for one in noted)
    return (
        f"This run has used about {share:.1f} % of the rows (± {error:.1f} %, one standard error of the privacy noise)."
    )


def _who(privacy: JsonObject) -> list[str]:
    if not privacy["private"]:
        return []
    unit, relation = str(privacy.get("unit")), str(privacy.get("relation"))
    hidden = RELATIONS.get((unit, relation))
    said = [UNITS.get(unit, f"The unit that is protected: {unit}.")]
    said.append(f"What is hidden: {hidden} ({relation})." if hidden else f"Relation: {relation}.")
    said.append(
        "Attacker: sees everything that was published, now or later, and may know everything else, the data of all "
        "others included."
    )
    said.append("Several records or clients of one person: for k of them mu is k times as large.")
    return said


def published(privacy: JsonObject) -> Iterator[dict[str, Any]]:
    """The charged releases, in the order of their first rounds; those of one kind and noise whose names differ in their
    number together: names, count, rounds, shape, again, what, argument, thresholded, noise, sensitivity, rho of all.
    """
    from fedcore.privacy.accounting import exact_sum, rounded_up

    kinds: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for entry in privacy.get("releases") or ():
        if isinstance(entry, Mapping):
            stem = str(entry.get("name")).rstrip("0123456789")
            kinds.setdefault((stem, *_kind_of_release(entry)), []).append(entry)
    for (_, shape, what, argument, thresholded, noise, sensitivity), alike in kinds.items():
        first, last = alike[0], alike[-1]
        costs: list[Any] = [entry.get("rho") for entry in alike]
        yield {
            "names": _joined(str(first.get("name")), str(last.get("name")), len(alike)),
            "count": len(alike),
            "rounds": _joined(str(first.get("round")), str(last.get("round")), len(alike)),
            "shape": shape,
            "again": sum(entry["attempts"] - 1 for entry in alike if isinstance(entry.get("attempts"), int)),
            "what": what,
            "argument": argument,
            "thresholded": thresholded,
            "noise": noise,
            "sensitivity": sensitivity,
            "rho": show(rounded_up(exact_sum(costs))) if _numbers(*costs) else "–",
        }


def _joined(first: str, last: str, count: int) -> str:
    return first if count == 1 else f"{first} and {last}" if count == 2 else f"{first} to {last}"


def _kind_of_release(entry: JsonObject) -> tuple[str, str, str, bool, str, str]:
    shape = " × ".join(map(str, entry.get("shape") or ()))
    what, argument = str(entry.get("composition", "")), str(entry.get("argument", ""))
    noise, sensitivity = show(entry.get("noise_multiplier")), show(entry.get("sensitivity"))
    return shape, what, argument, bool(entry.get("delta")), noise, sensitivity


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
        f"Suppose an attacker wants to know {question}, and knows everything else. All that this run published reveals "
        f"no more than an informant who with probability {chance} states the truth, and otherwise "
        f"multiplies or divides the odds by {factor} at most.",
        f"In the second case a chance of {examples[0]} afterwards, one of {', and one of '.join(examples[1:])}.",
        f"If both answers are equally likely beforehand, the best decision is right at most {right} of 100 "
        "times. Guessing is right 50 of 100 times.",
        "An attacker who has seen what other runs published as well gains by all of them: the second line of the "
        "table. It is never more than the third line, unless the owner raises the budget. The ledger shows a raise "
        "permanently.",
    ]
    return said


def _numbers(*values: Any) -> bool:
    return all(type(value) in (int, float) and math.isfinite(value) and value >= 0 for value in values)


def at_most(value: float, digits: int) -> str:
    """Format the number with this many significant digits, rounded up."""
    if math.isinf(value):
        return "more than can be written"
    up = float(Context(prec=digits, rounding=ROUND_CEILING).create_decimal(Decimal(value)))
    if up < 1000 or up >= LARGEST_TEXT:
        return f"{up:.{digits}g}"
    return f"{math.ceil(up):,}".replace(",", "\u202f")


def hundredths(share: float) -> str:
    """Format a fraction as a number out of 100, with one digit after the point, rounded up."""
    return f"{math.ceil(Fraction(share) * 1000) / 10:g}"


# --- assumptions ------------------------------------------------------------------------------------------------------


def _assumptions(run: Run, privacy: JsonObject) -> Iterator[tuple[str, str, str]]:
    """(what is taken as true, the role that declared it, the reason), which nothing in fedcore verifies."""
    if not privacy["private"]:
        return
    schema = str(privacy.get("public_schema") or "").rstrip(".")
    yield (
        f"{'Bounds' if privacy.get('vocabulary') else 'Columns, vocabulary, bounds'} and thresholds are public.",
        "budget owner",
        schema or "No reason was given. If it is false, there is no guarantee.",
    )
    if isinstance(clients := run.info.get("nominal_clients"), int):
        yield f"There are about {clients:,} clients.", "data owner", "Published as declared, not counted."
    for word in privacy.get("vouched") or ():
        yield f"{str(word)[:1].upper()}{str(word)[1:].rstrip('.')}.", "operator", ""
    if privacy.get("start") and not privacy.get("vouched"):
        yield "The start was charged where it was released.", "operator", f"{privacy['start']}."
    yield "Settings were chosen without looking at the data.", "operator", ""
    unit = "record" if privacy.get("unit") == "record" else "client"
    yield f"Each person is one {unit}, in one population.", "data owner", "Otherwise losses add up."
    sites = privacy.get("sites")
    if isinstance(sites, Mapping) and sites["sites"] - sites["collusion"] > 1:  # else the guarantee needs no other site
        yield (
            f"At most {sites['collusion']} of the {sites['sites'] - 1} other sites collude with an attacker.",
            "study",
            f"If all of them do, epsilon is {sites['epsilon']:.4g}.",
        )
    for reason in privacy.get("shared_ids") or ():
        yield "Ids that are also in other populations are explained.", "budget owner", f"{str(reason).rstrip('.')}."
    before = privacy.get("spent_before")
    if isinstance(before, Mapping) and {"rho", "reason"} <= before.keys():
        yield (
            "The losses before this account began are known.",
            "budget owner",
            spent_before_in_words(before["rho"], before["reason"]),
        )
    for loss in privacy.get("losses") or ():
        if isinstance(loss, Mapping) and {"at", "reason"} <= loss.keys():
            yield "The ledger holds all losses.", "budget owner", loss_in_words(loss["at"], loss["reason"])
