"""The mutants: what is altered, and which tests are expected to notice. Imports nothing of fedcore."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Mutant:
    """edits: (old text, new text) of the file, each old text exactly once in it. tests: of which one must fail."""

    name: str
    file: str
    edits: tuple[tuple[str, str], ...]
    tests: tuple[str, ...]

    def altered(self) -> str:
        """The module's text with the mistake. Raises ValueError if the code is not the one it was written for."""
        text = (ROOT / self.file).read_text()
        for old, new in self.edits:
            if text.count(old) != 1:
                raise ValueError(f"mutant {self.name!r}: {self.file} holds {text.count(old)} times {old!r}")
            text = text.replace(old, new)
        return text


def chosen(names: Sequence[str]) -> list[Mutant]:
    """The mutants whose names begin with one of these, or are one of these; all of them for none. Raises ValueError for
    a name that chooses none."""
    for name in names:
        if not any(mutant.name.startswith(name) for mutant in MUTANTS):
            raise ValueError(f"there is no mutant {name!r}")
    return [
        mutant
        for mutant in MUTANTS
        if not names
        or mutant.name in names
        or not {other.name for other in MUTANTS} & set(names)
        and any(mutant.name.startswith(name) for name in names)
    ]


def _listed(table: str) -> list[Mutant]:
    """The mutants of a table. "= FILE" and "@ TEST", a line for each test, hold for the names below them. Below a name
    stand the old ("-") and the new ("+") lines of each of its edits. Without old lines those of the name above count.
    """
    mutants: list[Mutant] = []
    file, tests = "", ()
    for mark, lines in groupby(table.strip("\n").split("\n"), lambda line: line[0] if line[0] in "=@-+" else ""):
        texts = [line[2:] if mark else line for line in lines]
        if mark == "=":
            (file,) = texts
        elif mark == "@":
            tests = tuple(texts)
        elif mark == "":
            mutants.append(Mutant(*texts, file, (), tests))
        elif mark == "-":
            mutants[-1] = replace(mutants[-1], edits=(*mutants[-1].edits, ("\n".join(texts), "")))
        else:
            *before, (old, _) = mutants[-1].edits or mutants[-2].edits
            mutants[-1] = replace(mutants[-1], edits=(*before, (old, "\n".join(texts))))
    return mutants


