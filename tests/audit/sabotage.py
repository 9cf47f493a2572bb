"""Builds that break a promise, for the audits to catch. Each wraps or replaces product code from outside."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np

from fedcore.methods.histograms import Histograms, clients, weights
from fedcore.planning import calibration, run_plan
from fedcore.population import manifest as manifests
from fedcore.population.blocks import leaves, segment_sums
from fedcore.privacy.grid import grid_step
from fedcore.privacy.mechanisms import TestNoise
from fedcore.rounds.method import Method, RoundInfo
from fedcore.rounds.statistics import IntegerSum
from fedcore.training import warm_start
from tests.audit import em_releases


@contextmanager
def no_clip():
    """Clients contribute their whole whitened histogram, whatever its norm."""

    def unclipped(block, whitening, clip):
        totals = np.repeat(np.maximum(block.totals, 1.0), np.diff(block.indptr))
        return np.trunc(block.data / totals * whitening[block.indices] / grid_step(clip))

    with mock.patch.object(clients, "clipped_on_grid", unclipped), em_releases.no_clip():
        yield


@contextmanager
def clip_of_the_leaf():
    """The clip is shared out over a leaf: a client's part depends on who else is there."""
    kept = clients.clipped_on_grid

    def shared(block, whitening, clip):
        return np.trunc(kept(block, whitening, clip) / max(1, np.count_nonzero(block.totals)))

    with mock.patch.object(clients, "clipped_on_grid", shared):
        yield


@contextmanager
def balanced_cells():
    """Clients go to cells in turn, so that a newcomer moves those after it."""
    with mock.patch.object(clients, "assign", lambda block, logs: np.arange(block.clients) % logs.shape[1]):
        yield


@contextmanager
def rounded_up():
    """Grid values are rounded away from zero, so that a row at the clip leaves the bound by a hair."""

    def away(block, whitening, clip):
        kept = whitening[block.indices] * block.data
        norms = np.sqrt(np.repeat(segment_sums(kept * kept, block.indptr), np.diff(block.indptr)))
        return np.ceil(kept / norms * clip / grid_step(clip)) if len(kept) else kept

    with mock.patch.object(clients, "clipped_on_grid", away):
        yield


@contextmanager
def precision_of_the_block():
    """Scores in the precision that the block is stored in, which one client with a huge count changes for all."""
    with mock.patch.object(clients, "assign_in_float32", clients.assign):
        yield


KERNELS = {
    "no clip": no_clip,
    "clip of the leaf": clip_of_the_leaf,
    "balanced cells": balanced_cells,
    "rounded up": rounded_up,
    "precision of the block": precision_of_the_block,
}


# --- clients with second halves -------------------------------------------------------------------------------------


@contextmanager
def losses_without_a_clip():
    """Clients contribute all of their losses."""

    def unclipped(values, counted):
        return np.trunc(np.where(counted[:, None], values, 0.0) / grid_step(weights.CLIP))

    with mock.patch.object(weights, "on_grid", unclipped):
        yield


@contextmanager
def losses_against_the_leaf():
    """Losses are those beyond the leaf's mean, so that a newcomer moves everybody."""
    kept = weights.on_grid

    def centred(values, counted):
        return kept(values - values[counted].mean(axis=0), counted) if counted.any() else kept(values, counted)

    with mock.patch.object(weights, "on_grid", centred):
        yield


@contextmanager
def clip_by_the_largest_entry():
    """The bound is one on entries, not on the norm of all of them."""

    def entries(values, counted):
        kept = np.clip(np.where(counted[:, None], values, 0.0), -weights.CLIP, weights.CLIP)
        return np.trunc(kept / grid_step(weights.CLIP))

    with mock.patch.object(weights, "on_grid", entries):
        yield


OF_HALVES = {
    "no clip": losses_without_a_clip,
    "against the leaf": losses_against_the_leaf,
    "clip by the largest entry": clip_by_the_largest_entry,
}


def counting(method: Method) -> Method:
    """Tells the exact number of clients with every round: a count released without noise, by a side door."""

    class Counting(type(method)):
        clients = 0

        def client_update(self, message, block, memory):
            statistics, memory = super().client_update(message, block, memory)
            return {**statistics, "clients": IntegerSum(np.array([block.clients]))}, memory

        def release_values(self, message, statistics):
            statistics = dict(statistics)
            Counting.clients = int(statistics.pop("clients").value()[0])
            return super().release_values(message, statistics)

        def server_update(self, state, result):
            state, info = super().server_update(state, result)
            return state, RoundInfo({**info.scalars, "clients": float(Counting.clients)})

    return Counting(method.config)


