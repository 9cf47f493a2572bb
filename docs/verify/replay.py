"""Recompute what a privacy ledger of fedcore says was spent, and check a privacy statement, without fedcore.

    python replay.py (ledger.sqlite | postgresql://auditor@host/name) [--statement runs/march/statement.json]

Python 3.11 is enough for SQLite; PostgreSQL needs psycopg. Nothing is written. What is checked, and what is not, is on
the page docs/privacy/statements.md. Exit status: 0 if everything agrees, 2 with a line for each disagreement.
"""

import hashlib
import json
import math
import sqlite3
import sys
from fractions import Fraction

OTHERS = "register|public schema|shared ids|accept loss|anchor|cohorts|forget|checkpoint|acquire|budget divide|finish"
TOTALS = ("rho", "delta", "rho held", "delta held")  # of a cohort: what is spent, and what is reserved
SHARED = "rounded gaussian share 1"  # the noise of several sites, each of which adds a share


def reader(address):
    if address.startswith("postgresql"):
        from psycopg import connect

        run = connect(address.replace("+psycopg", "")).execute
        return lambda query, *values: run(query.replace("?", "%s"), values).fetchall()
    run = sqlite3.connect(f"file:{address.removeprefix('sqlite:///')}?mode=ro", uri=True).execute
    return lambda query, *values: run(query, values).fetchall()


def is_within(rho, epsilon, delta):
    """Whether Phi(m / 2 - epsilon / m) - exp(epsilon) Phi(-m / 2 - epsilon / m) <= delta, where rho = m^2 / 2."""
    m = math.sqrt(2 * rho) or 1e-99
    first, second = (math.erfc((epsilon / m - half) / math.sqrt(2)) / 2 for half in (m / 2, -m / 2))
    return first - (math.exp(epsilon) * second if second else 0.0) <= delta * (1 + 1e-9)  # nine digits


def is_rounded_up(said, exact):
    return Fraction(said) >= exact and (not said or Fraction(math.nextafter(said, 0)) < exact)


def is_covered(item, share):
    """Whether the noise of m - t sites costs at most what is charged, and that of all m is what the method planned."""
    square, honest, moved = Fraction(share["scale"]) ** 2, share["sites"] - share["collusion"], item["sensitivity"]
    whole = 0 < honest < share["sites"] and share["sites"] * square >= Fraction(share["total"]) ** 2
    charged = moved**2 <= 2 * honest * square * Fraction(item["rho"]) and not item["delta"] and share["scale"] >= 64
    return whole and charged and (moved * Fraction(item["noise_multiplier"])) ** 2 <= honest * square


