"""Statements for clients, cohorts, calendar periods and records, checked sentence by sentence against what was done.

Every sentence has one checker here. It compares what the sentence states with the raw rows of the ledger, the manifest
and the record of the run, by arithmetic of its own; a sentence that no checker knows fails. So no sentence is added,
and none changes its meaning, without a check of whether it is true.
"""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from fedcore.population.store import Population
from tests.command import works
from tests.population.contents import write_csv

SCHEMA = "columns of the form"
SHARED = "the same people, for this test"
BEFORE, WHY_BEFORE = 0.0125, "what the old ledger shows"
NUMBER = r"[-+\d.e]*\d"
EPSILON, DELTA = 4.0, 1e-6
OF_HISTOGRAMS = ("--local", "--runs", "runs", "--set", "clusters=2", "--set", "rounds=1", "--set", "epsilon=1")


@dataclass
class Done:
    """What was done, read from files alone. unit: what is protected; used: cohorts or periods of the run"""

    run: str
    population: str
    unit: str
    of_whom: str

    def __post_init__(self):
        self.text = json.loads(Path(f"runs/{self.run}/statement.json").read_text())["text"]
        self.id = Population.open(self.population).id
        with closing(sqlite3.connect("ledger.sqlite")) as connection:
            (self.ledger,) = connection.execute("SELECT id FROM fedcore_ledger").fetchone()
            rows = connection.execute(
                "SELECT seq, kind, run_id, payload, hash FROM fedcore_records WHERE population_id = ? ORDER BY seq",
                (self.id,),
            ).fetchall()
        self.rows = [(seq, kind, run, json.loads(payload), digest) for seq, kind, run, payload, digest in rows]
        (self.reserved,) = [content for _, kind, run, content, _ in self.rows if (kind, run) == ("reserve", self.run)]
        self.ranges = {  # cohorts or periods of each run; a run of before the cohorts used what became cohort 1
            run: content.get("cohorts", {}).get("ranges", [[1, 1]])
            for _, kind, run, content, _ in self.rows
            if kind == "reserve"
        }

    def rho(self, *runs: str) -> float:
        """Charged to these runs, lost releases too."""
        return sum(content["rho"] for _, kind, run, content, _ in self.rows if kind == "charge" and run in runs)

    @property
    def until(self) -> int:
        """Number of the last record that the statement counts."""
        return int(re.search(r"newest record of that population was (\d+)", self.text)[1])

    @property
    def runs_so_far(self) -> list[str]:
        seen = [run for seq, kind, run, _, _ in self.rows if kind == "charge" and seq <= self.until]
        return list(dict.fromkeys(seen))

    @property
    def before(self) -> float:
        """The starting charge, which the first cohort pays."""
        return sum(content["rho"] for _, kind, _, content, _ in self.rows if kind == "spent before")

    def spent_by(self, number: int) -> float:
        """By a cohort or a period."""
        runs = [run for run in self.runs_so_far if any(a <= number <= b for a, b in self.ranges[run])]
        return sum(map(self.rho, runs)) + (self.before if number == 1 else 0.0)

    def mine(self) -> float:
        return self.rho(self.run)


def epsilon_of(mu: float, delta: float) -> float:
    """The smallest epsilon that mu implies (Dong, Roth and Su, corollary 2.13)."""

    def gap(epsilon):
        return ndtr(mu / 2 - epsilon / mu) - np.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu)) - delta

    return brentq(gap, 0.0, 1000.0, xtol=1e-9)


def mu_of_budget() -> float:
    return brentq(lambda mu: epsilon_of(mu, DELTA) - EPSILON, 1e-3, 20.0)


def near(text: str, expected: float, relative: float = 2e-4) -> bool:
    return float(text) == pytest.approx(expected, rel=relative)


def mu(rho: float) -> float:
    return float(np.sqrt(2 * rho))


def numbers(text: str) -> set[int]:
    """Of "1, 3-5"."""
    return {n for part in text.split(", ") for a, _, b in [part.partition("-")] for n in range(int(a), int(b or a) + 1)}


