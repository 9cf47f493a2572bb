"""What happens in a simulated year (`tests.faults.year`), and the books that a test keeps of it: who is there, since
when, and with what. Nothing here asks the platform.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

TOKENS = 7
NOMINAL = 100  # declared for each newcomer
FOUNDERS = 9
DROUGHT = range(21, 28)  # weeks in which nobody new comes


@dataclass
class Week:
    """come: {client: {token: count}}; leave: clients who are forgotten; untraced: without trace; aged: with everybody
    of the cohorts up to this one; early: should the run die, the next append comes before it is taken up again;
    faults: {operation: how many, one after the other}.

    Filled in: run_id, of the run that was made (None: it waited), version that it read, cohorts that took part.
    """

    number: int
    come: dict[str, dict[int, int]] = field(default_factory=dict)
    leave: tuple[str, ...] = ()
    untraced: bool = False
    aged: int = 0
    early: bool = False
    faults: dict[str, int] = field(default_factory=dict)
    run_id: str | None = None
    version: int = 0
    cohorts: list[list[int]] = field(default_factory=list)


Person = tuple[str, int]  # an id, and which one of those who had it


@dataclass
class Books:
    """cohort: of everybody who ever came; there: the data of those who were not forgotten; nominal: of each cohort."""

    cohort: dict[Person, int] = field(default_factory=dict)
    there: dict[Person, Counter] = field(default_factory=dict)
    nominal: list[int] = field(default_factory=list)
    people: Counter = field(default_factory=Counter)  # ids that came again after they were forgotten without trace

    def person(self, client: str) -> Person:
        return client, self.people[client]

    def open_cohort(self, come: dict[str, dict[int, int]]) -> None:
        """Newcomers are of the new cohort; who was known, or forgotten by name, is of the one that it was."""
        new = [self.person(client) for client in come if self.person(client) not in self.cohort]
        self.nominal.append(NOMINAL * len(new))
        for person in new:
            self.cohort[person] = len(self.nominal)
        for client, counts in come.items():
            self.there.setdefault(self.person(client), Counter()).update(counts)

    def forget(self, week: Week) -> None:
        for client in week.leave:
            self.there.pop(self.person(client))
            self.people[client] += week.untraced
        for person in [one for one in self.there if self.cohort[one] <= week.aged]:
            self.there.pop(person)
        self.nominal = [0 if number <= week.aged else size for number, size in enumerate(self.nominal, 1)]

    @property
    def gone(self) -> list[str]:
        """Those who could come back, in order."""
        return sorted({client for client, _ in self.cohort} - {client for client, _ in self.there})

    def data(self) -> dict[str, dict[int, int]]:
        return {client: dict(counts) for (client, _), counts in self.there.items()}

    def cohort_of_each(self) -> dict[str, int]:
        return {client: self.cohort[client, life] for client, life in self.there}


def founders(draw: random.Random) -> dict[str, dict[int, int]]:
    return {f"c{number}": counts(draw) for number in range(FOUNDERS)}


def counts(draw: random.Random) -> dict[int, int]:
    return {token: draw.randint(1, 5) for token in draw.sample(range(TOKENS), draw.randint(1, 4))}


def plan(weeks: int, seed: int) -> list[Week]:
    """Week 0 has the founders; who comes and leaves, when people are forgotten by age, and what meets a fault."""
    draw, books = random.Random(seed), Books()
    made = [Week(0, founders(draw), faults={"convert": 2})]
    books.open_cohort(made[0].come)
    for number in range(1, weeks + 1):
        week = Week(number)
        new = 0 if number % 5 == 0 or number in DROUGHT else draw.randint(1, 3)
        who = [f"w{number}-{index}" for index in range(new)]
        if number % 5:  # else nobody comes at all
            known = sorted(client for client, _ in books.there)
            who += draw.sample(known, min(draw.randint(0, 2), len(known)))
            who += draw.sample(books.gone, min(draw.randint(0, 1) + (number % 7 == 0), len(books.gone)))
        week.come = {client: counts(draw) for client in who}
        books.open_cohort(week.come)
        if number % 13 == 12:
            week.aged = number - 9
        elif number % 3 == 0:
            there = sorted(client for client, _ in books.there)
            week.leave, week.untraced = tuple(draw.sample(there, min(2, len(there) - 1))), number % 9 == 6
        books.forget(week)
        week.early = draw.random() < 0.6
        week.faults = {"append": draw.randint(0, 1), "forget": draw.randint(0, 2), "train": draw.randint(0, 2)}
        made.append(week)
    return made
