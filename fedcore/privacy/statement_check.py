"""A stored privacy statement: read, recomputed from its own numbers, and compared with another one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from fractions import Fraction

from fedcore.errors import ConfigError, retired
from fedcore.privacy.accounting import CURRENCY, Budget, exact_sum, rounded_up
from fedcore.privacy.among_sites import contradictions
from fedcore.privacy.gdp import mu_of
from fedcore.privacy.ledger.formats import IN_ZCDP
from fedcore.privacy.ledger.replay import BROKEN
from fedcore.privacy.statement import CostWithStart, PrivacyStatement, SpentOfBudget
from fedcore.privacy.statement_texts import VERSIONS
from fedcore.storage.parsing import JsonObject, parse_json

SLACK = 1e-9  # relative: by this much the rho of a raise to the same budget may differ by rounding
DERIVED = ("privacy", "text")
NAMES = {field.name for field in fields(PrivacyStatement)}


def read_statement(content: bytes | str) -> tuple[PrivacyStatement, JsonObject]:
    """A statement and the JSON object that it was read from. Raises ConfigError for anything else."""
    try:
        value = parse_json(content if isinstance(content, bytes) else content.encode())
    except ValueError as error:
        raise ConfigError(f"it is no JSON ({error}).") from None
    if not isinstance(value, dict) or not isinstance(value.get("private"), bool):
        raise ConfigError("it does not say whether it promises privacy.", "A run's statement.json is one that does.")
    if unknown := sorted(map(str, value.keys() - NAMES - set(DERIVED))):
        raise ConfigError(
            f"it has entries that no statement of this version has: {', '.join(unknown)}.",
            "A newer fedcore wrote it, or they were added later.",
        )
    budget = value.get("population")
    if value["private"] and isinstance(budget, dict) and (budget.get("currency") != CURRENCY or "discrete" in budget):
        raise ConfigError(*retired("it", f"about {IN_ZCDP}, or one that was recounted from it"))
    if value["private"] and not value.get("ledger"):
        raise ConfigError(*retired("it", "without the ledger record that it was made from"))
    version = value.get("text_version", VERSIONS[0])
    if type(version) is not int or version not in VERSIONS:
        raise ConfigError(
            f"it states version {version!r:.40} of its sentences, and this fedcore knows "
            f"{' and '.join(map(str, VERSIONS))}.",
            "A newer fedcore wrote it: verify it with that one.",
        )
    try:
        said = PrivacyStatement.from_json(value)
        again = said.entries()
    except (*BROKEN, OverflowError) as error:
        raise ConfigError(
            f"it is damaged: its entries cannot be read ({type(error).__name__}: {error!s:.200})."
        ) from None
    if other := [name for name in sorted(NAMES & value.keys()) if not _same(again.get(name), value[name])]:
        raise ConfigError(f"it is damaged: these entries are none of a statement: {', '.join(other)}.")
    return said, value


def own_contradictions(statement: PrivacyStatement, value: JsonObject) -> list[str]:
    """What does not follow from the statement's own releases and budget, a sentence each. value: its JSON."""
    try:
        found = list(_numbers(statement)) if statement.private else list(_empty(statement))
        text, word = statement.text(), statement.to_json()["privacy"]
    except (*BROKEN, OverflowError) as error:
        return [f"It is damaged: its entries cannot be computed with ({type(error).__name__}: {error!s:.200})."]
    if value.get("privacy") != word:
        found.append(f"It is marked {value.get('privacy')!r}, and its entries say {word!r}.")
    if value.get("text") != text:
        found.append(
            "Its text is not what this version of fedcore writes for its numbers: the text was changed, or another "
            "version wrote it. Go by the numbers."
        )
    return found


def _empty(statement: PrivacyStatement) -> Iterator[str]:
    claims = [name for name in ("epsilon", "delta", "rho", "mu") if getattr(statement, name) is not None]
    if claims or statement.releases:
        yield f"It claims no privacy, and has {', '.join(claims) or 'releases'}."


def _numbers(statement: PrivacyStatement) -> Iterator[str]:
    budget = statement.all_runs
    spent, deltas = Fraction(0), Fraction(budget.delta_conv)
    for entry in statement.releases:
        planned = entry.planned
        if type(entry.attempts) is not int or entry.attempts < 1:
            yield f"Release {planned.name!r} was drawn {entry.attempts} times."
            return
        cost = entry.attempts * Fraction(planned.rho)
        if entry.rho != rounded_up(cost):
            yield _says(f"The cost of release {planned.name!r}", entry.rho, rounded_up(cost), "by its noise")
        spent, deltas = spent + cost, deltas + entry.attempts * Fraction(planned.delta)
    rho, delta = rounded_up(spent), rounded_up(deltas)
    if statement.rho != rho:
        yield _says("rho", statement.rho, rho, "by the costs of its releases")
    if statement.delta != delta:
        yield _says("delta", statement.delta, delta, "by its budget and its thresholding steps")
    if statement.epsilon != (epsilon := budget.epsilon_of(rho)):
        yield _says("epsilon", statement.epsilon, epsilon, f"by rho = {rho:.6g} and delta = {budget.delta_conv:.3g}")
    if statement.mu != (mu := mu_of(rho)):
        yield _says("mu", statement.mu, mu, f"by rho = {rho:.6g}")
    for what, stated, follows in contradictions(
        statement.sites, [entry.planned for entry in statement.releases], rho, budget
    ):
        yield _says(what, stated, follows, "by the shares of its releases")
    yield from _both(statement.together, budget, rho, delta)
    yield from _budget(statement, budget, rho)


