"""Metrics of a run in progress, for monitoring systems: a Prometheus text file, any OTLP endpoint, or both.

    fedcore_rounds_total                     rounds made
    fedcore_round_seconds_total              seconds that they took
    fedcore_clients_asked_total              clients who take part in the run, once for each round
    fedcore_block_bytes_total                decoded bytes of their blocks, read or kept in a cache
    fedcore_round_seconds                    seconds of a round, the last ones made
    fedcore_clients_per_second               clients asked in a second, in the last rounds
    fedcore_rho_spent, fedcore_rho_left      of the population's budget, by all runs
    fedcore_last_round_timestamp_seconds     when the last round was made, seconds since 1970
    fedcore_run_active                       1 while the run is in progress, 0 after its end

Counters begin at zero with each process that works on a run. Nothing here is computed from values of clients: counts,
bytes and times are for operators, and rho is read from the ledger. If metrics cannot be sent, there is a warning, and
no run waits for them.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from fedcore.errors import ExtraMissing, needs
from fedcore.storage.files import place, write_whole
from fedcore.training.session import Session

FILE = "FEDCORE_METRICS_FILE"
ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")
SECONDS_BETWEEN = 5.0  # from one writing of the file to the next
SECONDS_BETWEEN_BALANCES = 30.0
PATIENCE = 5.0  # seconds that an endpoint may take to answer at the end

# name: (kind, unit, what it is)
METRICS: dict[str, tuple[str, str, str]] = {
    "rounds": ("counter", "{round}", "Rounds made."),
    "round_seconds_total": ("counter", "s", "Seconds that the rounds took."),
    "clients_asked": ("counter", "{client}", "Clients who take part in the run, once for each round."),
    "block_bytes": ("counter", "By", "Decoded bytes of the blocks that answered, read or kept in a cache."),
    "round_seconds": ("gauge", "s", "Seconds of a round, the last ones made."),
    "clients_per_second": ("gauge", "{client}/s", "Clients asked in a second, in the last rounds."),
    "rho_spent": ("gauge", "1", "What all runs have spent of the population's budget."),
    "rho_left": ("gauge", "1", "What is left of the population's budget."),
    "last_round_timestamp_seconds": ("gauge", "s", "When the last round was made, seconds since 1970."),
    "run_active": ("gauge", "1", "1 while the run is in progress, 0 after its end."),
}


def prometheus_name(name: str) -> str:
    counts = METRICS[name][0] == "counter" and not name.endswith("_total")
    return f"fedcore_{name}_total" if counts else f"fedcore_{name}"


def otlp_name(name: str) -> str:
    return f"fedcore.{name.removesuffix('_total').replace('_', '.')}" + (".total" if name.endswith("_total") else "")


class Meter:
    """Count one run. warn: called once for each kind of failure to write or send."""

    def __init__(self, session: Session, file: str | None = None, warn: Callable[[str], None] = lambda words: None):
        self.session, self.warn = session, warn
        self.file = file or os.environ.get(FILE) or None
        self.values: dict[str, float] = dict.fromkeys(METRICS, 0.0) | {"run_active": 1.0}
        for name in ("rho_spent", "rho_left", "last_round_timestamp_seconds"):
            del self.values[name]
        self.labels = _labels(session)
        self.clients, self.bytes = _clients(session), float(sum(session.training.sizes or ()))
        self.counted = session.training.done
        self.marked = self.written = self.asked = -1e9
        self.exporter = self._exporter()
        if self.on:
            self.marked = time.monotonic()
            self._look()
            self._write()

    @property
    def on(self) -> bool:
        return self.file is not None or self.exporter is not None

    def rounds(self) -> None:
        """Some rounds were made since the last time."""
        made, now = self.session.training.done - self.counted, time.monotonic()
        if not self.on or made <= 0:
            return
        seconds, self.counted, self.marked = now - self.marked, self.session.training.done, now
        values = self.values
        values["rounds"] += made
        values["round_seconds_total"] += seconds
        values["clients_asked"] += made * self.clients
        values["block_bytes"] += made * self.bytes
        values["round_seconds"] = seconds / made
        values["clients_per_second"] = made * self.clients / max(seconds, 1e-9)
        values["last_round_timestamp_seconds"] = time.time()
        if now - self.asked >= SECONDS_BETWEEN_BALANCES:
            self._look()
        if now - self.written >= SECONDS_BETWEEN:
            self._write()

    def close(self) -> None:
        """The process is done with the run, however it has ended."""
        if not self.on or not self.values["run_active"]:
            return
        self.rounds()
        self.values["run_active"] = 0.0
        self._look()
        self._write()
        if self.exporter is not None:
            ending = threading.Thread(target=self.exporter.end, daemon=True)
            ending.start()
            ending.join(PATIENCE)

    def _look(self) -> None:
        with suppress(Exception):  # the run meets the same ledger, and says what is wrong with it
            balance = self.session.balance()
            if balance is not None:
                self.values |= {"rho_spent": balance.rho_spent, "rho_left": balance.rho_left}
        self.asked = time.monotonic()

    def _write(self) -> None:
        if self.file is None:
            return
        try:
            write_whole(place(self.file), to_prometheus(self.values, self.labels).encode())
        except Exception as error:  # a disk, a network, a place that is none
            self.warn(f"metrics cannot be written to {self.file} ({type(error).__name__}: {error}).")
            self.file = None
        self.written = time.monotonic()

    def _exporter(self) -> Any:
        if not any(map(os.environ.get, ENDPOINTS)) or os.environ.get("OTEL_METRICS_EXPORTER") == "none":
            return None
        try:
            with needs("The OTLP endpoint", "opentelemetry"):
                from fedcore.operations.otlp import Exporter
        except ExtraMissing as missing:
            self.warn(str(missing))
            return None
        try:
            sent = {otlp_name(name): (name, METRICS[name][0] == "counter", *METRICS[name][1:]) for name in METRICS}
            return Exporter(self.values, sent, self.labels, self.session.run.id)
        except Exception as error:  # of a library that we do not know
            self.warn(f"metrics are not sent to the OTLP endpoint ({type(error).__name__}: {error}).")
            return None


def _labels(session: Session) -> dict[str, str]:
    deployment = session.run.info.get("deployment")
    population = session.population
    labels = {"method": session.method.name, "population": population.path.name, "population_id": population.id}
    return labels if deployment is None else {**labels, "deployment": str(deployment)}


def _clients(session: Session) -> int:
    """Who take part in the run."""
    ranges = session.training.source.ranges
    return session.population.n_clients if ranges is None else sum(stop - first for first, stop in ranges)


def to_prometheus(values: Mapping[str, float], labels: Mapping[str, str]) -> str:
    """The text format of Prometheus."""
    named = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    lines = []
    for name, value in values.items():
        kind, _, what = METRICS[name]
        shown = prometheus_name(name)
        lines += [f"# HELP {shown} {what}", f"# TYPE {shown} {kind}", f"{shown}{{{named}}} {value!r}"]
    return "\n".join(lines) + "\n"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
