"""The mutants: what is altered, and which tests are expected to notice. Imports nothing of fedcore."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Mutant:
    """edits: (old text, new text) of the file, each old text exactly once in it. tests: of which one must fail."""

    name: str
    file: str
    edits: tuple[tuple[str, str], ...]
    tests: tuple[str, ...]
    slow: bool = False

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


def _mutant(name: str, file: str, old: str, new: str, *tests: str, slow: bool = False) -> Mutant:
    return Mutant(name, file, ((old, new),), tests, slow)


NOISE, PLAN, ACCOUNTING = "fedcore/privacy/mechanisms.py", "fedcore/privacy/plan.py", "fedcore/privacy/accounting.py"
ZCDP, GDP, REDRAWS = "fedcore/privacy/zcdp.py", "fedcore/privacy/gdp.py", "fedcore/privacy/ledger/redraws.py"
DATABASE = "fedcore/privacy/ledger/database.py"
GRID, STATEMENT = "fedcore/privacy/grid.py", "fedcore/privacy/statement.py"
LEDGER, CHAIN = "fedcore/privacy/ledger/ledger.py", "fedcore/privacy/ledger/chain.py"
WRITER, ACCOUNTS = "fedcore/privacy/ledger/chain_writer.py", "fedcore/privacy/ledger/accounts.py"
RESERVE, REPLAY = "fedcore/privacy/ledger/reservations.py", "fedcore/privacy/ledger/replay.py"
WITNESS, CHECKPOINT = "fedcore/training/witness.py", "fedcore/privacy/ledger/checkpoint.py"
MANIFEST, WRITE = "fedcore/population/manifest.py", "fedcore/population/writer.py"
QUERIES, BUDGET, ENGINE = "fedcore/privacy/ledger/queries.py", "fedcore/training/budget.py", "fedcore/rounds/engine.py"
SUMS, COHORTS = "fedcore/privacy/ledger/sums.py", "fedcore/privacy/ledger/cohort_accounts.py"
COHORTS, ANSWERING = "fedcore/training/cohorts.py", "fedcore/rounds/clients.py"
CHOOSING, ANSWERING = "fedcore/training/cohorts.py", "fedcore/rounds/clients.py"
RECOUNT, RECOUNTING = "fedcore/privacy/recount.py", "fedcore/privacy/ledger/recounting.py"
HISTOGRAMS, EM, GMM = "fedcore/methods/histograms", "fedcore/methods/federated_em", "fedcore/methods/private_gmm"

OF_NOISE, OF_ACCOUNTING = "tests/privacy/test_mechanisms.py", "tests/privacy/test_accounting.py"
OF_LAW = "tests/privacy/test_noise_law.py"
OF_ACCOUNTS, OF_RUNS = "tests/privacy/test_ledger.py", "tests/privacy/test_ledger_runs.py"
OF_FAULTS, OF_STATEMENT = "tests/privacy/test_ledger_faults.py", "tests/privacy/test_statement.py"
OF_CHECKPOINTS, OF_WITNESSES = "tests/privacy/test_ledger_checkpoints.py", "tests/privacy/test_witness.py"
OF_MANIFESTS = "tests/population/test_digests.py"
OF_LOSSES, OF_RECOUNT = "tests/privacy/test_recount.py", "tests/privacy/test_ledger_recount.py"
OF_GDP, OF_REDRAWS = "tests/privacy/test_gdp.py", "tests/privacy/test_redraws.py"
OF_COHORTS, OF_COHORTS_LAW = "tests/privacy/test_cohorts.py", "tests/privacy/test_cohorts_law.py"
OF_PUBLISHING, OF_ENGINE = "tests/privacy/test_publishing.py", "tests/test_engine.py"
OF_CLIENTS, OF_ORDER = "tests/audit/test_sensitivity.py", "tests/privacy/test_order.py"

MUTANTS: list[Mutant] = [
    # --- noise -------------------------------------------------------------------------------------------------------
    _mutant(
        "noise: a tenth too small",
        NOISE,
        "return add(values, planned.scale, SystemBits())",
        "return add(values, 0.9 * planned.scale, SystemBits())",
        f"{OF_NOISE}::test_noise_has_the_planned_distribution",
    ),
    _mutant(
        "noise: a hundredth too small",
        NOISE,
        "return add(values, planned.scale, SystemBits())",
        "return add(values, 0.99 * planned.scale, SystemBits())",
        f"{OF_NOISE}::test_what_is_drawn_is_the_exact_sampler_at_the_planned_scale",
    ),
    _mutant(
        "noise: its price not compared with the charge",
        RESERVE,
        "if Fraction(planned.sensitivity) ** 2 > 2 * Fraction(scale) ** 2 * Fraction(planned.rho):",
        "if False:",
        f"{OF_LAW}::test_a_plan_pays_for_the_noise_that_is_drawn_to_the_last_bit",
    ),
    _mutant(
        "noise: its price compared in floats",
        RESERVE,
        "if Fraction(planned.sensitivity) ** 2 > 2 * Fraction(scale) ** 2 * Fraction(planned.rho):",
        "if planned.sensitivity**2 > 2 * scale**2 * planned.rho:",
        f"{OF_LAW}::test_a_plan_pays_for_the_noise_that_is_drawn_to_the_last_bit",
    ),
    Mutant(
        "noise: one draw for all releases of a scale",
        NOISE,
        (
            ("return add(values, planned.scale, SystemBits())", "return values + _once(planned.scale, values.shape)"),
            (
                "class TestNoise:",
                "@functools.lru_cache\ndef _once(scale, shape):\n"
                "    return add(np.zeros(shape, np.int64), scale, SystemBits())\n\n\n"
                "class TestNoise:",
            ),
            ("import hashlib\n", "import functools\nimport hashlib\n"),
        ),
        (f"{OF_NOISE}::test_secure_noise_is_independent_between_cells_and_draws",),
    ),
    _mutant(
        "noise: one draw for all cells",
        NOISE,
        "return add(values, planned.scale, SystemBits())",
        "return values + add(np.zeros(1, np.int64), planned.scale, SystemBits())[0]",
        f"{OF_NOISE}::test_secure_noise_is_independent_between_cells_and_draws",
    ),
    _mutant(
        "noise: the first cell without",
        NOISE,
        "return add(values, planned.scale, SystemBits())",
        "noised = add(values, planned.scale, SystemBits())\n            noised.flat[0] = values.flat[0]\n"
        "            return noised",
        f"{OF_NOISE}::test_no_cell_goes_without_noise",
    ),
    _mutant(
        "noise: bits that somebody can make again",
        NOISE,
        "return add(values, planned.scale, SystemBits())",
        "return add(values, planned.scale, StreamBits(run_key, planned.round, planned.name))",
        f"{OF_NOISE}::test_a_forked_process_draws_other_noise",
    ),
    _mutant(
        "noise: a failure shows the sum",
        NOISE,
        "({type(error).__name__}); nothing was released.",
        "({error}); nothing was released.",
        f"{OF_NOISE}::test_a_failing_sampler_does_not_show_the_sum",
    ),
    _mutant(
        "noise: what cannot be drawn is told after it is charged",
        BUDGET,
        "        self.noise.ready(planned, grid_values)  # refuses before anything is paid\n",
        "",
        f"{OF_LAW}::test_what_cannot_be_drawn_is_not_charged",
    ),
    _mutant(
        "noise: too wide for the sampler is reserved",
        RESERVE,
        "if scale > LARGEST_SCALE:",
        "if False:",
        f"{OF_LAW}::test_noise_too_wide_to_be_drawn_is_not_reserved",
    ),
    _mutant(
        "law: that of the reservation is ignored",
        LEDGER,
        "noise: Law = ROUNDED if run.secure else run.noise",
        "noise: Law = ROUNDED",
        f"{OF_LAW}::test_test_noise_goes_on_with_the_law_of_its_reservation",
    ),
    _mutant(
        "law: noise that protects is not of the newest one",
        LEDGER,
        "noise: Law = ROUNDED if run.secure else run.noise",
        "noise: Law = run.noise",
        f"{OF_LAW}::test_a_run_that_reserved_the_discrete_gaussian_is_the_same_and_draws_the_rounded_one",
    ),
    _mutant(
        "law: the charge does not say it",
        LEDGER,
        '                    "noise": noise,\n',
        "",
        f"{OF_LAW}::test_a_run_that_reserved_the_discrete_gaussian_is_the_same_and_draws_the_rounded_one",
    ),
    _mutant(
        "law: not that of the charge",
        BUDGET,
        "self.noise.draw(planned, self.run.id, grid_values, charge.noise)",
        "self.noise.draw(planned, self.run.id, grid_values)",
        f"{OF_LAW}::test_test_noise_goes_on_with_the_law_of_its_reservation",
    ),
    _mutant(
        "law: replay takes any",
        REPLAY,
        "    if not run.secure or law != ROUNDED:",
        "    if False:",
        f"{OF_LAW}::test_a_charge_of_another_noise_is_refused",
    ),
    _mutant(
        "law: a checkpoint forgets that of a draw",
        CHECKPOINT,
        "other_law = [] if a.noise is None else [a.noise]",
        "other_law = []",
        f"{OF_LAW}::test_a_checkpoint_keeps_the_law_of_a_draw",
    ),
    _mutant(
        "law: it changes the digest of a plan",
        RESERVE,
        'identity = {**payload, "population_id": population_id, "statement": None}',
        'identity = {**payload, "population_id": population_id, "statement": None, "noise": ROUNDED}',
        f"{OF_LAW}::test_the_law_is_no_part_of_the_digest_of_a_plan",
    ),
    _mutant(
        "test noise: the same for all releases",
        NOISE,
        "StreamBits(self.key, planned.round, planned.name)",
        'StreamBits(self.key, 0, "")',
        f"{OF_NOISE}::test_test_noise_depends_on_key_round_name_and_law_only",
    ),
    _mutant(
        "test noise: the same for all keys",
        NOISE,
        "StreamBits(self.key, planned.round, planned.name)",
        'StreamBits("", planned.round, planned.name)',
        f"{OF_NOISE}::test_test_noise_depends_on_key_round_name_and_law_only",
    ),
    _mutant(
        "test noise: the older law for all releases the same",
        NOISE,
        'name = f"{self.key}|{planned.round}|{planned.name}"',
        'name = f"{self.key}"',
        f"{OF_NOISE}::test_test_noise_depends_on_key_round_name_and_law_only",
    ),
    # --- prices ------------------------------------------------------------------------------------------------------
    _mutant(
        "price: half",
        PLAN,
        "0.5 / self.noise_multiplier**2",
        "0.25 / self.noise_multiplier**2",
        f"{OF_LAW}::test_every_price_covers_its_noise",
    ),
    _mutant(
        "price: rounded down",
        PLAN,
        "math.nextafter(math.nextafter(0.5 / self.noise_multiplier**2, math.inf), math.inf)",
        "math.nextafter(0.5 / self.noise_multiplier**2, 0)",
        f"{OF_ACCOUNTING}::test_the_noise_of_a_planned_release_is_never_less_than_its_price",
    ),
    _mutant(
        "scale: a thousandth too small",
        PLAN,
        "product = self.noise_multiplier * self.sensitivity",
        "product = 0.999 * self.noise_multiplier * self.sensitivity",
        f"{OF_ACCOUNTING}::test_the_noise_of_a_planned_release_is_never_less_than_its_price",
    ),
    _mutant(
        "scale: rounded to nearest",
        PLAN,
        "return product if Fraction(product) >= exact else math.nextafter(product, math.inf)",
        "return product",
        f"{OF_ACCOUNTING}::test_the_noise_of_a_planned_release_is_never_less_than_its_price",
    ),
    _mutant(
        "scale: without the sensitivity",
        PLAN,
        "product = self.noise_multiplier * self.sensitivity",
        "return self.noise_multiplier",
        f"{OF_ACCOUNTING}::test_the_noise_of_a_planned_release_is_never_less_than_its_price",
    ),
    _mutant(
        "epsilon: a thousandth too small",
        ZCDP,
        "return float(RdpAccountant(",
        "return 0.999 * float(RdpAccountant(",
        f"{OF_ACCOUNTING}::test_rho_of_is_just_under_the_requested_epsilon",
    ),
    _mutant(
        "epsilon: one order only",
        ZCDP,
        "RdpAccountant(orders[orders > 1 + 1e-12])",
        "RdpAccountant(orders[400:401])",
        f"{OF_ACCOUNTING}::test_rho_of_is_just_under_the_requested_epsilon",
    ),
    _mutant(
        "epsilon: without a conversion",
        ZCDP,
        "return _epsilon_of(float(rho), float(delta)) if rho > 0 else 0.0",
        "return float(rho)",
        f"{OF_ACCOUNTING}::test_the_constants_of_the_specification",
    ),
    _mutant(
        "rho: the upper end of the search",
        ZCDP,
        "        low, high = (middle, high) if epsilon_of(middle, delta) <= target else (low, middle)\n    return low",
        "        low, high = (middle, high) if epsilon_of(middle, delta) <= target else (low, middle)\n    return high",
        f"{OF_ACCOUNTING}::test_rho_of_is_just_under_the_requested_epsilon",
    ),
    _mutant(
        "rho: no safety",
        ZCDP,
        "SAFETY = 1e-4",
        "SAFETY = 0.0",
        f"{OF_ACCOUNTING}::test_a_hair_of_the_budget_is_kept_for_other_software",
    ),
    _mutant(
        "delta: the whole of it for the conversion",
        ACCOUNTING,
        "    delta_conv = delta - delta_extra\n"
        "    while Fraction(delta_conv) + Fraction(delta_extra) > Fraction(delta):\n"
        "        delta_conv = math.nextafter(delta_conv, 0)\n",
        "    delta_conv = delta\n",
        f"{OF_ACCOUNTING}::test_nothing_of_delta_is_kept_for_thresholds_unless_the_owner_says_so",
    ),
    _mutant(
        "delta: rho at the whole of it",
        ACCOUNTING,
        "_rho_of(currency, epsilon, delta_conv, discrete)",
        "_rho_of(currency, epsilon, delta, discrete)",
        f"{OF_ACCOUNTING}::test_the_parts_of_delta_never_exceed_it",
    ),
    _mutant(
        "delta: its parts rounded to nearest",
        ACCOUNTING,
        "    while Fraction(delta_conv) + Fraction(delta_extra) > Fraction(delta):\n"
        "        delta_conv = math.nextafter(delta_conv, 0)\n",
        "",
        f"{OF_ACCOUNTING}::test_the_parts_of_delta_never_exceed_it",
    ),
    _mutant(
        "sums: of floats",
        ACCOUNTING,
        "return sum(map(Fraction, values), Fraction(0))",
        "return Fraction(math.fsum(values))",
        f"{OF_ACCOUNTING}::test_the_filter_does_not_round",
    ),
    _mutant(
        "sums: what is spent rounded to nearest",
        ACCOUNTING,
        "return nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)",
        "return nearest",
        f"{OF_ACCOUNTING}::test_rounded_sums_enclose_the_exact_one",
    ),
    _mutant(
        "sums: what is left rounded to nearest",
        ACCOUNTING,
        "return nearest if Fraction(nearest) <= value else math.nextafter(nearest, -math.inf)",
        "return nearest",
        f"{OF_ACCOUNTING}::test_rounded_sums_enclose_the_exact_one",
    ),
    # --- Gaussian differential privacy -------------------------------------------------------------------------------
    _mutant(
        "gdp: epsilon one float too small",
        GDP,
        "return math.nextafter(last_float(too_small), math.inf) if too_small(0.0) else 0.0",
        "return last_float(too_small) if too_small(0.0) else 0.0",
        f"{OF_GDP}::test_the_largest_mu_and_back",
    ),
    _mutant(
        "gdp: epsilon by the lower bound of delta",
        GDP,
        "return _delta_bounds(mu_squared, epsilon, BITS)[1] > delta",
        "return _delta_bounds(mu_squared, epsilon, BITS)[0] > delta",
        f"{OF_GDP}::test_the_largest_mu_and_back",
    ),
    _mutant(
        "gdp: mu by the lower bound of delta",
        GDP,
        "delta_bounds(mu, epsilon)[1] <= delta",
        "delta_bounds(mu, epsilon)[0] <= delta",
        f"{OF_GDP}::test_the_largest_mu_and_back",
    ),
    _mutant(
        "gdp: the first mu that is too large",
        GDP,
        "return last_float(lambda mu: delta_bounds(mu, epsilon)[1] <= delta)",
        "return math.nextafter(last_float(lambda mu: delta_bounds(mu, epsilon)[1] <= delta), math.inf)",
        f"{OF_GDP}::test_the_largest_mu_and_back",
    ),
    _mutant(
        "gdp: rho rounded to nearest",
        GDP,
        "return nearest if Fraction(nearest) <= rho else math.nextafter(nearest, 0.0)",
        "return nearest",
        f"{OF_GDP}::test_the_largest_mu_and_back",
    ),
    _mutant(
        "gdp: rho rounded up",
        GDP,
        "return nearest if Fraction(nearest) <= rho else math.nextafter(nearest, 0.0)",
        "return nearest if Fraction(nearest) >= rho else math.nextafter(nearest, math.inf)",
        f"{OF_GDP}::test_the_largest_mu_and_back",
    ),
    _mutant(
        "gdp: rho is mu squared",
        GDP,
        "rho = Fraction(mu) ** 2 / 2",
        "rho = Fraction(mu) ** 2",
        f"{OF_GDP}::test_the_largest_mu_and_back",
    ),
    _mutant(
        "gdp: the upper bound of delta rounded down",
        GDP,
        "rounded(ball.upper(), up=True)",
        "rounded(ball.upper(), up=False)",
        f"{OF_GDP}::test_bounds_enclose_delta_and_are_one_float_wide",
    ),
    _mutant(
        "gdp: the second term of delta without its factor",
        GDP,
        "- e.exp() * _phi(",
        "- _phi(",
        f"{OF_GDP}::test_bounds_enclose_delta_and_are_one_float_wide",
    ),
    _mutant(
        "gdp: the second term of delta is added",
        GDP,
        "- e.exp() * _phi(",
        "+ e.exp() * _phi(",
        f"{OF_GDP}::test_bounds_enclose_delta_and_are_one_float_wide",
    ),
    _mutant(
        "gdp: mu rounded to nearest",
        GDP,
        "    while Fraction(mu) ** 2 < 2 * Fraction(rho):\n        mu = math.nextafter(mu, math.inf)\n",
        "",
        f"{OF_GDP}::test_a_mu_that_is_shown_is_the_smallest_float_above",
    ),
    _mutant(
        "epsilon: of mu squared without its factor",
        ACCOUNTING,
        "return gdp.epsilon_of(2 * Fraction(rho), self.delta_conv)",
        "return gdp.epsilon_of(Fraction(rho), self.delta_conv)",
        f"{OF_ACCOUNTING}::test_the_parts_of_delta_never_exceed_it",
    ),
    _mutant(
        "epsilon: at the whole of delta",
        ACCOUNTING,
        "return gdp.epsilon_of(2 * Fraction(rho), self.delta_conv)",
        "return gdp.epsilon_of(2 * Fraction(rho), self.delta)",
        f"{OF_ACCOUNTING}::test_the_parts_of_delta_never_exceed_it",
    ),
    _mutant(
        "epsilon: of zcdp by the conversion of gdp",
        ACCOUNTING,
        "            return zcdp.epsilon_of(rho, self.delta_conv)",
        "            return gdp.epsilon_of(2 * Fraction(rho), self.delta_conv)",
        f"{OF_STATEMENT}::test_a_statement_of_an_account_in_zcdp_is_in_zcdp",
    ),
    _mutant(
        "rho: of zcdp by the conversion of gdp",
        ACCOUNTING,
        "        return zcdp.rho_of(epsilon, delta)",
        "        return gdp.rho_max(epsilon, delta)",
        f"{OF_ACCOUNTING}::test_the_same_promise_buys_more_than_in_zcdp",
    ),
    # --- sensitivities and clips -------------------------------------------------------------------------------------
    Mutant(
        "clip: left out of histograms",
        f"{HISTOGRAMS}/clients.py",
        (
            ("np.minimum(1.0 / block.totals, clip / np.sqrt(squares))", "1.0 / block.totals"),
            ("return bound_norms(grid, block.indptr)", "return grid"),
        ),
        (OF_CLIENTS,),
    ),
    _mutant(
        "clip: one client is forgotten",
        GRID,
        "for client in np.flatnonzero(squares > GRID_NORM**2):",
        "for client in np.flatnonzero(squares > GRID_NORM**2)[1:]:",
        "tests/histograms/test_clients.py",
    ),
    _mutant(
        "clip: one step too wide",
        GRID,
        "above = int(np.sqrt(squares[client])) + 1",
        "above = int(np.sqrt(squares[client])) - 1",
        "tests/histograms/test_clients.py",
    ),
    Mutant(
        "clip: left out of federated EM",
        f"{EM}/private.py",
        (
            (
                "(np.minimum(1.0, message.clip / np.maximum(norms, message.clip)) / grid_step(message.clip))[:, None]",
                "1.0 / grid_step(message.clip)",
            ),
            ("    if len(long):\n        q = means", "    if False:\n        q = means"),
        ),
        ("tests/federated_em/test_private.py", OF_CLIENTS),
    ),
    _mutant(
        "clip: of the first half of the clients of federated EM",
        f"{EM}/private.py",
        "    for low in range(0, len(grid), step):\n        _clip(grid[low : low + step]",
        "    for low in range(0, len(grid), 2 * step):\n        _clip(grid[low : low + step]",
        "tests/federated_em/test_private.py",
        OF_CLIENTS,
    ),
    _mutant(
        "clip: left out of private GMM",
        f"{GMM}/integer_rows.py",
        "long = np.flatnonzero(squares > allowed)",
        "long = np.flatnonzero(squares > 2.0 * allowed)",
        "tests/private_gmm/test_sensitivity.py",
        slow=True,
    ),
    _mutant(
        "clip: rows of a client of private GMM not divided by their number",
        f"{GMM}/integer_rows.py",
        "rows = np.maximum(group.sizes, 1)[:, None]",
        "rows = 1",
        "tests/private_gmm/test_sensitivity.py",
        slow=True,
    ),
    _mutant(
        "sensitivity: histograms do not know replacement",
        f"{HISTOGRAMS}/sensitivities.py",
        "return GRID_NORM if _adds_or_removes(relation) else math.isqrt(2 * GRID_NORM**2) + 1",
        "return GRID_NORM",
        OF_CLIENTS,
    ),
    _mutant(
        "sensitivity: relations of histograms exchanged",
        f"{HISTOGRAMS}/sensitivities.py",
        'return relation == "add_or_remove_one"',
        'return relation == "replace_one"',
        OF_CLIENTS,
    ),
    _mutant(
        "sensitivity: the second moment a step too small",
        f"{HISTOGRAMS}/sensitivities.py",
        "math.isqrt(MOMENT_NORM**4 // 2) + 1",
        "math.isqrt(MOMENT_NORM**4 // 2)",
        "tests/histograms/test_second_moment.py",
        OF_CLIENTS,
    ),
    _mutant(
        "sensitivity: federated EM does not know replacement",
        f"{EM}/private.py",
        '"replace_one": 2 * GRID_NORM',
        '"replace_one": GRID_NORM',
        "tests/federated_em/test_private.py",
        OF_CLIENTS,
    ),
    _mutant(
        "sensitivity: private GMM does not know replacement",
        f"{GMM}/sensitivities.py",
        "    bound = _root_above(parts * ONE**2)\n    return bound if _one_sided(relation) else 2 * bound",
        "    return _root_above(parts * ONE**2)",
        "tests/private_gmm/test_sensitivity.py",
        slow=True,
    ),
    _mutant(
        "sensitivity: several histograms of private GMM at the price of one",
        f"{GMM}/sensitivities.py",
        "squared = histograms * ONE**2",
        "squared = ONE**2",
        "tests/private_gmm/test_sensitivity.py",
        slow=True,
    ),
    _mutant(
        "sensitivity: a client is counted within the clip and beyond it",
        f"{HISTOGRAMS}/clients.py",
        "np.sum(~within & filled)",
        "np.sum(filled)",
        OF_CLIENTS,
    ),
    _mutant(
        "sensitivity: scores in the precision of the block",
        f"{HISTOGRAMS}/clients.py",
        "if block.data.dtype != np.float32:",
        "if False:",
        OF_CLIENTS,
    ),
    # --- the ledger: what is reserved --------------------------------------------------------------------------------
    _mutant(
        "reserve: test noise on a ledger for people",
        RESERVE,
        "if not secure and not self.is_test:",
        "if False:",
        f"{OF_ACCOUNTS}::test_test_noise_is_refused_on_a_ledger_for_people",
    ),
    _mutant(
        "reserve: the relation is not looked at",
        RESERVE,
        "if (unit, relation) != (account.unit, account.relation):",
        "if unit != account.unit:",
        f"{OF_ACCOUNTS}::test_another_unit_or_relation_is_refused_not_converted",
    ),
    _mutant(
        "reserve: the unit is not looked at",
        RESERVE,
        "if (unit, relation) != (account.unit, account.relation):",
        "if relation != account.relation:",
        f"{OF_ACCOUNTS}::test_another_unit_or_relation_is_refused_not_converted",
    ),
    _mutant(
        "reserve: spares are free",
        RESERVE,
        'rho = exact_sum([p.rho for p in plan]) + spares * Fraction(payload["spare_rho"])',
        "rho = exact_sum([p.rho for p in plan])",
        f"{OF_ACCOUNTS}::test_the_budget_is_exact_at_the_edge",
    ),
    _mutant(
        "reserve: a plan costs its dearest release",
        RESERVE,
        "rho = exact_sum([p.rho for p in plan])",
        "rho = exact_sum([max(p.rho for p in plan)])",
        f"{OF_ACCOUNTS}::test_the_budget_is_exact_at_the_edge",
    ),
    _mutant(
        "reserve: what other runs reserved does not count",
        RESERVE,
        "fits = rho_used + rho <= ",
        "fits = rho_used - account.totals().rho_reserved + rho <= ",
        f"{OF_ORDER}::test_what_a_run_reserved_is_not_left_for_others",
    ),
    _mutant(
        "reserve: deltas of thresholds are free",
        RESERVE,
        " and delta_used + delta <= Fraction(budget.delta_extra)",
        "",
        f"{OF_ACCOUNTS}::test_deltas_of_thresholds_have_their_own_filter",
    ),
    _mutant(
        "reserve: another plan under a known name",
        RESERVE,
        'raise PrivacyError(f"run {run_id!r} has reserved another plan.", "Give the new run a new name.")',
        "return",
        f"{OF_ACCOUNTS}::test_the_same_reservation_again_changes_nothing",
    ),
    _mutant(
        "spares: not counted as reserved",
        CHAIN,
        "return waiting + [(self.spare_rho, self.spare_delta)] * self.spares_left",
        "return waiting",
        f"{OF_ACCOUNTS}::test_a_plan_and_its_spares_are_reserved",
    ),
    _mutant(
        "spares: one more than reserved",
        REDRAWS,
        "if run.spares_left:",
        "if run.spares and run.used <= run.spares:",
        f"{OF_REDRAWS}::test_a_spare_pays_first_then_what_no_run_has_reserved",
    ),
    _mutant(
        "spares: never used up",
        LEDGER,
        "used=run.used + 1",
        "used=run.used",
        f"{OF_REDRAWS}::test_a_spare_pays_first_then_what_no_run_has_reserved",
    ),
    _mutant(
        "spent: what was forfeited is not",
        CHAIN,
        "SPENT = (CHARGED, PUBLISHED, FORFEITED)",
        "SPENT = (CHARGED, PUBLISHED)",
        f"{OF_REDRAWS}::test_a_spare_pays_first_then_what_no_run_has_reserved",
        f"{OF_RUNS}::test_finishing_returns_only_what_was_never_charged",
    ),
    _mutant(
        "spent: what was charged and not published is not",
        CHAIN,
        "SPENT = (CHARGED, PUBLISHED, FORFEITED)",
        "SPENT = (PUBLISHED, FORFEITED)",
        f"{OF_RUNS}::test_a_release_is_charged_then_published",
    ),
    _mutant(
        "finish: what was charged goes back",
        LEDGER,
        "((CHARGED, FORFEITED), (RESERVED, RETURNED))",
        "((CHARGED, RETURNED), (RESERVED, RETURNED))",
        f"{OF_RUNS}::test_finishing_returns_only_what_was_never_charged",
    ),
    _mutant(
        "budget: a raise that lowers delta",
        ACCOUNTS,
        "if epsilon < old.epsilon or delta < old.delta or",
        "if epsilon < old.epsilon or",
        f"{OF_ACCOUNTS}::test_a_budget_is_only_raised_and_the_raise_is_shown",
    ),
    _mutant(
        "budget: set twice",
        ACCOUNTS,
        "            if old is not None:\n                raise BudgetExists(",
        "            if False:\n                raise BudgetExists(",
        f"{OF_ACCOUNTS}::test_a_budget_is_set_once",
    ),
    # --- the ledger: releases ----------------------------------------------------------------------------------------
    _mutant(
        "charge: a release that is not planned like this",
        LEDGER,
        "if canonical(planned.to_json()) not in",
        "if False and canonical(planned.to_json()) not in",
        f"{OF_RUNS}::test_a_release_that_differs_from_the_plan_is_refused",
    ),
    _mutant(
        "charge: to a run that has ended",
        LEDGER,
        "            if run.status != OPEN:\n                kind = BudgetExceeded",
        "            if False:\n                kind = BudgetExceeded",
        f"{OF_RUNS}::test_a_run_that_has_ended_stays_as_it_is",
    ),
    _mutant(
        "charge: a lost value is drawn again for nothing",
        LEDGER,
        "if last.state == RESERVED:",
        "if last.state in (RESERVED, CHARGED):",
        f"{OF_REDRAWS}::test_a_spare_pays_first_then_what_no_run_has_reserved",
    ),
    _mutant(
        "charge: a published value that is gone is drawn again",
        LEDGER,
        "            if last.state == PUBLISHED:\n                raise LedgerTampered(",
        "            if False:\n                raise LedgerTampered(",
        f"{OF_FAULTS}::test_a_published_value_that_is_gone_is_not_drawn_again",
    ),
    _mutant(
        "publish: the later value leaves",
        LEDGER,
        "                return stored[1]\n            if not own",
        "                return noised\n            if not own",
        f"{OF_FAULTS}::test_of_two_publications_one_holds_and_both_return_it",
        f"{OF_RUNS}::test_a_published_release_is_free_and_never_replaced",
    ),
    _mutant(
        "publish: a stored value is overwritten",
        LEDGER,
        "            if stored is not None:\n                if own and own[0].state == CHARGED:",
        "            if stored is not None:\n                changed = {'data': noised.astype('<i8').tobytes()}\n"
        "                writer.connection.execute(update(tables.published).where(tables.published.c.name == name)"
        ".values(changed))\n                if own and own[0].state == CHARGED:",
        f"{OF_RUNS}::test_a_published_release_is_free_and_never_replaced",
    ),
    _mutant(
        "publish: what was not charged",
        LEDGER,
        "if not own or own[0].state != CHARGED:",
        "if not own:",
        f"{OF_ORDER}::test_nothing_is_published_that_was_not_charged",
    ),
    _mutant(
        "publish: another shape than planned",
        LEDGER,
        "if not isinstance(noised, np.ndarray) or noised.dtype != np.int64 or noised.shape != shape:",
        "if False:",
        f"{OF_RUNS}::test_another_shape_or_dtype_is_not_published",
    ),
    _mutant(
        "stored: a value that is not the recorded one",
        LEDGER,
        'if sha256 not in [item.get("digest") for item in recorded if item.get("name") == name]:',
        "if False:",
        f"{OF_FAULTS}::test_an_edited_ledger_is_refused",
    ),
    _mutant(
        "lease: the token is not looked at",
        WRITER,
        "if run.token != lease.token or run.holder is None:",
        "if run.holder is None:",
        f"{OF_RUNS}::test_a_stale_token_can_neither_charge_nor_publish_nor_finish",
    ),
    _mutant(
        "lease: the token does not grow",
        LEDGER,
        "token = run.token + 1",
        "token = max(run.token, 1)",
        f"{OF_RUNS}::test_a_stale_token_can_neither_charge_nor_publish_nor_finish",
    ),
    _mutant(
        "lease: a live holder loses the run",
        LEDGER,
        "if holder.alive(expired=self.clock() > (run.expires or 0.0)):",
        "if False:",
        f"{OF_RUNS}::test_a_live_holder_keeps_the_run",
    ),
    # --- paying for a draw that was lost -----------------------------------------------------------------------------
    _mutant(
        "redraw: what is given up pays for nothing",
        REDRAWS,
        "        rho += exact_sum(attempt.rho for attempt in freed)\n",
        "",
        f"{OF_REDRAWS}::test_a_redraw_costs_its_whole_price_and_nothing_is_given_up_without_need",
    ),
    _mutant(
        "redraw: the deltas of what is given up pay for nothing",
        REDRAWS,
        "        delta += exact_sum(attempt.delta for attempt in freed)\n",
        "",
        f"{OF_REDRAWS}::test_a_redraw_costs_its_whole_price_and_nothing_is_given_up_without_need",
    ),
    _mutant(
        "redraw: what was charged later pays as well",
        REDRAWS,
        "if of == last and a.state == RESERVED]",
        "if of == last]",
        f"{OF_REDRAWS}::test_what_was_charged_in_a_later_round_pays_for_nothing",
    ),
    _mutant(
        "redraw: for nothing",
        REDRAWS,
        " - rho_used - Fraction(planned.rho)",
        " - rho_used",
        f"{OF_REDRAWS}::test_a_redraw_costs_its_whole_price_and_nothing_is_given_up_without_need",
    ),
    _mutant(
        "redraw: what is reserved pays",
        REDRAWS,
        " - rho_used - ",
        " - account.totals().rho_spent - ",
        f"{OF_REDRAWS}::test_what_another_run_has_reserved_pays_for_nothing",
    ),
    _mutant(
        "redraw: its delta is forgotten",
        REDRAWS,
        " - delta_used - Fraction(planned.delta)",
        " - delta_used",
        f"{OF_REDRAWS}::test_a_redraw_costs_its_whole_price_and_nothing_is_given_up_without_need",
    ),
    _mutant(
        "redraw: an extension is not limited in delta",
        REDRAWS,
        '    if rho >= 0 and delta >= 0:\n        return Redraw("extension")',
        '    if rho >= 0:\n        return Redraw("extension")',
        f"{OF_REDRAWS}::test_delta_is_paid_again_as_well",
    ),
    _mutant(
        "redraw: after giving up, an extension is not limited in delta",
        REDRAWS,
        '        if rho >= 0 and delta >= 0:\n            return Redraw("extension", last)',
        '        if rho >= 0:\n            return Redraw("extension", last)',
        f"{OF_REDRAWS}::test_a_redraw_costs_its_whole_price_and_nothing_is_given_up_without_need",
    ),
    _mutant(
        "redraw: the edge of an extension",
        REDRAWS,
        '    if rho >= 0 and delta >= 0:\n        return Redraw("extension")',
        '    if rho > 0 and delta >= 0:\n        return Redraw("extension")',
        f"{OF_REDRAWS}::test_a_redraw_costs_its_whole_price_and_nothing_is_given_up_without_need",
    ),
    _mutant(
        "redraw: the edge of an extension in delta",
        REDRAWS,
        '    if rho >= 0 and delta >= 0:\n        return Redraw("extension")',
        '    if rho >= 0 and delta > 0:\n        return Redraw("extension")',
        f"{OF_REDRAWS}::test_a_redraw_costs_its_whole_price_and_nothing_is_given_up_without_need",
    ),
    _mutant(
        "redraw: the edge of giving up",
        REDRAWS,
        '        if rho >= 0 and delta >= 0:\n            return Redraw("extension", last)',
        '        if rho > 0 and delta > 0:\n            return Redraw("extension", last)',
        f"{OF_REDRAWS}::test_a_redraw_costs_its_whole_price_and_nothing_is_given_up_without_need",
    ),
    _mutant(
        "redraw: in floats",
        REDRAWS,
        '    if rho >= 0 and delta >= 0:\n        return Redraw("extension")',
        '    if rho >= -1e-12 and delta >= -1e-24:\n        return Redraw("extension")',
        f"{OF_REDRAWS}::test_a_redraw_costs_its_whole_price_and_nothing_is_given_up_without_need",
    ),
    _mutant(
        "redraw: rounds that the run needs are given up",
        REDRAWS,
        '        if not all(planned.get("optional") for planned in run.plan if planned["round"] == round):\n'
        "            return\n",
        "",
        f"{OF_REDRAWS}::test_rounds_that_the_run_needs_are_not_given_up",
    ),
    _mutant(
        "redraw: a round of which the run needs a part is given up",
        REDRAWS,
        'if not all(planned.get("optional")',
        'if not any(planned.get("optional")',
        f"{OF_REDRAWS}::test_rounds_that_the_run_needs_are_not_given_up",
    ),
    _mutant(
        "redraw: a round in the middle is given up",
        REDRAWS,
        'if planned["round"] == round):\n            return\n',
        'if planned["round"] == round):\n            continue\n',
        f"{OF_REDRAWS}::test_rounds_that_the_run_needs_are_not_given_up",
    ),
    _mutant(
        "redraw: the first optional rounds are given up first",
        REDRAWS,
        ", reverse=True):",
        "):",
        f"{OF_REDRAWS}::test_a_redraw_costs_its_whole_price_and_nothing_is_given_up_without_need",
        f"{OF_REDRAWS}::test_the_last_optional_rounds_pay_as_many_as_it_takes",
    ),
    _mutant(
        "redraw: an extension while spares are left",
        REDRAWS,
        '    if run.spares_left:\n        return Redraw("spare")\n',
        "",
        f"{OF_REDRAWS}::test_a_spare_pays_once",
        f"{OF_REDRAWS}::test_a_spare_pays_first_then_what_no_run_has_reserved",
    ),
    _mutant(
        "redraw: what was given up is drawn again",
        REDRAWS,
        "    if run.given_up is not None and round >= run.given_up:\n        return Redraw(None)\n",
        "",
        f"{OF_REDRAWS}::test_an_optional_release_that_is_lost_is_given_up_itself",
    ),
    _mutant(
        "redraw: what is lost pays for itself",
        REDRAWS,
        "if last <= round:",
        "if last < round:",
        f"{OF_REDRAWS}::test_an_optional_release_that_is_lost_is_given_up_itself",
    ),
    _mutant(
        "pay again: nothing is forfeited",
        LEDGER,
        "            writer.forfeit(run_id, round, name, last.attempt)\n        if way",
        "            pass\n        if way",
        f"{OF_REDRAWS}::test_a_spare_pays_first_then_what_no_run_has_reserved",
    ),
    _mutant(
        "pay again: what was forfeited is forfeited again",
        LEDGER,
        "        if last.state == CHARGED:\n            writer.forfeit(",
        "        if True:\n            writer.forfeit(",
        f"{OF_REDRAWS}::test_an_optional_release_that_is_lost_is_given_up_itself",
    ),
    _mutant(
        "pay again: an extension is not recorded",
        LEDGER,
        '            writer.append("extend", run_id, {**again, **price})\n',
        "            pass\n",
        f"{OF_REDRAWS}::test_a_spare_pays_first_then_what_no_run_has_reserved",
    ),
    _mutant(
        "pay again: an extension at another price",
        LEDGER,
        '            writer.append("extend", run_id, {**again, **price})\n',
        '            writer.append("extend", run_id, {**again, **price, "rho": 0.0})\n',
        f"{OF_REDRAWS}::test_a_spare_pays_first_then_what_no_run_has_reserved",
    ),
    _mutant(
        "pay again: no new attempt",
        LEDGER,
        "        writer.connection.execute(tables.releases.insert().values(row))\n",
        "",
        f"{OF_REDRAWS}::test_a_spare_pays_first_then_what_no_run_has_reserved",
    ),
    _mutant(
        "pay again: the new attempt costs nothing",
        LEDGER,
        '{"run_id": run_id, **again, **price, "state": CHARGED}',
        '{"run_id": run_id, **again, "rho": 0.0, "delta": 0.0, "state": CHARGED}',
        f"{OF_REDRAWS}::test_a_spare_pays_first_then_what_no_run_has_reserved",
    ),
    _mutant(
        "pay again: what is given up is not recorded",
        LEDGER,
        "            writer.give_up(run_id, way.given_up)\n",
        "            pass\n",
        f"{OF_REDRAWS}::test_the_last_optional_rounds_pay_as_many_as_it_takes",
    ),
    _mutant(
        "pay again: what is given up is paid by a spare that is not there",
        LEDGER,
        "        if way.paid_by is None:\n            return False\n",
        "",
        f"{OF_REDRAWS}::test_an_optional_release_that_is_lost_is_given_up_itself",
    ),
    _mutant(
        "pay again: who cannot pay draws all the same",
        LEDGER,
        "        if way is None:\n            raise BudgetExceeded(",
        "        if way is None:\n            return True\n            raise BudgetExceeded(",
        f"{OF_REDRAWS}::test_what_another_run_has_reserved_pays_for_nothing",
    ),
    _mutant(
        "give up: what was charged comes back in the tables",
        WRITER,
        "(c.round >= first) & (c.state == RESERVED)",
        "(c.round >= first) & c.state.in_([RESERVED, CHARGED])",
        f"{OF_REDRAWS}::test_what_was_charged_in_a_round_that_is_given_up_stays_paid",
    ),
    _mutant(
        "give up: one round too many in the tables",
        WRITER,
        "(c.round >= first) & (c.state == RESERVED)",
        "(c.round >= first - 1) & (c.state == RESERVED)",
        f"{OF_REDRAWS}::test_the_last_optional_rounds_pay_as_many_as_it_takes",
    ),
    _mutant(
        "replay: a spare more than reserved",
        REPLAY,
        "if run.spares_left < 1:",
        "if run.spares_left < 0:",
        f"{OF_ORDER}::test_records_that_cannot_be_are_refused",
    ),
    _mutant(
        "replay: spares are never used up",
        REPLAY,
        "    run.used += 1\n",
        "",
        f"{OF_ORDER}::test_a_chain_of_this_form_is_accepted",
    ),
    _mutant(
        "replay: a charge in a round that was given up",
        REPLAY,
        'if run.given_up is not None and payload["round"] >= run.given_up:',
        "if False:",
        f"{OF_ORDER}::test_records_that_cannot_be_are_refused",
    ),
    _mutant(
        "replay: an extension of a run that has ended",
        REPLAY,
        "if run.status != OPEN or run.spares_left or key",
        "if run.spares_left or key",
        f"{OF_ORDER}::test_records_that_cannot_be_are_refused",
    ),
    _mutant(
        "replay: an extension while spares are left",
        REPLAY,
        "if run.status != OPEN or run.spares_left or key",
        "if run.status != OPEN or key",
        f"{OF_ORDER}::test_records_that_cannot_be_are_refused",
    ),
    _mutant(
        "replay: an extension takes the place of what was charged",
        REPLAY,
        " or key in run.attempts or before",
        " or before",
        f"{OF_ORDER}::test_records_that_cannot_be_are_refused",
    ),
    _mutant(
        "replay: an extension where nothing was lost",
        REPLAY,
        " or before.state != FORFEITED:",
        ":",
        f"{OF_ORDER}::test_records_that_cannot_be_are_refused",
    ),
    _mutant(
        "replay: an extension at another price",
        REPLAY,
        """    if (payload["rho"], payload["delta"]) != (planned.rho, planned.delta):
        raise ValueError("another price than planned")
    run.attempts[key]""",
        "    run.attempts[key]",
        f"{OF_ORDER}::test_records_that_cannot_be_are_refused",
    ),
    _mutant(
        "replay: an extension costs nothing",
        REPLAY,
        "    run.attempts[key] = Attempt(RESERVED, planned.rho, planned.delta)\n\n\ndef _give_up",
        "    run.attempts[key] = Attempt(RESERVED, 0.0, 0.0)\n\n\ndef _give_up",
        f"{OF_ORDER}::test_a_chain_of_this_form_is_accepted",
    ),
    _mutant(
        "replay: a run that has ended gives up",
        REPLAY,
        "if run.status != OPEN or first >= (run.given_up or math.inf):",
        "if first >= (run.given_up or math.inf):",
        f"{OF_ORDER}::test_records_that_cannot_be_are_refused",
    ),
    _mutant(
        "replay: given up twice",
        REPLAY,
        "if run.status != OPEN or first >= (run.given_up or math.inf):",
        "if run.status != OPEN:",
        f"{OF_ORDER}::test_records_that_cannot_be_are_refused",
    ),
    _mutant(
        "replay: what the run needs is given up",
        REPLAY,
        'if planned["round"] >= first and not planned.get("optional"):',
        "if False:",
        f"{OF_ORDER}::test_records_that_cannot_be_are_refused",
    ),
    _mutant(
        "replay: what was charged comes back when its round is given up",
        REPLAY,
        "        if round >= first and attempt.state == RESERVED:\n",
        "        if round >= first and attempt.state in (RESERVED, CHARGED):\n",
        f"{OF_ORDER}::test_a_chain_of_this_form_is_accepted",
    ),
    _mutant(
        "replay: nothing comes back of what is given up",
        REPLAY,
        "        if round >= first and attempt.state == RESERVED:\n",
        "        if False:\n",
        f"{OF_REDRAWS}::test_the_last_optional_rounds_pay_as_many_as_it_takes",
    ),
    _mutant(
        "replay: what was given up is not remembered",
        REPLAY,
        "    run.given_up = first\n",
        "",
        f"{OF_ORDER}::test_a_chain_of_this_form_is_accepted",
    ),
    _mutant(
        "checkpoint: what was given up is forgotten",
        CHECKPOINT,
        'for name in ("given_up", "cohorts") if value[name] is None}',
        'for name in ("given_up", "cohorts")}',
        f"{OF_REDRAWS}::test_what_was_given_up_before_a_checkpoint_is_not_given_up_again",
    ),
    _mutant(
        "publish: another draw at every try",
        LEDGER,
        "lambda: self._publish(lease, charge, noised)",
        "lambda tries=[]: (tries.append(1), self._publish(lease, charge, noised + len(tries) - 1))[1]",
        f"{OF_PUBLISHING}::test_a_connection_that_breaks_at_the_commit_loses_nothing",
    ),
    _mutant(
        "publish: given up at the first failure",
        LEDGER,
        "return db.persist(lambda: self._publish(lease, charge, noised), PUBLISH_SECONDS)",
        "return self._publish(lease, charge, noised)",
        f"{OF_PUBLISHING}::test_a_connection_that_breaks_at_the_commit_loses_nothing",
    ),
    _mutant(
        "publish: what is wrong in the ledger is tried again",
        DATABASE,
        "if not failure.of_database or monotonic()",
        "if monotonic()",
        f"{OF_PUBLISHING}::test_only_failures_of_the_database_are_tried_again",
    ),
    Mutant(
        "publish: a lost lease is tried again",
        DATABASE,
        (
            ("import LedgerError, LedgerMissing", "import LeaseLost, LedgerError, LedgerMissing"),
            ("        except LedgerError as failure:\n", "        except (LedgerError, LeaseLost) as failure:\n"),
            (
                "if not failure.of_database or monotonic()",
                "if isinstance(failure, LedgerError) and not failure.of_database or monotonic()",
            ),
        ),
        (f"{OF_PUBLISHING}::test_only_failures_of_the_database_are_tried_again",),
    ),
    _mutant(
        "publish: drawn again after a failure",
        BUDGET,
        "        return self.ledger.publish(self.lease, charge, drawn)",
        "        try:\n            return self.ledger.publish(self.lease, charge, drawn)\n"
        "        except PrivacyError:\n"
        "            drawn = self.noise.draw(planned, self.run.id, grid_values, charge.noise)\n"
        "            return self.ledger.publish(self.lease, charge, drawn)",
        f"{OF_ORDER}::test_a_release_that_cannot_be_published_is_drawn_once",
    ),
    _mutant(
        "release: what was given up is drawn all the same",
        BUDGET,
        "        if charge is None:\n            return None\n",
        "        if charge is None:\n"
        '            return self.noise.draw(planned, self.run.id, grid_values, "as charged")\n',
        f"{OF_ORDER}::test_what_was_given_up_is_not_drawn",
    ),
    _mutant(
        "release: what was given up is not looked at",
        BUDGET,
        "        if charge is None:\n            return None\n",
        "",
        f"{OF_ORDER}::test_what_was_given_up_is_not_drawn",
    ),
    _mutant(
        "release: a round goes on without what was given up",
        ENGINE,
        "            if noised is None:\n                return None\n",
        "            if noised is None:\n                noised = grid[release.name]\n",
        f"{OF_ENGINE}::test_a_run_ends_before_the_round_that_was_given_up",
    ),
    # --- the chain ---------------------------------------------------------------------------------------------------
    _mutant(
        "chain: the hash before is not compared",
        REPLAY,
        "if not restored and record.prev_hash != account.hash:",
        "if False:",
        f"{OF_FAULTS}::test_an_edited_ledger_is_refused",
        f"{OF_ORDER}::test_a_chain_that_was_forged_in_the_middle_is_refused",
    ),
    _mutant(
        "chain: the content is not hashed",
        REPLAY,
        "if record.hash != record.expected_hash(ledger_id, population_id):",
        "if False:",
        f"{OF_FAULTS}::test_an_edited_ledger_is_refused",
    ),
    _mutant(
        "chain: the population is not in the hash",
        CHAIN,
        "link = [ledger_id, population_id, self.seq,",
        "link = [ledger_id, self.seq,",
        f"{OF_ORDER}::test_a_record_is_bound_to_its_population",
    ),
    _mutant(
        "chain: another price than planned",
        REPLAY,
        """    if (payload["rho"], payload["delta"]) != (planned.rho, planned.delta):
        raise ValueError("another price than planned")
    if run.given_up""",
        "    if run.given_up",
        f"{OF_ORDER}::test_records_that_cannot_be_are_refused",
    ),
    _mutant(
        "chain: a lowered budget",
        REPLAY,
        "if new.rho_max < old.rho_max or new.delta_extra < old.delta_extra:",
        "if False:",
        f"{OF_ORDER}::test_records_that_cannot_be_are_refused",
    ),
    _mutant(
        "chain: more spent than the budget",
        REPLAY,
        "if rho > rho_max or delta > delta_max:",
        "if False:",
        f"{OF_ORDER}::test_records_that_cannot_be_are_refused",
    ),
    _mutant(
        "chain: tables and chain are not compared: the budget",
        QUERIES,
        'check(budget_of(row) == mirrored, "the budget is")',
        "pass",
        f"{OF_FAULTS}::test_an_edited_ledger_is_refused",
    ),
    _mutant(
        "chain: tables and chain are not compared: releases",
        QUERIES,
        "same = (stored.state, stored.rho, stored.delta) == (attempt.state, attempt.rho, attempt.delta)",
        "same = True",
        f"{OF_FAULTS}::test_an_edited_ledger_is_refused",
    ),
    _mutant(
        "chain: tables and chain are not compared: published values",
        QUERIES,
        "found_hash == value.sha256 == published.pop(key, None),",
        "published.pop(key, None) or True,",
        f"{OF_FAULTS}::test_an_edited_ledger_is_refused",
    ),
    _mutant(
        "chain: the last record is not looked at before another is added",
        WRITER,
        "        self._check_last_link()\n",
        "",
        f"{OF_ORDER}::test_nothing_is_charged_on_top_of_an_edited_record",
    ),
    # --- witnesses ---------------------------------------------------------------------------------------------------
    _mutant(
        "witness: its hash is not compared",
        ACCOUNTS,
        "return [head for head in wanted if (head.ledger_id, head.seq, head.hash) not in found]",
        "return [head for head in wanted if (head.ledger_id, head.seq) not in {one[:2] for one in found}]",
        f"{OF_ORDER}::test_a_record_of_the_right_number_and_another_hash_was_not_seen",
    ),
    _mutant(
        "witness: never looked at",
        ACCOUNTS,
        "return [head for head in wanted if (head.ledger_id, head.seq, head.hash) not in found]",
        "return []",
        f"{OF_FAULTS}::test_a_restored_old_copy_is_noticed",
    ),
    _mutant(
        "witness: a missing one is accepted",
        WITNESS,
        "if layout.read_beside(population.path, WITNESS) is not None:",
        "if True:",
        f"{OF_WITNESSES}::test_a_missing_witness_stops_whatever_would_charge",
    ),
    _mutant(
        "witness: a missing one is accepted where the ledger knows no budget",
        WITNESS,
        "ledger.length(population.id) <= 1 and not _had_one(population)",
        "ledger.length(population.id) <= 1",
        f"{OF_WITNESSES}::test_a_deleted_witness_does_not_let_a_ledger_forget_that_there_was_a_budget",
    ),
    _mutant(
        "witness: what runs saw does not count",
        WITNESS,
        "    for run in list_runs(runs):\n",
        "    for run in []:\n",
        f"{OF_WITNESSES}::test_runs_of_the_folder_remember",
    ),
    _mutant(
        "witness: what the anchor saw does not count",
        WITNESS,
        '(_anchored(population), " by the anchor")',
        '(None, " by the anchor")',
        f"{OF_WITNESSES}::test_an_anchor_notices_what_was_put_back_everywhere_else",
    ),
    _mutant(
        "witness: an anchor that lost its record is a new one",
        WITNESS,
        "        if not _says_anchored(population):  # the first time\n",
        "        if True:\n",
        f"{OF_WITNESSES}::test_an_empty_folder_in_place_of_the_anchor_is_not_the_first_time",
    ),
    _mutant(
        "witness: a run without the anchor forgets that there is one",
        WITNESS,
        "if anchor is not None or _says_anchored(population) else",
        "if anchor is not None else",
        f"{OF_WITNESSES}::test_who_works_without_the_anchor_does_not_forget_that_there_is_one",
    ),
    _mutant(
        "witness: a loss that was accepted once is accepted for ever",
        WITNESS,
        "return [head for head in lost if (head.seq, head.hash) not in given_up]",
        "return [head for head in lost if not given_up]",
        f"{OF_WITNESSES}::test_an_accepted_loss_is_not_one_for_ever",
    ),
    _mutant(
        "checkpoint: what ended runs spent is forgotten",
        CHAIN,
        "sums = self.ended.sums.copy()",
        "sums = Sums()",
        OF_CHECKPOINTS,
    ),
    _mutant(
        "checkpoint: not compared with the records before it",
        REPLAY,
        'if canonical(payload["state"]) != canonical(state_of(account)):',
        "if False:",
        OF_CHECKPOINTS,
    ),
    _mutant(
        "checkpoint: open runs are left out",
        CHECKPOINT,
        '"runs": {run_id: _run_json(account.runs[run_id]) for run_id in account.open_runs()},',
        '"runs": {},',
        OF_CHECKPOINTS,
    ),
    # --- the run -----------------------------------------------------------------------------------------------------
    _mutant(
        "order: drawn before it is charged",
        BUDGET,
        "        charge = self.ledger.charge(self.lease, planned)\n"
        "        if charge is None:\n            return None\n"
        "        drawn = self.noise.draw(planned, self.run.id, grid_values, charge.noise)\n",
        '        drawn = self.noise.draw(planned, self.run.id, grid_values, "as charged")\n'
        "        charge = self.ledger.charge(self.lease, planned)\n"
        "        if charge is None:\n            return None\n",
        f"{OF_ORDER}::test_a_release_is_charged_before_its_noise_is_drawn_and_leaves_after_it_is_published",
    ),
    _mutant(
        "order: leaves before it is published",
        BUDGET,
        "        return self.ledger.publish(self.lease, charge, drawn)",
        "        self.ledger.publish(self.lease, charge, drawn)\n        return drawn",
        f"{OF_ORDER}::test_a_release_is_charged_before_its_noise_is_drawn_and_leaves_after_it_is_published",
    ),
    _mutant(
        "order: another draw is published than the one that leaves",
        BUDGET,
        "        return self.ledger.publish(self.lease, charge, drawn)",
        "        self.ledger.publish(self.lease, charge, drawn)\n"
        "        return self.noise.draw(planned, self.run.id, grid_values, charge.noise)",
        f"{OF_ORDER}::test_a_release_is_charged_before_its_noise_is_drawn_and_leaves_after_it_is_published",
    ),
    _mutant(
        "publish: one release of several without the ledger",
        ENGINE,
        "noised = publisher.release(release, grid[release.name])",
        "values = grid[release.name]\n"
        "            noised = publisher.release(release, values) if release is planned[0] else values",
        f"{OF_ORDER}::test_every_release_of_a_round_is_charged_and_published",
    ),
    _mutant(
        "publish: what is not planned",
        ENGINE,
        "if grid.keys() != {release.name for release in planned}:",
        "if False:",
        "tests/test_engine.py::test_a_private_method_that_breaks_the_rules_releases_nothing_and_says_no_value",
        slow=True,
    ),
    _mutant(
        "publish: sums that are not exact",
        ENGINE,
        "        if inexact:\n",
        "        if False:\n",
        "tests/test_engine.py::test_a_private_method_that_breaks_the_rules_releases_nothing_and_says_no_value",
        slow=True,
    ),
    _mutant(
        "errors: of private client code keep their text",
        "fedcore/rounds/clients.py",
        "        if not method.private:\n            raise\n",
        "        raise\n",
        "tests/test_engine.py::test_a_private_method_that_breaks_the_rules_releases_nothing_and_says_no_value",
        slow=True,
    ),
    _mutant(
        "plan: spares do not fit", COHORTS, "[max(rho)] * spares", "[]", f"{OF_ORDER}::test_a_plan_fits_with_its_spares"
    ),
    _mutant(
        "plan: always for presence",
        BUDGET,
        'relation = balance.relation or "add_or_remove_one"',
        'relation = "add_or_remove_one"',
        f"{OF_ORDER}::test_a_run_is_planned_for_the_relation_of_the_budget",
    ),
    _mutant(
        "plan: more than is left",
        BUDGET,
        "        if share > balance.rho_left:\n",
        "        if False:\n",
        f"{OF_ORDER}::test_a_run_that_asks_for_more_than_is_left_is_told_what_fits",
    ),
    _mutant(
        "plan: the exact number of clients is public",
        BUDGET,
        "None if method.private else population.n_clients,",
        "population.n_clients,",
        f"{OF_ORDER}::test_a_private_method_is_told_no_exact_count",
    ),
    # --- what a version is known by ----------------------------------------------------------------------------------
    _mutant(
        "manifest: its checksum does not cover its secret",
        MANIFEST,
        "    return checksum_of(_content(manifest))\n",
        '    return checksum_of({**_content(manifest), "secret": None})\n',
        f"{OF_MANIFESTS}::test_what_runs_and_ledgers_know_a_version_by_tells_nothing_of_its_data",
    ),
    _mutant(
        "manifest: no secret is written",
        WRITE,
        "            secret=secrets.token_hex(32),\n",
        "            secret=None,\n",
        f"{OF_MANIFESTS}::test_what_runs_and_ledgers_know_a_version_by_tells_nothing_of_its_data",
    ),
    _mutant(
        "manifest: the same secret for all",
        WRITE,
        "            secret=secrets.token_hex(32),\n",
        '            secret="0" * 64,\n',
        f"{OF_MANIFESTS}::test_what_runs_and_ledgers_know_a_version_by_tells_nothing_of_its_data",
    ),
    _mutant(
        "manifest: known by a checksum without a secret",
        "fedcore/population/store.py",
        "return None if self.manifest.secret is None else manifests.checksum(self.manifest)",
        "return manifests.checksum(self.manifest)",
        f"{OF_MANIFESTS}::test_what_runs_and_ledgers_know_a_version_by_tells_nothing_of_its_data",
    ),
    # --- the statement -----------------------------------------------------------------------------------------------
    _mutant(
        "statement: of published releases only",
        STATEMENT,
        "rho, delta = _price(run.spent(), budget.delta_conv)",
        'rho, delta = _price([a for a in run.spent() if a.state == "published"], budget.delta_conv)',
        f"{OF_STATEMENT}::test_a_run_claims_what_its_own_charges_cost_forfeited_ones_included",
    ),
    _mutant(
        "statement: epsilon at another delta",
        STATEMENT,
        "epsilon=of_run.epsilon_of(rho),",
        "epsilon=replace(of_run, delta_conv=10 * budget.delta).epsilon_of(rho),",
        f"{OF_STATEMENT}::test_a_run_claims_what_its_own_charges_cost_forfeited_ones_included",
    ),
    _mutant(
        "statement: the deltas of thresholds are left out",
        STATEMENT,
        "delta = exact_sum(attempt.delta for attempt in spent) + Fraction(delta_conv)",
        "delta = Fraction(delta_conv)",
        f"{OF_STATEMENT}::test_a_run_claims_what_its_own_charges_cost_forfeited_ones_included",
    ),
    _mutant(
        "statement: test noise promises",
        STATEMENT,
        "if not run.secure:",
        "if False:",
        f"{OF_STATEMENT}::test_test_noise_and_test_ledgers_promise_nothing",
    ),
    _mutant(
        "statement: a test ledger promises",
        STATEMENT,
        "    if test_ledger:\n",
        "    if False:\n",
        f"{OF_STATEMENT}::test_test_noise_and_test_ledgers_promise_nothing",
    ),
    _mutant(
        "statement: of a run in gdp by the conversion of zcdp",
        STATEMENT,
        "epsilon=of_run.epsilon_of(rho),",
        'epsilon=replace(of_run, currency="zcdp").epsilon_of(rho),',
        f"{OF_STATEMENT}::test_a_run_claims_what_its_own_charges_cost_forfeited_ones_included",
    ),
    _mutant(
        "statement: of a run in zcdp by the conversion of gdp",
        STATEMENT,
        "epsilon=of_run.epsilon_of(rho),",
        'epsilon=replace(of_run, currency="gdp").epsilon_of(rho),',
        f"{OF_STATEMENT}::test_a_statement_of_an_account_in_zcdp_is_in_zcdp",
    ),
    _mutant(
        "statement: mu rounded to nearest",
        STATEMENT,
        "mu=mu_of(rho) if",
        "mu=(2 * rho) ** 0.5 if",
        f"{OF_STATEMENT}::test_the_mu_that_is_shown_is_never_too_small",
    ),
    _mutant(
        "statement: mu of discrete noise",
        STATEMENT,
        'mu=mu_of(rho) if of_run.currency == "gdp" else None,',
        "mu=mu_of(rho),",
        f"{OF_STATEMENT}::test_a_statement_of_an_account_in_zcdp_is_in_zcdp",
    ),
    _mutant(
        "statement: discrete noise of before a recount has a mu",
        STATEMENT,
        "if budget.discrete and charged_with_discrete_noise(run):",
        "if False:",
        OF_RECOUNT,
    ),
    _mutant(
        "statement: what was given up is not told",
        STATEMENT,
        "given_up=run.given_up,",
        "given_up=None,",
        f"{OF_REDRAWS}::test_the_last_optional_rounds_pay_as_many_as_it_takes",
    ),
    _mutant(
        "statement: rho rounded to nearest",
        STATEMENT,
        "return rounded_up(exact_sum(attempt.rho for attempt in spent)), rounded_up(delta)",
        "return float(exact_sum(attempt.rho for attempt in spent)), float(delta)",
        f"{OF_STATEMENT}::test_a_run_claims_what_its_own_charges_cost_forfeited_ones_included",
    ),
    # --- recounting --------------------------------------------------------------------------------------------------
    _mutant(
        "recount: the first inequality with a larger constant",
        RECOUNT,
        "step = 1 / (24 * squared)",
        "step = 1 / (25 * squared)",
        f"{OF_LOSSES}::test_both_inequalities_in_every_cell_and_that_they_are_tight",
    ),
    _mutant(
        "recount: noise is as long as its mean",
        RECOUNT,
        " + (2 * tail).sqrt()",
        "",
        f"{OF_LOSSES}::test_noise_is_seldom_longer_than_the_second_inequality_allows",
    ),
    _mutant(
        "recount: one inequality for both",
        RECOUNT,
        "arb(epsilon) - first - second",
        "arb(epsilon) - first",
        f"{OF_LOSSES}::test_the_largest_rho_and_back",
    ),
    _mutant(
        "recount: delta without its factor",
        RECOUNT,
        "needed = first.exp() * (",
        "needed = (",
        f"{OF_LOSSES}::test_the_largest_rho_and_back",
    ),
    _mutant(
        "recount: caps of small arrays",
        RECOUNT,
        "losses(LARGEST_ARRAY,",
        "losses(LARGEST_ARRAY // 16,",
        f"{OF_LOSSES}::test_no_history_within_the_limits_loses_more_than_the_caps",
    ),
    _mutant(
        "recount: a release beyond the caps is let through",
        RECOUNTING,
        "recount.check_release(planned)",
        "pass",
        f"{OF_RECOUNT}::test_charged_noise_beyond_the_caps_stops_it",
    ),
    _mutant(
        "recount: thresholds are let through",
        RECOUNT,
        "    if planned.delta:\n",
        "    if False:\n",
        f"{OF_RECOUNT}::test_thresholds_argued_for_discrete_noise_stop_it",
    ),
    _mutant(
        "recount: the plain conversion",
        ACCOUNTING,
        "return recount.rho_max(epsilon, delta, discrete) if discrete else gdp.rho_max(epsilon, delta)",
        "return gdp.rho_max(epsilon, delta)",
        f"{OF_RECOUNT}::test_a_raise_counts_with_the_same_caps",
    ),
    _mutant(
        "recount: epsilon by the plain conversion",
        ACCOUNTING,
        "        if self.discrete:\n",
        "        if False:\n",
        f"{OF_RECOUNT}::test_a_raise_counts_with_the_same_caps",
    ),
    _mutant(
        "recount: a raise forgets the caps",
        ACCOUNTS,
        "currency=old.currency, discrete=old.discrete)",
        "currency=old.currency)",
        f"{OF_RECOUNT}::test_a_raise_counts_with_the_same_caps",
    ),
    _mutant(
        "recount: below open runs",
        RECOUNTING,
        "if names := account.open_runs():",
        "if (names := account.open_runs()) and False:",
        f"{OF_RECOUNT}::test_open_runs_come_first",
    ),
    # --- budgets by cohort -------------------------------------------------------------------------------------------
    _mutant(
        "cohorts: the sum for the maximum",
        SUMS,
        "return max(t.rho_spent + t.rho_reserved for t in found), ",
        "return sum(t.rho_spent + t.rho_reserved for t in found), ",
        f"{OF_COHORTS}::test_the_budget_of_every_cohort_is_exact_at_the_edge",
        f"{OF_COHORTS_LAW}::test_no_client_loses_more_than_the_budget_and_the_ledger_says_what_pairs_add_up_to",
    ),
    _mutant(
        "cohorts: the least for the maximum",
        SUMS,
        "return max(t.rho_spent + t.rho_reserved for t in found), ",
        "return min(t.rho_spent + t.rho_reserved for t in found), ",
        f"{OF_COHORTS}::test_the_budget_of_every_cohort_is_exact_at_the_edge",
    ),
    _mutant(
        "cohorts: the last of a range does not pay",
        SUMS,
        "self._step(last + 1, ",
        "self._step(last, ",
        f"{OF_COHORTS}::test_only_participants_pay",
    ),
    _mutant(
        "cohorts: one after a range pays",
        SUMS,
        "self._step(last + 1, ",
        "self._step(last + 2, ",
        f"{OF_COHORTS}::test_only_participants_pay",
    ),
    _mutant(
        "cohorts: the edge of a range is not asked",
        SUMS,
        "if any(low <= last and first <= high for low, high in ranges)",
        "if any(low < last and first < high for low, high in ranges)",
        f"{OF_COHORTS}::test_the_budget_of_every_cohort_is_exact_at_the_edge",
    ),
    _mutant(
        "cohorts: the founders forget what was spent before",
        REPLAY,
        "    account.founders, account.tokens = ",
        "    account.ended.sums.steps.clear()\n    account.founders, account.tokens = ",
        f"{OF_COHORTS}::test_founders_carry_what_was_spent_and_reserved_and_what_open_runs_spend_still",
    ),
    _mutant(
        "cohorts: runs of before that are open cost nobody anything",
        CHAIN,
        "            sums.add(run.payers, run.totals())\n",
        "            if run.cohorts or not self.tokens:\n                sums.add(run.payers, run.totals())\n",
        f"{OF_COHORTS}::test_founders_carry_what_was_spent_and_reserved_and_what_open_runs_spend_still",
    ),
    _mutant(
        "cohorts: a token is not compared",
        RESERVE,
        "if (number := account.stranger(cohorts.tokens)) is not None:",
        "if False and (number := account.stranger(cohorts.tokens)) is not None:",
        f"{OF_COHORTS}::test_a_number_known_under_another_token_is_another_copy",
    ),
    _mutant(
        "cohorts: only the token of the newest one is compared",
        CHAIN,
        "if self.tokens[: len(tokens)] == tokens[: len(self.tokens)]:",
        "if self.tokens[-1:] == tokens[-1:] or len(self.tokens) != len(tokens):",
        f"{OF_COHORTS}::test_a_number_known_under_another_token_is_another_copy",
    ),
    _mutant(
        "cohorts: replay takes any token",
        REPLAY,
        "    account.learn(participants.tokens)\n",
        "    account.tokens = participants.tokens\n",
        f"{OF_COHORTS}::test_records_that_cannot_follow_are_refused",
    ),
    _mutant(
        "cohorts: a plan for everybody is taken",
        RESERVE,
        "        if cohorts is None and account.founders is None:",
        "        if cohorts is None:",
        f"{OF_COHORTS}::test_cohorts_and_one_account_never_mix",
    ),
    _mutant(
        "cohorts: they begin whatever a run was made on",
        COHORTS,
        'if chain.get(bound.get("version", 0)) != bound["manifest"]:',
        "if False:",
        f"{OF_COHORTS}::test_a_run_of_another_copy_stops_them",
    ),
    _mutant(
        "cohorts: they begin below a later version",
        COHORTS,
        " for number in chain if number <= version}",
        " for number in chain}",
        f"{OF_COHORTS}::test_a_run_of_another_copy_stops_them",
    ),
    _mutant(
        "cohorts: open runs of another copy may spend still",
        COHORTS,
        "if run.status != OPEN and not run.spent():",
        "if not run.spent():",
        f"{OF_COHORTS}::test_a_run_of_another_copy_stops_them",
    ),
    _mutant(
        "cohorts: they begin for records",
        COHORTS,
        'if account.unit != "client":',
        "if False:",
        f"{OF_COHORTS}::test_they_need_a_budget_and_a_budget_for_clients",
    ),
    _mutant(
        "cohorts: a later copy begins them again",
        COHORTS,
        "if account.founders == (version, manifest):",
        "if account.founders is not None:",
        f"{OF_COHORTS}::test_they_begin_once_and_again_after_a_kill",
    ),
    _mutant(
        "cohorts: participants without the hash of their record",
        COHORTS,
        "record.hash == record.expected_hash(self.id, runs[0].population_id) and written == ",
        "written == ",
        f"{OF_COHORTS}::test_participants_that_were_edited_everywhere_do_not_have_the_hash_of_their_record",
    ),
    _mutant(
        "cohorts: a redraw asks the last of them only",
        REDRAWS,
        "account.sums().most(run.payers)",
        "account.sums().most(((run.payers[-1][1], run.payers[-1][1]),))",
        f"{OF_COHORTS}::test_an_extension_is_paid_by_every_participant_or_not_at_all",
    ),
    _mutant(
        "cohorts: those of a run are not compared with the table",
        QUERIES,
        "same = same and run.cohorts == ",
        "same = same or run.cohorts == ",
        f"{OF_COHORTS}::test_an_edit_is_noticed_by_the_next_reservation_and_by_verify",
    ),
    _mutant(
        "cohorts: the mode of an account is not compared",
        QUERIES,
        'check(row.mode == account.mode, "whether it is kept by cohort is")',
        "pass",
        f"{OF_COHORTS}::test_an_edit_is_noticed_by_the_next_reservation_and_by_verify",
    ),
    _mutant(
        "cohorts: a checkpoint forgets who pays for open runs",
        CHECKPOINT,
        '"attempts": attempts, "cohorts": cohorts})',
        '"attempts": attempts, "cohorts": None})',
        f"{OF_COHORTS}::test_a_checkpoint_keeps_every_cohort",
    ),
    _mutant(
        "cohorts: they change the digest of a plan without them",
        RESERVE,
        'identity = {**payload, "population_id": population_id, "statement": None}',
        'identity = {**payload, "population_id": population_id, "statement": None, "cohorts": None}',
        f"{OF_COHORTS}::test_a_plan_without_cohorts_keeps_its_digest",
    ),
    _mutant(
        "cohorts: what is left is that of the first",
        CHAIN,
        "rho_left, delta_left = max(s.rho_left for s in segments), ",
        "rho_left, delta_left = segments[0].rho_left, ",
        f"{OF_COHORTS}::test_only_participants_pay",
    ),
    _mutant(
        "cohorts: the statement names the one that has spent least",
        STATEMENT,
        "asdict(max(balance.segments, ",
        "asdict(min(balance.segments, ",
        f"{OF_COHORTS}::test_the_statement_of_a_run_names_its_cohorts_and_the_one_that_has_spent_most",
    ),
    _mutant(
        "recount: twice", RECOUNTING, 'if old.currency != "zcdp":', "if False:", f"{OF_RECOUNT}::test_it_is_done_once"
    ),
    _mutant(
        "recount: to a smaller budget",
        RECOUNTING,
        "if new.rho_max < old.rho_max:",
        "if False:",
        f"{OF_RECOUNT}::test_a_budget_that_would_lose_is_kept",
    ),
    _mutant(
        "replay: a raise may forget the caps",
        REPLAY,
        "if new.discrete != old.discrete:",
        "if False:",
        f"{OF_RECOUNT}::test_a_raise_that_forgets_the_caps_is_refused_by_replay",
    ),
    _mutant(
        "replay: a recount below open runs",
        REPLAY,
        ' != ("zcdp", "gdp") or account.open_runs():',
        ' != ("zcdp", "gdp"):',
        f"{OF_RECOUNT}::test_a_recount_below_open_runs_is_refused_by_replay",
    ),
    _mutant(
        "replay: a recount to another promise",
        REPLAY,
        "or new != replace(old,",
        "or False and new != replace(old,",
        f"{OF_RECOUNT}::test_records_that_promise_something_else_are_refused",
    ),
    _mutant(
        "replay: a second recount",
        REPLAY,
        'or (old.currency, new.currency) != ("zcdp", "gdp")',
        'or new.currency != "gdp"',
        f"{OF_RECOUNT}::test_a_second_recount_is_refused_by_replay",
    ),
    _mutant(
        "recount: discrete noise goes on",
        LEDGER,
        'if noise == DISCRETE and writer.account.currency != "zcdp":',
        "if False:",
        f"{OF_RECOUNT}::test_discrete_noise_is_refused_afterwards",
    ),
    _mutant(
        "recount: rounded noise is in the way",
        RECOUNTING,
        "and run.law_of(attempt) == DISCRETE",
        "and run.noise == DISCRETE",
        f"{OF_RECOUNT}::test_rounded_noise_is_never_in_the_way",
    ),
    _mutant(
        "replay: discrete noise in Gaussian differential privacy",
        REPLAY,
        'if (noise or run.noise) == DISCRETE and account.currency != "zcdp":',
        "if False:",
        f"{OF_RECOUNT}::test_a_charge_of_discrete_noise_is_refused_by_replay",
    ),
]