MUTANTS = _listed(r"""
= fedcore/privacy/mechanisms.py
@ tests/privacy/test_mechanisms.py::test_noise_has_the_planned_distribution
noise: a tenth too small
- return add(values, planned.scale, SystemBits())
+ return add(values, 0.9 * planned.scale, SystemBits())
@ tests/privacy/test_mechanisms.py::test_what_is_drawn_is_the_exact_sampler_at_the_planned_scale
noise: a hundredth too small
+ return add(values, 0.99 * planned.scale, SystemBits())
@ tests/privacy/test_mechanisms.py::test_secure_noise_is_independent_between_cells_and_draws
noise: one draw for all releases of a scale
- return add(values, planned.scale, SystemBits())
+ return values + _once(planned.scale, values.shape)
- class TestNoise:
+ @functools.lru_cache
+ def _once(scale, shape):
+     return add(np.zeros(shape, np.int64), scale, SystemBits())
+
+
+ class TestNoise:
- from typing import Protocol
+ import functools
+ from typing import Protocol
noise: one draw for all cells
- return add(values, planned.scale, SystemBits())
+ return values + add(np.zeros(1, np.int64), planned.scale, SystemBits())[0]
@ tests/privacy/test_mechanisms.py::test_no_cell_goes_without_noise
noise: the first cell without
+ noised = add(values, planned.scale, SystemBits())
+             noised.flat[0] = values.flat[0]
+             return noised
@ tests/privacy/test_mechanisms.py::test_a_forked_process_draws_other_noise
noise: bits that somebody can make again
+ return add(values, planned.scale, StreamBits(run_key, planned.round, planned.name))
@ tests/privacy/test_mechanisms.py::test_a_failing_sampler_does_not_show_the_sum
noise: a failure shows the sum
- ({type(error).__name__}); nothing was released.
+ ({error}); nothing was released.
@ tests/privacy/test_mechanisms.py::test_test_noise_depends_on_key_round_and_name_only
test noise: the same for all releases
- StreamBits(self.key, planned.round, planned.name)
+ StreamBits(self.key, 0, "")
test noise: the same for all keys
+ StreamBits("", planned.round, planned.name)
= fedcore/sites/masks.py
@ tests/sites/test_masks.py::test_masks_cancel_over_all_sites_in_any_order
masks: both ends of a pair add
- total = total + words if first else total - words
+ total = total + words
@ tests/sites/test_masks.py::test_a_mask_used_for_two_rounds_shows_their_difference
masks: one for all rounds
- context.run, context.round]
+ context.run]
@ tests/sites/test_masks.py::test_a_mask_of_another_context_is_unrelated
masks: the same whatever totals a site saw
- [*parts, context.totals.hex(), release]
+ [*parts, release]
masks: the same whatever members a site saw
- context.study.hex(), context.members.hex(),
+ context.study.hex(),
masks: one for all studies
+ context.members.hex(),
@ tests/sites/test_masks.py::test_a_mask_is_of_one_release_and_of_one_pair_of_names_and_keys
masks: one for all releases of a round
- context.totals.hex(), release]
+ context.totals.hex()]
masks: without the names of the pair
- parts = [LABEL, first, second,
+ parts = [LABEL,
@ tests/sites/test_masks.py::test_what_fewer_than_all_sites_posted_is_uniform
masks: the low bits are bare
- np.frombuffer(stream.update(bytes(8 * cells)), "<u8")
+ np.frombuffer(stream.update(bytes(8 * cells)), "<u8") & np.uint64(2**64 - 256)
@ tests/sites/test_masks.py::test_a_key_that_hides_nothing_is_refused_by_name
masks: a key that hides nothing is used
-     except ValueError:
+     except ZeroDivisionError:
@ tests/sites/test_masks.py::test_the_stream_is_that_of_the_standards
masks: made of what all can read
- .derive(secret)
+ .derive(bytes(32))
= fedcore/privacy/noise_shares.py
@ tests/privacy/test_noise_shares.py::test_prices_and_scales_in_fractions
shares: those who collude are forgotten in the charge
- _root(Fraction(planned.noise_multiplier) ** 2 * honest / sites, up=False)
+ planned.noise_multiplier
shares: the scale is rounded down
- Fraction(known) ** 2 / honest), up=True)
+ Fraction(known) ** 2 / honest), up=False)
shares: less together than one place draws
- scale = _root(max(Fraction(planned.scale) ** 2 / sites, Fraction(known) ** 2 / honest), up=True)
+ scale = _root(Fraction(planned.scale) ** 2 / sites / 2, up=True)
@ tests/privacy/test_noise_shares.py::test_a_run_costs_no_more_than_its_rho_to_the_last_bit
shares: nothing is kept back for rounding
- terms.sites * (1 - ROUNDING))
+ terms.sites)
@ tests/privacy/test_noise_shares.py::test_shares_that_do_not_cover_their_price_are_neither_reserved_nor_replayed
shares: those who collude are forgotten in the check
- covers = share.honest * square >= Fraction(planned.scale) ** 2
+ covers = share.sites * square >= Fraction(planned.scale) ** 2
- <= 2 * share.honest * square * Fraction(planned.rho)
+ <= 2 * share.sites * square * Fraction(planned.rho)
shares: the noise of all is not compared with the plan
- if not (covers and share.sites * square >= Fraction(share.total) ** 2):
+ if not covers:
shares: rounded ones are summed at any scale
- scale >= SMALLEST_SCALE):
+ scale > 0):
@ tests/privacy/test_noise_shares.py::test_a_share_is_the_exact_sampler_at_its_own_scale_and_wraps
shares: drawn at the scale that is charged
- return modulo_sum(values, SecureNoise().draw(_as_planned(planned), run_key, np.zeros_like(values)))
+ return modulo_sum(values, SecureNoise().draw(planned, run_key, np.zeros_like(values)))
shares: added where it saturates
+ return SecureNoise().draw(_as_planned(planned), run_key, values)
= fedcore/privacy/ledger/reservations.py
@ tests/privacy/test_noise_law.py::test_a_plan_pays_for_the_noise_that_is_drawn_to_the_last_bit
noise: its price not compared with the charge
- if Fraction(planned.sensitivity) ** 2 > 2 * Fraction(scale) ** 2 * Fraction(planned.rho):
+ if False:
noise: its price compared in floats
+ if planned.sensitivity**2 > 2 * scale**2 * planned.rho:
@ tests/privacy/test_noise_law.py::test_noise_too_wide_to_be_drawn_is_not_reserved
noise: too wide for the sampler is reserved
- if scale > LARGEST_SCALE:
+ if False:
@ tests/privacy/test_cohorts.py::test_a_plan_without_cohorts_keeps_its_digest
law: it changes the digest of a plan
- identity = {**payload, "population_id": population_id}
+ identity = {**payload, "population_id": population_id, "noise": plan[0].law}
cohorts: they change the digest of a plan without them
+ identity = {**payload, "population_id": population_id, "cohorts": None}
@ tests/privacy/test_ledger.py::test_test_noise_is_refused_on_a_ledger_for_people
reserve: test noise on a ledger for people
- if not secure and not self.is_test:
+ if False:
@ tests/privacy/test_ledger.py::test_another_unit_or_relation_is_refused_not_converted
reserve: the relation is not looked at
- if (unit, relation) != (account.unit, account.relation):
+ if unit != account.unit:
reserve: the unit is not looked at
+ if relation != account.relation:
@ tests/privacy/test_ledger.py::test_the_budget_is_exact_at_the_edge
reserve: spares are free
- rho = exact_sum([p.rho for p in plan]) + spares * Fraction(payload["spare_rho"])
+ rho = exact_sum([p.rho for p in plan])
reserve: a plan costs its dearest release
- rho = exact_sum([p.rho for p in plan])
+ rho = exact_sum([max(p.rho for p in plan)])
@ tests/privacy/test_order.py::test_what_a_run_reserved_is_not_left_for_others
reserve: what other runs reserved does not count
- fits = rho_used + rho <=
+ fits = rho_used - account.totals().rho_reserved + rho <=
@ tests/privacy/test_ledger.py::test_deltas_of_thresholds_have_their_own_filter
reserve: deltas of thresholds are free
-  and delta_used + delta <= Fraction(budget.delta_extra)
@ tests/privacy/test_ledger.py::test_the_same_reservation_again_changes_nothing
reserve: another plan under a known name
- raise PrivacyError(f"run {run_id!r} has reserved another plan.", "Give the new run a new name.")
+ return
@ tests/privacy/test_accounts.py::test_who_pays_and_who_cannot
shares: not asked when a run reserves
- within = rho <= rho_of_share and delta <= delta_of_share
+ within = True
shares: their part of delta not asked when a run reserves
+ within = rho <= rho_of_share
shares: asked in place of the account
- if fits and within:
+ if within:
@ tests/privacy/test_accounts.py::test_a_resumed_run_has_reserved_its_plan_and_another_is_refused
shares: a run takes up a plan of another one
-             identity["share"] = share
@ tests/privacy/test_periods.py::test_no_run_reads_more_periods_than_the_window_holds
periods: the window is not looked at
- if (read := periods_in(cohorts.ranges)) > terms.window:
+ if (read := periods_in(cohorts.ranges)) > 10**9:
periods: one more than the window
+ if (read := periods_in(cohorts.ranges)) > terms.window + 1:
@ tests/privacy/test_periods.py::test_a_threshold_has_no_price
periods: a threshold is reserved
- if named := next((planned.name for planned in plan if planned.delta), None):
+ if named := None:
@ tests/privacy/test_cohorts.py::test_a_number_known_under_another_token_is_another_copy
cohorts: a token is not compared
- if (number := account.stranger(cohorts.tokens)) is not None:
+ if False and (number := account.stranger(cohorts.tokens)) is not None:
@ tests/privacy/test_cohorts.py::test_cohorts_and_one_account_never_mix
cohorts: a plan for everybody is taken
-         if cohorts is None and account.founders is None:
+         if cohorts is None:
= fedcore/sites/publisher.py
@ tests/sites/test_publisher.py::test_each_step_of_a_round_follows_the_one_before
sites: what can be drawn is looked at after it is charged
-         for release in planned:
-             self.noise.ready(release, grids[release.name])  # refuses before anything is paid
sites: the answer is posted before it is noted
-         self.key.note(round, hashlib.sha256(body).digest())
-         self._post("answer", round, body)
+         self._post("answer", round, body)
+         self.key.note(round, hashlib.sha256(body).digest())
sites: an answer without masks
- vectors.append(modulo_sum(modulo_sum(grid, share), hidden.reshape(grid.shape)))
+ vectors.append(modulo_sum(grid, share))
@ tests/sites/test_publisher.py::test_all_sites_end_in_the_bits_of_one_place
sites: an answer without its share of the noise
+ vectors.append(modulo_sum(grid, hidden.reshape(grid.shape)))
sites: the answer of this site is not added
- [body, *bodies.values()], [self.me, *bodies]
+ [*bodies.values()], [*bodies]
@ tests/sites/test_publisher.py::test_sites_that_start_from_different_things_do_not_begin
sites: another start of another site
- if body[2 * HALF :] != self.publishing.start:
+ if False:
@ tests/sites/test_hostile.py::test_an_attack_is_refused_or_gets_noise_and_nothing_is_unpaid
sites: what the ledger has lost is answered again, if it was noted
- if self.key.noted(round) is not None or self._get
+ if self._get
sites: what the ledger has lost is answered again, if it was posted
- if self.key.noted(round) is not None or self._get("answer", self.me, round) is not None:
+ if self.key.noted(round) is not None:
sites: other totals of another site
- if body[:DIGEST] != before:
+ if False:
sites: another number of numbers
- if len(body) != DIGEST + total.nbytes:
+ if False:
sites: a member with any body
- if len(body) not in (2 * HALF, 2 * HALF + DIGEST):
+ if False:
sites: a lost key is made again
-             if self.ledger.recorded(self.run.id, "charge") is not None or self._get("member", self.me) is not None:
-                 raise self._lost_key(round)
@ tests/sites/test_publisher.py::test_nothing_is_posted_after_the_end
sites: the end does not last
- self._post("end", 0, self.key.end(body))
+ self._post("end", 0, body)
= fedcore/sites/run_key.py
@ tests/sites/test_publisher.py::test_all_sites_end_in_the_bits_of_one_place
sites: the key is not destroyed
-             (self.folder / "key").unlink(missing_ok=True)
= fedcore/training/publishing.py
@ tests/privacy/test_noise_law.py::test_what_cannot_be_drawn_is_not_charged
noise: what cannot be drawn is told after it is charged
-         self.noise.ready(planned, grid_values)  # refuses before anything is charged
@ tests/privacy/test_order.py::test_a_release_that_cannot_be_published_is_drawn_once
publish: drawn again after a failure
-         return self.ledger.publish(self.lease, charge, drawn)
+         try:
+             return self.ledger.publish(self.lease, charge, drawn)
+         except PrivacyError:
+             drawn = self.noise.draw(planned, self.run.id, grid_values)
+             return self.ledger.publish(self.lease, charge, drawn)
@ tests/privacy/test_order.py::test_what_was_given_up_is_not_drawn
release: what was given up is drawn all the same
-         if charge is None:
-             return None
+         if charge is None:
+             return self.noise.draw(planned, self.run.id, grid_values)
@ tests/privacy/test_order.py::test_what_was_given_up_ends_the_round
release: the round goes on after what was given up
-                 return None
+                 continue
@ tests/privacy/test_order.py::test_what_was_given_up_is_not_drawn
release: what was given up is not looked at
-         if charge is None:
-             return None
@ tests/privacy/test_order.py::test_a_release_is_charged_before_its_noise_is_drawn_and_leaves_after_it_is_published
order: drawn before it is charged
-         charge = self.ledger.charge(self.lease, planned)
-         if charge is None:
-             return None
-         if charge.stored is not None:
-             return charge.stored
-         drawn = self.noise.draw(planned, self.run.id, grid_values)
+         drawn = self.noise.draw(planned, self.run.id, grid_values)
+         charge = self.ledger.charge(self.lease, planned)
+         if charge is None:
+             return None
+         if charge.stored is not None:
+             return charge.stored
order: leaves before it is published
-         return self.ledger.publish(self.lease, charge, drawn)
+         self.ledger.publish(self.lease, charge, drawn)
+         return drawn
order: another draw is published than the one that leaves
+         self.ledger.publish(self.lease, charge, drawn)
+         return self.noise.draw(planned, self.run.id, grid_values)
@ tests/privacy/test_order.py::test_every_release_of_a_round_is_charged_and_published
publish: one release of several without the ledger
- noised = self.release(release, grids[release.name])
+ values = grids[release.name]
+             noised = self.release(release, values) if release is planned[0] else values
= fedcore/training/budget.py
@ tests/privacy/test_order.py::test_a_run_is_planned_for_the_relation_of_the_budget
plan: always for presence
- relation = balance.relation or "add_or_remove_one"
+ relation = "add_or_remove_one"
@ tests/privacy/test_order.py::test_a_run_that_asks_for_more_than_is_left_is_told_what_fits
plan: more than is left
-         if share > balance.rho_left:
+         if False:
@ tests/privacy/test_order.py::test_a_private_method_is_told_no_exact_count
plan: the exact number of clients is public
- None if method.private else population.n_clients,
+ population.n_clients,
@ tests/training/test_period_runs.py::test_unit_and_population_go_together
periods: one budget for a client with many entries
- if period is not None and unit != CLIENT_PERIOD:
+ if False:
@ tests/training/test_horizon.py::test_those_who_take_part_are_those_who_can_pay_all_of_it
participants: less than a whole share is not enough for a plan that costs less
- least = share / runs * NEARLY
+ least = share / runs
@ tests/training/test_horizon.py::test_every_cohort_pays_for_exactly_its_horizon
participants: the size of everybody
- for cohort in population.manifest.cohorts if participants.holds(cohort.number)]
+ for cohort in population.manifest.cohorts]
= fedcore/privacy/ledger/ledger.py
@ tests/privacy/test_noise_law.py::test_a_new_run_reserves_and_charges_the_rounded_gaussian
law: the charge does not say it
-                 "noise": planned.law,
@ tests/privacy/test_redraws.py::test_a_spare_pays_first_then_what_no_run_has_reserved
spares: never used up
- used=run.used + 1
+ used=run.used
charge: a lost value is drawn again for nothing
- if last.state == RESERVED:
+ if last.state in (RESERVED, CHARGED):
pay again: nothing is forfeited
-             writer.forfeit(run_id, round, name, last.attempt)
+             pass
pay again: an extension is not recorded
-             writer.append("extend", run_id, {**again, **price})
+             pass
pay again: an extension at another price
+             writer.append("extend", run_id, {**again, **price, "rho": 0.0})
pay again: no new attempt
-         writer.connection.execute(tables.releases.insert().values(row))
pay again: the new attempt costs nothing
- {"run_id": run_id, **again, **price, "state": CHARGED}
+ {"run_id": run_id, **again, "rho": 0.0, "delta": 0.0, "state": CHARGED}
@ tests/privacy/test_ledger_runs.py::test_finishing_returns_only_what_was_never_charged
finish: what was charged goes back
- ((CHARGED, FORFEITED), (RESERVED, RETURNED))
+ ((CHARGED, RETURNED), (RESERVED, RETURNED))
@ tests/privacy/test_ledger_runs.py::test_a_release_that_differs_from_the_plan_is_refused
charge: a release that is not planned like this
- if canonical(planned.to_json()) not in
+ if False and canonical(planned.to_json()) not in
@ tests/privacy/test_ledger_runs.py::test_a_run_that_has_ended_stays_as_it_is
charge: to a run that has ended
-         if run.status != OPEN:
+         if False:
@ tests/privacy/test_ledger_faults.py::test_a_published_value_that_is_gone_is_not_drawn_again
charge: a published value that is gone is drawn again
-         if last.state == PUBLISHED:
+         if False:
@ tests/privacy/test_ledger_faults.py::test_of_two_publications_one_holds_and_both_return_it
@ tests/privacy/test_ledger_runs.py::test_a_published_release_is_free_and_never_replaced
publish: the later value leaves
-             return stored[1]
+             return noised
@ tests/privacy/test_ledger_runs.py::test_a_published_release_is_free_and_never_replaced
publish: a stored value is overwritten
-             if own and own[0].state == CHARGED:
+             changed = {'data': noised.astype('<i8').tobytes()}
+             writer.connection.execute(update(tables.published).where(tables.published.c.name == name).values(changed))
+             if own and own[0].state == CHARGED:
@ tests/privacy/test_order.py::test_nothing_is_published_that_was_not_charged
publish: what was not charged
- if not own or own[0].state != CHARGED:
+ if not own:
@ tests/privacy/test_ledger_runs.py::test_another_shape_or_dtype_is_not_published
publish: another shape than planned
-                 if found != shape:
+                 if False:
@ tests/privacy/test_ledger_faults.py::test_an_edited_ledger_is_refused
stored: a value that is not the recorded one
- if sha256 not in [item.get("digest") for item in recorded if item.get("name") == name]:
+ if False:
@ tests/privacy/test_ledger_runs.py::test_a_stale_token_can_neither_charge_nor_publish_nor_finish
lease: the token does not grow
- token = run.token + 1
+ token = max(run.token, 1)
@ tests/privacy/test_ledger_runs.py::test_a_live_holder_keeps_the_run
lease: a live holder loses the run
- if holder.alive(expired=self.clock() > (run.expires or 0.0)):
+ if False:
@ tests/privacy/test_redraws.py::test_an_optional_release_that_is_lost_is_given_up_itself
pay again: what was forfeited is forfeited again
-         if last.state == CHARGED:
+         if True:
pay again: what is given up is paid by a spare that is not there
-         if way.paid_by is None:
-             return False
@ tests/privacy/test_redraws.py::test_the_last_optional_rounds_pay_as_many_as_it_takes
pay again: what is given up is not recorded
-             writer.give_up(run_id, way.given_up)
+             pass
@ tests/privacy/test_redraws.py::test_what_another_run_has_reserved_pays_for_nothing
pay again: who cannot pay draws all the same
-         if way is None:
+         if way is None:
+             return True
@ tests/privacy/test_publishing.py::test_a_connection_that_breaks_at_the_commit_loses_nothing
publish: another draw at every try
-         def work() -> list[np.ndarray]:
+         def work(tries=[]) -> list[np.ndarray]:
+             nonlocal noised
+             noised = [value + len(tries) for value in noised]
+             tries.append(1)
publish: given up at the first failure
- return db.persist(work, PUBLISH_SECONDS)
+ return work()
@ tests/privacy/test_rounds_of_releases.py::test_a_round_is_charged_whole_or_not_at_all
round: each release is charged in a transaction of its own
-         with self._writing_run(lease.run_id) as writer:
-             for release in planned:
-                 charge = self._charge(writer, lease, release)
+         for release in planned:
+             with self._writing_run(lease.run_id) as writer:
+                 charge = self._charge(writer, lease, release)
@ tests/privacy/test_rounds_of_releases.py::test_a_round_is_stored_whole_or_not_at_all
round: each value is stored in a transaction of its own
-             with self._writing_run(lease.run_id) as writer:
-                 values = [self._publish(writer, lease, *pair) for pair in zip(charges, noised, strict=True)]
-                 writer.set_run(lease.run_id, expires=self.clock() + LEASE_SECONDS)
+             values = []
+             for pair in zip(charges, noised, strict=True):
+                 with self._writing_run(lease.run_id) as writer:
+                     values.append(self._publish(writer, lease, *pair))
@ tests/privacy/test_rounds_of_releases.py::test_each_lost_release_is_paid_again
round: a second lost release is paid from an account without the first
-         now = self._account_row(writer.connection, writer.population_id, "write")  # with what this transaction added
-         way = redraw(self._recent(writer.connection, now), run_id, round, name)
+         way = redraw(self._recent(writer.connection, writer.account), run_id, round, name)
@ tests/privacy/test_publishing.py::test_only_a_thresholding_step_publishes_fewer_rows_than_planned
ledger: any number of rows is published
- elif planned["delta"] and noised.ndim == len(shape) and len(noised) <= shape[0]:
+ elif noised.ndim == len(shape):
= fedcore/privacy/plan.py
@ tests/privacy/test_noise_law.py::test_every_price_covers_its_noise
price: half
- 0.5 / self.noise_multiplier**2
+ 0.25 / self.noise_multiplier**2
@ tests/privacy/test_accounting.py::test_the_noise_of_a_planned_release_is_never_less_than_its_price
price: rounded down
- math.nextafter(math.nextafter(0.5 / self.noise_multiplier**2, math.inf), math.inf)
+ math.nextafter(0.5 / self.noise_multiplier**2, 0)
scale: a thousandth too small
- product = self.noise_multiplier * self.sensitivity
+ product = 0.999 * self.noise_multiplier * self.sensitivity
scale: rounded to nearest
- return product if enough else math.nextafter(product, math.inf)
+ return product
scale: without the sensitivity
- product = self.noise_multiplier * self.sensitivity
+ return self.noise_multiplier
= fedcore/privacy/accounting.py
@ tests/privacy/test_accounting.py::test_nothing_of_delta_is_kept_for_thresholds_unless_the_owner_says_so
delta: the whole of it for the conversion
-     delta_conv = delta - delta_extra
-     while Fraction(delta_conv) + Fraction(delta_extra) > Fraction(delta):
-         delta_conv = math.nextafter(delta_conv, 0)
+     delta_conv = delta
@ tests/privacy/test_accounting.py::test_the_parts_of_delta_never_exceed_it
delta: rho at the whole of it
- gdp.rho_max(epsilon, delta_conv), delta_conv
+ gdp.rho_max(epsilon, delta), delta_conv
delta: its parts rounded to nearest
-     while Fraction(delta_conv) + Fraction(delta_extra) > Fraction(delta):
-         delta_conv = math.nextafter(delta_conv, 0)
epsilon: of mu squared without its factor
- return gdp.epsilon_of(2 * Fraction(rho), self.delta_conv)
+ return gdp.epsilon_of(Fraction(rho), self.delta_conv)
epsilon: at the whole of delta
+ return gdp.epsilon_of(2 * Fraction(rho), self.delta)
@ tests/privacy/test_accounting.py::test_sums_do_not_round
sums: of floats
- return sum(map(Fraction, values), Fraction(0))
+ return Fraction(math.fsum(values))
@ tests/privacy/test_accounting.py::test_rounded_sums_enclose_the_exact_one
sums: what is spent rounded to nearest
- return nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)
+ return nearest
sums: what is left rounded to nearest
- return nearest if Fraction(nearest) <= value else math.nextafter(nearest, -math.inf)
+ return nearest
= fedcore/privacy/gdp.py
@ tests/privacy/test_gdp.py::test_the_largest_mu_and_back
gdp: epsilon one float too small
- return math.nextafter(last_float(too_small), math.inf) if too_small(0.0) else 0.0
+ return last_float(too_small) if too_small(0.0) else 0.0
gdp: epsilon by the lower bound of delta
- return _delta_bounds(mu_squared, epsilon, BITS)[1] > delta
+ return _delta_bounds(mu_squared, epsilon, BITS)[0] > delta
gdp: mu by the lower bound of delta
- delta_bounds(mu, epsilon)[1] <= delta
+ delta_bounds(mu, epsilon)[0] <= delta
gdp: the first mu that is too large
- return last_float(lambda mu: delta_bounds(mu, epsilon)[1] <= delta)
+ return math.nextafter(last_float(lambda mu: delta_bounds(mu, epsilon)[1] <= delta), math.inf)
gdp: rho rounded to nearest
- return nearest if Fraction(nearest) <= rho else math.nextafter(nearest, 0.0)
+ return nearest
gdp: rho rounded up
+ return nearest if Fraction(nearest) >= rho else math.nextafter(nearest, math.inf)
gdp: rho is mu squared
- rho = Fraction(mu) ** 2 / 2
+ rho = Fraction(mu) ** 2
@ tests/privacy/test_gdp.py::test_bounds_enclose_delta_and_are_one_float_wide
gdp: the upper bound of delta rounded down
- rounded(ball.upper(), up=True)
+ rounded(ball.upper(), up=False)
gdp: the second term of delta without its factor
- - e.exp() * _phi(
+ - _phi(
gdp: the second term of delta is added
+ + e.exp() * _phi(
@ tests/privacy/test_gdp.py::test_a_mu_that_is_shown_is_the_smallest_float_above
gdp: mu rounded to nearest
-     while Fraction(mu) ** 2 < 2 * Fraction(rho):
-         mu = math.nextafter(mu, math.inf)
= fedcore/methods/histograms/clients.py
@ tests/audit/test_sensitivity.py
clip: left out of histograms
- np.minimum(1.0 / block.totals, clip / np.sqrt(squares))
+ 1.0 / block.totals
- return bound_norms(grid, block.indptr)
+ return grid
sensitivity: scores in the precision of the block
- if block.data.dtype != np.float32:
+ if False:
@ tests/rounds/test_caches.py::test_private_rounds_from_what_is_kept_have_the_same_sums
clip: what was kept of another clip is taken
- whitening.tobytes() + clip.tobytes()
+ whitening.tobytes()
@ tests/histograms/test_weights_runs.py::test_what_a_round_releases_of_both_halves_is_that_of_their_sum
clip: each half of a client is a client
-     block = reduce_block(joined(block) if message.one_whole else block, message.kept)
+     if message.one_whole and block.heldout is not None:
+         parts = [client_update(replace(message, one_whole=False), part) for part in (block, block.heldout)]
+         return {name: parts[0][name].merge(parts[1][name]) for name in parts[0]}
+     block = reduce_block(block, message.kept)
= fedcore/privacy/grid.py
@ tests/histograms/test_clients.py
clip: one client is forgotten
- for client in np.flatnonzero(squares > GRID_NORM**2):
+ for client in np.flatnonzero(squares > GRID_NORM**2)[1:]:
clip: one step too wide
- above = int(np.sqrt(squares[client])) + 1
+ above = int(np.sqrt(squares[client])) - 1
= fedcore/methods/federated_em/private.py
@ tests/federated_em/test_private.py
@ tests/audit/test_sensitivity.py
clip: left out of federated EM
- (np.minimum(1.0, message.clip / np.maximum(norms, message.clip)) / grid_step(message.clip))[:, None]
+ 1.0 / grid_step(message.clip)
-     if len(long):
+     if False:
clip: of the first half of the clients of federated EM
-     for low in range(0, len(grid), step):
+     for low in range(0, len(grid), 2 * step):
sensitivity: federated EM does not know replacement
- "replace_one": 2.0}
+ "replace_one": 1.0}
= fedcore/methods/private_gmm/integer_rows.py
@ tests/private_gmm/test_sensitivity.py
clip: left out of private GMM
- long = np.flatnonzero(squares > allowed)
+ long = np.flatnonzero(squares > 2.0 * allowed)
clip: rows of a client of private GMM not divided by their number
- rows = np.maximum(group.sizes, 1)[:, None]
+ rows = 1
= fedcore/methods/private_gmm/neighbours.py
@ tests/private_gmm/test_sensitivity.py
weights: a row of a private GMM counts whole on each of its lines
- sensitivities.weight(1, int(np.bincount(pairs.ravel(), minlength=1).max()))
+ sensitivities.weight(1, 1)
= fedcore/methods/private_gmm/passes.py
@ tests/private_gmm/test_search.py
found: cells of a private GMM need no valley between them
-     missing = int((~found.parted()).sum())
+     missing = 0
= fedcore/methods/profile/layout.py
@ tests/profile/test_sensitivity.py
sensitivity: groups of a profile are not paid for
-             self._squared(self.grouped, int(len(self.by) == 2)) if self.by else 0
+             0
sensitivity: a missing value of a profile adds more than a number
-         return math.isqrt(LEVELS * self.level**2)
+         return LEVELS * self.level
sensitivity: a category of a profile is not paid for
- + flat * of.flat**2
+ + 0 * of.flat**2
= fedcore/methods/profile/plan.py
@ tests/profile/test_sensitivity.py
sensitivity: a profile does not know replacement
- (1 if relation == "add_or_remove_one" else 2)
+ 1
= fedcore/methods/profile/clients.py
@ tests/profile/test_sensitivity.py
clip: rows of a client of a profile not divided by their number
- _counts(leaf, whole.level // tile.rows, LEAVES)
+ _counts(leaf, whole.level // np.minimum(tile.rows, 1), LEAVES)
clip: rows of a group of a profile have the weight of all rows
- grouped.level // tile.rows
+ (2 * grouped.level) // tile.rows
= fedcore/methods/mixture_models/whole_rows.py
@ tests/private_mixture/test_sensitivity.py
clip: left out of private mixtures
- long = np.flatnonzero(~(squares <= allowed))
+ long = np.flatnonzero(~(squares <= 2.0 * allowed))
clip: rows of a client of a private mixture not divided by their number
- np.floor_divide(ONE, rows)
+ np.floor_divide(ONE, np.minimum(rows, 1))
@ tests/private_mixture/test_products.py
sensitivity: the diagonal of products of a private mixture is too large
- OFF_DIAGONAL, ON_DIAGONAL = 17, 12
+ OFF_DIAGONAL, ON_DIAGONAL = 17, 13
@ tests/private_mixture/test_pieces.py
rows: sums of products of a private mixture are not exact
- bits = WHOLE_BITS - 24
+ bits = WHOLE_BITS - 14
= fedcore/methods/private_mixture/clients.py
@ tests/private_mixture/test_sensitivity.py
clip: each component of a private mixture has a bound of its own
-     whole[:, ~(whole.sum(axis=0) <= weight)] = 0.0
+     whole[whole > weight] = 0.0
clip: gains of a private mixture are not cut
- gain = np.clip(np.nan_to_num(mixture - normal, nan=0.0), -message.bound, message.bound)
+ gain = mixture - normal
clip: distances from the centres of columns are not cut
- part = np.clip((tile.x - message.centre) / message.scale, -1.0, 1.0)
+ part = np.clip((tile.x - message.centre) / message.scale, -2.0, 2.0)
@ tests/private_mixture/test_gaps.py
sensitivity: a gap of a private mixture counts beside its own cell
-     cells[np.isnan(tile.x)] = COLUMN_CELLS
+     cells[np.isnan(tile.x)] = COLUMN_CELLS
+     totals[1][:, 0] += np.isnan(tile.x).sum(axis=0) * 2**24
@ tests/private_mixture/test_sensitivity.py
clip: a row is counted on two edges of a private mixture
-     width = totals[0].shape[1]
+     width = totals[0].shape[1]
+     add_to_cells(totals[0][0], cell, count_weight(tile.rows))
@ tests/private_mixture/test_mixed_sensitivity.py
sensitivity: a row of a private mixture answers a category twice
-         for own_codes in tile.codes.T:
+         for own_codes in np.repeat(tile.codes, 2, axis=1).T:
= fedcore/methods/private_mixture/sensitivities.py
@ tests/private_mixture/test_sensitivity.py
sensitivity: vectors of a private mixture do not know replacement
-     bound = _root_above(parts * ONE**2)
-     return bound if _one_sided(relation) else 2 * bound
+     return _root_above(parts * ONE**2)
@ tests/private_mixture/test_products.py
sensitivity: products of a private mixture have too small a bound
- OFF_DIAGONAL**2 * ONE**2 //
+ OFF_DIAGONAL**2 * ONE**2 // 2 //
@ tests/private_mixture/test_sensitivity.py
sensitivity: histograms of all columns of a private mixture at the price of one
- histograms * ONE**2
+ ONE**2
= fedcore/methods/private_mixture/plan.py
@ tests/private_mixture/test_mixed_sensitivity.py
sensitivity: answers to all categories of a private mixture at the price of one
- of_answers = sensitivities.counts(relation, len(sizes))
+ of_answers = sensitivities.counts(relation)
= fedcore/methods/private_mixture/layout.py
@ tests/private_mixture/test_mixed_sensitivity.py
sensitivity: rows with steps count whole in each copy
- np.repeat(rows * copies, copies)
+ np.repeat(rows, copies)
sensitivity: rows with steps are moved by their place
- words, nothing = np.full(len(x), self.salt, np.uint64)
+ words, nothing = np.arange(len(x), dtype=np.uint64)
@ tests/private_mixture/test_gaps.py
rows: the bits of a gap tell what fills a row of a private mixture
- np.where(np.isnan(x), np.nan, np.asarray(x, np.float64)).view(np.uint64)
+ np.array(x, np.float64).view(np.uint64)
= fedcore/methods/private_mixture/gaps.py
@ tests/private_mixture/test_gaps.py
rows: draws for gaps of a private mixture depend on the company of a row
-     r = np.where(missing, 0.0, s - guess.means[part])
+     r = np.where(missing, 0.0, s - s.mean(axis=0))
= fedcore/methods/histograms/sensitivities.py
@ tests/audit/test_sensitivity.py
sensitivity: histograms do not know replacement
- return GRID_NORM if _adds_or_removes(relation) else math.isqrt(2 * GRID_NORM**2) + 1
+ return GRID_NORM
sensitivity: relations of histograms exchanged
- return relation == "add_or_remove_one"
+ return relation == "replace_one"
@ tests/histograms/test_weights.py
sensitivity: signs of losses are forgotten
- return GRID_NORM if _adds_or_removes(relation) else 2 * GRID_NORM
+ return clipped_sum(relation)
= fedcore/methods/histograms/releases.py
@ tests/histograms/test_weights.py
sensitivity: weights are planned like sums that are never negative
- bound = sensitivities.signed_sum(public.relation)
+ bound = sensitivities.clipped_sum(public.relation)
= fedcore/methods/histograms/weights.py
@ tests/histograms/test_weights.py
clip: left out of losses on second halves
- np.minimum(1.0, CLIP / np.sqrt(squares))
+ 1.0
- return bound_norms(grid, rows).reshape(clients, pairs)
+ return grid.reshape(clients, pairs)
halves: undeclared ones are used
- if public.halves != "document":
+ if public.halves != "document" and False:
@ tests/histograms/test_weights.py::test_losses_are_those_of_the_formula_client_by_client
halves: a token of the training part counts as one of a new document
-     share = other.data * inverse_totals(other)[client]
+     share, other, client = block.data * inverse_totals(block)[block.rows_of_entries()], block, block.rows_of_entries()
= fedcore/population/ingest/documents.py
@ tests/population/test_documents.py::test_halves_worked_by_hand
halves: all documents of a client in one
- named = len(client).to_bytes(LENGTH, "little") + client + document
+ named = len(client).to_bytes(LENGTH, "little") + client
halves: a document of two clients lies in the same one of both
+ named = document
halves: where the client's name ends is not said
+ named = client + document
@ tests/population/test_documents.py::test_a_document_lies_in_one_half_however_its_client_is_spelled
halves: dealt by the name as it is spelled
- unicodedata.normalize("NFC", one).encode() for one in pair
+ one.encode() for one in pair
@ tests/population/test_documents.py::test_rows_without_a_document_are_bad_rows
halves: a document that stands for a missing one
-     if one.strip() in MISSING:
+     if False:
@ tests/population/test_documents.py::test_what_is_appended_is_dealt_likewise
halves: appended whatever deals them
-     if halves == before:
+     if True:
@ tests/population/test_documents.py::test_columns_that_do_not_go_together
halves: a held-out part beside the documents
-         if heldout or said not in (None, "document"):
+         if said not in (None, "document"):
= fedcore/population/ingest/sources_table.py
@ tests/population/test_documents.py::test_a_document_that_spans_two_periods_lies_in_one_half
halves: documents of calendar entries, not of their client
-         if self.request.documents is not None:  # by client, also where rows go to entries: a document is in one half
-             second = self._second_half(account, names, codes, piece, good)
-         if self.kept.calendar is not None:
-             names, codes = self._entries(account, names, codes, piece, good)
+         if self.kept.calendar is not None:
+             names, codes = self._entries(account, names, codes, piece, good)
+         if self.request.documents is not None:
+             second = self._second_half(account, names, codes, piece, good)
@ tests/population/test_documents.py::test_the_command_line
halves: a row follows the first document of its client
- pairs, each = np.unique(codes[good] * len(titles) + of[good], return_inverse=True)
+ pairs, each = np.unique(codes[good] * len(titles) + of[good][:1], return_inverse=True)
= fedcore/population/ingest/sources_text.py
@ tests/population/test_documents.py::test_files_of_a_clients_folder_are_its_documents
halves: files of a folder are dealt by the folder
- heldout = bool(second_half([(name, inside)])[0])
+ heldout = bool(second_half([(name, name)])[0])
= fedcore/population/manifest.py
@ tests/histograms/test_weights_runs.py::test_all_rounds_read_both_halves_or_the_last_one_where_they_are_for_evaluation
halves: both are read where somebody is scored by one
- return self.halves == "document" and not self.public_for_evaluation
+ return self.halves == "document"
@ tests/population/test_digests.py::test_what_runs_and_ledgers_know_a_version_by_tells_nothing_of_its_data
manifest: its checksum does not cover its secret
-     return checksum_of(_content(manifest))
+     return checksum_of({**_content(manifest), "secret": None})
= fedcore/population/blocks.py
@ tests/histograms/test_weights_runs.py::test_two_halves_are_added_up_exactly_whoever_else_is_there
halves: added up in the precision of the block
- replace(part, data=part.data.astype(np.float64)).csr for part in (block, block.heldout)
+ part.csr for part in (block, block.heldout)
= fedcore/training/vocabulary.py
@ tests/population/test_documents_of_words.py::test_lists_are_made_of_all_documents_of_a_client
halves: each has a list of words
-             return {WORDS: WordSums.of(*vocabulary.sums(block, message.words, chosen))}
+             found = WordSums.of(*vocabulary.sums(block, message.words, chosen))
+             if self.population.manifest.one_whole:
+                 block = self.population.words(index, heldout=True)
+                 found = found.merge(WordSums.of(*vocabulary.sums(block, message.words, chosen)))
+             return {WORDS: found}
@ tests/training/test_vocabulary.py::test_a_vocabulary_that_somebody_chose_rests_on_the_word_of_its_owner
statement: a part of the released words is taken for the release
-             if as_text(found) == tokens[:-1]:
+             if set(tokens[:-1]) <= set(as_text(found)):
@ tests/training/test_vocabulary.py::test_words_that_were_released_with_test_noise_are_no_release
statement: words of test noise are a release
-  or tokens[-1] != OTHER or ledger.is_test:
+  or tokens[-1] != OTHER:
-         if not run.secure:
-             return ()
@ tests/training/test_vocabulary.py::test_by_cohort_only_those_who_can_pay_take_part
vocabulary: those who do not pay are asked
- if self.participants is not None:
+ if False:
@ tests/training/test_vocabulary.py::test_nothing_is_drawn_before_it_is_paid
vocabulary: drawn before it is charged
-         charge = self.ledger.charge(self.lease, planned)
+         self.noise.draw(replace(planned, shape=totals.shape), self.run_id, totals)
+         charge = self.ledger.charge(self.lease, planned)
@ tests/training/test_vocabulary.py::test_errors_on_the_way_are_told_without_their_text
vocabulary: errors are told with what they say
-             f"{what} ({type(error).__name__});
+             f"{what} ({error});
= fedcore/population/encoding.py
@ tests/population/test_documents_of_words.py::test_words_are_dealt_by_document_and_stay_so_when_they_are_encoded
halves: forgotten when words are encoded
-             halves=made.halves,
@ tests/population/test_words.py::test_the_encoded_population_is_the_same_one
vocabulary: another population of the same words has another account
-         return self.source.id
+         return super()._new_id()
= fedcore/privacy/statement.py
@ tests/training/test_vocabulary.py::test_a_statement_names_the_release_of_its_vocabulary_and_adds_both_up
statement: the run alone is said to be both
- _together(account, [*runs, run_id])
+ _together(account, [run_id])
@ tests/privacy/test_spent_before.py::test_a_statement_quotes_it_and_is_checked
spent before: the statement does not quote it
- *self._spent_before(),
@ tests/privacy/test_statement_check.py::test_a_run_and_the_one_that_it_started_from_add_up
statement: a run and its start cost what the run costs alone
- _together(account, [started_from, run_id])
+ _together(account, [run_id])
@ tests/privacy/test_statement.py::test_a_run_claims_what_its_own_charges_cost_forfeited_ones_included
statement: of published releases only
- for attempt in run.spent()]
+ for attempt in run.spent() if attempt.state == "published"]
statement: epsilon at another delta
- epsilon=budget.epsilon_of(rho),
+ epsilon=replace(budget, delta_conv=10 * budget.delta).epsilon_of(rho),
statement: the deltas of thresholds are left out
- delta = exact_sum(attempt.delta for attempt in spent) + Fraction(delta_conv)
+ delta = Fraction(delta_conv)
statement: rho rounded to nearest
- return rounded_up(exact_sum(attempt.rho for attempt in spent)), rounded_up(delta)
+ return float(exact_sum(attempt.rho for attempt in spent)), float(delta)
@ tests/privacy/test_statement.py::test_test_noise_and_test_ledgers_promise_nothing
statement: test noise promises
- if not run.secure:
+ if False:
statement: a test ledger promises
-     if test_ledger:
+     if False:
@ tests/privacy/test_statement.py::test_the_mu_that_is_shown_is_never_too_small
statement: mu rounded to nearest
-         mu=mu_of(rho),
+         mu=(2 * rho) ** 0.5,
@ tests/privacy/test_redraws.py::test_the_last_optional_rounds_pay_as_many_as_it_takes
statement: what was given up is not told
- given_up=run.given_up,
+ given_up=None,
@ tests/privacy/test_cohorts.py::test_the_statement_of_a_run_names_its_cohorts_and_the_one_that_has_spent_most
cohorts: the statement names the one that has spent least
- len(account.tokens), most, most_of_them)
+ len(account.tokens), min(balance.segments, key=lambda segment: segment.rho_spent), most_of_them)
= fedcore/methods/private_gmm/sensitivities.py
@ tests/private_gmm/test_sensitivity.py
sensitivity: private GMM does not know replacement
-     bound = _root_above(parts * ONE**2)
-     return bound if _one_sided(relation) else 2 * bound
+     return _root_above(parts * ONE**2)
sensitivity: several histograms of private GMM at the price of one
- squared = histograms * ONE**2
+ squared = ONE**2
= fedcore/training/warm_start.py
@ tests/private_gmm/test_series.py
series: what private GMM released is taken over on another population
- & set(method.series_arrays) if own else set()
+ & set(method.series_arrays)
series: another method takes over what only a run of the same one can use
- set(earlier.series_arrays) & set(method.series_arrays) if own
+ set(earlier.series_arrays) | set(method.series_arrays) if own
@ tests/federated_em/test_given.py::test_the_start_of_another_population_brings_its_mixture_alone
series: federated EM believes a start of another population as one of its own
- & set(method.series_arrays) if own else set()
+ & set(method.series_arrays)
@ tests/operations/test_arrival.py::test_the_statement_rests_on_the_word_and_so_do_those_of_later_runs
pipelines: a run that starts from another does not carry its word on
-     vouched = tuple(dict.fromkeys((*vouched, *words_of_arrival(info))))  # once for all runs of a series
= fedcore/methods/private_gmm/plan.py
@ tests/private_gmm/test_series.py
series: private GMM does not search where components were lost
- return bool(pool.lost[0]) or len
+ return len
= fedcore/methods/private_gmm/series.py
@ tests/private_gmm/test_series.py
series: noise of private GMM said to be less than it is
- np.hypot((1.0 - gains) * before.noise, gains * now.noise)
+ (1.0 - gains) * before.noise * gains
= fedcore/methods/private_gmm/tree.py
@ tests/private_gmm/test_sensitivity.py
@ tests/private_gmm/test_series.py
series: a run of private GMM without a search tells rows apart before they are cut
-     y = projected(clipped(x, tree.centre[node], float(tree.radius[node]))[0], tree.basis[node])
+     y = projected((x - tree.centre[node]) / (tree.radius[node] / ONE), tree.basis[node])
= fedcore/privacy/ledger/chain.py
@ tests/privacy/test_ledger.py::test_a_plan_and_its_spares_are_reserved
spares: not counted as reserved
- return waiting + [(self.spare_rho, self.spare_delta)] * self.spares_left
+ return waiting
@ tests/privacy/test_redraws.py::test_a_spare_pays_first_then_what_no_run_has_reserved
@ tests/privacy/test_ledger_runs.py::test_finishing_returns_only_what_was_never_charged
spent: what was forfeited is not
- SPENT = (CHARGED, PUBLISHED, FORFEITED)
+ SPENT = (CHARGED, PUBLISHED)
@ tests/privacy/test_ledger_runs.py::test_a_release_is_charged_then_published
spent: what was charged and not published is not
+ SPENT = (PUBLISHED, FORFEITED)
@ tests/privacy/test_order.py::test_a_record_is_bound_to_its_population
chain: the population is not in the hash
- link = [ledger_id, population_id, self.seq,
+ link = [ledger_id, self.seq,
@ tests/privacy/test_ledger_checkpoints.py
checkpoint: what ended runs spent is forgotten
- sums = self.ended.sums.copy()
+ sums = Sums()
@ tests/privacy/test_shares.py::test_shares_that_were_spent_are_never_made_smaller_than_that
shares: what ended runs spent is forgotten
- if run.share is not None and run.spent():
+ if False:
@ tests/privacy/test_periods.py::test_the_ledger_says_what_a_client_with_data_in_every_period_has_lost
periods: a life without the square
- return periods_in(run.payers) ** 2 * exact_sum
+ return periods_in(run.payers) * exact_sum
@ tests/privacy/test_cohorts.py::test_founders_carry_what_was_spent_and_reserved_and_what_open_runs_spend_still
cohorts: runs of before that are open cost nobody anything
-             sums.add(run.payers, run.totals())
+             if run.cohorts or not self.tokens:
+                 sums.add(run.payers, run.totals())
@ tests/privacy/test_cohorts.py::test_a_number_known_under_another_token_is_another_copy
cohorts: only the token of the newest one is compared
- if self.tokens[: len(tokens)] == tokens[: len(self.tokens)]:
+ if self.tokens[-1:] == tokens[-1:] or len(self.tokens) != len(tokens):
@ tests/privacy/test_cohorts.py::test_only_participants_pay
cohorts: what is left is that of the first
- rho_left, delta_left = max(s.rho_left for s in segments),
+ rho_left, delta_left = segments[0].rho_left,
= fedcore/privacy/ledger/redraws.py
@ tests/privacy/test_redraws.py::test_a_spare_pays_first_then_what_no_run_has_reserved
spares: one more than reserved
- if run.spares_left:
+ if run.spares and run.used <= run.spares:
@ tests/privacy/test_redraws.py::test_a_redraw_costs_its_whole_price_and_nothing_is_given_up_without_need
redraw: what is given up pays for nothing
-         rho += exact_sum(attempt.rho for attempt in freed)
redraw: the deltas of what is given up pay for nothing
-         delta += exact_sum(attempt.delta for attempt in freed)
redraw: for nothing
-  - rho_used - Fraction(planned.rho)
+  - rho_used
redraw: its delta is forgotten
-  - delta_used - Fraction(planned.delta)
+  - delta_used
redraw: after giving up, an extension is not limited in delta
-         if rho >= 0 and delta >= 0:
+         if rho >= 0:
redraw: the edge of an extension
-     if rho >= 0 and delta >= 0:
-         return Redraw("extension")
+     if rho > 0 and delta >= 0:
+         return Redraw("extension")
redraw: the edge of an extension in delta
+     if rho >= 0 and delta > 0:
+         return Redraw("extension")
redraw: the edge of giving up
-         if rho >= 0 and delta >= 0:
+         if rho > 0 and delta > 0:
redraw: in floats
-     if rho >= 0 and delta >= 0:
-         return Redraw("extension")
+     if rho >= -1e-12 and delta >= -1e-24:
+         return Redraw("extension")
@ tests/privacy/test_redraws.py::test_what_was_charged_in_a_later_round_pays_for_nothing
redraw: what was charged later pays as well
- if of == last and a.state == RESERVED]
+ if of == last]
@ tests/privacy/test_redraws.py::test_what_another_run_has_reserved_pays_for_nothing
redraw: what is reserved pays
-  - rho_used -
+  - account.totals().rho_spent -
@ tests/privacy/test_redraws.py::test_delta_is_paid_again_as_well
redraw: an extension is not limited in delta
-     if rho >= 0 and delta >= 0:
-         return Redraw("extension")
+     if rho >= 0:
+         return Redraw("extension")
@ tests/privacy/test_redraws.py::test_rounds_that_the_run_needs_are_not_given_up
redraw: rounds that the run needs are given up
-         if not all(planned.get("optional") for planned in run.plan if planned["round"] == round):
-             return
redraw: a round of which the run needs a part is given up
- if not all(planned.get("optional")
+ if not any(planned.get("optional")
redraw: a round in the middle is given up
- if planned["round"] == round):
-             return
+ if planned["round"] == round):
+             continue
@ tests/privacy/test_redraws.py::test_a_redraw_costs_its_whole_price_and_nothing_is_given_up_without_need
@ tests/privacy/test_redraws.py::test_the_last_optional_rounds_pay_as_many_as_it_takes
redraw: the first optional rounds are given up first
- , reverse=True):
+ ):
@ tests/privacy/test_redraws.py::test_a_spare_pays_once
@ tests/privacy/test_redraws.py::test_a_spare_pays_first_then_what_no_run_has_reserved
redraw: an extension while spares are left
-     if run.spares_left:
-         return Redraw("spare")
@ tests/privacy/test_redraws.py::test_an_optional_release_that_is_lost_is_given_up_itself
redraw: what was given up is drawn again
-     if run.given_up is not None and round >= run.given_up:
-         return Redraw(None)
redraw: what is lost pays for itself
- if last <= round:
+ if last < round:
@ tests/privacy/test_account_histories.py::test_a_lost_draw_is_paid_by_all_that_pay_for_the_run_or_not_at_all
@ tests/privacy/test_account_histories.py::test_rounds_are_given_up_for_a_lost_draw_before_another_account_pays
shares: a lost draw is paid by all of the account
-     rho = min(rho, rho_of_share - Fraction(planned.rho))
@ tests/privacy/test_account_histories.py::test_a_lost_draw_is_paid_by_all_that_pay_for_the_run_or_not_at_all
shares: a lost threshold is paid by all of the account
-     delta = min(delta, delta_of_share - Fraction(planned.delta))
@ tests/privacy/test_account_histories.py::test_a_share_pays_for_no_lost_draw_of_a_cohort_that_has_less_left_than_the_share
cohorts: a redraw asks the last of them only
- account.sums().most(run.payers)
+ account.sums().most(((run.payers[-1][1], run.payers[-1][1]),))
= fedcore/privacy/ledger/accounts.py
@ tests/privacy/test_ledger.py::test_a_budget_is_only_raised_and_the_raise_is_shown
budget: a raise that lowers delta
- if epsilon < old.epsilon or delta < old.delta or
+ if epsilon < old.epsilon or
@ tests/privacy/test_ledger.py::test_a_budget_is_set_once
budget: set twice
-             if old is not None:
+             if False:
@ tests/privacy/test_order.py::test_a_record_of_the_right_number_and_another_hash_was_not_seen
witness: its hash is not compared
- return [head for head in wanted if (head.ledger_id, head.seq, head.hash) not in found]
+ return [head for head in wanted if (head.ledger_id, head.seq) not in {one[:2] for one in found}]
@ tests/privacy/test_ledger_faults.py::test_a_restored_old_copy_is_noticed
witness: never looked at
+ return []
@ tests/privacy/test_retired_formats.py::test_an_account_of_a_retired_form
formats: an account in zCDP is read
- if has_budget and rows[0].currency == ZCDP:
+ if False:
= fedcore/privacy/ledger/chain_writer.py
@ tests/privacy/test_ledger_runs.py::test_a_stale_token_can_neither_charge_nor_publish_nor_finish
lease: the token is not looked at
- if run.token != lease.token or run.holder is None:
+ if run.holder is None:
@ tests/privacy/test_redraws.py::test_what_was_charged_in_a_round_that_is_given_up_stays_paid
give up: what was charged comes back in the tables
- (c.round >= first) & (c.state == RESERVED)
+ (c.round >= first) & c.state.in_([RESERVED, CHARGED])
@ tests/privacy/test_redraws.py::test_the_last_optional_rounds_pay_as_many_as_it_takes
give up: one round too many in the tables
+ (c.round >= first - 1) & (c.state == RESERVED)
@ tests/privacy/test_order.py::test_nothing_is_charged_on_top_of_an_edited_record
chain: the last record is not looked at before another is added
-         self._check_last_link()
= fedcore/privacy/ledger/replay.py
@ tests/privacy/test_noise_shares.py::test_shares_that_do_not_cover_their_price_are_neither_reserved_nor_replayed
shares: not looked at in a replay
-         check_shares(releases)
+         pass
@ tests/privacy/test_noise_shares.py::test_a_charge_with_another_share_than_planned
shares: a charge names another one
-  or payload.get("noise_share") != run.noise_share(key):
+ :
@ tests/privacy/test_noise_shares.py::test_law_and_shares_go_together
shares: a charge names another law
- if _known("noise", payload, run.noise, LAWS) != run.noise or
+ if _known("noise", payload, run.noise, LAWS) not in LAWS or
@ tests/privacy/test_order.py::test_records_that_cannot_be_are_refused
replay: a spare more than reserved
- if run.spares_left < 1:
+ if run.spares_left < 0:
replay: a charge in a round that was given up
- if run.given_up is not None and payload["round"] >= run.given_up:
+ if False:
replay: an extension of a run that has ended
- if run.status != OPEN or run.spares_left or key
+ if run.spares_left or key
replay: an extension while spares are left
+ if run.status != OPEN or key
replay: an extension takes the place of what was charged
-  or key in run.attempts or before
+  or before
replay: an extension where nothing was lost
-  or before.state != FORFEITED:
+ :
replay: an extension at another price
-     if (payload["rho"], payload["delta"]) != (planned.rho, planned.delta):
-         raise ValueError("another cost than planned")
-     run.attempts[key]
+     run.attempts[key]
replay: a run that has ended gives up
- if run.status != OPEN or first >= (run.given_up or math.inf):
+ if first >= (run.given_up or math.inf):
replay: given up twice
+ if run.status != OPEN:
replay: what the run needs is given up
- if planned["round"] >= first and not planned.get("optional"):
+ if False:
chain: another cost than planned
-     if (payload["rho"], payload["delta"]) != (planned.rho, planned.delta):
-         raise ValueError("another cost than planned")
-     if run.given_up
+     if run.given_up
chain: a lowered budget
- if new.rho_max < old.rho_max or new.delta_extra < old.delta_extra:
+ if False:
chain: more spent than the budget
- if rho > rho_max or delta > delta_max:
+ if False:
@ tests/privacy/test_order.py::test_a_chain_of_this_form_is_accepted
replay: spares are never used up
-     run.used += 1
replay: an extension costs nothing
-     run.attempts[key] = Attempt(RESERVED, planned.rho, planned.delta)
+     run.attempts[key] = Attempt(RESERVED, 0.0, 0.0)
replay: what was charged comes back when its round is given up
-         if round >= first and attempt.state == RESERVED:
+         if round >= first and attempt.state in (RESERVED, CHARGED):
replay: what was given up is not remembered
-     run.given_up = first
@ tests/privacy/test_redraws.py::test_the_last_optional_rounds_pay_as_many_as_it_takes
replay: nothing comes back of what is given up
-         if round >= first and attempt.state == RESERVED:
+         if False:
@ tests/privacy/test_ledger_faults.py::test_an_edited_ledger_is_refused
@ tests/privacy/test_order.py::test_a_chain_that_was_forged_in_the_middle_is_refused
chain: the hash before is not compared
- if not restored and record.prev_hash != account.hash:
+ if False:
@ tests/privacy/test_ledger_faults.py::test_an_edited_ledger_is_refused
chain: the content is not hashed
- if record.hash != record.expected_hash(ledger_id, population_id):
+ if False:
@ tests/privacy/test_ledger_checkpoints.py
checkpoint: not compared with the records before it
- if canonical(payload["state"]) != canonical(state_of(account)):
+ if False:
@ tests/privacy/test_accounts.py::test_records_that_overspend_a_share_are_refused
shares: an overspent one is not noticed in a chain
- if min(account.share_left(((FOUNDERS, account.last_cohort),), name)) < 0:
+ if False:
@ tests/privacy/test_spent_before.py::test_it_is_charged_and_displayed_before_anything_else
spent before: it costs nothing
- account.ended.sums.add(EVERYBODY, Totals(rho_spent=Fraction(rho)))
+ pass
@ tests/privacy/test_spent_before.py::test_records_that_cannot_follow_are_refused
spent before: twice
- account.budget is None or account.spent_before is not None or
+ account.budget is None or
spent before: after a run
- or account.runs or account.checkpoint:
+ or account.checkpoint:
@ tests/privacy/test_accounts.py::test_records_that_cannot_follow_are_refused
periods: replay does not look at the window
- if account.periods is not None and periods_in(ranges) > account.periods.window:
+ if False:
periods: replay takes a threshold
- if account.periods is not None and any(planned["delta"] for planned in run.plan):
+ if False:
cohorts: replay takes any token
-     account.learn(tokens)
+     account.tokens = tokens
@ tests/privacy/test_cohorts.py::test_founders_carry_what_was_spent_and_reserved_and_what_open_runs_spend_still
cohorts: the founders forget what was spent before
-     account.founders, account.tokens =
+     account.ended.sums.steps.clear()
+     account.founders, account.tokens =
= fedcore/privacy/ledger/checkpoint.py
@ tests/privacy/test_redraws.py::test_what_was_given_up_before_a_checkpoint_is_not_given_up_again
checkpoint: what was given up is forgotten
- return {**entries(run), "attempts": attempts}
+ return {**entries(run), "attempts": attempts, "given_up": None}
@ tests/privacy/test_ledger_checkpoints.py
checkpoint: open runs are left out
- "runs": {run_id: _run_json(account.runs[run_id]) for run_id in account.open_runs()},
+ "runs": {},
@ tests/privacy/test_account_histories.py::test_a_checkpoint_keeps_all_that_there_is
shares: a checkpoint forgets what they spent
- account.ended.shares = {str(name): _sums_of(pieces) for name, pieces in divided["sums"].items()}
+ pass
@ tests/privacy/test_spent_before.py::test_a_checkpoint_keeps_it
spent before: a checkpoint forgets it
- **({} if account.spent_before is None else {"spent_before": plain(account.spent_before)}),
@ tests/privacy/test_periods.py::test_the_ledger_says_what_a_client_with_data_in_every_period_has_lost
periods: a checkpoint forgets what a life has lost
- account.ended.lifetime = _sum(state["cohorts"]["lifetime"])
+ pass
@ tests/privacy/test_account_histories.py::test_a_checkpoint_keeps_all_that_there_is
cohorts: a checkpoint forgets who pays for open runs
- "attempts": attempts, "cohorts": cohorts})
+ "attempts": attempts, "cohorts": None})
= fedcore/privacy/ledger/database.py
@ tests/privacy/test_publishing.py::test_only_failures_of_the_database_are_tried_again
publish: what is wrong in the ledger is tried again
- if not failure.of_database or monotonic()
+ if monotonic()
publish: a lost lease is tried again
- import LedgerError, LedgerMissing
+ import LeaseLost, LedgerError, LedgerMissing
-         except LedgerError as failure:
+         except (LedgerError, LeaseLost) as failure:
- if not failure.of_database or monotonic()
+ if isinstance(failure, LedgerError) and not failure.of_database or monotonic()
= fedcore/rounds/engine.py
@ tests/rounds/test_engine.py::test_a_run_ends_before_the_round_that_was_given_up
release: a round goes on without what was given up
- return None if published is None else dict(published)
+ return grid if published is None else dict(published)
@ tests/rounds/test_engine.py::test_a_private_method_that_breaks_the_rules_releases_nothing_and_says_no_value
publish: what is not planned
- if grid.keys() != {release.name for release in planned}:
+ if False:
publish: sums that are not exact
-         if inexact:
+         if False:
@ tests/rounds/test_engine.py::test_a_run_is_finished_after_its_last_round
rounds: finished while there is a message
- return self.method.message(self.state) is None
+ return self.method.message(self.state) is not None
@ tests/rounds/test_engine.py::test_a_round_lasts_from_the_end_of_the_one_before
rounds: a round lasts as long as the clock shows
- self.seconds["round"], self.marked = now - self.marked, now
+ self.seconds["round"], self.marked = now + self.marked, now
rounds: a round lasts from the start of the run
+ self.seconds["round"] = now - self.marked
@ tests/runs/test_commits.py::test_the_time_until_a_commit_counts_from_the_last_one
rounds: the pause until a commit counts from the start
- self.rows, self.committed = [], time.perf_counter()
+ self.rows = []
rounds: committed metrics are written again
+ self.committed = time.perf_counter()
= fedcore/privacy/ledger/queries.py
@ tests/privacy/test_ledger_faults.py::test_an_edited_ledger_is_refused
chain: tables and chain are not compared: the budget
- check(budget_of(row) == account.budget, "the budget is")
+ pass
chain: tables and chain are not compared: releases
- same = (stored.state, stored.rho, stored.delta) == (attempt.state, attempt.rho, attempt.delta)
+ same = True
chain: tables and chain are not compared: published values
- found_hash == value.sha256 == published.pop(key, None),
+ published.pop(key, None) or True,
@ tests/privacy/test_accounts.py::test_an_edit_is_noticed_by_whatever_depends_on_it_and_by_verify
shares: an edited division is not noticed
- check(row.shares == shares, "its division into shares is")
+ pass
cohorts: those of a run are not compared with the table
- same = same and run.cohorts ==
+ same = same or run.cohorts ==
cohorts: the mode of an account is not compared
- check(row.mode == account.mode, "whether it is kept by cohort is")
+ pass
= fedcore/training/witness.py
@ tests/privacy/test_witness.py::test_a_missing_witness_stops_whatever_would_charge
witness: a missing one is accepted
- if layout.read_beside(population.path, WITNESS) is not None:
+ if True:
@ tests/privacy/test_witness.py::test_a_deleted_witness_does_not_let_a_ledger_forget_that_there_was_a_budget
witness: a missing one is accepted where the ledger knows no budget
- ledger.length(population.id) <= 1 and not _had_one(population)
+ ledger.length(population.id) <= 1
@ tests/privacy/test_witness.py::test_runs_of_the_folder_remember
witness: what runs saw does not count
-     for run in list_runs(runs):
+     for run in []:
@ tests/privacy/test_witness.py::test_an_anchor_notices_what_was_put_back_everywhere_else
witness: what the anchor saw does not count
- (lambda _: _anchored(population, ledger), " by the anchor")
+ (lambda _: None, " by the anchor")
@ tests/privacy/test_witness.py::test_an_empty_folder_in_place_of_the_anchor_is_not_the_first_time
witness: an anchor that lost its record is a new one
-         if not known:  # the first time
+         if True:
@ tests/privacy/test_witness.py::test_the_recorded_place_of_the_anchor_counts_where_the_variable_is_not_set
witness: a run without the anchor forgets that there is one
-     return recorded or named
+     return named
@ tests/privacy/test_witness.py::test_another_place_of_the_anchor_is_recorded_before_it_counts
witness: the variable may name another anchor than the recorded one
- if recorded is not None and named not in (None, recorded):
+ if False:
@ tests/privacy/test_witness.py::test_a_lost_anchor_is_refused_until_its_owner_acknowledges_it
witness: an anchor that cannot be read is no loss
-             missing = True
@ tests/privacy/test_witness.py::test_an_accepted_loss_is_not_one_for_ever
witness: a loss that was accepted once is accepted for ever
- return [head for head in lost if (head.seq, head.hash) not in given_up]
+ return [head for head in lost if not given_up]
= fedcore/privacy/ledger/dividing.py
@ tests/privacy/test_shares.py::test_shares_that_were_spent_are_never_made_smaller_than_that
shares: what is reserved is dealt out again
- rho, delta = account.sums_of(name).most(everybody)
+ rho, delta = account.ended.shares[name].most(everybody) if name in account.ended.shares else (0, 0)
shares: what was spent without a share is dealt out again
- for name in named if account.founders is not None else [*named, None]:
+ for name in named:
= fedcore/privacy/ledger/shares.py
@ tests/privacy/test_shares.py::test_more_than_all_cannot_be_dealt_out
shares: more than all is dealt out
- if (total := sum(shares.values(), Fraction(0))) > 1:
+ if (total := sum(shares.values(), Fraction(0))) > 1.01:
= fedcore/privacy/ledger/copies.py
@ tests/privacy/test_ledger_copies.py::test_a_ledger_is_never_overwritten
copies: put over a ledger that is there
-     if row is not None:
+     if False:
@ tests/privacy/test_ledger_copies.py::test_a_copy_is_replaced_by_a_newer_one_of_the_same_ledger_only
copies: a newer one is replaced by an older one
-             made.check_not_rolled_back(population_id, head)
+             pass
@ tests/privacy/test_ledger_copies.py::test_nothing_is_kept_of_a_ledger_that_does_not_verify
copies: made of a damaged ledger
-         made.verify_all()
-         for population_id, head in heads.items():
+         for population_id, head in heads.items():
= fedcore/training/earlier_accounts.py
@ tests/training/test_earlier_accounts.py::test_a_ledger_of_schema_1_in_the_data_folder_stops_it
spent before: not required beside an old ledger
-     if found is None or ledger
+     if True or found is None or ledger
spent before: a renamed ledger is not found
- if folder.is_dir() else []
+ if False else []
= fedcore/privacy/ledger/formats.py
@ tests/privacy/test_retired_formats.py::test_an_account_of_a_retired_form
formats: a recounted account is read
-     if kind == RECOUNT:
+     if False:
= fedcore/rounds/clients.py
@ tests/rounds/test_engine.py::test_a_private_method_that_breaks_the_rules_releases_nothing_and_says_no_value
errors: of private client code keep their text
-         if not method.private:
-             raise
+         raise
@ tests/training/test_participants.py::test_what_lies_within
ranges: one client after each
- min(high, stop)) for
+ min(high + 1, stop)) for
ranges: the first client is left out
- (max(low, first),
+ (max(low + 1, first),
@ tests/training/test_participants.py::test_sums_of_participants_are_those_of_a_population_of_them_alone
ranges: a part of a leaf begins elsewhere
- leaf.slice(first - leaf.first, stop - leaf.first,
+ leaf.slice(0, stop - leaf.first,
@ tests/rounds/test_caches.py::test_copies_that_were_appended_to_separately_are_not_taken_for_each_other
ranges: blocks of another copy are taken for these
- return population.id, index, entry.first, entry.clients, entry.fingerprint, heldout
+ return population.id, population.version, index, heldout
= fedcore/training/cohorts.py
@ tests/privacy/test_order.py::test_a_plan_fits_with_its_spares
plan: spares do not fit
- [max(rho)] * spares
+ []
@ tests/training/test_account_runs.py::test_the_window_and_the_numbers_that_a_run_names
periods: a run takes all that can pay
- chosen = can if window is None else can[-window:]
+ chosen = can
@ tests/training/test_horizon.py::test_a_cohort_pays_where_what_is_left_and_the_cost_lie_between_the_same_floats
participants: able by more than the cost
- account.rho >= cost.rho
+ account.rho > cost.rho
participants: what is left is rounded
- left = [s.exact_left for s
+ left = [tuple(Fraction(float(part)) for part in s.exact_left) for s
@ tests/training/test_horizon.py::test_the_cost_is_what_the_ledger_would_reserve
participants: the cost is rounded
- return Cost(exact_sum(rho + [max(rho)] * spares),
+ return Cost(Fraction(float(exact_sum(rho + [max(rho)] * spares))),
@ tests/training/test_horizon.py::test_delta_has_to_be_left_too
participants: the delta that is left is not asked
-  and account.delta >= cost.delta]
+ ]
@ tests/training/test_horizon.py::test_so_many_runs_fit_exactly_and_one_more_does_not
participants: one run too many in a horizon
- (runs - 1) * price
+ (runs - 2) * price
participants: a horizon forgets its spares
- (runs - 1) * price + cost_of(plan, spares).rho
+ (runs - 1) * price + cost_of(plan, 0).rho
@ tests/training/test_horizon.py::test_cohorts_that_the_ledger_has_not_heard_of_have_spent_nothing
participants: a cohort that the ledger does not know can pay nothing
- left += [whole] * (len(manifest.cohorts) - len(left))
+ left += [(Fraction(0), Fraction(0))] * (len(manifest.cohorts) - len(left))
@ tests/training/test_horizon.py::test_those_who_take_part_are_those_who_can_pay_all_of_it
@ tests/training/test_horizon.py::test_every_cohort_pays_for_exactly_its_horizon
participants: chosen once, whatever the plan costs
-         if not poor:
+         if True:
@ tests/training/test_account_runs.py::test_the_window_and_the_numbers_that_a_run_names
participants: a named cohort that cannot pay is left out
- if rule.chosen is not None and len(chosen) < len(asked):
+ if False:
= fedcore/population/writer.py
@ tests/population/test_digests.py::test_what_runs_and_ledgers_know_a_version_by_tells_nothing_of_its_data
manifest: no secret is written
-             secret=versions.new_secret(),
+             secret=None,
manifest: the same secret for all
+             secret="0" * 64,
@ tests/population/test_periods.py::test_entries_are_sorted_by_period_and_every_period_is_a_cohort
periods: an entry is of the newest period
- self._dealt.append((self._numbers[label], sum(1 for _ in entries)))
+ self._dealt.append((len(self._numbers), sum(1 for _ in entries)))
@ tests/population/test_writer.py::test_a_block_closes_by_the_bytes_of_all_data_of_its_clients
blocks: held-out data are taken off their bytes
- bytes_of(train) + (bytes_of(other)
+ bytes_of(train) - (bytes_of(other)
blocks: held-out data have no bytes
- (bytes_of(other) if other is not None else 0)
+ (bytes_of(other) if other is None else 0)
blocks: a client has a byte more
+ (bytes_of(other) if other is not None else 1)
= fedcore/privacy/odds.py
@ tests/privacy/test_odds.py::test_the_best_accuracy_is_that_of_the_best_test
odds: the threshold of the best test at mu
- arb(8).sqrt()
+ arb(32).sqrt()
@ tests/privacy/test_odds.py::test_thresholding_steps_may_tell_everything
odds: thresholding steps tell nothing
- (1 - extra) * normal + extra
+ (1 - extra) * normal + extra / 2
@ tests/privacy/test_odds.py::test_the_factor_of_odds_is_rounded_up
odds: rounded down
- arb(epsilon).exp().upper(), up=True
+ arb(epsilon).exp().lower(), up=False
= fedcore/evaluation/privacy_page.py
@ tests/evaluation/test_privacy_page.py::test_shares_are_rounded_up
first page: numbers rounded to nearest
- math.ceil(Fraction(share) * 1000) / 10
+ round(Fraction(share) * 1000) / 10
@ tests/evaluation/test_privacy_page.py::test_thresholding_steps_count_in_full
first page: thresholding steps of the run are left out
- Fraction(delta) - Fraction(conv)
+ Fraction(0) * Fraction(conv)
= fedcore/operations/verify_statement.py
@ tests/privacy/test_statement_versions.py::test_a_statement_without_a_version_agrees_with_itself_and_its_ledger
statement: the sentences of today are expected of every stored one
- .in_version(said.text_version)
= fedcore/privacy/statement_check.py
@ tests/privacy/test_statement_check.py::test_every_change_of_a_number_is_a_contradiction
verified statement: epsilon is believed
- if statement.epsilon != (epsilon := budget.epsilon_of(rho)):
+ if False and (epsilon := budget.epsilon_of(rho)):
@ tests/privacy/test_statement_check.py::test_a_statement_is_read_as_it_was_written_and_agrees_with_itself
verified statement: draws again are not counted
- cost = entry.attempts * Fraction(planned.rho)
+ cost = 1 * Fraction(planned.rho)
@ tests/privacy/test_statement_check.py::test_what_is_left_out_is_a_difference
verified statement: a release that is left out is no difference
- return len(one) == len(other) and all(
+ return all(
@ tests/privacy/test_statement_check.py::test_a_run_and_the_one_that_it_started_from_add_up
verified statement: what a run and its start cost together is believed
-     yield from _both(statement.together, budget, rho, delta)
= fedcore/privacy/periods.py
@ tests/privacy/test_periods.py::test_no_run_reads_more_periods_than_the_window_holds
periods: ranges are counted, not what they hold
- return sum(last - first + 1 for first, last in ranges)
+ return len(ranges)
@ tests/privacy/test_periods.py::test_in_gaussian_differential_privacy
periods: a life without its window
- rho = rounded_up(terms.window * periods * Fraction(budget.rho_max))
+ rho = rounded_up(periods * Fraction(budget.rho_max))
= fedcore/population/ingest/indices.py
@ tests/population/test_periods.py::test_appends_with_late_rows_hold_what_one_ingest_holds
periods: an append does not know the period of an entry
- if self.calendar is None else self.calendar.numbers(ids)
+ if True else self.calendar.numbers(ids)
= fedcore/population/periods.py
@ tests/population/test_periods.py::test_a_time_stamp_lies_in_the_day_that_the_zone_has_then
periods: the first instant of a period is of the one before
- number = np.searchsorted(bounds, values, side="right")
+ number = np.searchsorted(bounds, values, side="left")
= fedcore/privacy/ledger/sums.py
@ tests/privacy/test_accounts.py::test_who_pays_and_who_cannot
cohorts: the sum for the maximum
- return max(t.rho_spent + t.rho_reserved for t in found),
+ return sum(t.rho_spent + t.rho_reserved for t in found),
cohorts: the least for the maximum
+ return min(t.rho_spent + t.rho_reserved for t in found),
cohorts: an account that reaches over the edge of a range is not asked
- if any(low <= last and first <= high for low, high in ranges)
+ if any(low <= first and last <= high for low, high in ranges)
@ tests/privacy/test_cohorts.py::test_only_participants_pay
cohorts: the last of a range does not pay
- self._step(last + 1,
+ self._step(last,
cohorts: one after a range pays
+ self._step(last + 2,
= fedcore/privacy/ledger/cohort_accounts.py
@ tests/privacy/test_cohorts.py::test_a_run_of_another_copy_stops_them
cohorts: they begin whatever a run was made on
- if chain.get(bound.get("version", 0)) != bound["manifest"]:
+ if False:
cohorts: they begin below a later version
-  for number in chain if number <= version}
+  for number in chain}
cohorts: open runs of another copy may spend still
- if run.status != OPEN and not run.spent():
+ if not run.spent():
@ tests/privacy/test_cohorts.py::test_they_need_a_budget_and_a_budget_for_clients
cohorts: they begin for records
- if account.unit != "client":
+ if False:
@ tests/privacy/test_cohorts.py::test_they_begin_once_and_again_after_a_kill
cohorts: a later copy begins them again
- if account.founders == (version, manifest):
+ if account.founders is not None:
@ tests/privacy/test_cohorts.py::test_participants_that_were_edited_everywhere_do_not_have_the_hash_of_their_record
cohorts: participants without the hash of their record
- record.hash == record.expected_hash(self.id, runs[0].population_id) and written ==
+ written ==
= fedcore/training/session.py
@ tests/training/test_account_runs.py::test_late_rows_of_those_who_do_not_take_part_are_not_read
ranges: everybody is asked
- return spec.population.participants(spec.participants.ranges)
+ return spec.population.participants()
@ tests/training/test_inputs.py::test_a_ledger_that_went_back_since_is_refused
witness: not asked again before a resolved run begins
-         check_witnesses(spec.population, spec.ledger)
+         pass
@ tests/operations/test_arrival.py::test_the_statement_rests_on_the_word_and_so_do_those_of_later_runs
pipelines: the statement does not say that files were declared public
- vouched=arrival, first_period=first,
+ first_period=first,
= fedcore/training/spec.py
@ tests/training/test_cohort_runs.py::test_other_participants_than_were_reserved_are_refused
ranges: resumed with other participants than were reserved
-     if reserved != said:
+     if False:
= fedcore/privacy/vocabulary.py
@ tests/privacy/test_vocabulary.py::test_weights_are_the_largest_whole_numbers_of_norm_one
vocabulary: weights of norm more than one
- math.isqrt(GRID_NORM**2 // k) for k
+ math.isqrt(GRID_NORM**2 // k) + 1 for k
@ tests/privacy/test_vocabulary.py::test_one_client_moves_the_words_of_others_by_the_sensitivity_at_most
vocabulary: every word weighs one
-     return entries, WEIGHTS[np.bincount(owner, minlength=block.clients)[owner]]
+     return entries, np.full_like(entries, 2**16)
@ tests/privacy/test_vocabulary.py::test_sums_are_those_of_python_integers
vocabulary: lists are longer than their weights
- kept = np.arange(len(entries)) - starts < LIST
+ kept = np.arange(len(entries)) - starts < LIST + 100
vocabulary: weights as if nobody listed more than two words
-     entries, owner = entries[kept], owner[kept]
-     return entries, WEIGHTS[np.bincount(owner, minlength=block.clients)[owner]]
+     each = np.minimum(np.bincount(owner, minlength=block.clients), 2)
+     return entries[kept], WEIGHTS[each[owner[kept]]]
@ tests/privacy/test_vocabulary.py::test_an_exchange_can_move_by_almost_the_whole_sensitivity
vocabulary: an exchange costs as little as one more
- return GRID_NORM if relation == "add_or_remove_one" else math.isqrt(2 * GRID_NORM**2) + 1
+ return GRID_NORM
@ tests/privacy/test_vocabulary.py::test_the_threshold_against_a_direct_computation
vocabulary: a threshold for one word of a client only
- return bool(-(arb(k) * (-one).log1p()).expm1() <= arb(delta))
+ return bool(one <= arb(delta))
vocabulary: a threshold without the weight of the words
- highest = max(highest, int(WEIGHTS[k]) + above)
+ highest = max(highest, above)
vocabulary: a threshold for short lists only
-     for k in range(1, LIST + 1):
+     for k in range(1, 3):
vocabulary: a threshold for noise of one step less in 10 000
- one: arb = (arb(above) / arb(scale) / arb(2).sqrt()).erfc() / 2
+ one: arb = (arb(above) / arb(scale * 0.9999) / arb(2).sqrt()).erfc() / 2
@ tests/privacy/test_vocabulary.py::test_a_word_stays_that_is_at_the_threshold
vocabulary: what is at the threshold passes
- noised > threshold(planned.scale, planned.delta)
+ noised >= threshold(planned.scale, planned.delta)
@ tests/privacy/test_vocabulary.py::test_a_plan_costs_no_more_than_its_share
vocabulary: each of several releases takes the whole delta
- delta=rounded_down(share * Fraction(delta)),
+ delta=delta,
@ tests/training/test_vocabulary.py::test_a_draw_that_was_lost_is_paid_again_with_its_delta
vocabulary: the delta is not charged
+ delta=0.0,
@ tests/privacy/test_vocabulary.py::test_tokens_that_are_no_words_are_never_listed
vocabulary: tokens that are no words are listed
- (block.words != NO_WORD) & ~np.isin
+ ~np.isin
= fedcore/population/identifiers.py
@ tests/population/test_spelling.py::test_another_spelling_is_the_same_client
cohorts: another spelling of a name is somebody new
- unicodedata.normalize("NFC", text).strip(BLANKS) for text in made
+ text for text in made
= fedcore/privacy/cohorts.py
@ tests/privacy/test_cohorts.py::test_tokens_that_were_looked_at_before_are_not_looked_at_again
cohorts: a new token is not looked at
-     new = tokens[len(known) :]
+     new = tokens[:0]
= fedcore/operations/pipelines/law.py
@ tests/pipelines/test_law.py::test_what_would_follow_from_one_client_is_refused_until_somebody_says_why_it_tells_nothing
pipelines: one client's arrival decides whether something is released
- if step.when == "if_new_files" and given.pipeline.files_are_public_because is None:
+ if False:
pipelines: one client's bad row moves everybody else of its file
- ingest.bad_rows == "refuse" and given.private and undeclared:
+ False:
@ tests/pipelines/test_law.py::test_one_row_decides_over_no_others_in_a_population_that_somebody_else_trains_on_privately
pipelines: one client's bad row decides over a population that others train on privately
-     _check_beside(made, deployments)
@ tests/pipelines/test_law.py::test_no_reason_lets_a_run_that_is_not_private_decide_over_a_private_one
pipelines: a run that is not private decides over a private one
- if step.when == "if_promoted" and not is_private(
+ if step.when == "never" and not is_private(
= fedcore/operations/pipelines/append.py
@ tests/pipelines/test_steps.py::test_why_a_file_was_set_aside_is_told_without_what_is_in_it
pipelines: journals and pages show what is in bad rows
- str(error.without_values)
+ str(error)
@ tests/pipelines/test_steps.py::test_each_run_opens_one_cohort_whatever_came
pipelines: a cohort is opened only if files came
- if made is None and population is not None and _opens_without_files(step, population, at):
+ if False:
pipelines: a run that is taken up opens its cohort again
- if population is not None and _done(population, pipeline.name, when):
+ if False:
= fedcore/operations/pipelines/running.py
@ tests/pipelines/test_law.py::test_the_law_is_asked_again_when_a_pipeline_is_run
pipelines: the law is asked when the file is read only
-     checked(ready)
@ tests/pipelines/test_steps.py::test_private_training_goes_on_whatever_became_of_the_files
pipelines: a training waits for the steps before it to succeed
-         why_not = skipped_because(ready, step, run)
+         why_not = skipped_because(ready, step, run) or ("it went wrong" if run.bad else "")
= fedcore/population/erasing.py
@ tests/population/test_forgetting.py::test_declared_sizes_go_with_cohorts_whether_anybody_was_in_them
forget: a declared size stays where nobody is left
- return cohorts_to is not None and any(
+ return False and any(
= fedcore/methods/histograms/server.py
@ tests/histograms/test_server.py::test_the_release_of_weights_is_a_round_if_it_is_planned
rounds: histograms without weights have a round for them
- (state.weights_multiplier > 0)
+ (state.weights_multiplier >= 0)
rounds: weights of histograms with little noise have none
+ (state.weights_multiplier > 1)
rounds: the weights of histograms are taken off
- len(state.multipliers) + (
+ len(state.multipliers) - (
@ tests/histograms/test_server.py::test_what_is_shown_of_the_rough_mean
shown: the rough mean moves
- _info(state, count, reliable, 0.0)
+ _info(state, count, reliable, 1.0)
shown: the rough mean is reliable if it is not
+ _info(state, count, not reliable, 0.0)
@ tests/histograms/test_server.py::test_a_mean_alone_is_made_of_both_of_its_releases
mean: the flat release of histograms is left out
- len(state.sums):
+ len(state.sums) > 1:
mean: the releases of histograms have each other's weights
- (values / noise**2 + flat / flat_noise**2)
+ (values / flat_noise**2 + flat / noise**2)
@ tests/histograms/test_server.py::test_centres_do_not_move_where_every_cell_is_dead
shown: dead centres move
-         return 0.0
+         return 1.0
= fedcore/evaluation/privacy_page.py
@ tests/evaluation/test_report.py::test_paragraphs_of_a_statement_are_those_without_a_list
report: items of lists are paragraphs
- if not line.startswith(" ") and not after.startswith(" ")
+ if line.startswith(" ") and not after.startswith(" ")
report: heads of lists are paragraphs
+ if not line.startswith(" ") and after.startswith(" ")
report: a paragraph is not in a list, or not before one
+ if not line.startswith(" ") or not after.startswith(" ")
= fedcore/methods/histograms/clients.py
@ tests/conformance/test_any_totals.py::test_histograms
totals: histograms are not clipped
- np.minimum(1.0 / block.totals, clip / np.sqrt(squares))
+ (1.0 / block.totals)
-     return bound_norms(grid, block.indptr)
+     return grid
= fedcore/methods/histograms/weights.py
totals: losses on second halves are not clipped
- np.minimum(1.0, CLIP / np.sqrt(squares))
+ 1.0
-     return bound_norms(grid, rows).reshape(clients, pairs)
+     return grid.reshape(clients, pairs)
= fedcore/methods/histograms/start.py
totals: a start of histograms holds numbers of any size
- if sizes.size and not least <= sizes.min() <= sizes.max() <= LARGEST:
+ if False:
= fedcore/methods/federated_em/private.py
@ tests/conformance/test_any_totals.py::test_federated_em
totals: statistics of EM are not clipped
- np.minimum(1.0, message.clip / np.maximum(norms, message.clip))
+ np.ones(len(norms))
-     if len(long):
+     if False:
= fedcore/methods/private_gmm/integer_rows.py
@ tests/conformance/test_any_totals.py::test_private_gmm
totals: rows of a mixture are not cut to the ball
-     if len(long):
-         z[long] = np.trunc(z[long] * (np.sqrt(allowed[long] / squares[long]) * SHRINK)[:, None])
+     if False:
+         pass
= fedcore/methods/private_gmm/sensitivities.py
totals: a row counts whole in every histogram, however many there are
- return math.isqrt(planned * ONE**2 // max(used, 1))
+ return ONE * math.isqrt(planned)
= fedcore/methods/private_mixture/clients.py
@ tests/conformance/test_any_totals.py::test_private_mixture
totals: gains are not cut
- np.clip(np.nan_to_num(mixture - normal, nan=0.0), -message.bound, message.bound)
+ np.nan_to_num(mixture - normal, nan=0.0)
= fedcore/methods/private_mixture/gaps.py
totals: rows with gaps make clients fail in coordinates that leave rows as they are
- if not len(state.means) and not whole.centre.any() and
+ if not whole.centre.any() and
= fedcore/methods/mixture_models/whole_rows.py
totals: vectors are not shortened
-     if len(long):
-         cut
+     if False:
+         cut
= fedcore/methods/dictionaries/private/clients.py
@ tests/conformance/test_any_totals.py::test_dictionaries
totals: steps of atoms are not clipped
- grid = values * (bound / np.maximum(norms, clip))[:, None]
+ grid = values * (bound / clip)
= fedcore/methods/profile/clients.py
@ tests/conformance/test_any_totals.py::test_profile
totals: every row of a client counts whole
- whole.level // tile.rows, LEAVES)
+ whole.level + 0 * tile.rows, LEAVES)
""")  # noqa: E501
