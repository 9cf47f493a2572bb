"""What the defaults of federated_em and mixed_effects do on people's data, beside scikit-learn and statsmodels.

    mixtures      nothing is set but the number of components; held-out negative log-likelihood, beside scikit-learn's
                  GaussianMixture on all training rows in one place, the best of four starts
    regressions   nothing is set but what is regressed on what; held-out squared error, beside each client's own least
                  squares, one for all, and statsmodels' mixed model, where it is installed

A fifth of each client's rows is held out of mixtures; of regressions all but a few rows of each client, because they
are for clients who know little. Clients are the sets' own where they have any, else rows are dealt to twenty at random.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
from fedcore.papers.data import needed_data, rows_population, whitened
from fedcore.papers.fedem import runs as fedem_runs
from fedcore.papers.fedgrem import tables as fedgrem
from fedcore.papers.simulation import simulate
from fedcore.papers.table import Condition, Experiment, Found, Options, Place, Row, Seeds, Trial, mean, mean_sd, with_sd

from fedcore.methods.federated_em import FederatedEM
from fedcore.methods.mixed_effects import MixedEffects, MixedEffectsConfig
from fedcore.randomness import stream

DEALT = 20  # clients of a set that has none of its own
HELD_OUT = 0.2
STARTS = 4  # of scikit-learn
NARROW = "only the penalty keeps"  # of the warning that likelihoods cannot be compared
NEAR = 0.1  # nats of a row that a default may be behind scikit-learn's
SEEDS = 3
Labelled = tuple[np.ndarray, np.ndarray]  # rows (n, d) float64; the client of each (n,), or () where there are none


# --- data -----------------------------------------------------------------------------------------------------------


def _stored(folder: str, file: str, of_rows: Sequence[str], of_clients: Sequence[str]) -> Labelled:
    with np.load(needed_data(folder, file), allow_pickle=False) as arrays:
        x = np.concatenate([arrays[name] for name in of_rows]).astype(np.float64)
        clients = np.concatenate([arrays[name] for name in of_clients]) if of_clients else np.zeros(0)
    return x.reshape(len(x), -1), clients


def _images(folder: str, file: str, of_rows: Sequence[str], of_clients: Sequence[str], rows: int) -> Labelled:
    x, clients = _stored(folder, file, of_rows, of_clients)
    chosen = np.sort(stream(0, "em-defaults/images").permutation(len(x))[:rows])
    return whitened(x[chosen], x[:1])[0], clients[chosen] if len(clients) else clients


def _by_label(labelled: Labelled) -> Labelled:
    """A hundred clients of one class each: rows sorted by what stands as their client, cut into equal pieces."""
    x, labels = labelled
    order = np.argsort(labels, kind="stable")
    return x[order], np.arange(len(x)) * 100 // len(x)


def _complete_columns(labelled: Labelled) -> Labelled:
    x, clients = labelled
    return x[:, ~np.isnan(x).any(axis=0)], clients


def _bundled(name: str) -> Labelled:
    from sklearn import datasets

    return getattr(datasets, f"load_{name}")().data.astype(np.float64), np.zeros(0)


_MNIST = ("mnist", "mnist.npz", ("x_train",))
_WISDM = ("wisdm", "wisdm.npz", ("x",), ("client",))
_DIGITS = ("pendigits", "pendigits.npz", ("x_train", "x_test"), ("writer_train", "writer_test"))
_VOWEL = ("tabular", "vowel.npz", ("x",), ("client",))


@dataclass(frozen=True, slots=True)
class Mixture:
    """read: the rows and their clients. components: as many as the set has classes, where it has any."""

    read: Callable[[], Labelled]
    components: int
    quick: bool = False


MIXTURES = {
    "vowel": Mixture(partial(_stored, *_VOWEL), 11, quick=True),
    "wisdm": Mixture(lambda: _complete_columns(_stored(*_WISDM)), 6, quick=True),
    "pendigits": Mixture(partial(_stored, *_DIGITS), 10),
    "satellite": Mixture(partial(_stored, "tabular", "satellite.npz", ("x",), ()), 6),
    "letter": Mixture(partial(_stored, "tabular", "letter.npz", ("x",), ()), 26),
    "gvhd_flow": Mixture(partial(_stored, "tabular", "gvhd_flow.npz", ("x",), ("client",)), 8, quick=True),
    "shuttle": Mixture(partial(_stored, "tabular", "shuttle.npz", ("x",), ()), 7),
    "mnist, dealt": Mixture(lambda: _images(*_MNIST, (), 20_000), 10),
    "mnist, one class each": Mixture(lambda: _by_label(_images(*_MNIST, ("y_train",), 20_000)), 10),
    "femnist": Mixture(partial(_images, "femnist", "femnist.npz", ("x",), ("client",), 44_050), 10),
    "digits": Mixture(partial(_bundled, "digits"), 10),
    "wine": Mixture(partial(_bundled, "wine"), 3),
    "breast_cancer": Mixture(partial(_bundled, "breast_cancer"), 2),
}
SETTINGS: dict[str, dict[str, Any]] = {"em": {"algorithm": "em"}, "fedem": {}, "vr-fedem": {"algorithm": "vr-fedem"}}
RIVAL = f"scikit-learn, {STARTS} starts"


@dataclass(frozen=True, slots=True)
class Regression:
    """read: the rows and their clients. rows: of each client for training; the others are held out."""

    read: Callable[[], Labelled]
    response: int
    inputs: tuple[int, ...]
    rows: int


REGRESSIONS = {
    "wisdm, 20 rows": Regression(partial(_stored, *_WISDM), 42, (31, 32, 36, 37, 38), 20),
    "wisdm, 10 rows": Regression(partial(_stored, *_WISDM), 42, (31, 32, 36, 37, 38), 10),
    "vowel, 8 rows": Regression(partial(_stored, *_VOWEL), 0, (1, 2, 3, 4, 5), 8),
    "pendigits, 20 rows": Regression(partial(_stored, *_DIGITS), 15, (9, 10, 11, 12, 13, 14), 20),
}


def clients_of(
    labelled: Labelled, seed: int, held_out: Callable[[int], int]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Training and held-out rows of each client. held_out: how many of so many."""
    x, clients = labelled
    random = stream(seed, "em-defaults/split")
    if not len(clients):
        clients = random.permutation(np.arange(len(x)) % DEALT)
    for client in np.unique(clients):
        rows = random.permutation(np.flatnonzero(clients == client))
        away = held_out(len(rows))
        yield x[rows[away:]], x[rows[:away]]


