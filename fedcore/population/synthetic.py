"""Synthetic populations of counts whose truth is known: mixtures of Dirichlets with burstiness.

    P_k ~ Dirichlet(gamma * Zipf), Zipf_i ~ 1/(i + 2.7), floored at 1e-7 and renormalised
    c_u ~ Categorical(w), w linear from 1.5 to 0.5, normalised;  B_u ~ Dirichlet(alpha P_c)
    train:     A_u ~ Dirichlet(beta B_u), x_u ~ Multinomial(tokens, A_u)
    held out:  A'_u ~ Dirichlet(beta B_u), x'_u ~ Multinomial(test_tokens, A'_u)

beta = None means infinity (A_u = A'_u = B_u): the model of Setlur, Feldman and Talwar (2023). Everything is drawn in
runs of 1024 clients from streams named (seed, purpose, run): leaf size, block size and the number of clients that
follow change no bit of a client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import scipy
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedcore.errors import ConfigError
from fedcore.population.manifest import Provenance
from fedcore.population.sizing import CLIENTS_PER_LEAF
from fedcore.population.store import Population
from fedcore.population.writer import PopulationWriter
from fedcore.randomness import stream

RUN = 1024  # clients drawn together; part of the definition of the data
PIECE = 1 << 20  # probabilities or tokens held at a time
ZIPF_SHIFT = 2.7
CENTRE_FLOOR = 1e-7
SHAPE_FLOOR = 1e-9  # of a Dirichlet parameter
PUBLIC = "synthetic: nobody's data"


class SyntheticSettings(BaseModel):
    """Settings of a synthetic population; see the module for the model."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    clients: int = Field(default=20_000, ge=1, le=10**9, description="number of clients n")
    features: int = Field(default=1000, ge=2, le=10**6, description="vocabulary size d")
    clusters: int = Field(default=10, ge=1, le=10**4, description="number of clusters K")
    tokens: int = Field(default=500, ge=0, le=10**9, description="training tokens of each client")
    test_tokens: int = Field(default=2000, ge=0, le=10**9, description="held-out tokens of each client that has any")
    heldout_clients: int = Field(default=3000, ge=0, description="number of first clients that have held-out tokens")
    gamma: float = Field(
        default=2600.0, gt=0, allow_inf_nan=False, description="concentration of the centres around Zipf"
    )
    alpha: float = Field(
        default=700.0, gt=0, allow_inf_nan=False, description="concentration of clients around their centre"
    )
    beta: float | None = Field(
        default=280.0,
        gt=0,
        allow_inf_nan=False,
        description="concentration of a text around its client; none: infinite",
    )


PRESETS: dict[str, SyntheticSettings] = {
    "reddit-like": SyntheticSettings(),
    "pure": SyntheticSettings(alpha=200.0, gamma=300.0, beta=None),
}


def settings_of(preset: str, overrides: Mapping[str, Any] | None = None) -> SyntheticSettings:
    """The preset with some settings changed; values may be text, as from `--set key=value`. Raises ConfigError."""
    if preset not in PRESETS:
        raise ConfigError(f"There is no synthetic preset {preset!r}.", f"Choose one of {', '.join(PRESETS)}.")
    changes = {key: None if value in ("none", "None") else value for key, value in (overrides or {}).items()}
    try:
        return SyntheticSettings.model_validate({**PRESETS[preset].model_dump(), **changes})
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(step) for step in first["loc"])
        known = ", ".join(SyntheticSettings.model_fields)
        raise ConfigError(
            f"The setting {name!r} of the preset {preset}: {first['msg']}.", f"Settings are {known}."
        ) from error


def cluster_weights(settings: SyntheticSettings) -> np.ndarray:
    """(K,) float64, linear from 1.5 to 0.5, normalised."""
    weights = np.linspace(1.5, 0.5, settings.clusters)
    return weights / weights.sum()


def true_centres(settings: SyntheticSettings, seed: int) -> np.ndarray:
    """(K, d) float64, the centres P_k; rows on the simplex."""
    zipf = 1.0 / (np.arange(1, settings.features + 1) + ZIPF_SHIFT)
    shape = np.maximum(settings.gamma * zipf / zipf.sum(), SHAPE_FLOOR)
    draws = stream(seed, "synthetic/centres").standard_gamma(shape, size=(settings.clusters, settings.features))
    centres = np.maximum(draws / draws.sum(axis=1, keepdims=True), CENTRE_FLOOR)
    return centres / centres.sum(axis=1, keepdims=True)


