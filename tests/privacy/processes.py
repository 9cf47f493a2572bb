"""What other processes do in the tests of the ledger: race, and die at chosen points."""

import json
import os
import signal
import time
from contextlib import suppress
from fractions import Fraction

import numpy as np
from sqlalchemy import Engine, event

from fedcore.errors import BudgetExceeded, FedcoreError, LeaseLost, RunBusy, RunError
from fedcore.privacy.ledger import copies
from fedcore.privacy.ledger.chain_writer import ChainWriter
from fedcore.privacy.ledger.ledger import open_ledger
from fedcore.privacy.plan import PlannedRelease


def reserve_or_divide_at_barrier(url, population, run, plan, share, barrier, answers):
    """A reservation, in a share if one is named; without a run the share "a" becomes this part of the budget."""
    ledger = open_ledger(url)
    barrier.wait()
    try:
        if run is None:
            ledger.divide(population, {"a": Fraction(share)})
        else:
            ledger.reserve(population, run, plan, 0, secure=True, share=share)
        answers.put((run, "done"))
    except FedcoreError as error:
        answers.put((run, type(error).__name__))


def divide_and_die(url, population, number):
    """A division of the budget, killed before the statement or commit of this number."""
    ledger = open_ledger(url)
    die_before_statement(ledger._engine, number)
    ledger.divide(population, {"a": Fraction(1, 2)})


def charge_until(url, population, stop):
    """Runs of one small release each, until somebody stops them."""
    ledger, planned = open_ledger(url), PlannedRelease("sums", 1, (3,), 64, 5000.0, "docs", "one cell", 0.0)
    number = 0
    while not stop.is_set():
        run, number = f"{population}-{number}", number + 1
        ledger.reserve(population, run, [planned], 0, secure=True)
        lease = ledger.acquire(run)
        ledger.publish(lease, ledger.charge(lease, planned), np.full(3, number))
        ledger.finish(lease, "finished")


def back_up_and_die(url, dest, step):
    """A backup, killed after a step."""
    ledger, replaced = open_ledger(url), copies.replace_durably

    def before_it_is_replaced(partial, path):
        if step == "verified":
            die()
        replaced(partial, path)
        die()

    copies.replace_durably = before_it_is_replaced
    if step == "copied":
        copies.open_copy = lambda path: die() if path.name.endswith(".partial") else open_ledger(f"sqlite:///{path}")
    copies.backup(ledger, dest)


def spend_until_refused(url, population, plan, share, seed, seconds, log):
    """Runs of this plan, one after another, until the budget refuses one and none is open. Open runs of processes that
    died are taken over at times. A line of the file `log` for each value that this process got back from a publication.
    """
    ledger, generator = open_ledger(url), np.random.default_rng(seed)
    deadline = time.monotonic() + seconds
    with open(log, "a", buffering=1) as said:
        while time.monotonic() < deadline:
            waiting = ledger.balance(population).open_runs
            run = f"{population}-{seed}-{generator.integers(10**12)}"
            if waiting and generator.random() < 0.5:
                run = str(generator.choice(waiting))
            else:
                try:
                    ledger.reserve(population, run, plan, 0, secure=True, share=share)
                except BudgetExceeded:
                    said.write("refused\n")
                    if not waiting:
                        return
                    time.sleep(0.01)
                    continue
            with suppress(RunBusy, LeaseLost, RunError):  # somebody else has it, or has ended it
                spend_one(ledger, ledger.acquire(run), plan, generator, said)


def spend_one(ledger, lease, plan, generator, said):
    """All releases of a run that are not published yet, until nothing is left to pay for a lost one."""
    status = "finished"
    try:
        for planned in plan:
            charge = ledger.charge(lease, planned)
            value = charge.stored
            if value is None:
                value = ledger.publish(lease, charge, generator.integers(1, 10**9, 3))
            said.write(json.dumps([lease.run_id, planned.name, value.tolist()]) + "\n")
    except BudgetExceeded:
        status = "budget exhausted"
    ledger.finish(lease, status)


def publish_at_barrier(url, lease, charge, value, barrier, answers):
    ledger = open_ledger(url)
    barrier.wait()
    answers.put((value, ledger.publish(lease, charge, np.full(3, value)).tolist()))


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def die_before_record(kind, number=0):
    """SIGKILL inside the transaction, after its other rows were written and before its record is. number: of the
    records of this kind, counted from 0.
    """
    append, left = ChainWriter.append, iter(range(number))

    def dying(self, appended, run_id, payload):
        if appended == kind and next(left, None) is None:
            die()
        append(self, appended, run_id, payload)

    ChainWriter.append = dying


def die_before_statement(engine, number):
    """SIGKILL before the statement or commit of this number on an engine, counted from 0; none if there are fewer.

    Returns what counts, to be called at other steps as well.
    """
    count = 0

    def count_and_die(*_):
        nonlocal count
        if count == number:
            die()
        count += 1

    for name in ("before_cursor_execute", "commit"):
        event.listen(engine, name, count_and_die)
    return count_and_die


def work_and_die(url, population, run, plan, spares, when, share=None):
    """The first release of a run, killed at `when`."""
    ledger = open_ledger(url)
    ledger.reserve(population, run, plan, spares, secure=True, share=share)
    if when == "reserved":
        die()
    lease = ledger.acquire(run)
    if when in ("charge", "publish"):
        die_before_record(when)
    charge = ledger.charge(lease, plan[0])
    if when == "charged":
        die()
    ledger.publish(lease, charge, np.full(3, 7))
    die()


def pay_again_and_die(url, run, planned, when):
    """A release that was charged and lost before is charged again, and drawn; killed at `when`."""
    ledger = open_ledger(url)
    lease = ledger.acquire(run, take_over=True)
    if when not in ("charged", "published"):
        die_before_record(when)
    charge = ledger.charge(lease, planned)
    if when == "charged":
        die()
    ledger.publish(lease, charge, np.full(3, 7))
    die()


def work_on_a_round_and_die(url, run, plan, when):
    """A round of several releases, killed at `when`: before the record "charge N" or "publish N", or between them."""
    ledger = open_ledger(url)
    lease = ledger.acquire(run, take_over=True)
    kind, _, number = when.partition(" ")
    if number:
        die_before_record(kind, int(number))
    charges = ledger.charge_round(lease, plan)
    if when == "charged":
        die()
    ledger.publish_round(lease, charges, [np.full(3, 7)] * len(plan))
    die()


def restore_and_die(copy, url, inserts):
    """Puts a copy back, and is killed before it inserts again."""
    left = iter(range(inserts))

    @event.listens_for(Engine, "before_cursor_execute")
    def count(connection, cursor, statement, *_):
        if statement.startswith("INSERT") and next(left, None) is None:
            die()

    copies.restore(copies.open_copy(copy), url)