class Account:  # what the records of one population add up to; wrong: a sentence for every broken rule
    def __init__(self):
        self.budget, self.runs, self.sums, self.wrong, self.seq, self.hash = None, {}, {}, [], 0, "0" * 64
        self.most = Fraction(0)  # what a client of the cohort that has spent most has lost to all runs, exactly

    def check(self, holds, sentence):
        self.wrong += [] if holds or sentence in self.wrong else [sentence]

    def add(self, cohorts, price, held="", sign=1):
        for total in (self.sums.setdefault(cohort, dict.fromkeys(TOTALS, Fraction(0))) for cohort in cohorts):
            for part, limit, value in zip(("rho", "delta"), ("rho_max", "delta_extra"), price, strict=True):
                total[part + held] += sign * value
                fits = sign < 0 or total[part] + total[part + " held"] <= Fraction(self.budget[limit])
                self.check(fits, f"what is spent and reserved exceeds {limit}")
            self.most = max(self.most, total["rho"])

    def move(self, run, key, old, new):
        """One attempt goes from one state of its life to the next. Before it is reserved it has none."""
        if run["states"].get(key) != old:
            return self.check(False, f"{key} of {run['id']} becomes {new} without being {old}")
        run["states"][key], price = new, run["prices"][key[:2]]
        if old == "reserved":
            self.add(run["payers"], price, " held", -1)
        if new in ("reserved", "charged"):
            self.add(run["payers"], price, " held" if new == "reserved" else "")

    def reserve(self, run_id, said):
        if run_id in self.runs or self.budget is None:
            return self.check(False, f"{run_id} is reserved twice, or before there is a budget")
        cohorts = (said.get("cohorts") or {"ranges": [(1, 1)]})["ranges"]
        payers = [cohort for first, last in cohorts for cohort in range(first, last + 1)]
        self.runs[run_id] = run = {"id": run_id, "status": "open", "payers": payers, "noise": said.get("noise")}
        run |= {"spares": said["spares"], "spare": (Fraction(said["spare_rho"]), Fraction(said["spare_delta"]))}
        run |= {name: {} for name in ("states", "prices", "shares", "digests")}
        for item in said["plan"]:
            key, share = (item["round"], item["name"]), item.get("noise_share")
            run["prices"][key], run["shares"][key] = (Fraction(item["rho"]), Fraction(item["delta"])), share
            enough = 2 * run["prices"][key][0] * Fraction(item["noise_multiplier"]) ** 2 >= 1
            enough = enough and bool(share) == (run["noise"] == SHARED) and (not share or is_covered(item, share))
            self.check(enough, f"{key} of {run_id} is reserved for less than its noise costs")
            self.move(run, (*key, 0), None, "reserved")
        self.add(payers, run["spare"], " held", run["spares"])

    def draw(self, kind, run, key, said):
        """A charge, or an extension that reserves one more attempt at a release whose last one was lost."""
        if run["prices"].get(key[:2]) != (said["rho"], said["delta"]) or run["status"] != "open":
            return self.check(False, f"{key} of {run['id']}: another price than planned, or the run has ended")
        same = (said.get("noise", run["noise"]), said.get("noise_share")) == (run["noise"], run["shares"].get(key[:2]))
        self.check(same or kind == "extend", f"{key} of {run['id']}: other noise than planned")
        if key not in run["states"]:
            if kind == "charge":
                self.check(run["spares"] > 0, f"{key} of {run['id']} is paid by a spare release, and none is left")
                run["spares"] -= 1
                self.add(run["payers"], run["spare"], " held", -1)
            self.move(run, key, None, "reserved")
        if kind == "charge":
            self.move(run, key, "reserved", "charged")

    def apply(self, kind, run_id, said):
        run, key = self.runs.get(run_id), tuple(said.get(name) for name in ("round", "name", "attempt"))
        if kind in ("budget set", "budget raise"):
            old, self.budget, new = self.budget, said["budget"], said["budget"]
            kept = kind == "budget set" if old is None else kind == "budget raise" and new["rho_max"] >= old["rho_max"]
            self.check(kept, "a budget is set twice, or lowered")
            within = is_within(new["rho_max"], new["epsilon"], new["delta_conv"])
            within = within and Fraction(new["delta_conv"]) + Fraction(new["delta_extra"]) <= Fraction(new["delta"])
            self.check(within, f"rho_max {new['rho_max']} is more than (epsilon, delta) allow")
        elif kind == "spent before" and self.budget:
            self.add([1], (Fraction(said["rho"]), Fraction(0)))
        elif kind == "reserve":
            self.reserve(run_id, said)
        elif run and kind in ("charge", "extend"):
            self.draw(kind, run, key, said)
        elif run and kind in ("publish", "forfeit"):
            self.move(run, key, "charged", "published" if kind == "publish" else "forfeited")
            run["digests"][key] = said.get("digest")
        elif run and kind in ("give up", "finish") and run["status"] == "open":
            for other in [at for at, state in run["states"].items() if state == "reserved" and at[0] >= (key[0] or 0)]:
                self.move(run, other, "reserved", "returned")  # what was charged stays spent
            if kind == "finish":
                self.add(run["payers"], run["spare"], " held", -run["spares"])
                run["status"], run["spares"] = said["status"], 0
        else:
            self.check(kind in OTHERS.split("|"), f"a record of kind {kind!r} is unknown, or its run is not reserved")