def _both(both: CostWithStart | None, budget: Budget, rho: float, delta: float) -> Iterator[str]:
    """both: `PrivacyStatement.together`. rho, delta: of the run."""
    if both is None:
        return
    if both.rho < rho:
        yield f"This run and run {both.run!r} cost rho = {both.rho:.6g}, less than this run alone, {rho:.6g}."
    if both.delta < delta:
        yield f"Delta of both runs is {both.delta:.3g}, less than that of this run alone, {delta:.3g}."
    if both.epsilon != (epsilon := budget.epsilon_of(both.rho)):
        yield _says("epsilon of both runs", both.epsilon, epsilon, f"by rho = {both.rho:.6g}")
    if both.mu != (mu := mu_of(both.rho)):
        yield _says("mu of both runs", both.mu, mu, f"by rho = {both.rho:.6g}")


def _budget(statement: PrivacyStatement, budget: SpentOfBudget, rho: float) -> Iterator[str]:
    """rho: of the run."""
    before = 0.0 if statement.spent_before is None else statement.spent_before.rho
    least = max(rho, before) if statement.cohorts else rounded_up(exact_sum((rho, before)))  # by cohort, maybe others
    if exact_sum((budget.delta_conv, budget.delta_extra)) > Fraction(budget.delta):
        yield "The parts of the budget's delta are more than all of it."
    if abs((largest := budget.rho_of(budget.epsilon)) - budget.rho_max) > SLACK * largest:
        yield _says("The largest rho of the budget", budget.rho_max, largest, "by its epsilon and delta")
    if not least <= budget.rho_spent <= budget.rho_max:
        what = "this run and of what was spent before" if before else "this run"
        yield (
            f"All runs together have spent rho = {budget.rho_spent:.6g}, which is not between that of "
            f"{what}, {least:.6g}, and the budget's, {budget.rho_max:.6g}."
        )
    if budget.epsilon_spent != (spent := budget.epsilon_of(budget.rho_spent)):
        yield _says("epsilon of all runs", budget.epsilon_spent, spent, f"by rho = {budget.rho_spent:.6g}")


def _says(what: str, said: object, is_: object, why: str = "") -> str:
    return f"{what}: the statement says {said!r}, and it is {is_!r}{f', {why}' if why else ''}."


def differences(said: PrivacyStatement, found: PrivacyStatement) -> dict[str, str]:
    """What `found`, made from a ledger, says otherwise: {entry: a sentence}; "" is the key if one promises nothing."""
    if said.private != found.private:
        words = {True: "promises privacy", False: "promises nothing"}
        why = f" ({found.reason})" if found.reason else ""
        return {"": f"The statement {words[said.private]}, and the ledger {words[found.private]} for this run{why}."}
    one, other, told = said.entries(), found.entries(), {}
    for name in (field.name for field in fields(PrivacyStatement)):
        if not _same(one.get(name), other.get(name)):
            told[name] = " ".join(_of_entry(name, one.get(name), other.get(name)))
    return told


def _same(one: object, other: object) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(_same(a, b) for a, b in zip(one, other, strict=True))
    return type(one) is type(other) and bool(one == other)


def _of_entry(name: str, said: object, found: object) -> Iterator[str]:
    if isinstance(said, Mapping) and isinstance(found, Mapping):
        for key in sorted(said.keys() | found.keys()):
            if said.get(key) != found.get(key):
                yield _says(f"{name}, {key}", said.get(key), found.get(key), "by the ledger")
    elif name == "releases" and isinstance(said, list) and isinstance(found, list):
        mine, theirs = ({(entry["round"], entry["name"]): entry for entry in some} for some in (said, found))
        for key in [*mine, *(key for key in theirs if key not in mine)]:
            if key not in theirs:
                yield f"Release {key[1]!r} of round {key[0]}: the ledger has no charge for it."
            elif key not in mine:
                yield f"Release {key[1]!r} of round {key[0]}: the ledger charged it, and the statement leaves it out."
            elif mine[key] != theirs[key]:
                yield from _of_entry(f"Release {key[1]!r} of round {key[0]}", mine[key], theirs[key])
    else:
        yield _says(name, said, found, "by the ledger")
