"""Bytes from the clients until FedEM is as good as EM: the codec `natural` on MNIST and FEMNIST.

    mnist    20,000 training images drawn at random, 20 whitened principal components, 100 clients: one digit each
             (sorted) or images at random; scored on the 10,000 test images
    femnist  200 writers, 20 whitened principal components; scored on a fifth of each writer's images

Mixtures of 10 Gaussians from k-means++. EM's bytes are those of its packed statistics, 8 bytes a number, of all clients
in every round until its held-out nll is within .01 of that after 60 rounds. FedEM has as long as it takes to be there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from fedcore.papers.data import needed_data, rows_population, whitened
from fedcore.papers.fedem import runs
from fedcore.papers.fedem.paper_federated_em import PaperFederatedEM
from fedcore.papers.simulation import simulate
from fedcore.papers.table import Column, Condition, Experiment, Found, Seeds, Trial, verdict

from fedcore.methods.federated_em import FederatedEM, FederatedEMState
from fedcore.rounds.method import RoundInfo

MNIST, FEMNIST = ("mnist", "mnist.npz"), ("femnist", "femnist.npz")
IMAGES, CLIENTS = 20_000, 100
QUICK_IMAGES = 2_000
HELD_OUT = 5  # every so many-th image of a writer
PENALTY = 1e-3  # rows with the pooled variance: large enough that no component shrinks to a point
EM_ROUNDS, NEAR = 60, 0.01
ROUNDS = {1.0: 100, 0.5: 200}
SEEDS = 3
DATA = {
    "sorted-full": ("MNIST, a digit each, full", MNIST, "full"),
    "random-full": ("MNIST, at random, full", MNIST, "full"),
    "femnist-full": ("FEMNIST, writers, full", FEMNIST, "full"),
    "random-tied": ("MNIST, at random, tied", MNIST, "tied"),
    "sorted-tied": ("MNIST, a digit each, tied", MNIST, "tied"),
}
LINES: dict[str, tuple[str, float, dict[str, Any]]] = {
    "natural": ("natural", 1.0, {}),
    "natural-one": ("natural, γ 1", 1.0, {"gamma": 1.0}),
    "natural-half": ("natural, p .5", 0.5, {"participation": 0.5}),
    "dithering": ("dithering, s 16", 1.0, {"codec": 16}),
}
ASKED = {"natural": 70.0, "natural-half": 45.0}  # times fewer bytes than EM
FIRST, LATER = 0.1, 0.02  # nats that held-out nll may rise in the first round, and in a later one


class Reached(Exception):
    """A simulation needs not go on."""


class Curve:
    """Listens to a simulation: held-out nll and the clients' bytes so far, after the start and after every round. Bytes
    of the start, which only runs that follow EM count, are left out. Raises Reached when nll is at most the target."""

    def __init__(self, method: FederatedEM, held_out: np.ndarray, target: float | None):
        self.method, self.held_out, self.target = method, held_out, target
        self.nll: list[float] = []
        self.bytes: list[float] = []
        self.start = 0.0

    def __call__(self, state: FederatedEMState, info: RoundInfo) -> None:
        if state.phase not in ("rounds", "last"):
            return
        model = runs.model_of(self.method, state)
        nll = float(-model.log_likelihood(state.parameters(), self.held_out).mean())
        if not self.nll and self.method.config.follows_em:
            self.start = state.bits_up
        sent = (state.bits_up - self.start) / 8
        if len(self.nll) == state.round + 1:  # first memories: S is where it was
            self.bytes[-1] = sent
            return
        self.nll.append(nll)
        self.bytes.append(sent)
        if self.target is not None and nll <= self.target and state.round:
            raise Reached

    def until(self, target: float) -> dict[str, Any]:
        """JSON of the curve up to the round in which the target is met (rounds is None if it never is), the rise of the
        first round and the largest of a later one."""
        met = np.flatnonzero(np.array(self.nll) <= target)
        rounds = int(met[0]) if len(met) else None
        stop = len(self.nll) if rounds is None else rounds + 1
        later = np.diff(self.nll[1:stop]).max(initial=0.0)
        return {
            "rounds": rounds,
            "end": self.nll[stop - 1],
            "first": self.nll[1] - self.nll[0],
            "later": float(later),
            "nll": self.nll[:stop],
            "bytes": self.bytes[:stop],
        }


# --- data -----------------------------------------------------------------------------------------------------------


def digits(images: int, ordered: bool) -> tuple[list[np.ndarray], np.ndarray]:
    with np.load(needed_data(*MNIST), allow_pickle=False) as stored:
        chosen = np.random.default_rng(0).permutation(len(stored["x_train"]))[:images]
        train, labels, test = stored["x_train"][chosen], stored["y_train"][chosen], stored["x_test"]
    rows, held_out = whitened(train, test)
    if ordered:
        rows = rows[np.argsort(labels, kind="stable")]
    return np.array_split(rows, CLIENTS), held_out


def writers(images: int) -> tuple[list[np.ndarray], np.ndarray]:
    """images: only so many clients of the quick form are taken as have about that many."""
    with np.load(needed_data(*FEMNIST), allow_pickle=False) as stored:
        x, client = stored["x"], stored["client"]
    if images < IMAGES:
        x, client = x[client < images // 150], client[client < images // 150]
    apart = np.zeros(len(x), bool)
    for number in np.unique(client):
        own = np.flatnonzero(client == number)
        apart[np.random.default_rng(int(number)).permutation(own)[: len(own) // HELD_OUT]] = True
    rows, held_out = whitened(x[~apart], x[apart])
    return [rows[client[~apart] == number] for number in np.unique(client)], held_out


# --- what the table says --------------------------------------------------------------------------------------------

NOTES = (
    "MB that all clients send until held-out nll is within .01 of that of EM after 60 rounds, for each seed (times "
    "fewer than EM's; rounds); EM: packed statistics, 8 bytes a number. Coded bytes, of which a test says that they "
    "are those of the messages. dithering: 60 rounds, first memories uncompressed and counted.",
    "10 components from k-means++, the same start for a line; pixels centred, not standardised; a penalty of .001 "
    "rows.",
)


def findings(found: Found) -> Iterator[str]:
    cells = [cell for data in DATA for cell in found[data]]
    for line, asked in ASKED.items():
        ratios = [_ratio(cell[line], cell["em"]) for cell in cells]
        first, later = (max(cell[line][rise] for cell in cells) for rise in ("first", "later"))
        yield (
            f"{LINES[line][0]}: at least {min(ratios):.0f} times fewer bytes, {sum(r >= asked for r in ratios)} of "
            f"{len(ratios)} at least the {asked:g} asked, median {np.median(ratios):.0f}; the first round raises nll "
            f"by at most {first:+.3f}, asked {FIRST:g}, {verdict(first <= FIRST)}, a later one by at most "
            f"{later:.3f}, asked {LATER:g}, {verdict(later <= LATER)}."
        )


def _ratio(cell: Mapping[str, Any], em: Mapping[str, Any]) -> float:
    return 0.0 if cell["rounds"] is None else em["bytes"][-1] / cell["bytes"][-1]


def _megabytes(cell: Mapping[str, Any], em: Mapping[str, Any] | None = None) -> str:
    if cell["rounds"] is None:
        return f"never ({cell['end']:.2f}; {cell['bytes'][-1] / 1e6:.3g})"
    times = "" if em is None else f"{_ratio(cell, em):.0f}x; "
    return f"{cell['bytes'][-1] / 1e6:.3g} ({times}{cell['rounds']})"


# --- the experiment -------------------------------------------------------------------------------------------------


def measure(trial: Trial) -> dict:
    data, seed, quick = trial["data"], trial.seed, trial.quick
    _, source, covariance = DATA[data]
    images = QUICK_IMAGES if quick else IMAGES
    clients, held_out = writers(images) if source == FEMNIST else digits(images, data.startswith("sorted"))
    name = data.split("-")[0] + ("-quick" if quick else "")
    population = rows_population(trial.place, name, lambda: clients)
    common = {
        "components": 10,
        "covariance": covariance,
        "standardise": False,
        "regularisation": PENALTY / population.n_rows,
        "monitor_every": runs.NEVER_LOOKED_AT,
        "restarts": 1,
    }

    def trace(line: str, target: float | None = None, **settings: Any) -> Curve:
        curve, key = Curve(PaperFederatedEM(PaperFederatedEM.Config(**common, **settings)), held_out, target), trial.key
        settings = common | settings
        with suppress(Reached):
            name = f"{key}-{line}"
            simulate(trial.place, name, "paper_federated_em", settings, population, seed=seed, on_round=curve)
        return curve

    em = trace("em", algorithm="em", rounds=EM_ROUNDS)
    target = em.nll[-1] + NEAR
    found = {"em": em.until(target), "target": target, "start": em.nll[0]}
    for line, (_, p, settings) in LINES.items():
        rounds = EM_ROUNDS if line == "dithering" else ROUNDS[p]
        found[line] = trace(line, target, rounds=rounds, **settings).until(target)
    return found


def figure(found: Found) -> bytes:
    from fedcore.evaluation.curves import Panel, panels_figure

    labels = {"em": "EM"} | {line: label for line, (label, _, _) in LINES.items()}

    def curves(cell: dict) -> dict:
        of = {label: cell[line] for line, label in labels.items()}
        return {label: ([sent / 1e6 for sent in one["bytes"]], one["nll"]) for label, one in of.items()}

    return panels_figure(
        [
            Panel(curves(found.one(data)), DATA[data][0], "MB up", "held-out nll", log_x=True)
            for data in ("random-full", "femnist-full", "random-tied")
        ]
    )


def megabytes(line: str) -> Column:
    def text(cell: dict) -> str:
        return _megabytes(cell["em"]) if line == "em" else _megabytes(cell[line], cell["em"])

    return lambda found, row: ", ".join(found.values(str(row.of), text))


BYTES = Experiment(
    name="fedem-bytes",
    title="Bytes from the clients until held-out nll is within .01 of EM's",
    heading=lambda found: f"; {len(found.seeds)} seed(s)",
    needs=(MNIST, FEMNIST),
    seeds=Seeds(SEEDS, quick=1, first=0),
    conditions=lambda options: {
        data: Condition(label, {"data": data}, {"": label}) for data, (label, _, _) in DATA.items()
    },
    measure=measure,
    columns=lambda options: {
        "EM": megabytes("em"),
        **{label: megabytes(line) for line, (label, _, _) in LINES.items()},
    },
    notes=lambda found: NOTES,
    checks=findings,
    figure=figure,
)
