"""How well histogram estimates predict the tokens that were held out: mean over clients of KL(held out || estimate).

    KL(t || smooth(p, e)) = sum over held-out tokens of t_i (ln t_i - ln smooth(p, e)_i)
    smooth(p, e) = (p + e) / (1 + d e)

The estimate is smoothed after mixing, the held-out histogram never. Only tokens that were held out matter, so the cost
is that of the stored entries. Estimates: the client's own histogram (Local), the run's mean F (FedAvg), the centre of
the client's cluster (Algorithm 2), the client's own mixture of all centres and F (Local mixture), and each of them
mixed with the own histogram (+ FT): with the weight (a + c m) / (a + m) of the run, with a / (a + m) on a grid of a,
and with an a that every client chooses itself. Where the run chose a and c by the very halves that are scored, its own
estimate looks a little better than on new documents: two numbers were fitted to them.

Next to each loss are the perplexity of a held-out token, exp of the mean over clients of -sum t_i ln smooth(p, e)_i,
and the mean over clients of the loss less that of what the run gives the same client, with its standard error.

Local depends on e alone through ln(1/e) with slope U, the held-out mass on tokens that the client never used before:
its value is a statement about e. The other estimates cover the vocabulary.

A fixed share of the clients, chosen by hashing the client's index, serves to choose a and is never evaluated.
Source of the table: Setlur, Feldman, Talwar 2023, Table 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from fedcore.errors import PopulationError
from fedcore.methods.histograms.clients import inverse_totals
from fedcore.methods.histograms.config import OutputSettings
from fedcore.methods.histograms.personal import (
    base_of,
    base_weight,
    local_prior_tokens,
    own_values,
    values_at,
    weights_used,
)
from fedcore.methods.histograms.state import HistogramsState
from fedcore.population.blocks import CountsBlock, segment_sums
from fedcore.randomness import client_uniforms
from fedcore.rounds.statistics import ArgMax, FloatSum, Statistic, Statistics

PERSONALISATIONS: dict[str, Literal["mixture", "centre"]] = {"Algorithm 2": "centre", "Local mixture": "mixture"}
ESTIMATES = ("FedAvg", *PERSONALISATIONS)  # that are scored; of a run that has nothing but a mean the first alone
SMOOTHING = 1e-10
SECOND_SMOOTHING = 1e-8
VALIDATION_SHARE = 0.2
USED = "weights_used"  # a statistic that is the same in all leaves: a and c of the settings or of the run
PRIOR_TOKENS = tuple(float(a) for a in (50, 100, 200, 350, 500, 700, 1000, 1400, 2000, 2800, 4000, 6000, 10000, 20000))


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: mean KL in nats over the evaluated clients, and its standard error.

    perplexity: exp of the mean cross entropy of a held-out token, nats.
    difference: mean of the line's KL less the run's for the same client, with its standard error; None for the run's.
    prior_tokens, floor: a and c of the mixture; None if the estimate does not mix, or if every client chose its own a.
    chosen: who chose them: "" (the settings or the run, or nothing to choose), "validation clients", "each client".
    smoothing: e.
    """

    method: str
    kl: float
    standard_error: float
    smoothing: float
    prior_tokens: float | None = None
    chosen: str = ""
    perplexity: float = math.nan
    difference: tuple[float, float] | None = None
    floor: float | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """The scores of a run, ready to print.

    clients: evaluated. validation_clients: those that chose a. skipped: clients without held-out tokens.
    unseen_mass: U, mean held-out mass on tokens that the client's training part lacks. run: the line of the run.
    """

    rows: tuple[Row, ...]
    clients: int
    validation_clients: int
    skipped: int
    unseen_mass: float
    run: str

    def to_json(self, where: str) -> dict[str, Any]:
        """For the run's evaluation. where: of the population, for the title."""
        rows = [
            {
                "method": row.method,
                "kl": row.kl,
                "se": row.standard_error,
                "difference": None if row.difference is None else row.difference[0],
                "difference_se": None if row.difference is None else row.difference[1],
                "perplexity": row.perplexity,
                "prior_tokens": row.prior_tokens,
                "floor": row.floor,
                "chosen_by": row.chosen,
                "smoothing": row.smoothing,
            }
            for row in self.rows
        ]
        return {
            "title": f"Mean KL(held out || estimate) in nats over {self.clients} clients of {where}",
            "loss": "kl",
            "axis": "mean KL(held out ‖ estimate) over clients (nats)",
            "clients": self.clients,
            "validation_clients": self.validation_clients,
            "skipped": self.skipped,
            "unseen_mass": self.unseen_mass,
            "difference_to": self.run,
            "rows": rows,
        }


