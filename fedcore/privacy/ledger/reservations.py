"""Reservations: the privacy cost of a whole plan is reserved before a run opens data.

The account is replayed from its newest checkpoint, so the time of a reservation does not depend on earlier spending.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from fedcore.errors import BudgetExceeded, ConfigError, PopulationBranched, PrivacyError
from fedcore.privacy.accounting import exact_sum
from fedcore.privacy.cohorts import Participants
from fedcore.privacy.ledger import tables
from fedcore.privacy.ledger.accounts import LONGEST_NAME
from fedcore.privacy.ledger.chain import OPEN, PURPOSE, RESERVED, Account, canonical, digest
from fedcore.privacy.ledger.chain_writer import ChainWriter
from fedcore.privacy.ledger.checkpoint import state_of
from fedcore.privacy.ledger.cohort_accounts import ONE_COPY
from fedcore.privacy.ledger.queries import refusal
from fedcore.privacy.ledger.replay import CHECKPOINT
from fedcore.privacy.ledger.rows import find
from fedcore.privacy.ledger.shares import SHARES, check_named, part_of
from fedcore.privacy.ledger.sketch_accounts import SketchAccounts
from fedcore.privacy.ledger.sums import EVERYBODY
from fedcore.privacy.noise_shares import check_shares
from fedcore.privacy.periods import periods_in
from fedcore.privacy.plan import PlannedRelease, Relation, Unit
from fedcore.privacy.rounded_gaussian import LARGEST_SCALE
from fedcore.storage.plain import plain

CHECKPOINT_AFTER = 256  # records


class Reservations(SketchAccounts):
    """Accounts, and the plans that runs reserve in them."""

    def reserve(
        self,
        population_id: str,
        run_id: str,
        plan: Sequence[PlannedRelease],
        spares: int,
        *,
        unit: Unit = "client",
        relation: Relation = "add_or_remove_one",
        secure: bool,
        bound: dict[str, Any] | None = None,
        cohorts: Participants | None = None,
        share: str | None = None,
    ) -> None:
        """Reserve the privacy cost of a plan and of `spares` redraws of its most costly release, before data are
        opened.

        If the run has reserved the same plan before, nothing happens. secure: whether the noise protects people. bound:
        digests of what the run reads and is, kept in the record: {"manifest", "version", "run"}. cohorts: those
        that take part and are charged, for a budget by cohort; each needs enough budget. share: sub-budget that is
        charged; None: the undivided part, or all of a budget that is not divided. Raises BudgetMissing,
        SharedIds, BudgetExceeded with the numbers, PrivacyError for another unit or relation, for test noise on a
        ledger for people, for more calendar periods than the budget's window, for another plan under the same run id,
        or for cohorts without accounts for them and the other way round, PopulationBranched for a cohort that is known
        under another token, ConfigError for a plan that is malformed, whose noise cannot be drawn, or costs more than
        it declares.
        """
        if not secure and not self.is_test:
            raise PrivacyError(
                f"run {run_id!r} uses test noise, and ledger {self.id} is for people.",
                "Use a population whose ledger was made for tests.",
            )
        self._check_plan(run_id, plan, spares)
        payload = {
            "plan": plain(plan),
            "spares": spares,
            "spare_rho": max(p.rho for p in plan),
            "spare_delta": max(p.delta for p in plan),
            "unit": unit,
            "relation": relation,
            "secure": secure,
            "statement": None,  # as earlier records have it
        }
        # What a plan does not use is no part of its digest, and the noise distribution never is.
        identity = {**payload, "population_id": population_id}
        later: dict[str, Any] = {"needs": [], "noise": plan[0].law, "purpose": PURPOSE, "bound": bound}
        if cohorts is not None:  # tokens are no part of the plan: they are compared with those that are known
            identity["cohorts"] = cohorts.ranges
            later |= {"needs": ["cohorts"], "cohorts": plain(cohorts)}
        if share is not None:
            identity["share"] = share
            later |= {"needs": [*later["needs"], SHARES], "share": share}
        payload = json.loads(canonical({**payload, **later, "plan_digest": digest(canonical(identity))}))
        with self._writing(population_id) as writer:
            named = tables.runs.c.run_id == run_id
            known = find(writer.connection, tables.runs, named, columns=("plan_digest",))
            if known and known[0].plan_digest == payload["plan_digest"]:
                return
            if known:
                raise PrivacyError(f"run {run_id!r} has reserved another plan.", "Give the new run a new name.")
            account = self._recent(writer.connection, writer.account)
            budget = account.required_budget()
            self._refuse_undeclared(writer.connection, population_id)
            self._check_unit_and_relation(account, run_id, unit, relation)
            self._check_cohorts(account, run_id, cohorts)
            _check_periods(account, run_id, plan, cohorts)
            check_named(account.shares, share, population_id)
            rho = exact_sum([p.rho for p in plan]) + spares * Fraction(payload["spare_rho"])
            delta = exact_sum([p.delta for p in plan]) + spares * Fraction(payload["spare_delta"])
            payers = EVERYBODY if cohorts is None else cohorts.ranges
            rho_used, delta_used = account.sums().most(payers)
            fits = rho_used + rho <= Fraction(budget.rho_max) and delta_used + delta <= Fraction(budget.delta_extra)
            rho_of_share, delta_of_share = account.share_left(payers, share)
            within = rho <= rho_of_share and delta <= delta_of_share
            if fits and within:
                if account.seq - account.checkpoint >= CHECKPOINT_AFTER:
                    writer.append(CHECKPOINT, None, {"state": state_of(account)})
                self._write_reservation(writer, run_id, payload)
        if not (fits and within):  # composed outside the lock, since it converts to epsilon
            account.learn(() if cohorts is None else cohorts.tokens)
            balance = account.balance() if within else account.balance().of_share(share)
            part = part_of(account.shares, share) if not within else Fraction(1)
            raise BudgetExceeded(*refusal(balance, run_id, rho, delta, spares, payers, part))

    def _check_plan(self, run_id: str, plan: Sequence[PlannedRelease], spares: int) -> None:
        names = [planned.name for planned in plan]
        if not names or len(set(names)) < len(names):
            raise ConfigError(f"the plan of run {run_id!r} is empty, or names a release twice.")
        if max(map(len, [run_id, *names])) > LONGEST_NAME:
            raise ConfigError(f"names of runs and releases have at most {LONGEST_NAME} characters.")
        if type(spares) is not int or spares < 0:
            raise ConfigError(f"the number of spare releases is a whole number from 0, not {spares!r}.")
        if not all(0 <= planned.delta < 1 and math.isfinite(planned.rho) for planned in plan):
            raise ConfigError(f"a cost in the plan of run {run_id!r} is infinite, or a delta is not between 0 and 1.")
        check_shares(plan)
        for planned in plan:
            self._check_noise(run_id, planned)

    def _check_noise(self, run_id: str, planned: PlannedRelease) -> None:
        """Check that noise of the planned scale can be drawn, and costs no more than planned: D**2 / (2 s**2) <= rho
        exactly."""
        scale = planned.scale
        if scale > LARGEST_SCALE:
            raise ConfigError(
                f"release {planned.name!r} of run {run_id!r} needs noise of scale {scale:.3g} grid units, and none is "
                f"drawn above {LARGEST_SCALE:.3g}.",
                "Give the run more of the budget, or use a coarser grid.",
            )
        if Fraction(planned.sensitivity) ** 2 > 2 * Fraction(scale) ** 2 * Fraction(planned.rho):
            raise ConfigError(
                f"release {planned.name!r} of run {run_id!r}: noise of scale {scale!r} for the sensitivity "
                f"{planned.sensitivity} costs more than rho = {planned.rho!r}, its planned cost."
            )

    def _check_unit_and_relation(self, account: Account, run_id: str, unit: str, relation: str) -> None:
        if (unit, relation) != (account.unit, account.relation):
            raise PrivacyError(
                f"population {account.population_id!r} promises privacy for one {account.unit} under "
                f"{account.relation}; run {run_id!r} is made for one {unit} under {relation}.",
                "Costs for one do not hold for the other. Plan the run for those of the population.",
            )

    def _check_cohorts(self, account: Account, run_id: str, cohorts: Participants | None) -> None:
        """What is reserved by cohort, and what is known, are of one kind, and of one population."""
        if cohorts is None and account.founders is None:
            return
        if cohorts is None:
            raise PrivacyError(
                f"the budget of population {account.population_id!r} is kept by cohort, and run {run_id!r} reads a "
                "version without cohorts.",
                "Train on the newest version. If that one has no cohorts either, fedcore budget cohorts was stopped on "
                "its way: run it again.",
            )
        if account.founders is None:
            raise PrivacyError(
                f"run {run_id!r} is for cohorts {cohorts}, and the ledger keeps one account for all clients of "
                f"population {account.population_id!r}: it is an older copy, or another ledger.",
                "Restore the newest copy.",
            )
        if (number := account.stranger(cohorts.tokens)) is not None:
            raise PopulationBranched(
                f"cohort {number} of population {account.population_id!r} is not the one that the ledger knows by this "
                "number: two copies of the population were appended to. A client may be in another cohort here than "
                "there, and would spend two budgets.",
                ONE_COPY,
            )

    def _write_reservation(self, writer: ChainWriter, run_id: str, payload: dict[str, Any]) -> None:
        writer.append("reserve", run_id, payload)
        writer.connection.execute(
            tables.runs.insert().values(
                run_id=run_id,
                population_id=writer.population_id,
                plan=canonical(payload["plan"]),
                plan_digest=payload["plan_digest"],
                spares=payload["spares"],
                used=0,
                spare_rho=payload["spare_rho"],
                spare_delta=payload["spare_delta"],
                secure=payload["secure"],
                status=OPEN,
                token=0,
                purpose=PURPOSE,
                noise=payload["noise"],
                cohorts=canonical(payload["cohorts"]["ranges"]) if "cohorts" in payload else None,
                share=payload.get("share"),
            )
        )
        rows = [
            {
                "run_id": run_id,
                "round": item["round"],
                "name": item["name"],
                "attempt": 0,
                "state": RESERVED,
                "rho": item["rho"],
                "delta": item["delta"],
            }
            for item in payload["plan"]
        ]
        writer.connection.execute(tables.releases.insert(), rows)

    def has_reservation(self, run_id: str) -> bool:
        """Whether the run has reserved its plan and has not ended."""
        return self.run_status(run_id) == OPEN

    def run_status(self, run_id: str) -> str | None:
        """ "open", "finished", "abandoned", "budget exhausted"; None for a run that never reserved."""
        with self._transaction(write=False) as connection:
            rows = find(connection, tables.runs, tables.runs.c.run_id == run_id, columns=("status",))
        return rows[0].status if rows else None


def _check_periods(account: Account, run_id: str, plan: Sequence[PlannedRelease], cohorts: Participants | None) -> None:
    """Where entries of one client and one period are protected: no run reads more of them than the bound for a client's
    whole life supposes, and none thresholds. Raises PrivacyError.
    """
    terms = account.periods
    if terms is None or cohorts is None:
        return
    if (read := periods_in(cohorts.ranges)) > terms.window:
        raise PrivacyError(
            f"run {run_id!r} would read {read} {terms.unit}s of population {account.population_id!r}, and its budget "
            f"lets a run read {terms.window}. Nothing was released.",
            "Name fewer: what a client with data in several of them loses grows with their square.",
        )
    if named := next((planned.name for planned in plan if planned.delta), None):
        raise PrivacyError(
            f"release {named!r} of run {run_id!r} is a thresholding step, which has no privacy cost per client and "
            f"{terms.unit}: what it hides of one entry it does not hide of several at once. Nothing was released.",
            "Choose settings, or a method, without thresholds.",
        )
