"""How a run ended whose rounds move parameters that clients share, in one line."""

from __future__ import annotations

SETTLED = 0.1  # standard errors, by which as many rounds again would move: 1 % more mean squared error
SMALL = 1e-4  # nats a row, of the last round


def ending(what: str, rounds: int, most: int, moved: float, change: float | None, *, sampled: bool = False) -> str:
    """Converged or stopped, with the last round's numbers, and the setting to change.

    what: that is shared; rounds: that were made, of `most`; moved: by the last one, standard errors of what is shared;
    change: of the log-likelihood by the last one, nats a row, None after one round; sampled: whether rounds are of
    sampled clients or rows, which never stand still.
    """
    by = f"moved the common {what} by {moved:.1g} of their standard errors"
    if change is not None and not sampled and moved * rounds <= SETTLED and abs(change) <= SMALL:
        return f"converged: the last of {rounds} rounds {by}."
    advice = "raise rounds" if rounds == most else "lower tolerance"
    if sampled:
        advice = "a run can converge with participation = 1 and without batch"
    if change is not None:
        by += f" and changed the log-likelihood by {change:+.1g} nats a row"
    return f"stopped after {rounds} round{'s' * (rounds > 1)}: the last one {by}; {advice}."
