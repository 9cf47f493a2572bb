"""FedEM beside centralised EM on tables that people and speakers hold: at equal epochs, and the bytes it saves.

    wisdm   features of a phone's accelerometer, 36 persons; 43 columns, of which one is constant and left out. One
            Gaussian with its missing entries, and a mixture on the 39 columns that miss nothing
    vowel   9 features of 990 spoken vowels, 15 speakers; a mixture

Natural clients, unequal in size and unlike in their data; labels are not used.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from fedcore.papers.data import needed_data, rows_population
from fedcore.papers.fedem import runs
from fedcore.papers.table import Condition, Experiment, Found, Options, Trial, verdict

EPOCHS, QUICK_EPOCHS = 60, 30
NEAR = 0.05  # nats of a row: what FedEM may be behind EM at equal epochs
TITLES = {
    "wisdm-missing": "wisdm, one Gaussian with missing entries, 42 columns",
    "wisdm": "wisdm, 6 Gaussians with one covariance, 39 columns",
    "vowel": "vowel, 5 Gaussians, 9 columns",
}
MODELS: dict[str, dict[str, Any]] = {
    "wisdm-missing": {"model": "gaussian_imputer"},
    "wisdm": {"model": "gaussian", "components": 6, "covariance": "tied"},
    "vowel": {"model": "gaussian", "components": 5, "covariance": "full"},
}
SOURCES = {"wisdm-missing": ("wisdm", "wisdm.npz"), "wisdm": ("wisdm", "wisdm.npz"), "vowel": ("tabular", "vowel.npz")}
CONSTANT_COLUMN = 30  # of wisdm


NOTES = (
    "Columns standardised by their own moments; mixtures start from k-means++, the same start for all; full passes, "
    "dithering with a 2-norm for each part of the statistic, all clients in every round; clients weigh as much as "
    "their rows; γ by the rule of thumb of the method (it needs no knowledge of the data) unless it is named.",
    "nll: mean negative log-likelihood of a row in standardised units, nats, without the penalty. raw MB: what the "
    "clients would have sent without a codec. FedEM's epochs include the pass that gives memories their first values.",
)


def conditions(options: Options) -> dict[str, Condition]:
    epochs = QUICK_EPOCHS if options.quick else EPOCHS
    lines: dict[str, tuple[str, dict]] = {
        "em": ("EM", {"algorithm": "em", "gamma": 1.0, "rounds": epochs}),
        "16": ("FedEM, s 16", {"codec": 16, "rounds": epochs - 1}),
        "64": ("FedEM, s 64", {"codec": 64, "rounds": epochs - 1}),
        "naive": ("naive, s 64, γ .5", {"algorithm": "naive", "codec": 64, "gamma": 0.5, "rounds": epochs}),
    }
    return {
        f"{data}_{line}": Condition(
            f"{data} {label}",
            {"data": data, "settings": {**MODELS[data], **settings}},
            {"data": title, "method": label},
        )
        for data, title in TITLES.items()
        for line, (label, settings) in lines.items()
    }


def measure(trial: Trial) -> dict:
    data = trial["data"]
    population = rows_population(trial.place, data, partial(clients_of, data))
    return runs.traced(trial.place, trial.key, trial["settings"], population, trial.seed).results()


def clients_of(data: str) -> list[np.ndarray]:
    """Rows of each person or speaker."""
    with np.load(needed_data(*SOURCES[data]), allow_pickle=False) as stored:
        x, client = stored["x"].astype(np.float64), stored["client"]
    if data != "vowel":
        x = np.delete(x, CONSTANT_COLUMN, axis=1)
    if data == "wisdm":
        x = x[:, ~np.isnan(x).any(axis=0)]
    return [x[client == number] for number in np.unique(client)]


def findings(found: Found) -> Iterator[str]:
    for data in TITLES:
        em, fedem, naive = (found.median(f"{data}_{line}", "nll") for line in ("em", "64", "naive"))
        saved = found.median(f"{data}_64", lambda cell: cell["raw_up"] / cell["bits_up"][-1])
        yield (
            f"{data}: FedEM, s 64, at equal epochs: nll - EM {fedem - em:+.4f}, asked < {NEAR:g}, "
            f"{verdict(fedem - em < NEAR)}, with {saved:.1f} times fewer bytes from the clients; without "
            f"memories {naive - em:+.4f}."
        )


def figure(found: Found) -> bytes:
    from fedcore.evaluation.curves import Panel, panels_figure

    def curves(title: str) -> dict:
        chosen = {
            one.labels["method"]: found.one(key)
            for key, one in found.conditions.items()
            if title in one.labels.values()
        }
        return {label: (cell["epochs"], cell["mean_field"]) for label, cell in chosen.items()}

    return panels_figure(
        [Panel(curves(title), title, "conditional expectations / N", "‖h‖²", log_y=True) for title in TITLES.values()]
    )


TABULAR = Experiment(
    name="fedem-tabular",
    title="Federated EM beside centralised EM at equal epochs, natural clients",
    needs=tuple(SOURCES.values()),
    conditions=conditions,
    measure=measure,
    columns=lambda options: runs.COSTS,
    notes=lambda found: NOTES,
    checks=findings,
    figure=figure,
)