class Careless(Histograms):
    """Client code with a forgotten print, and a forgotten file beside other temporary ones."""

    def client_update(self, message, block, memory):
        statistics, memory = super().client_update(message, block, memory)
        exact = [statistic.value() for statistic in statistics.values()]
        print("sums of the leaf:", *(value.ravel().tolist() for value in exact))
        np.savez(Path(tempfile.gettempdir()) / f"{message.release}-{block.leaf}.npz", *exact)
        return statistics, memory


class Telling(Histograms):
    """Writes the largest raw sum of the round into the metrics row, as an objective would be."""

    largest = 0

    def release_values(self, message, statistics):
        grid = super().release_values(message, statistics)
        Telling.largest = max(int(value.max()) for value in grid.values())
        return grid

    def server_update(self, state, result):
        state, info = super().server_update(state, result)
        return state, RoundInfo({**info.scalars, "largest": float(Telling.largest)})


class Keeping(Histograms):
    """Keeps the raw sums in the server's state, beside the noised ones."""

    sums = None

    def release_values(self, message, statistics):
        Keeping.sums = next(iter(super().release_values(message, statistics).values()))
        return super().release_values(message, statistics)

    def server_update(self, state, result):
        state, info = super().server_update(state, result)
        return replace(state, reseed=Keeping.sums.ravel()), info


# --- plans of private runs ------------------------------------------------------------------------------------------


@contextmanager
def plans_made_with_people():
    """A plan of a private run trains on the first clients of the population, with noise for all of them, and says which
    phases they met."""
    calibrate, trial_of, planned_for = run_plan.calibrate, calibration.of_stand_ins, []

    def noticing(method, population, *arguments, **options):
        planned_for.append(population)
        return calibrate(method, population, *arguments, **options)

    def people(method, public, shape, clients, leaf=0):
        population = planned_for[-1]
        return next(leaves(population.read(0), population.clients_per_leaf))

    def with_noise(method, public, plan, phases, stand_for):
        trial, releases = trial_of(method, public, plan, phases, planned_for[-1].n_clients), {p.name: p for p in plan}

        def noised(number, message, total, clients):
            exact = trial.result(number, message, total, clients)
            return {name: TestNoise("the same noise").draw(releases[name], "", grid) for name, grid in exact.items()}

        return replace(trial, result=noised)

    with (
        mock.patch.object(run_plan, "calibrate", noticing),
        mock.patch.object(calibration, "FIRST_BYTES", 0),  # the fewest clients, among whom one decides
        mock.patch.object(calibration, "stand_ins", people),
        mock.patch.object(calibration, "of_stand_ins", with_noise),
        mock.patch.object(calibration, "_scheduled", lambda phases, met: tuple(met.values())),
    ):
        yield


@contextmanager
def plans_with_exact_counts():
    """A plan of a private run, which is kept with it, tells how many clients there are, and how much they hold."""
    nominal = run_plan.public_shape

    def exact(method, population, clients=None, rows=None):
        entries = sum(block.train.entries for block in population.blocks)
        of_these = clients or population.n_clients
        return replace(
            nominal(method, population, clients, rows), clients=of_these, entries=entries / population.n_clients
        )

    with mock.patch.object(run_plan, "public_shape", exact):
        yield


@contextmanager
def exact_starts_on_the_same_people():
    """A private run starts from what a run without noise made of the same clients, because somebody says that it is
    public."""
    with (
        mock.patch.object(warm_start, "_check_private", lambda *arguments: None),
        mock.patch.object(warm_start, "lineage_of", lambda *arguments: (frozenset(), ()), create=True),
    ):
        yield


# --- digests ----------------------------------------------------------------------------------------------------------


@contextmanager
def checksums_without_the_secret():
    """What runs and ledgers know a version of a population by follows from the data alone, so that whoever knows all
    clients but one can try that one against it."""
    checksum = manifests.checksum

    def bare(manifest):
        return checksum(manifest.model_copy(update={"secret": None}))

    with mock.patch.object(manifests, "checksum", bare):
        yield
