"""The tables of a ledger, and the schema that they are of.

The table of sketches came later than the rest of schema 2: a ledger may lack it, and gets it with its first sketch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import (
    Boolean,
    Column,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
)

from fedcore.privacy.accounting import CURRENCY
from fedcore.privacy.ledger.chain import PURPOSE
from fedcore.privacy.plan import ROUNDED

SCHEMA = 2

metadata = MetaData()


class Bytes(LargeBinary):
    """Bytes as the driver gives them; anything else that stands in the column stays as it is, and is refused later."""

    cache_ok = True

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any]:
        return lambda value: bytes(value) if isinstance(value, memoryview) else value


# One row. A ledger of test noise is marked permanently.
ledger_table = Table(
    "fedcore_ledger",
    metadata,
    Column("only", Integer, primary_key=True, autoincrement=False),
    Column("id", String(32), nullable=False),
    Column("schema", Integer, nullable=False),
    Column("test", Boolean, nullable=False),
)

# The row that a writer locks. Budget columns are null until one is set; seq and hash are the head of the chain.
accounts = Table(
    "fedcore_accounts",
    metadata,
    Column("population_id", String(128), primary_key=True),
    Column("unit", String(32)),
    Column("relation", String(32)),
    Column("epsilon", Double),
    Column("delta", Double),
    Column("rho_max", Double),
    Column("delta_conv", Double),
    Column("delta_extra", Double),
    Column("seq", Integer, nullable=False),
    Column("hash", String(64), nullable=False),
    Column("currency", String(16), nullable=False, server_default=CURRENCY),
    Column("public_schema", Text),
    Column("mode", Text),
    Column("shares", Text),
)

# The chain. Rows are only ever inserted.
records = Table(
    "fedcore_records",
    metadata,
    Column("population_id", ForeignKey(accounts.c.population_id), primary_key=True),
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("kind", String(32), nullable=False),
    Column("run_id", String(128), index=True),
    Column("payload", Text, nullable=False),
    Column("prev_hash", String(64), nullable=False),
    Column("hash", String(64), nullable=False),
)

# token is the fencing token; holder describes the process that holds the lease, or is null.
runs = Table(
    "fedcore_runs",
    metadata,
    Column("run_id", String(128), primary_key=True),
    Column("population_id", ForeignKey(accounts.c.population_id), nullable=False, index=True),
    Column("plan", Text, nullable=False),
    Column("plan_digest", String(64), nullable=False),
    Column("spares", Integer, nullable=False),
    Column("used", Integer, nullable=False),
    Column("spare_rho", Double, nullable=False),
    Column("spare_delta", Double, nullable=False),
    Column("secure", Boolean, nullable=False),
    Column("status", String(32), nullable=False),
    Column("token", Integer, nullable=False),
    Column("holder", Text),
    Column("expires", Double),
    Column("purpose", String(32), nullable=False, server_default=PURPOSE),
    Column("noise", String(64), nullable=False, server_default=ROUNDED),
    Column("cohorts", Text),
    Column("share", String(128)),
)
open_runs = Index("ix_fedcore_runs_status", runs.c.population_id, runs.c.status)  # few among thousands

releases = Table(
    "fedcore_releases",
    metadata,
    Column("run_id", ForeignKey(runs.c.run_id), primary_key=True),
    Column("round", Integer, primary_key=True, autoincrement=False),
    Column("name", String(128), primary_key=True),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("state", String(16), nullable=False),
    Column("rho", Double, nullable=False),
    Column("delta", Double, nullable=False),
)

# The published value itself. The primary key is what makes a second publication lose.
published = Table(
    "fedcore_published",
    metadata,
    Column("run_id", ForeignKey(runs.c.run_id), primary_key=True),
    Column("round", Integer, primary_key=True, autoincrement=False),
    Column("name", String(128), primary_key=True),
    Column("attempt", Integer, nullable=False),
    Column("shape", Text, nullable=False),
    Column("data", Bytes, nullable=False),  # int64, little-endian, C order
    Column("sha256", String(64), nullable=False),
)

# Not in the chain, since they depend on data: noisy sketches of ids and keyed digests of blocks, by which populations
# of the same people are found. The operator's commands write them, and runs do not.
sketches = Table(
    "fedcore_id_sketches",
    metadata,
    Column("population_id", ForeignKey(accounts.c.population_id), primary_key=True),
    Column("name", Text, nullable=False),
    Column("key", String(16), nullable=False),  # name of the key
    Column("version", Integer, nullable=False),  # of the population that it describes, and checksum of its manifest
    Column("manifest", String(64), nullable=False),
    Column("clients", Integer, nullable=False),  # this many, the first ones, of that version are in the sketch
    Column("ids", Integer, nullable=False),
    Column("parts", Integer, nullable=False),
    Column("cells", Bytes, nullable=False),
    Column("blocks", Bytes, nullable=False),
    Column("undeclared", Text, nullable=False),  # populations that share people with this one: JSON lists
    Column("declared", Text, nullable=False),
)
