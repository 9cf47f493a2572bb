"""What runs of rounds say of their end, worked by hand."""

import pytest

from fedcore.methods.mixture_models.endings import ending

LEFT = "of their standard errors"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            (20, 100, 0.005, 1e-4),
            f"converged: 20 more rounds at the pace of the last would move the common x by 0.1 {LEFT}.",
        ),
        (
            (20, 100, 0.006, 1e-5),
            f"stopped after 20 rounds: 20 more at the pace of the last would move the common x by 0.1 {LEFT}; the last "
            "changed the log-likelihood by +1e-05 nats a row; lower tolerance.",
        ),
        (
            (100, 100, 0.0, -2e-4),
            f"stopped after 100 rounds: 100 more at the pace of the last would move the common x by 0 {LEFT}; the last "
            "changed the log-likelihood by -0.0002 nats a row; raise rounds.",
        ),
        (
            (1, 1, 0.0, None),
            f"stopped after 1 round: 1 more at the pace of the last would move the common x by 0 {LEFT}; raise rounds.",
        ),
    ],
)
def test_a_run_says_by_how_much_it_would_still_move(given, said):
    rounds, most, moved, change = given
    assert ending("x", rounds, most, moved, change) == said


def test_sampled_rounds_never_count_as_converged():
    said = ending("x", 100, 100, 1e-9, 1e-9, sampled=True)
    assert said.startswith(f"stopped after 100 rounds of sampled clients: the last moved the common x by 1e-09 {LEFT}.")
    assert "participation = 1" in said