# --- the table ------------------------------------------------------------------------------------------------------

LOSS = "held-out loss"
NOTES = (
    "Mixtures: full covariances, mean negative log-likelihood of a held-out row, nats, of columns standardised by the "
    "training rows; constant columns are left out; images by their first 20 principal components. Regressions: mean "
    "square of held-out residuals, columns standardised.",
    "Status: as the run says; narrow: it warns of components that only the penalty keeps from a density without bound, "
    "whose likelihoods mean little.",
    "MB up: coded bytes of all clients over the whole run. Seconds: of a run in one process, evaluation not included.",
)


def mixtures(options: Options) -> Mapping[str, Mixture]:
    return {name: data for name, data in MIXTURES.items() if data.quick or not options.quick}


def conditions(options: Options) -> dict[str, Condition]:
    about = {("mixture", data, line): f"{data}, {line}" for data in mixtures(options) for line in (*SETTINGS, RIVAL)}
    about |= {("regression", data, ""): f"{data}, regression" for data in REGRESSIONS}
    return {_key(*what): Condition(title, {"data": what[1], "line": what[2]}) for what, title in about.items()}


def _key(kind: str, data: str, line: str) -> str:
    return "-".join(part for part in (kind, data, line) if part).replace(", ", "-").replace(" ", "-")