def validation_clients(first: int, clients: int) -> np.ndarray:
    """(clients,) bool: whether client first + i serves validation; a function of its index alone."""
    return client_uniforms(0, "evaluation/validation", 0, first, clients)[:, 0] < VALIDATION_SHARE


def score_block(
    settings: OutputSettings, state: HistogramsState, block: CountsBlock, estimates: Sequence[str] = ESTIMATES
) -> Statistics:
    """Sums over the clients of one leaf that have held-out tokens; those of all leaves together make the table.

    A client without training tokens has the uniform histogram for Local, F for FedAvg, and the mixture of the centres
    by their counts for Algorithm 2 and Local mixture, with and without FT.

    Raises ValueError if the block has no held-out part.
    """
    if block.heldout is None:
        raise ValueError("the block has no held-out counts")
    losses, entropies, unseen = _losses(settings, state, block, block.heldout, estimates)
    validation = validation_clients(block.first, block.clients)
    usable = block.heldout.totals > 0
    statistics: dict[str, Statistic] = {"skipped": FloatSum.at(block.leaf, np.sum(~usable))}
    for name, chosen in (("validation", usable & validation), ("evaluated", usable & ~validation)):
        statistics[f"{name}_clients"] = FloatSum.at(block.leaf, chosen.sum())
        statistics[f"{name}_kl"] = FloatSum.at(block.leaf, losses[:, chosen].sum(axis=1))
        statistics[f"{name}_kl_squared"] = FloatSum.at(block.leaf, (losses[:, chosen] ** 2).sum(axis=1))
    more = losses - losses[_line_of_the_run(settings, estimates)]
    evaluated = usable & ~validation
    statistics["difference_squared"] = FloatSum.at(block.leaf, (more[:, evaluated] ** 2).sum(axis=1))
    statistics["entropy"] = FloatSum.at(block.leaf, entropies[evaluated].sum())
    statistics[USED] = ArgMax(0.0, block.first, {USED: np.array(weights_used(settings, state))})
    statistics["unseen_mass"] = FloatSum.at(block.leaf, unseen[usable & ~validation].sum())
    return statistics


def score_table(settings: OutputSettings, statistics: Mapping[str, Any], estimates: Sequence[str] = ESTIMATES) -> Table:
    """The table from the finished statistics (`fedcore.rounds.statistics.values`) of all leaves.

    Rows: Local at both smoothings; each of the estimates, also
    with + FT: at the a and c of the run, at the a that serves the validation clients best, and at every client's own
    choice. Raises PopulationError if no client was evaluated.
    """
    n = float(statistics["evaluated_clients"])
    if n == 0:
        raise PopulationError(
            "no client that could be evaluated has held-out tokens.",
            "Hold out tokens for more clients; a fixed fifth of them only chooses a.",
        )
    means = statistics["evaluated_kl"] / n
    variances = np.maximum(statistics["evaluated_kl_squared"] / n - means**2, 0.0)
    errors = np.sqrt(variances / max(n - 1, 1))
    mine = _line_of_the_run(settings, estimates)
    more = means - means[mine]
    variances = np.maximum(statistics["difference_squared"] / n - more**2, 0.0)
    errors_of_more = np.sqrt(variances / max(n - 1, 1))
    perplexities = np.exp(means + float(statistics["entropy"]) / n)
    a, c = statistics[USED].payload[USED].tolist()
    grid: list[tuple[float | None, float | None]] = [(a, c), *((other, 0.0) for other in PRIOR_TOKENS)]

    def row(
        method: str,
        line: int,
        smoothing: float = SMOOTHING,
        pair: tuple[float | None, float | None] = (None, None),
        chosen: str = "",
    ) -> Row:
        difference = None if line == mine else (float(more[line]), float(errors_of_more[line]))
        perplexity = float(perplexities[line])
        kl, error = float(means[line]), float(errors[line])
        return Row(method, kl, error, smoothing, pair[0], chosen, perplexity, difference, pair[1])

    rows = [row("Local", 0), row("Local", 1, SECOND_SMOOTHING)]
    for number, name in enumerate(estimates):
        base = 2 + number * (2 + len(grid))
        tuned = slice(base + 1, base + 1 + len(grid))
        rows += [row(name, base), row(f"{name} + FT", base + 1, pair=grid[0])]
        if float(statistics["validation_clients"]) > 0:
            best = int(np.argmin(statistics["validation_kl"][tuned]))
            rows.append(row(f"{name} + FT", base + 1 + best, pair=grid[best], chosen="validation clients"))
        rows.append(row(f"{name} + FT", base + 1 + len(grid), chosen="each client"))
    return Table(
        tuple(rows),
        int(n),
        int(statistics["validation_clients"]),
        int(statistics["skipped"]),
        float(statistics["unseen_mass"]) / n,
        _run_in_words(settings, a, c, estimates),
    )