def replay(rows, population, until=2**53):
    """The account after record `until`, by default after the last one, which the tables must agree with."""
    account, ((ledger,),) = Account(), rows("SELECT id FROM fedcore_ledger")
    columns = "seq, kind, run_id, payload, prev_hash, hash FROM fedcore_records WHERE population_id = ? AND seq <= ?"
    for seq, kind, run_id, payload, before, found in rows(f"SELECT {columns} ORDER BY seq", population, until):
        link = [ledger, population, seq, kind, run_id, payload, before]
        right = hashlib.sha256(json.dumps(link, separators=(",", ":")).encode()).hexdigest()
        if (seq, before, found) != (account.seq + 1, account.hash, right):
            account.check(False, f"the chain is broken at record {account.seq + 1} ({kind})")
            break
        account.seq, account.hash = seq, found
        account.apply(kind, run_id, json.loads(payload))
    if until < 2**53:
        return account
    head = rows("SELECT seq, hash FROM fedcore_accounts WHERE population_id = ?", population)
    account.check(head == [(account.seq, account.hash)], "the chain does not end where the account says")
    for run_id, run in account.runs.items():
        arrays = rows("SELECT round, name, attempt, shape, data FROM fedcore_published WHERE run_id = ?", run_id)
        stored = {tuple(key): hashlib.sha256(shape.encode() + data).hexdigest() for *key, shape, data in arrays}
        recorded = {key: run["digests"].get(key) for key, state in run["states"].items() if state == "published"}
        account.check(stored == recorded, f"the published arrays of {run_id} are not those of its records")
    return account


def found_in_statement(rows, said):
    account = replay(rows, said["population_id"], said["ledger"]["seq"])
    run, budget, check = account.runs.get(said["run"]), said["population"], account.check
    check(account.hash == said["ledger"]["hash"], "statement: the record that it names is not in the chain")
    if not run:
        return [*account.wrong, f"statement: the chain knows no run {said['run']}"]
    spent = [key[:2] for key, state in run["states"].items() if state not in ("reserved", "returned")]
    listed = {(item["round"], item["name"]): item for item in said["releases"]}
    check(set(spent) == set(listed), "statement: its releases are not those that the run paid for")
    for key in set(spent) & set(listed):
        right = is_rounded_up(listed[key]["rho"], spent.count(key) * run["prices"][key][0])
        check(right and spent.count(key) == listed[key]["attempts"], f"statement: draws or price of {key} are wrong")
    for name, place, before in (("rho", 0, 0), ("delta", 1, Fraction(budget["delta_conv"]))):
        total = before + sum(run["prices"][key][place] for key in spent)
        check(is_rounded_up(said[name], total), f"statement: its {name} is {said[name]}, and the run's {float(total)}")
    check(is_rounded_up(budget["rho_spent"], account.most), f"statement: all runs spent {float(account.most)}")
    check(all(budget[name] == value for name, value in account.budget.items()), "statement: another budget")
    share = next(iter(run["shares"].values())) or {"sites": 1, "collusion": 0}
    colluding = ((share["sites"] - share["collusion"]) * said["rho"], said.get("sites", said)["epsilon"])
    for rho, epsilon in ((said["rho"], said["epsilon"]), (budget["rho_spent"], budget["epsilon_spent"]), colluding):
        check(is_within(rho, epsilon, budget["delta_conv"]), f"statement: rho {rho} costs more than epsilon {epsilon}")
    return account.wrong


def main(ledger, statement=None):
    rows, wrong = reader(ledger), []
    for (population,) in rows("SELECT population_id FROM fedcore_accounts ORDER BY population_id"):
        account = replay(rows, population)
        limit = account.budget["rho_max"] if account.budget else "no budget"
        print(f"population {population}: {account.seq} records, rho spent {float(account.most):.9g} of {limit}")
        wrong += account.wrong
    if statement:
        with open(statement, encoding="utf-8") as file:
            wrong += found_in_statement(rows, json.load(file))
    print("\n".join([f"WRONG: {sentence}" for sentence in wrong] or ["Everything agrees."]))
    return 2 if wrong else 0


if __name__ == "__main__":
    arguments = [one for one in sys.argv[1:] if one != "--statement"]
    sys.exit(main(*arguments) if 0 < len(arguments) < 3 and not arguments[0].startswith("-") else __doc__)