def measure(trial: Trial) -> dict:
    data, line, seed = trial["data"], trial["line"], trial.seed
    if not line:
        return regression_errors(REGRESSIONS[data], seed)
    split = list(clients_of(MIXTURES[data].read(), seed, lambda rows: round(HELD_OUT * rows)))
    if line == RIVAL:
        return rival_loss(split, MIXTURES[data].components, seed)
    settings = {"components": MIXTURES[data].components, **SETTINGS[line]}
    return mixture_loss(trial.place, trial.key, f"{_key('rows', data, '')}-{seed}", settings, split, seed)


def rows(found: Found) -> Iterator[Row]:
    for data in mixtures(found.options):
        for line in (*SETTINGS, RIVAL):
            unused = {"MB up": ""} if line == RIVAL else {}
            yield Row({"data": data, "method": line}, _key("mixture", data, line), unused)
    for data in REGRESSIONS:
        key = _key("regression", data, "")
        for line in found.one(key)["error"]:
            errors = [cell["error"][line] for cell in found[key]]
            seconds = f"{found.mean(key, 'seconds'):.1f}" if line == OURS else ""
            yield Row({"data": data, "method": line}, None, {LOSS: with_sd(errors, 4), "seconds": seconds})


def behind(found: Found, data: str, line: str) -> float:
    """Nats of a row."""
    return found.mean(_key("mixture", data, line), "loss") - found.mean(_key("mixture", data, RIVAL), "loss")


def findings(found: Found) -> Iterator[str]:
    for data in mixtures(found.options):
        for line in SETTINGS:
            if (by := behind(found, data, line)) > NEAR:
                yield f"{data}, {line}: {by:+.3f} nats behind scikit-learn."


def figure(found: Found) -> bytes:
    from fedcore.evaluation.curves import Panel, panels_figure

    names = list(mixtures(found.options))
    at = [float(number) for number in range(len(names))]
    curves = {line: (at, [behind(found, data, line) for data in names]) for line in SETTINGS}
    return panels_figure([Panel(curves, "Behind scikit-learn", "", "nats of a row", ticks=names)])


def _counted(statuses: Sequence[str]) -> str:
    return ", ".join(f"{statuses.count(each)} x {each}" for each in dict.fromkeys(statuses) if each)


# --- mixtures -------------------------------------------------------------------------------------------------------


