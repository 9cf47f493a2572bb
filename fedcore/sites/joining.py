"""How a site joins a study: what it agrees to, and what its folder keeps of that.

The folder of a site holds `identity.json`, and one file for each study that was joined, below `studies`. What the study
states is kept there too: a mailbox that shows another study later changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from fedcore.errors import IdentityError, StudyError
from fedcore.population.store import Population
from fedcore.privacy.ledger.balances import Balance
from fedcore.privacy.noise_shares import charged_plan
from fedcore.sites import study as studies
from fedcore.sites.identity import Identity, fingerprint, site_folder
from fedcore.sites.study import Schema, Study, refuse_population
from fedcore.storage import files, shared
from fedcore.storage.parsing import parse_json
from fedcore.training.budget import checked_unit, ledger_of, required_budget
from fedcore.training.vocabulary import as_text, released_words

FOLDER: Final = "studies"
NAMED: Final = 5  # missing words that a message lists


@dataclass(frozen=True)
class Agreement:
    """What a site agrees to when it joins, for people to read. Made of the study, declared sizes and the budget alone.

    rho, epsilon: what a run costs the people of this site, against `collusion` other sites, at the budget's delta
    rho_all, epsilon_all: the same if all other sites work together
    runs: for which the budget of the site has enough left
    numbers: masked numbers that leave the site in a run, 8 bytes each, in `rounds` rounds
    """

    study: Study
    site: str
    rho: float
    epsilon: float
    rho_all: float
    epsilon_all: float
    delta: float
    runs: int
    rounds: int
    numbers: int

    def to_json(self) -> dict[str, Any]:
        study = self.study
        return {
            "study": study.digest.hex(),
            "method": study.method,
            "site": self.site,
            "sites": sites_to_compare(study),
            "proposer": {"name": study.proposer.name, "fingerprint": fingerprint(study.proposer.public)},
            "collusion": study.collusion,
            "rho_a_run": self.rho,
            "epsilon_a_run": self.epsilon,
            "rho_a_run_if_all_others_collude": self.rho_all,
            "epsilon_a_run_if_all_others_collude": self.epsilon_all,
            "delta": self.delta,
            "runs_left": self.runs,
            "rounds_a_run": self.rounds,
            "bytes_a_run": 8 * self.numbers,
            "patience_seconds": study.patience,
            "every_seconds": study.every,
        }


def sites_to_compare(study: Study) -> list[dict[str, Any]]:
    """Name, declared clients and fingerprint of each site."""
    return [
        {"name": site.name, "clients": site.nominal, "fingerprint": fingerprint(site.public)} for site in study.sites
    ]


def agreement(study: Study, identity: Identity, population: Population, balance: Balance) -> Agreement:
    """What this site would agree to. balance: of the population.

    Raises StudyError if the site, the population or its budget is not what the study describes; BudgetMissing,
    ConfigError. No data are open.
    """
    check_site(study, identity, population, balance)
    releases, _ = study.plan(1)
    charged = charged_plan(releases, study.terms, study.nominal_clients)
    spares = study.made_method().private_settings.spare_releases
    rho = sum((Fraction(release.rho) for release in charged), Fraction(0))
    reserved = rho + spares * max(Fraction(release.rho) for release in charged)
    budget, honest = required_budget(population, balance), len(study.sites) - study.collusion
    return Agreement(
        study,
        identity.name,
        study.rho,
        budget.epsilon_of(study.rho),
        study.rho * honest,
        budget.epsilon_of(study.rho * honest),
        budget.delta_conv,
        max(int((Fraction(balance.rho_left) - (reserved - rho)) / rho), 0) if balance.rho_left > 0 else 0,
        len({release.round for release in charged}),
        sum(release.cells for release in charged),
    )


def check_site(study: Study, identity: Identity, population: Population, balance: Balance) -> None:
    """Raises StudyError unless this site, its population and budget are those that the study describes; BudgetMissing,
    PrivacyError. Nothing of the data is read, and no size is compared with a count.
    """
    if study.site(identity.name).public != identity.public:
        raise StudyError(
            f"The study knows another key for site {identity.name!r}.",
            "Load the identity whose key the proposer was given, or ask for another study.",
        )
    method = study.made_method()
    if method.arithmetic_version != study.arithmetic:
        raise StudyError(
            f"Method {method.name!r} has arithmetic {method.arithmetic_version!r} here, and {study.arithmetic!r} in "
            "the study.",
            "Use the version of fedcore with which the study was proposed.",
        )
    refuse_population(population)
    name = population.path.name
    required_budget(population, balance)
    if balance.shares:
        raise StudyError(
            f"The budget of population {name!r} is divided into shares, which are not part of studies.",
            "Take part with another population.",
        )
    unit = checked_unit(method, balance.unit, population)
    found = Schema.of(population, unit, balance.relation or "add_or_remove_one")
    if different := study.schema_.difference(found):
        raise StudyError(
            f"Population {name!r} is not of the kind that the study describes. It has {different}.",
            "Ingest with the columns, bounds and vocabulary of the study, or ask the proposer for another study.",
        )


def _check_released_words(population: Population) -> None:
    """Raises StudyError unless the vocabulary of the population, which is that of the study, holds every word that was
    released of it. Reads what was published, and no data.
    """
    tokens = {*(population.vocabulary() or ())}
    missing = [word for word in as_text(released_words(ledger_of(population), population.id)) if word not in tokens]
    if missing:
        raise StudyError(
            f"Of the words that the ledger of this site has released, the study's vocabulary lacks {len(missing)}, "
            f"such as {', '.join(map(repr, missing[:NAMED]))}.",
            "Ask for a study whose vocabulary is the union of the words of all sites, and encode with that.",
        )


# --- what the folder keeps --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Joined:
    """A study that this site takes part in. mailbox, population, runs: folders or URLs"""

    study: Study
    mailbox: str
    population: str
    runs: str

    @property
    def name(self) -> str:
        """Of the file, and a part of the names of runs: 16 hexadecimal digits of the study's digest."""
        return self.study.digest.hex()[:16]

    def _content(self) -> dict[str, Any]:
        return {
            "format": 1,
            "study": self.study.content(),
            "mailbox": self.mailbox,
            "population": self.population,
            "runs": self.runs,
        }


