"""The sentences of privacy statements, in every version that a stored statement may state.

A statement keeps the version of its sentences, so that its text can be written again and compared. Two versions of a
sentence mean the same; docs/notes/statement-texts.md shows them side by side. A version never changes once it is used.
"""

from __future__ import annotations

from typing import Final

FIRST: Final = 1  # of a statement that states no version
CURRENT: Final = 2
VERSIONS: Final = (FIRST, CURRENT)

# The sentences by name. One text: it is the same in both versions.
TEXTS: Final[dict[str, str | tuple[str, str]]] = {
    "assuming": (", if somebody's word is true, which nobody checked: {assumptions}", ", assuming that {assumptions}"),
    "and": ("; and ", "; and that "),
    "schema assumed": (
        "{schema} are public ({reason})",
        '{schema} are public (declared by the budget owner, not verified: "{reason}")',
    ),
    "other assumed": ("{assumption}", "{assumption} (declared, not verified)"),
    "no reason": (" (nobody said why {schema} are public)", " (no reason was declared why {schema} are public)"),
    "cost": ("Price of this run{so_far}{to}", "Privacy cost of this run{so_far}{to}"),
    "to cohorts": (" to a client who took part", " to a client that took part"),
    "all runs": (
        "Whoever sees what several runs published needs the total of the population: at most {promised}; spent so "
        "far: {spent}.",
        "A recipient of what several runs published needs the total of the population: at most {promised}; spent so "
        "far: {spent}.",
    ),
    "before cohorts": (
        "This run was made before there were cohorts: who was there then is cohort 1, and paid for it; it costs "
        "others nothing.",
        "This run was made before there were cohorts. The clients of that time are cohort 1, which was charged for it; "
        "it costs others nothing.",
    ),
    "each period": (
        "Each {unit} of a client is promised for itself, however long its data are kept: at most {promised}.",
        "The guarantee holds for each {unit} of a client separately, however long its data are kept: at most "
        "{promised}.",
    ),
    "accounts of periods": (
        "Each {unit} of the population's calendar has an account of its own. {used}",
        "Each {unit} of the population's calendar has a separate account. {used}",
    ),
    "each client": (
        "Each client's promise holds for its whole time in the population: at most {promised}.",
        "Each client's guarantee holds for its whole time in the population: at most {promised}.",
    ),
    "accounts of cohorts": (
        "Clients are accounted by cohorts, the version that they joined with. {used}",
        "Clients are accounted by cohort: the version of the population that they joined with. {used}",
    ),
    "lifetime": (
        "A client {bounds}, at {delta} (window {window}). So much it can lose over its whole life, whatever is run; no "
        "smaller promise is made for that.",
        "A client {bounds}, at {delta} (window {window}). It can lose this much over its whole life, whatever is run; "
        "no smaller guarantee is given for that.",
    ),
    "lost so far": (
        "A client with data in every {unit} has lost at most epsilon = {epsilon} at {delta} by all runs so far; a run "
        "that read k {unit}s cost it k^2 times its price.",
        "A client with data in every {unit} has lost at most epsilon = {epsilon} at {delta} by all runs so far; a run "
        "that read k {unit}s cost it k^2 times the run's privacy cost.",
    ),
    "share": (
        "Paid by share {share!r} of the population's budget. Shares are its operator's rule for who may spend what, "
        "and promise nothing by themselves: the promise over all runs is that of the whole budget.",
        "Charged to share {share!r} of the population's budget. Shares are its operator's rule for who may spend what, "
        "and guarantee nothing by themselves: the guarantee over all runs is that of the whole budget.",
    ),
    "vocabulary": (
        "Vocabulary: the columns are the words that {names} released of this population, and one column for all "
        "other words. That was a noised release at a threshold, charged to the same budget: {cost}, and delta = "
        "{delta} of thresholding steps. It and this run add up to {both} differential privacy, which implies "
        "{implied}-differential privacy, and both are part of what all runs have spent.",
        "Vocabulary: the columns are the words that {names} released of this population, and one column for all "
        "other words. That was a noisy release at a threshold, charged to the same budget: {cost}, and delta = "
        "{delta} of thresholding steps. It and this run add up to {both} differential privacy, which implies "
        "{implied}-differential privacy, and both are part of what all runs have spent.",
    ),
    "start": (
        "Start: {start}. This promise is on top of what that start tells.",
        "Start: {start}. This guarantee is in addition to what that start reveals.",
    ),
    "with its start": (
        "Run {run!r} and this run were charged to the same account. To whoever took part in both they add up to "
        "{cost}, which implies {implied}-differential privacy, and both are part of what all runs have spent.",
        "Run {run!r} and this run were charged to the same account. To a {unit} that took part in both they add up to "
        "{cost}, which implies {implied}-differential privacy, and both are part of what all runs have spent.",
    ),
    "skipped": (
        "Lost: values were charged, drawn and lost, and nothing else was left to pay for drawing them again, so that "
        "the run gave up its rounds from {round} on.",
        "Lost: values were charged, drawn and lost. Nothing else was left to fund drawing them again, so the run "
        "skipped its rounds from {round} on.",
    ),
    "public": (
        "Public: {schema} are taken as public on the word of the budget's owner: {reason}.",
        "Public: {schema} are taken as public. The budget owner declared why, and this is not verified: {reason}.",
    ),
    "not declared public": (
        "Public: nobody said why {schema} are public. If they were made from the data of these people, they tell about "
        "them, and this promise does not cover it.",
        "Public: no reason was declared why {schema} are public. If they were made from the data of these people, they "
        "reveal information about them, and this guarantee does not cover it.",
    ),
    "shared ids": (
        "Shared ids: the budget owner declares of ids that are also in other populations: {reason}. A person in "
        "several populations loses the sum of what is spent on each; this promise covers one of them.",
        "Shared ids: the budget owner declares of ids that are also in other populations: {reason}. A person in "
        "several populations loses the sum of what is spent on each; this guarantee covers one of them.",
    ),
    "spent before": (
        "Spent before: the budget owner declared that rho = {rho} was spent on these people before this account began "
        "({reason}). The account began with this charge, and nobody checked it.",
        "Spent before: the budget owner declared that rho = {rho} was spent on these people before this account began "
        "({reason}). The account began with this charge, which is not verified.",
    ),
    "loss": (
        "Loss: the ledger went back, or nobody could tell, and on {when} its owner went on ({reason}). What was spent "
        "before may be more than the ledger knows, and the total over all runs more than is said here.",
        "Loss: the ledger was rolled back, or it could not be determined whether it was, and on {when} its owner "
        "continued ({reason}). What was spent before may be more than the ledger knows, and the total over all runs "
        "more than is stated here.",
    ),
    "trust": (
        "Central curator: raw sums exist in the memory of the workers and of the flow process, and on the wire between "
        "them; noise is added there, and only noised values are stored or shown.",
        "Central curator: raw sums exist in the memory of the workers and of the flow process, and on the wire between "
        "them; noise is added there, and only noisy values are stored or shown.",
    ),
    "exact numbers": "Numbers of clients, rows, tokens, entries, blocks and bytes, and times, which the operator sees: "
    "they are exact.",
    "personalised": "Personalised outputs: they contain the client's own data, are for that client only, and are not "
    "differentially private.",
    "side channels": "Side channels: how long a run takes, and what an observer of the machines can measure.",
    "ingested again": (
        "The same people ingested again under another population id: each population has a budget of its own.",
        "The same people ingested again under another population id: each population has a separate budget.",
    ),
    "several units": "Several records or clients that belong to one person, beyond the unit named above.",
    "operator": (
        "Whoever can read the memory of the workers or the data themselves.",
        "An attacker who can read the memory of the workers or the data themselves.",
    ),
    "time of joining": (
        "When a client joined: which cohort a client lies in may show.",
        "When a client joined: the cohort of a client may show.",
    ),
    "entered again": "A person who was entered again under another id, with another budget.",
    "forgotten": (
        "Clients who were forgotten without trace and enter again: their budget begins anew.",
        "Clients that were forgotten without trace and enter again: their budget starts again in full.",
    ),
    "several periods": (
        "What the data of one client in several periods tell together, beyond the bounds above, which grow with them.",
        "What the data of one client in several periods reveal together, beyond the bounds above, which grow with "
        "them.",
    ),
    "several ids": "A person who is there under several ids.",
}


def template(name: str, version: int = CURRENT) -> str:
    """The sentence of this name in a version, with the names of its values in braces."""
    found = TEXTS[name]
    return found if isinstance(found, str) else found[VERSIONS.index(version)]


def sentence(name: str, version: int = CURRENT, **values: object) -> str:
    """The sentence of this name in a version, with its values."""
    return template(name, version).format(**values)


def in_version(text: str, version: int) -> str:
    """A sentence without values, in any version, as this version has it; any other text as it is."""
    name = next((name for name in TEXTS if text in (template(name, one) for one in VERSIONS)), None)
    return text if name is None else template(name, version)