def _varying(split: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """Training rows by client and all held-out rows without constant columns, and the training columns' deviations."""
    every = np.concatenate([train for train, _ in split])
    deviations = every.std(axis=0)
    varies = deviations > 0
    return (
        [train[:, varies] for train, _ in split],
        np.concatenate([held for _, held in split])[:, varies],
        deviations[varies],
    )


def mixture_loss(place: Place, key: str, data: str, settings: dict, split: Sequence, seed: int) -> dict[str, Any]:
    """loss: of the held-out rows. status: of the run. mb: coded bytes from the clients / 1e6. seconds."""
    train, held, deviations = _varying(split)
    population = rows_population(place, data, lambda: train, "a published data set")
    begun = time.perf_counter()
    method, state = simulate(place, key, "federated_em", settings, population, seed=seed)
    seconds = time.perf_counter() - begun
    scaling = state.scaling()
    losses = -fedem_runs.model_of(cast(FederatedEM, method), state).log_likelihood(
        state.parameters(), (held - scaling.centre) / scaling.scale
    )
    loss = float(losses.mean() + np.log(scaling.scale / deviations).sum())
    outcome = method.outcome(state)
    status = outcome.partition(":")[0] + (", narrow" if NARROW in outcome else "")
    return {"loss": loss, "status": status, "mb": state.bits_up / 8e6, "seconds": seconds}


def rival_loss(split: Sequence, components: int, seed: int) -> dict[str, Any]:
    from sklearn.mixture import GaussianMixture

    train, held, _ = _varying(split)
    every = np.concatenate(train)
    centre, scale = every.mean(axis=0), every.std(axis=0)
    begun = time.perf_counter()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model = GaussianMixture(components, n_init=STARTS, random_state=seed).fit((every - centre) / scale)
    seconds = time.perf_counter() - begun
    status = "not converged" if any("converge" in str(warning.message) for warning in told) else "converged"
    return {"loss": float(-model.score((held - centre) / scale)), "status": status, "seconds": seconds}


# --- regressions ----------------------------------------------------------------------------------------------------

OURS = "mixed_effects"


def regression_errors(task: Regression, seed: int) -> dict[str, Any]:
    """error: mean squares of held-out residuals, by line. seconds: of mixed_effects."""
    x, clients = task.read()
    x = x[:, [*task.inputs, task.response]]
    whole = np.isfinite(x).all(axis=1)
    x, clients = x[whole], clients[whole]
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    train, held = map(list, zip(*clients_of((x, clients), seed, lambda rows: max(rows - task.rows, 0)), strict=True))
    block = fedgrem.block_of(train)
    ran = fedgrem.run(block, seed, MixedEffects(MixedEffectsConfig(intercept=True)))
    ours = ran.method.personalise(ran.state, block, ran.memory)["centres"][:, 0]
    fits = [_with_one(own) for own in train]
    pooled = np.linalg.lstsq(np.concatenate(fits), np.concatenate(train)[:, -1], rcond=None)[0]
    lines: dict[str, Sequence[np.ndarray] | np.ndarray] = {
        OURS: ours,
        "own least squares": [
            np.linalg.lstsq(a, own[:, -1], rcond=None)[0] for a, own in zip(fits, train, strict=True)
        ],
        "one for all": [pooled] * len(train),
    }
    mixed = mixed_model(train)
    if mixed is not None:
        lines["statsmodels MixedLM"] = mixed
    return {"error": {line: _error(of, held) for line, of in lines.items()}, "seconds": ran.seconds}


def _with_one(rows: np.ndarray) -> np.ndarray:
    return np.column_stack([rows[:, :-1], np.ones(len(rows))])


def _error(coefficients: Sequence[np.ndarray] | np.ndarray, held: Sequence[np.ndarray]) -> float:
    residuals = [own[:, -1] - _with_one(own) @ b for own, b in zip(held, coefficients, strict=True)]
    return float(np.mean(np.concatenate(residuals) ** 2))


def mixed_model(train: Sequence[np.ndarray]) -> np.ndarray | None:
    """(K, p) coefficients of the clients by maximum likelihood with a full covariance; None without statsmodels, or if
    it finds nothing."""
    try:
        from statsmodels.regression.mixed_linear_model import MixedLM
    except ImportError:
        return None
    rows = np.concatenate(train)
    inputs, groups = _with_one(rows), np.repeat(np.arange(len(train)), [len(own) for own in train])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            fit = MixedLM(rows[:, -1], inputs, groups, exog_re=inputs).fit(reml=False)
        except (np.linalg.LinAlgError, ValueError):
            return None
    shifts = np.array([np.asarray(fit.random_effects[client]) for client in range(len(train))])
    return np.asarray(fit.fe_params) + shifts


# --- the experiment -------------------------------------------------------------------------------------------------

DEFAULTS = Experiment(
    name="em-defaults",
    title="Defaults on people's data",
    heading=lambda found: f"; {len(found.seeds)} splits, mean (sd)",
    seeds=Seeds(SEEDS),
    conditions=conditions,
    measure=measure,
    rows=rows,
    columns=lambda options: {
        LOSS: mean_sd("loss", 3),
        "status": lambda found, row: _counted(found.values(str(row.of), "status")),
        "MB up": mean("mb", ".3g"),
        "seconds": mean("seconds", ".1f"),
    },
    notes=lambda found: NOTES,
    checks=findings,
    figure=figure,
)