def months(text: str) -> set[int]:
    """Of "2025-01 to 2025-03", counted from 2025-01."""
    first, _, last = text.partition(" to ")
    return set(range(int(first[-2:]), int((last or first)[-2:]) + 1))


def used(done: Done) -> set[int]:
    return {n for a, b in done.ranges[done.run] for n in range(a, b + 1)}


def spent_most(done: Done, called: set[int], spent: str, most: str, epsilon: str) -> bool:
    known = {n for run in done.runs_so_far for a, b in done.ranges[run] for n in range(a, b + 1)}
    by_each = {number: done.spent_by(number) for number in known}
    largest = max(by_each.values())
    return (
        called == {number for number, rho in by_each.items() if rho == pytest.approx(largest, rel=1e-9)}
        and near(spent, mu(largest))
        and near(most, mu_of_budget())
        and near(epsilon, epsilon_of(mu(largest), DELTA), 1e-3)
    )


def lifetime(done: Done, first: str, one: str, second: str, two: str, delta: str, window: str) -> bool:
    """Each month pays mu_max^2 in all. A run that reads w months of a client costs w^2 mu^2, and w of them pay mu^2."""
    wide = done.reserved.get("window", 3)
    bounds = [epsilon_of(mu_of_budget() * np.sqrt(wide * int(count)), DELTA) for count in (first, second)]
    return int(window) == wide and near(one, bounds[0], 1e-3) and near(two, bounds[1], 1e-3) and float(delta) == DELTA


def lost_so_far(done: Done, epsilon: str, delta: str) -> bool:
    """By a client with data in all months: a run of k of them costs k^2 times its price."""
    total = sum(sum(b - a + 1 for a, b in done.ranges[run]) ** 2 * done.rho(run) for run in done.runs_so_far)
    return near(epsilon, epsilon_of(mu(total), DELTA), 1e-3) and float(delta) == DELTA


def released(done: Done, number: str, name: str, sensitivity: str, multiplier: str, rho: str, argument: str) -> bool:
    (planned,) = [one for one in done.reserved["plan"] if one["name"] == name]
    charged = [
        c["rho"] for _, kind, run, c, _ in done.rows if (kind, run) == ("charge", done.run) and c["name"] == name
    ]
    page, _, _ = argument.partition("#")
    return (
        int(number) == planned["round"]
        and int(sensitivity) == planned["sensitivity"]
        and near(multiplier, planned["noise_multiplier"])
        and near(rho, sum(charged))
        and charged[0] == pytest.approx(1 / (2 * planned["noise_multiplier"] ** 2))
        and (Path(__file__).parents[2] / page).is_file()
    )


def source(done: Done, run: str, population: str, ledger: str, seq: str, digest: str) -> bool:
    (kept,) = [there for number, _, _, _, there in done.rows if number == int(seq)]
    return (run, population, ledger, digest) == (done.run, done.id, done.ledger, kept)


def headline(done: Done, epsilon: str, delta: str, whom: str, schema: str) -> bool:
    mine = epsilon_of(mu(done.mine()), DELTA)
    return near(epsilon, mine, 1e-3) and float(delta) == DELTA and whom == done.of_whom and schema == SCHEMA


def price(done: Done, whom: str, cost: str, rho: str, epsilon: str, delta: str) -> bool:
    of = {"client": "", "cohort": " to a client that took part", "record": ""}
    expected = of.get(done.unit, " to a client for its data of one month")
    mine = done.mine()
    return (
        whom == expected
        and near(cost, mu(mine))
        and near(rho, mine)
        and near(epsilon, epsilon_of(mu(mine), DELTA), 1e-3)
        and float(delta) == DELTA
    )