def run_of(settings: OutputSettings, estimates: Sequence[str] = ESTIMATES) -> tuple[str, str]:
    """(method, chosen) of the row for what the run gives its clients; the first estimate if it has no other."""
    name = next(name for name, base in PERSONALISATIONS.items() if base == settings.personalisation)
    name = name if name in estimates else estimates[0]
    return f"{name} + FT", "each client" if settings.weights == "local" else ""


def row_of(run: tuple[str, str], rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The row of `run_of` among those of the table; the first one if there is none."""
    return next((row for row in rows if (row["method"], row["chosen_by"]) == run), rows[0])


def _run_in_words(settings: OutputSettings, a: float, c: float, estimates: Sequence[str]) -> str:
    name, chosen = run_of(settings, estimates)
    return f"{name}, " + (f"a chosen by {chosen}" if chosen else f"a = {a:g}" + (f", c = {c:g}" if c else ""))


def _line_of_the_run(settings: OutputSettings, estimates: Sequence[str]) -> int:
    """The line of `_losses` that is about it."""
    name, chosen = run_of(settings, estimates)
    grid = 1 + len(PRIOR_TOKENS)
    return 2 + estimates.index(name.removesuffix(" + FT")) * (2 + grid) + (1 + grid if chosen else 1)


def _losses(
    settings: OutputSettings, state: HistogramsState, block: CountsBlock, heldout: CountsBlock, estimates: Sequence[str]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(lines, C) KL of every estimate for every client, (C,) entropies of its held-out tokens, nats, (C,) unseen mass.

    Lines: Local at both smoothings; for each estimate the base, one line for each a of the grid, and one for the a that
    each client chooses.
    """
    d, lengths = block.features, np.diff(heldout.indptr)
    client = np.repeat(np.arange(block.clients), lengths)
    test = heldout.data * inverse_totals(heldout)[client]
    own = own_values(block, client, heldout.indices)
    constant = segment_sums(test * np.log(test), heldout.indptr)

    def kl(p: np.ndarray, e: float = SMOOTHING) -> np.ndarray:
        return constant - segment_sums(test * np.log((p + e) / (1 + d * e)), heldout.indptr)

    local = np.where(block.totals[client] > 0, own, 1.0 / d)
    lines = [kl(local), kl(local, SECOND_SMOOTHING)]
    pairs = [weights_used(settings, state), *((a, 0.0) for a in PRIOR_TOKENS)]
    shares = [base_weight(block.totals, a, c)[client] for a, c in pairs]
    mine = block.rows_of_entries()
    for name in estimates:
        weights, rows = _base(name, settings, state, block)
        base = values_at(weights, rows, client, heldout.indices)
        lines.append(kl(base))
        lines += [kl(share * base + (1.0 - share) * own) for share in shares]
        chosen = local_prior_tokens(block, values_at(weights, rows, mine, block.indices), PRIOR_TOKENS)
        share = base_weight(block.totals, chosen)[client]
        lines.append(kl(share * base + (1.0 - share) * own))
    return np.stack(lines), -constant, segment_sums(test * (own == 0), heldout.indptr)


def _base(
    name: str, settings: OutputSettings, state: HistogramsState, block: CountsBlock
) -> tuple[np.ndarray, np.ndarray]:
    """(C, r) weights and (r, d) rows of an estimate's base."""
    if name == "FedAvg":
        return np.ones((block.clients, 1)), state.mean[None, :]
    return base_of(replace(settings, personalisation=PERSONALISATIONS[name]), state, block)
