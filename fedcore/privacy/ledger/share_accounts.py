"""Accounts that are divided into named shares."""

from __future__ import annotations

from fedcore.privacy.ledger.chain import canonical
from fedcore.privacy.ledger.cohort_accounts import CohortAccounts
from fedcore.privacy.ledger.dividing import DIVIDE, divided, record_of
from fedcore.privacy.ledger.shares import Shares, shares_json


class ShareAccounts(CohortAccounts):
    """Accounts, of which shares may be dealt out."""

    def divide(self, population_id: str, changes: Shares) -> None:
        """Divide the budget of a population into named sub-budgets, or change them, by a record that is shown
        permanently.

        changes: fractions of the budget by name, exact; other sub-budgets stay as they are, and 0 removes one. The
        undivided part is charged for runs without a sub-budget. Nothing is recorded if nothing changes. Raises
        BudgetMissing, ConfigError for invalid names and fractions, BudgetExceeded if a sub-budget, or the undivided
        part, would have less than its runs have spent and reserved.
        """
        with self._writing(population_id) as writer:
            account = self._recent(writer.connection, writer.account)
            old, new = account.shares, divided(account, changes)
            if new == old:
                return
            writer.set_account(shares=canonical(shares_json(new)) if new else None)
            writer.append(DIVIDE, None, record_of(old, new))
