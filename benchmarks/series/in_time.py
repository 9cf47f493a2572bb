"""Ways to spend a budget on weekly runs, compared in memory on a stream whose truth is known.

The method, its sizes and the distribution of its noise are those of real runs; no ledger is asked and nothing is
promised. `python -m benchmarks.series` draws these ways beside a series that does go through the platform.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp

from benchmarks.series.stream import Stream
from fedcore.methods.registry import make_method
from fedcore.population.blocks import ClientBlock, counts_block, leaves
from fedcore.population.sizing import CLIENTS_PER_LEAF
from fedcore.privacy.mechanisms import TestNoise
from fedcore.privacy.plan import PlannedRelease
from fedcore.rounds.method import AnyMethod, PublicFacts, State
from fedcore.rounds.statistics import merge_all
from fedcore.training.budget import fit_plan

METHOD = "histograms"
Noise = Callable[[PlannedRelease, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Way:
    """How weekly runs are paid for.

    share:  of the budget, for each run; None: no noise at all
    window: weeks after which a client that came is read no more; None: never
    runs:   after so many the budget is used up, and the last model stays; None: it never is
    pooled: whether a run starts from the one before it
    """

    label: str
    share: float | None
    window: int | None = None
    runs: int | None = None
    pooled: bool = True


def ways(horizon: int, weeks: int) -> tuple[Way, ...]:
    """What a series by cohorts with this horizon is compared with."""
    return (
        Way(f"one account, 1/{weeks} of the budget each week", 1 / weeks),
        Way(f"one account, 1/{horizon} of the budget while it lasts", 1 / horizon, runs=horizon),
        Way("by cohort, every run from nothing", 1 / horizon, horizon, pooled=False),
        Way("no privacy", None),
    )


def losses(stream: Stream, way: Way, rho_max: float, key: str) -> Iterator[float]:
    """`Stream.loss` in the following week of what each week's run knows. key: of the noise."""
    came, leaves_ = stream.calendar
    weeks = stream.settings.weeks
    counts = sp.vstack([stream.arrived(week)[1] for week in range(1, weeks + 1)], format="csr")
    method, start, model = make_method(METHOD, {}), None, np.zeros((0, 0))
    for week in range(1, weeks + 1):
        if way.runs is None or week <= way.runs:
            present = (came <= week) & (leaves_ > week)
            if way.window is not None:
                present &= came > week - way.window
            block = counts_block(0, 0, counts[present], None)
            rho = rho_max * (1.0 if way.share is None else way.share)
            noise = None if way.share is None else TestNoise(noise_key(key, week))
            state = run_in_memory(method, block, rho, week, start, noise)
            left = method.warm_start_of(state)
            start = method.checked_warm_start(left, "the run before", block.features) if way.pooled else None
            model = left["centres"]
        yield stream.loss(model, week + 1)


def noise_key(key: str, week: int) -> str:
    """Of the noise of one week: pseudo-random noise of one key is the same in every run."""
    return f"{key}, week {week}"


def run_in_memory(
    method: AnyMethod,
    block: ClientBlock,
    rho: float,
    seed: int,
    start: dict[str, np.ndarray] | None,
    noise: TestNoise | None,
) -> State:
    """The last state of a private run on one block in this process. noise: None for none."""

    def facts(price: float) -> PublicFacts:
        known = PublicFacts("counts", block.features, CLIENTS_PER_LEAF, block.clients, None, price, seed)
        return replace(known, warm_start=start)

    plan, public = fit_plan(method, facts, rho)
    planned = {release.name: release for release in plan}
    state = method.init(public)
    while (message := method.message(state)) is not None:
        statistics = merge_all(method.client_update(message, leaf, None)[0] for leaf in leaves(block, CLIENTS_PER_LEAF))
        grid = method.release_values(message, statistics or {})
        if noise is not None:
            grid = {name: noise.draw(planned[name], "", value) for name, value in grid.items()}
        state = method.server_update(state, grid)[0]
    return state
