"""What an operator wants to know about a population."""

from __future__ import annotations

from collections import Counter

from pydantic import JsonValue

from fedcore.population.columns import ColumnEntry
from fedcore.population.store import Population


def describe(population: Population) -> dict[str, JsonValue]:
    """What an operator wants to know about a population: counts, sizes, origin. Nothing of its content."""
    made = population.manifest
    heldout = made.blocks.sum_of("heldout.total")
    unit = "rows" if made.kind == "rows" else "tokens"
    return {
        "path": str(population.path),
        "population_id": made.population_id,
        "version": made.version,
        "versions": list[JsonValue](population.versions()),
        "kind": made.kind,
        "dtype": made.dtype,
        "clients": made.n_clients,
        "nominal_clients": made.nominal_clients,
        **({} if made.nominal_rows is None else {"nominal_rows": made.nominal_rows}),
        "forgotten": sum(stop - first for first, stop in population.holes),
        "period": None if made.period is None else made.period.model_dump(),
        "cohorts": _cohorts(population) if made.cohorts else None,
        "features": None if made.kind == "words" else made.features,
        unit: made.n_rows,
        f"heldout_{unit}": heldout if made.has_heldout else None,
        "halves": made.halves,
        "entries": made.blocks.sum_of("train.entries"),
        "blocks": len(made.blocks),
        "clients_per_leaf": made.clients_per_leaf,
        "bytes": made.blocks.sum_of("bytes"),
        "vocabulary": None if made.vocabulary is None else made.vocabulary.size,
        "ledger": None if made.ledger is None else made.ledger.model_dump(),
        "public_for_evaluation": made.public_reason if made.public_for_evaluation else None,
        "sources": list(made.provenance.sources),
        "dropped_tokens": made.provenance.dropped_tokens,
        "records_counted": made.provenance.records,
        "records_stored": made.provenance.stored,
        "records_skipped": made.provenance.skipped,
        "bad_rows": made.provenance.bad_rows,
        "clipped_values": made.provenance.clipped if made.columns else None,
        "alike_ids": made.provenance.alike_ids,
        "ids": made.id_rule,
        "columns": [_column(column) for column in made.columns] or None,
        "unit": "record" if made.records else None,
        "image": None if made.image is None else f"{made.image[0]} x {made.image[1]}",
    }


def _column(column: ColumnEntry) -> JsonValue:
    """Name, unit and bounds in one line."""
    bounds = "" if column.low is None else f" from {column.low:g} to {column.high:g}"
    return f"{column.name}{f' ({column.unit})' if column.unit else ''}{bounds}"


def _cohorts(population: Population) -> list[JsonValue]:
    """What is known of each cohort; clients: those that are there and were not forgotten."""
    clients: Counter[int] = Counter()
    for number, there in population.manifest.order:
        clients[number] += there
    return [
        {
            "number": one.number,
            **({} if one.period is None else {"period": one.period}),
            "opened": one.opened,
            "nominal_clients": one.nominal,
            "clients": clients[one.number],
        }
        for one in population.manifest.cohorts
    ]