def join(joined: Joined, folder: str | Path | None = None) -> None:
    """Keep that the site takes part. The same again is no error. folder: of the site, None for the user's own.

    Raises StudyError if the site has joined the study with another mailbox, population or place of runs, or if the
    vocabulary of the study lacks a word that the ledger of this site has released. The latter holds when the site
    joins: it is not checked for words that are released later, nor when the same site joins again.
    """
    place = site_folder(folder)
    content, name = files.json_bytes(joined._content()), f"{FOLDER}/{joined.name}.json"
    try:
        if joined.study.schema_.vocabulary is not None and shared.read(place, name, 1) is None:
            _check_released_words(Population.open(joined.population))
        shared.create(place, name, content)
    except FileExistsError:
        if shared.read(place, name, len(content) + 1) != content:
            raise StudyError(
                f"This site has joined study {joined.name} with another mailbox, population or folder of runs.",
                f"To change that between two runs, edit {place / name}.",
            ) from None
    except OSError as error:
        raise IdentityError(f"{place / FOLDER} cannot be written: {error.strerror}.", "Check the folder.") from error


def joined_studies(folder: str | Path | None = None) -> Sequence[Joined]:
    """The studies that a site has joined, in the order of their names. Raises StudyError for a damaged file."""
    place, found = site_folder(folder), []
    for name in files.listing(place / FOLDER):
        if name.endswith(".json") and not name.startswith("."):
            found.append(_read(place, f"{FOLDER}/{name}"))
    return found


def _read(place: Path, name: str) -> Joined:
    try:
        content = parse_json(shared.read(place, name, 2 * studies.LARGEST) or b"")
        made = Joined(
            studies.Study.model_validate_json(json.dumps(content["study"])),
            *(content[key] for key in ("mailbox", "population", "runs")),
        )
        if made._content() != content or name != f"{FOLDER}/{made.name}.json":
            raise ValueError("it was changed")
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise StudyError(
            f"{place / name} is damaged ({type(error).__name__}).", "Restore it from a backup, or join again."
        ) from error
    return made