def true_clusters(settings: SyntheticSettings, seed: int, start: int = 0, stop: int | None = None) -> np.ndarray:
    """int64 cluster c_u of clients start .. stop - 1 (default: all)."""
    stop = settings.clients if stop is None else stop
    runs = [_run_clusters(settings, seed, run, RUN) for run in range(start // RUN, -(-stop // RUN))]
    first = start // RUN * RUN
    return np.concatenate(runs)[start - first : stop - first] if runs else np.zeros(0, np.int64)


def _run_clusters(settings: SyntheticSettings, seed: int, run: int, clients: int) -> np.ndarray:
    bounds = np.cumsum(cluster_weights(settings))[:-1]
    return np.searchsorted(bounds, stream(seed, "synthetic/cluster", client=run).random(clients), side="right")


def dirichlet(shape: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """One draw for each row of shape (C, d) float32; float32 gamma draws are ample for simulated text."""
    draws = generator.standard_gamma(np.maximum(shape, SHAPE_FLOOR, dtype=np.float32), dtype=np.float32)
    return draws / draws.sum(axis=1, dtype=np.float64, keepdims=True)


def multinomial(tokens: int, probabilities: np.ndarray, generator: np.random.Generator) -> scipy.sparse.csr_matrix:
    """(C, d) CSR of counts, `tokens` in each row, by inverting the row's distribution function at uniform draws."""
    clients, features = probabilities.shape
    bounds = np.cumsum(probabilities, axis=1)
    bounds /= bounds[:, -1:]
    # Row u is shifted by u, so that one sorted table answers for all rows; the last bound of a row is exactly u + 1.
    table = (bounds + np.arange(clients)[:, None]).ravel()
    draws = generator.random((clients, tokens))
    draws.sort(axis=1)  # neighbouring look-ups are then near each other in memory
    draws += np.arange(clients)[:, None]
    found = np.searchsorted(table, draws.ravel(), side="right")
    # u + draw may round up to u + 1: such a draw belongs to the last feature of its row with any probability.
    ends = np.arange(1, clients + 1)
    last = np.repeat(np.searchsorted(table, ends, side="left"), tokens)
    cells, counts = np.unique(np.minimum(found, last), return_counts=True)
    indptr = np.searchsorted(cells, np.arange(clients + 1) * features)
    return scipy.sparse.csr_matrix(
        (counts.astype(np.int64), (cells % features).astype(np.int32), indptr), shape=probabilities.shape
    )


def generate(
    settings: SyntheticSettings, seed: int, run: int, centres: np.ndarray | None = None
) -> tuple[scipy.sparse.csr_matrix, scipy.sparse.csr_matrix | None]:
    """Clients run * 1024 ... of the population: (train, held out) counts, each (clients, d).

    centres: those of `true_centres`, if at hand. The held-out matrix has a row for every client of the run, empty for
    those without; it is None if none of the run's clients has one.
    """
    centres = true_centres(settings, seed) if centres is None else centres
    first = run * RUN
    clients = min(RUN, settings.clients - first)
    tested = min(max(settings.heldout_clients - first, 0), clients) if settings.test_tokens else 0
    clusters = _run_clusters(settings, seed, run, clients)
    own = stream(seed, "synthetic/own", client=run)
    text = {name: stream(seed, f"synthetic/{name}/text", client=run) for name in ("train", "heldout")}
    tokens = {name: stream(seed, f"synthetic/{name}/tokens", client=run) for name in ("train", "heldout")}

    def counts(name: str, number: int, mean: np.ndarray) -> scipy.sparse.csr_matrix:
        if settings.beta is not None:
            mean = dirichlet(settings.beta * mean, text[name])
        return multinomial(number, mean, tokens[name])

    # The streams are read row by row, so working in pieces bounds the memory and changes no draw.
    step = max(PIECE // max(settings.features, settings.tokens, settings.test_tokens), 1)
    train, heldout = [], []
    for start in range(0, clients, step):
        stop = min(start + step, clients)
        means = dirichlet(settings.alpha * centres[clusters[start:stop]], own)
        train.append(counts("train", settings.tokens, means))
        if start < tested:
            heldout.append(counts("heldout", settings.test_tokens, means[: tested - start]))
    together = scipy.sparse.vstack(train, format="csr")
    if not heldout:
        return together, None
    other = scipy.sparse.vstack(heldout, format="csr")
    other.resize(together.shape)
    return together, other


def client_names(first: int, clients: int) -> list[str]:
    return [f"c{number:09d}" for number in range(first, first + clients)]


def synthesise(
    path: str | Path,
    preset: str = "reddit-like",
    seed: int = 1,
    overrides: Mapping[str, Any] | None = None,
    *,
    clients_per_leaf: int = CLIENTS_PER_LEAF,
    clients_per_block: int | None = None,
    ledger: dict[str, str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Population:
    """Writes a synthetic population, a run of 1024 clients at a time. progress(clients done, clients).

    Raises ConfigError for unknown presets or settings, PopulationError if it cannot be written.
    """
    settings = settings_of(preset, overrides)
    centres = true_centres(settings, seed)
    with PopulationWriter(
        path,
        "counts",
        settings.features,
        clients_per_leaf=clients_per_leaf,
        clients_per_block=clients_per_block,
        nominal_clients=settings.clients,
        public_for_evaluation=PUBLIC,
        ledger=ledger,
    ) as writer:
        for run in range(-(-settings.clients // RUN)):
            train, heldout = generate(settings, seed, run, centres)
            writer.write(client_names(run * RUN, train.shape[0]), train, heldout)
            if progress is not None:
                progress(writer.clients, settings.clients)
        options = {"preset": preset, "seed": seed, **settings.model_dump()}
        return writer.commit(Provenance(sources=(f"synthetic:{preset}",), options=options))