def over_all_runs(done: Done, most: str, epsilon: str, delta: str, spent: str, epsilon_spent: str) -> bool:
    rho = done.rho(*done.runs_so_far) + done.before
    return (
        near(most, mu_of_budget())
        and (float(epsilon), float(delta)) == (EPSILON, DELTA)
        and near(spent, mu(rho))
        and near(epsilon_spent, epsilon_of(mu(rho), DELTA), 1e-3)
    )


def spent_before(done: Done, rho: str, reason: str) -> bool:
    """One charge, before every run."""
    kinds = [(kind, content) for _, kind, _, content, _ in done.rows]
    charges = [content for kind, content in kinds if kind == "spent before"]
    first = [kind for kind, _ in kinds].index("spent before") < [kind for kind, _ in kinds].index("reserve")
    said = float(rho) == BEFORE and reason == WHY_BEFORE
    return said and first and [(one["rho"], one["reason"]) for one in charges] == [(BEFORE, WHY_BEFORE)]


def promised(done: Done, most: str, epsilon: str, delta: str) -> bool:
    return near(most, mu_of_budget()) and (float(epsilon), float(delta)) == (EPSILON, DELTA)


HIDDEN = {
    "client": "the presence or absence of one client, with everything that client holds",
    "cohort": "the presence or absence of one client, with everything that client holds",
    "record": "the presence or absence of one record",
    "client_period": "the presence or absence of one client's data of one calendar period",
}
ALWAYS = "client", "cohort", "record", "client_period"
N = f"({NUMBER})"
GAUSSIAN = f"mu = {N}, which implies epsilon = {N}, delta = {N} over all runs"
SENTENCES = [  # (expression, units whose statements must have it, checker of what it states)
    (
        rf"privacy: \({N}, {N}\)-differential privacy per (.+), assuming that columns, bounds, "
        r"vocabulary and thresholds are public \(declared by the budget owner, not verified: \"(.+)\"\)",
        ALWAYS,
        headline,
    ),
    (
        r"Hidden: (.+) \(add_or_remove_one\)\.",
        ALWAYS,
        lambda done, what: what == HIDDEN[done.unit] and done.reserved["relation"] == "add_or_remove_one",
    ),
    (
        rf"Privacy cost of this run(.*): mu = {N} of Gaussian differential privacy \(rho = mu\^2 / 2 = {N}\), which "
        rf"implies \({N}, {N}\)-differential privacy\. Releases that were charged and lost are included\.",
        ALWAYS,
        price,
    ),
    (
        rf"A recipient of what several runs published needs the total of the population: at most {GAUSSIAN}; spent so "
        rf"far: mu = {N} \(epsilon = {N}\)\.",
        ("client", "record"),
        over_all_runs,
    ),
    (
        rf"Spent before: the budget owner declared that rho = {N} was spent on these people before this account began "
        r"\((.+)\)\. The account began with this charge, which is not verified\.",
        ("client", "cohort", "record"),
        spent_before,
    ),
    (
        rf"Each client's guarantee holds for its whole time in the population: at most {GAUSSIAN}\.",
        ("cohort",),
        promised,
    ),
    (
        r"The guarantee holds for each month of a client separately, however long its data are kept: at most "
        rf"{GAUSSIAN}\.",
        ("client_period",),
        promised,
    ),
    (
        r"Clients are accounted by cohort: the version of the population that they joined with\. This run used "
        r"cohorts? (.+); others were not used, and it costs them nothing\.",
        ("cohort",),
        lambda done, called: numbers(called) == used(done),
    ),
    (
        r"Each month of the population's calendar has a separate account\. This run used months? (.+); others were "
        r"not used, and it costs them nothing\.",
        ("client_period",),
        lambda done, called: months(called) == used(done),
    ),
    (
        rf"The cohorts? that ha(?:s|ve) spent most: (.+), mu = {N} of {N} \(epsilon = {N}\)\.",
        ("cohort",),
        lambda done, called, *rest: spent_most(done, numbers(called), *rest),
    ),
    (
        rf"The months? that ha(?:s|ve) spent most: (.+), mu = {N} of {N} \(epsilon = {N}\)\.",
        ("client_period",),
        lambda done, called, *rest: spent_most(done, months(called), *rest),
    ),
    (
        rf"A client active for (\d+) months: at most epsilon = {N}; active for (\d+) months: at most epsilon = {N}, at "
        rf"delta = {N} \(window (\d+)\)\. It can lose this much over its whole life, whatever is run; no smaller "
        r"guarantee is given for that\.",
        ("client_period",),
        lifetime,
    ),
    (
        rf"A client with data in every month has lost at most epsilon = {N} at delta = {N} by all runs so far; a run "
        r"that read k months cost it k\^2 times the run's privacy cost\.",
        ("client_period",),
        lost_so_far,
    ),
    (
        r"Noise: Gaussian, rounded to whole grid steps \(exact sampler, bits from the operating system\)\.",
        ALWAYS,
        lambda done: done.reserved["noise"].startswith("rounded gaussian"),
    ),
    (
        r"Public: columns, bounds, vocabulary and thresholds are taken as public\. The budget owner declared why, and "
        r"this is not verified: (.+)\.",
        ALWAYS,
        lambda done, reason: (
            reason == SCHEMA and any(reason == content.get("public_schema") for *_, content, _ in done.rows)
        ),
    ),
    (
        r"Shared ids: the budget owner declares of ids that are also in other populations: (.+)\. A person in several "
        r"populations loses the sum of what is spent on each; this guarantee covers one of them\.",
        (),
        lambda done, reason: reason == SHARED and any(reason == c.get("reason") for *_, c, _ in done.rows),
    ),
    (
        r"Trust: Central curator: raw sums exist in the memory of the workers and of the flow process, and on the wire "
        r"between them; noise is added there, and only noisy values are stored or shown\.",
        ALWAYS,  # tests/audit/test_nothing_raw.py searches every place for raw sums
        lambda done: True,
    ),
    (
        r"Releases \((\d+)\):",
        ALWAYS,
        lambda done, count: int(count) == len([one for one in done.text.splitlines() if one.startswith("  - round ")]),
    ),
    (
        rf"  - round (\d+), (\w+): sensitivity (\d+) grid units, noise multiplier {N}, rho = {N}; .+ \((docs/\S+)\)",
        ALWAYS,
        released,
    ),
    (r"Not covered:", ALWAYS, lambda done: True),
    (
        r"Made from: run (\w+) of population (\w+) in ledger (\w+), whose newest record of that population was (\d+) "
        r"\((\w+)\)\. `fedcore verify-statement` compares a statement with its ledger\.",
        ALWAYS,
        source,
    ),
]
# What no promise covers. Nothing is stated that could be false, but for which unit it belongs to.
NOT_COVERED = {
    "Numbers of clients, rows, tokens, entries, blocks and bytes, and times, which the operator sees: they are "
    "exact.": ALWAYS,
    "Personalised outputs: they contain the client's own data, are for that client only, and are not differentially "
    "private.": ALWAYS,
    "Side channels: how long a run takes, and what an observer of the machines can measure.": ALWAYS,
    "The same people ingested again under another population id: each population has a separate budget.": ALWAYS,
    "Several records or clients that belong to one person, beyond the unit named above.": ALWAYS,
    "An attacker who can read the memory of the workers or the data themselves.": ALWAYS,
    "When a client joined: the cohort of a client may show.": ("cohort",),
    "A person who was entered again under another id, with another budget.": ("cohort",),
    "Clients that were forgotten without trace and enter again: their budget starts again in full.": ("cohort",),
    "What the data of one client in several periods reveal together, beyond the bounds above, which grow with them.": (
        "client_period",
    ),
    "A person who is there under several ids.": ("client_period",),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Runs by the command line on a population for each unit, in one ledger for people."""
    folder = tmp_path_factory.mktemp("sentences")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("FEDCORE_LEDGER", f"sqlite:///{folder / 'ledger.sqlite'}")
        _clients()
        _records()
        _periods()
        yield folder


def _ingested(name, rows, header, *options, unit="client", more=()):
    write_csv(Path(f"{name}.csv"), header, rows)
    works("population", "ingest", f"{name}.csv", name, "--nominal-clients", "1000", *options)
    budget = ("--epsilon", EPSILON, "--delta", DELTA, "--unit", unit, "--public-schema", SCHEMA)
    if unit != "client_period":
        budget += ("--spent-before", BEFORE, "--spent-before-reason", WHY_BEFORE)
    works("budget", "set", name, *budget, "--shared-ids", SHARED, *more)


def _clients():
    """A run on all of them; then cohorts, and three runs on one, two and the second of two."""
    counts = ("--option", "features=5")
    _ingested("clients", [(f"c{i % 40}", i % 5) for i in range(160)], ["client", "token"], *counts)
    works("train", "histograms", "clients", *OF_HISTOGRAMS, "--run-id", "plain")
    works("budget", "cohorts", "clients")
    works("train", "histograms", "clients", *OF_HISTOGRAMS, "--run-id", "first")
    write_csv(Path("more.csv"), ["client", "token"], [(f"d{i % 20}", i % 5) for i in range(80)])
    works("population", "ingest", "more.csv", "clients", "--append", "--nominal-clients", "2000")
    works("train", "histograms", "clients", *OF_HISTOGRAMS, "--run-id", "both")
    works("train", "histograms", "clients", *OF_HISTOGRAMS, "--run-id", "second", "--set", 'cohorts="2"')


def _records():
    generator = np.random.default_rng(1)
    rows = generator.normal(size=(300, 2)).round(3).tolist()
    _ingested("records", rows, ["x", "y"], "--unit", "record", unit="record")
    chosen = ("--set", "components=1", "--set", "epsilon=1", "--set", "anyway=true")
    works("train", "private_mixture", "records", "--local", "--runs", "runs", "--run-id", "record", *chosen)


def _periods():
    rows = [(f"p{i % 40}", f"2025-{month:02d}-03", i % 5) for month in (1, 2, 3) for i in range(80)]
    calendar = ("--period", "month", "--time", "when", "--from", "2025-01", "--through", "2025-03")
    options = ("--option", "features=5", *calendar)
    header = ["client", "when", "token"]
    _ingested("periods", rows, header, *options, unit="client_period", more=("--window", "3"))
    works("train", "histograms", "periods", *OF_HISTOGRAMS, "--run-id", "quarter")
    works("train", "histograms", "periods", *OF_HISTOGRAMS, "--run-id", "month", "--set", 'cohorts="3"')


RUNS = {
    "plain": ("clients", "client", "client"),
    "first": ("clients", "cohort", "client"),
    "both": ("clients", "cohort", "client"),
    "second": ("clients", "cohort", "client"),
    "record": ("records", "record", "record"),
    "quarter": ("periods", "client_period", "client and month"),
    "month": ("periods", "client_period", "client and month"),
}


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS)
def test_every_sentence_is_true(place, run):
    done = Done(run, *RUNS[run])
    seen, not_covered = set(), []
    for line in done.text.splitlines():
        if line.removeprefix("  - ") in NOT_COVERED:
            not_covered.append(line.removeprefix("  - "))
            continue
        known = [
            (number, match)
            for number, (expression, _, _) in enumerate(SENTENCES)
            if (match := re.fullmatch(expression, line))
        ]
        assert len(known) == 1, f"no checker, or several, know: {line}"
        ((number, match),) = known
        assert done.unit in (SENTENCES[number][1] or ALWAYS), f"not of this unit: {line}"
        assert SENTENCES[number][2](done, *match.groups()), f"not true: {line}"
        seen.add(number)
    needed = {number for number, (_, units, _) in enumerate(SENTENCES) if done.unit in units}
    assert needed <= seen, [SENTENCES[number][0] for number in needed - seen]
    assert not_covered == [item for item, units in NOT_COVERED.items() if done.unit in units]
