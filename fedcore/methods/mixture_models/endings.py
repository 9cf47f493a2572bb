"""How a run ended whose rounds move parameters that clients share, in one line."""

from __future__ import annotations

SETTLED = 0.1  # standard errors that as many rounds again would move: 1 % more mean squared error
SMALL = 1e-4  # nats a row, of the last round


def ending(what: str, rounds: int, most: int, moved: float, change: float | None, *, sampled: bool = False) -> str:
    """Converged or stopped, by how much more the run would move, and the setting to change.

    A run that slows down moves less in as many rounds again than at its last pace, so this bounds what is left.

    what: that is shared; rounds: that were made, of `most`; moved: by the last one, standard errors of what is shared;
    change: of the log-likelihood by the last one, nats a row, None after one round; sampled: whether rounds are of
    sampled clients, which never stand still.
    """
    made = f"{rounds} round{'s' * (rounds > 1)}"
    if sampled:
        return (
            f"stopped after {made} of sampled clients: the last moved the common {what} by {moved:.1g} of their "
            "standard errors. Only rounds of all clients show whether a run converged: participation = 1."
        )
    left = f"at the pace of the last would move the common {what} by {moved * rounds:.1g} of their standard errors"
    if change is not None and moved * rounds <= SETTLED and abs(change) <= SMALL:
        return f"converged: {rounds} more rounds {left}."
    if change is not None:
        left += f"; the last changed the log-likelihood by {change:+.1g} nats a row"
    return f"stopped after {made}: {rounds} more {left}; {'raise rounds' if rounds == most else 'lower tolerance'}."
