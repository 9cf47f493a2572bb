"""Accounts by cohort: how they begin, which cohorts take part in a run, and that clients were forgotten.

The argument is docs/privacy/cohorts.md: a client's privacy loss is at most what its cohort has spent. This holds if no
client's cohort depends on other clients, and if one number of a cohort always means the same people.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fedcore.errors import LedgerTampered, PopulationBranched, PrivacyError
from fedcore.privacy.cohorts import Participants
from fedcore.privacy.ledger import tables
from fedcore.privacy.ledger.accounts import Accounts
from fedcore.privacy.ledger.chain import BY_COHORT, OPEN, Account, Record, canonical
from fedcore.privacy.ledger.queries import CHAIN, read_chain
from fedcore.privacy.ledger.replay import COHORTS, FORGET
from fedcore.privacy.ledger.rows import RESTORE, decoded_object, find
from fedcore.privacy.ledger.sums import EVERYBODY

ONE_COPY = "Continue with one copy only: the one on which the runs of the ledger were made. Delete the other."


class CohortAccounts(Accounts):
    """Accounts: one for all clients, or one for each cohort."""

    def begin_cohorts(
        self, population_id: str, *, version: int, manifest: str, token: str, chain: Mapping[int, str]
    ) -> str:
        """Switch a population to per-cohort budgets, irreversibly. Returns the valid token.

        All clients in `version` are the first cohort. It carries everything that was spent and reserved, and what open
        runs will spend. manifest: checksum of that version. token: of the first cohort, 32 hexadecimal digits of random
        bits; if the same version was recorded before, nothing happens, and the earlier token stays valid. chain:
        checksum of each version of this population.

        Raises BudgetMissing, PrivacyError if a unit is not a client or a run does not state on which version it was
        made, PopulationBranched if a run was made on a version that `chain` lacks, or cohorts began with another
        version.
        """
        Participants(EVERYBODY, (token,))  # a malformed token is a mistake of the caller
        with self._writing(population_id) as writer:
            account = self._whole(writer.connection, writer.account)
            account.required_budget()
            if account.founders == (version, manifest):
                return account.tokens[0]
            if account.founders is not None:
                raise PopulationBranched(
                    f"the budget of population {population_id!r} is kept by cohort since version "
                    f"{account.founders[0]}, and this copy is another one, or reached version {version} without.",
                    ONE_COPY,
                )
            if account.unit != "client":
                raise PrivacyError(
                    f"population {population_id!r} protects one {account.unit}: its cohort depends on other records "
                    "of the same client, so its budget cannot be kept by cohort.",
                    "It stays one account.",
                )
            reserved = read_chain(writer.connection, population_id, tables.records.c.kind == "reserve")
            _check_made_on(account, reserved, {number: chain[number] for number in chain if number <= version})
            writer.set_account(mode=BY_COHORT)
            writer.append(COHORTS, None, {"founders": version, "manifest": manifest, "token": token})
        return token

    def tokens(self, population_id: str) -> tuple[str, ...]:
        """Tokens of the cohorts that the ledger has seen, from number 1 on; none where there is one account for all."""
        with self._reading(population_id) as (connection, row):
            return self._recent(connection, row).tokens

    def participants_of(self, run_id: str) -> Participants | None:
        """The cohorts that take part in a run, as it was reserved; None for all clients, or a run that never reserved.

        Raises LedgerTampered if record and table disagree.
        """
        with self._transaction(write=False) as connection:
            runs = find(connection, tables.runs, tables.runs.c.run_id == run_id, columns=("population_id", "cohorts"))
            c = tables.records.c
            mine = (c.run_id == run_id) & (c.kind == "reserve")
            rows = find(connection, tables.records, mine, columns=CHAIN)
        if not runs:
            return None
        try:
            (record,) = (Record(*row) for row in rows)
            value = decoded_object(record.payload, f"the reservation of run {run_id!r}").get("cohorts")
            found = None if value is None else Participants.from_json(value)
            written = None if found is None else canonical(found.ranges)
            if record.hash == record.expected_hash(self.id, runs[0].population_id) and written == runs[0].cohorts:
                return found
        except (KeyError, TypeError, ValueError):
            pass
        raise LedgerTampered(
            f"who takes part in run {run_id!r} is not what its reservation in ledger {self.id} says.", RESTORE
        )

    def forgot(self, population_id: str, *, version: int, list: str | None) -> None:
        """Record that clients were forgotten with this version: what they were charged stays, and is never given back.

        list: digest of the list by which an id that comes back is known; None if none is kept. If the newest such
        record says the same, nothing happens.
        """
        said = {"version": version, "list": list}
        with self._writing(population_id) as writer:
            self._recent(writer.connection, writer.account)
            known = read_chain(writer.connection, population_id, tables.records.c.kind == FORGET)
            last = decoded_object(known[-1].payload, "a record of a forgotten client") if known else {}
            if {name: last.get(name) for name in said} != said:
                writer.append(FORGET, None, said)


def _check_made_on(account: Account, reserved: Iterable[Record], chain: Mapping[int, str]) -> None:
    """Every run that spent something, or may, was made on a version of this chain: so what it spent, it spent for
    people who are in the newest of them. Raises PopulationBranched, or PrivacyError if a run does not say.
    """
    for record in reserved:
        run = account.runs[record.run_id or ""]
        if run.status != OPEN and not run.spent():
            continue
        bound: dict[str, Any] = decoded_object(record.payload, f"record {record.seq}").get("bound") or {}
        if bound.get("manifest") is None:
            raise PrivacyError(
                f"run {record.run_id!r} states no checksum of the version that it was made on. It may have been made "
                "on a copy and have spent the budget of clients that are added here later. They could then not start "
                "with a full budget.",
                "The budget of this population stays one account for all clients.",
            )
        if chain.get(bound.get("version", 0)) != bound["manifest"]:
            raise PopulationBranched(
                f"run {record.run_id!r} was made on version {bound.get('version')} of another copy of population "
                f"{account.population_id!r}: it may have spent the budget of people who come here later.",
                ONE_COPY,
            )
