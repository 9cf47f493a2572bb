"""The publisher of a run that several sites make together. Every site is its own server, and no site sends messages.

At each site such a run is an ordinary one, whose `Publisher` alone is another. A round:

    charge all releases in one transaction -> share of the noise, mask -> store the masked vectors, all in one
    -> note the answer next to the run's key -> post -> wait for all sites -> verify -> add modulo 2^64 -> totals

Each step is durable before the next. The ledger stores masked vectors, so charge, redraw, lease and replay are those of
a run in one place. A run that is resumed posts what is stored; no client is asked again. Argument:
docs/privacy/sites.md.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from fedcore.errors import FileRefused, LedgerRolledBack, PatienceOver, RunLeft, SiteLeft, StudyError
from fedcore.privacy.mechanisms import NoiseSource
from fedcore.privacy.noise_shares import ShareNoise, TestShareNoise, charged_plan, modulo_sum
from fedcore.privacy.plan import PlannedRelease
from fedcore.runs.store import Run
from fedcore.sites.identity import Identity
from fedcore.sites.joining import check_site
from fedcore.sites.mailbox import SMALL, Header, Kind, Mailbox
from fedcore.sites.masks import MaskContext, mask, public_bytes
from fedcore.sites.run_key import HALF, ROLLED_BACK, RunKey
from fedcore.sites.study import Study
from fedcore.storage import digests
from fedcore.training.publishing import Publishing, chain_head
from fedcore.training.request import TrainRequest
from fedcore.training.spec import RunSpec, open_inputs

if TYPE_CHECKING:
    from fedcore.privacy.ledger.leases import Lease
    from fedcore.privacy.ledger.ledger import Ledger

DIGEST: Final = 32  # bytes of SHA-256, before the vectors of an answer
LEFT: Final = "What was published is usable. The next run continues from there."


# --- the run of a study at this site ----------------------------------------------------------------------------------


def study_spec(
    study: Study, number: int, identity: Identity, request: TrainRequest, ledger_url: str | None = None
) -> RunSpec:
    """The run of this number, from 1, at this site. Method, settings and plan are those of the study, whatever the
    request has; population, start and place of runs are those of the request.

    Raises StudyError for what the study does not cover or another population than it describes, and what
    `fedcore.training.spec.open_inputs` raises.
    """
    if request.share is not None:
        raise StudyError("A study does not charge a share of a divided budget.", "Leave the share out.")
    settings = {"method": study.method, "settings": study.settings, "seed": study.seed_of(number)}
    request = request.model_copy(update=settings)
    study.made_method()  # refuses what several sites cannot run
    inputs = open_inputs(request, ledger_url)
    method, population, ledger, balance = inputs.method, inputs.population, inputs.ledger, inputs.balance
    if ledger is None or balance is None:
        raise StudyError("A study runs private methods only.")
    check_site(study, identity, population, balance)
    arrays = None if inputs.warm_start is None else inputs.warm_start.arrays
    releases, public = study.plan(number, arrays)
    method.init(public)  # what the method cannot do with this plan and start is refused now
    return RunSpec(
        method,
        population,
        public,
        releases,
        ledger,
        None,
        inputs.warm_start,
        request.test_noise,
        request.cache_bytes,
        study=study_record(study, number, identity),
    )


def study_record(study: Study, number: int, identity: Identity) -> dict[str, Any]:
    """What run.json states of the run's study."""
    return {"digest": study.digest.hex(), "run": number, "site": identity.name}


class StudyPublishing(Publishing):
    """What one run of a study reserves at this site, and who publishes; for `start_run` and `resume`.

    start: digest of what the run starts from, 32 bytes, which all sites must share; b"" for nothing. waits: seconds
    that this process waits for other sites in a round; the patience of the study counts in any case
    """

    def __init__(
        self,
        study: Study,
        number: int,
        identity: Identity,
        mailbox: Mailbox,
        *,
        start: bytes = b"",
        waits: float = math.inf,
    ) -> None:
        self.of = study
        self.number = number
        self.identity = identity
        self.mailbox = mailbox
        self.start = start
        self.waits = waits
        self.study = study_record(study, number, identity)

    def charged(self, plan: Sequence[PlannedRelease]) -> tuple[PlannedRelease, ...]:
        return charged_plan(plan, self.of.terms, self.of.nominal_clients)

    def publisher(self, spec: RunSpec, run: Run, ledger: Ledger, lease: Lease) -> SitesPublisher:
        noise: NoiseSource = ShareNoise()
        if spec.test_noise is not None:
            index = sorted(site.name for site in self.of.sites).index(self.identity.name)
            noise = TestShareNoise(spec.test_noise, index)
        return SitesPublisher(self, spec.releases, run, ledger, lease, noise)


# --- rounds -----------------------------------------------------------------------------------------------------------


class SitesPublisher:
    """Charges this site's ledger, adds its share of the noise and its masks, and shows what all sites together have.

    One object for each process that holds the run.
    """

    def __init__(
        self,
        publishing: StudyPublishing,
        plan: Sequence[PlannedRelease],
        run: Run,
        ledger: Ledger,
        lease: Lease,
        noise: NoiseSource,
    ) -> None:
        self.publishing = publishing
        self.study = publishing.of
        self.me = publishing.identity.name
        self.others = [site.name for site in self.study.sites if site.name != self.me]
        self.run, self.ledger, self.lease, self.noise = run, ledger, lease, noise
        self.rounds: dict[int, list[PlannedRelease]] = {}
        for planned in plan:
            self.rounds.setdefault(planned.round, []).append(planned)
        self.key = RunKey(self.study.digest, publishing.number, self.me)
        self.totals: tuple[int, dict[str, np.ndarray]] = (0, {})  # of the last round that was added up
        self.chain: dict[int, bytes] = {}  # digest of all totals up to and with a round
        self.keys: dict[str, bytes] = {}  # public keys of the run, by site; empty before the members are known
        self.members = b""
        self.asking = 0  # the round that this process has found unanswered
        self.left = ""  # why the run ends here before its last round

    # --- what the engine calls ----------------------------------------------------------------------------------

    def published(self, planned: PlannedRelease) -> np.ndarray | None:
        """The total of a release, if this site has answered its round before: then that answer is posted again, and the
        others are waited for.
        """
        round = planned.round
        if round not in (self.totals[0], self.asking):
            own = self._stored(round)
            if own is None:
                self._begin(round)
            if own is None or self._exchange(round, own) is None:
                self.asking = round
        return self.totals[1][planned.name] if self.totals[0] == round else None

    def release_round(
        self, planned: Sequence[PlannedRelease], grids: Mapping[str, np.ndarray]
    ) -> Mapping[str, np.ndarray] | None:
        """The totals of a round; None if the run ends before it. Raises RunLeft if it ends before a round that it
        needs, PatienceOver if other sites may still answer, FileRefused, LedgerRolledBack and what the ledger raises.
        """
        if not planned:
            return {}
        round = planned[0].round
        if not self.left:
            self._begin(round)
        if self.left:
            return None
        own = self._stored(round)
        if own is None:
            own = self._answer(round, grids)
            self.asking = 0
            if own is None:
                self._leave("budget", round, "this site cannot pay for a value that was lost")
                return None
        return self._exchange(round, own)

    def ending(self, status: str) -> None:
        """End the run at this site: nothing is posted afterwards. Durable before the reservation returns."""
        reasons = {"finished": "finished", "budget exhausted": "budget"}
        reason = self.left or reasons.get(status, "operator")
        after = self._chain_before(self.run.round + 1)
        stated = {"reason": reason, "rounds": max(self.run.round, 0), "totals": after.hex()}
        body = digests.canonical({**stated, "state": self.run.head.get("files", {}).get("state")})
        self._post("end", 0, self.key.end(body))

    def head(self) -> dict[str, Any]:
        return chain_head(self.ledger, self.lease)

    # --- the answer of this site --------------------------------------------------------------------------------

    def _stored(self, round: int) -> list[np.ndarray] | None:
        """The masked vectors of a round, in the order of the plan; None if one of them is not stored."""
        found = []
        for planned in self.rounds[round]:
            vector = self.ledger.published(self.run.id, planned.name)
            if vector is None:
                return None
            found.append(vector)
        return found

    def _answer(self, round: int, grids: Mapping[str, np.ndarray]) -> list[np.ndarray] | None:
        """Charge, draw, mask and store; None if the ledger has given the round up."""
        loaded = self.key.load()
        if loaded is None:
            raise self._lost_key(round)
        planned = self.publishing.charged(self.rounds[round])
        for release in planned:
            self.noise.ready(release, grids[release.name])  # refuses before anything is paid
        context = MaskContext(self.study.digest, self.members, self.publishing.number, round, self._chain_before(round))
        masks = [mask(loaded[0], self.me, self.keys, context, one.name, one.cells) for one in planned]
        charges = self.ledger.charge_round(self.lease, planned)
        if charges is None:
            return None
        vectors = []
        for release, charge, hidden in zip(planned, charges, masks, strict=True):
            if charge.stored is not None:
                vectors.append(charge.stored)
                continue
            grid = grids[release.name]
            share = self.noise.draw(release, self.run.id, np.zeros_like(grid))
            vectors.append(modulo_sum(modulo_sum(grid, share), hidden.reshape(grid.shape)))
        return self.ledger.publish_round(self.lease, charges, vectors)

    # --- what the sites exchange --------------------------------------------------------------------------------

    def _begin(self, round: int) -> None:
        """Members, and that this site has not answered the round already. Nothing is charged before that."""
        if self.key.ended() is not None:
            self._leave("ended", round, "it has ended at this site")
            return
        if not self.keys and not self._join(round):
            return
        if self.key.noted(round) is not None or self._get("answer", self.me, round) is not None:
            raise LedgerRolledBack(
                f"Ledger {self.ledger.id} does not know the answer that this site has posted in round {round} of run "
                f"{self.publishing.number} of the study: it is an older copy, or another one.",
                ROLLED_BACK,
            )

    def _join(self, round: int) -> bool:
        """Post this site's member file, and read those of the others. False: the run ends here."""
        if self.key.load() is None:
            if self.ledger.recorded(self.run.id, "charge") is not None or self._get("member", self.me) is not None:
                raise self._lost_key(round)
            self.key.create()
        loaded = self.key.load()
        if loaded is None:
            raise self._lost_key(round)
        mine = public_bytes(loaded[0]) + loaded[1] + self.publishing.start
        self._post("member", 0, mine)
        bodies = self._wait("member", round, SMALL)
        if bodies is None:
            return False
        if ended := [site for site in self.others if self._get("end", site) is not None]:  # while this site was away
            self._leave("others", round, f"{', '.join(ended)} ended it for all")
            return False
        bodies[self.me] = mine
        for site, body in bodies.items():
            if len(body) not in (2 * HALF, 2 * HALF + DIGEST):
                raise FileRefused(f"The member file of site {site!r} does not hold a key and a nonce.")
            if body[2 * HALF :] != self.publishing.start:
                self._leave("failure", round, f"{site} starts it from something else than this site")
                return False
        self.members = _digest(b"members", *(site.name.encode() + bodies[site.name] for site in self.study.sites))
        self.keys = {site: bodies[site][:HALF] for site in self.others}
        return True

    def _exchange(self, round: int, own: Sequence[np.ndarray]) -> dict[str, np.ndarray] | None:
        """Post this site's answer, wait for those of the others, and add. None if the run ends before this round."""
        if self.key.ended() is not None:
            self._leave("ended", round, "it has ended at this site")
            return None
        before = self._chain_before(round)
        body = before + b"".join(vector.astype("<i8").tobytes() for vector in own)
        self.key.note(round, hashlib.sha256(body).digest())
        self._post("answer", round, body)
        bodies = self._wait("answer", round, len(body))
        if bodies is None:
            return None
        self.totals = (round, self._added(round, before, [body, *bodies.values()], [self.me, *bodies]))
        self._extend(round, self.totals[1])
        return self.totals[1]

    def _added(self, round: int, before: bytes, bodies: Iterable[bytes], sites: Iterable[str]) -> dict[str, np.ndarray]:
        """The sum of the answers of all sites modulo 2^64, by release."""
        planned = self.rounds[round]
        total = np.zeros(sum(release.cells for release in planned), np.uint64)
        for body, site in zip(bodies, sites, strict=True):
            if len(body) != DIGEST + total.nbytes:
                raise FileRefused(f"The answer of site {site!r} in round {round} does not hold the planned numbers.")
            if body[:DIGEST] != before:
                raise FileRefused(
                    f"Site {site!r} saw other totals before round {round} than this site.",
                    "Compare what the sites have published. A site that differs was shown another mailbox.",
                )
            total += np.frombuffer(body, "<u8", offset=DIGEST)
        ends = np.cumsum([release.cells for release in planned])
        parts = np.split(total.view(np.int64), ends[:-1])
        return {release.name: part.reshape(release.shape) for release, part in zip(planned, parts, strict=True)}

    def _chain_before(self, round: int) -> bytes:
        """Digest of all totals before a round: 32 bytes."""
        digest = _digest(b"totals", self.study.digest, self.publishing.number.to_bytes(8, "big"))
        copies: Mapping[str, np.ndarray] | None = None
        for earlier in sorted(self.rounds):
            if earlier >= round:
                break
            if earlier not in self.chain:
                copies = self.run.releases() if copies is None else copies
                self.chain[earlier] = _after(digest, earlier, self.rounds[earlier], copies)
            digest = self.chain[earlier]
        return digest

    def _extend(self, round: int, totals: Mapping[str, np.ndarray]) -> None:
        self.chain[round] = _after(self._chain_before(round), round, self.rounds[round], totals)

    # --- the mailbox --------------------------------------------------------------------------------------------

    def _header(self, kind: Kind, site: str, round: int = 0) -> Header:
        return Header(self.study.digest, self.publishing.number, round, site, kind)

    def _most(self, kind: Kind, round: int) -> int:
        """Bytes that a body may have; of an answer, from the plan."""
        return DIGEST + 8 * sum(one.cells for one in self.rounds[round]) if kind == "answer" else SMALL

    def _get(self, kind: Kind, site: str, round: int = 0) -> bytes | None:
        found = self.publishing.mailbox.get(self._header(kind, site, round), self._most(kind, round))
        return None if found is None else found.body

    def _post(self, kind: Kind, round: int, body: bytes) -> None:
        self.publishing.mailbox.post(self.publishing.identity, self._header(kind, self.me, round), body)

    def _wait(self, kind: Kind, round: int, most: int) -> dict[str, bytes] | None:
        """The files of the other sites; None if the run ends before this round because one is missing.

        The patience of the study counts from when this site's own file was made. Raises PatienceOver if this process
        has waited as long as it may, and that patience lasts.
        """
        of = round if kind == "answer" else 0
        headers = [self._header(kind, site, of) for site in self.others]
        now = time.time()
        left = max(0.0, (self.key.since(of) or now) + self.study.patience - now)
        try:
            found = self.publishing.mailbox.wait(headers, min(left, self.publishing.waits), most)
        except PatienceOver as error:
            if self.publishing.waits < left:
                raise
            self._leave("patience", round, f"{', '.join(error.missing)} did not answer in time")
            return None
        except SiteLeft as error:
            self._leave("others", round, f"{', '.join(error.sites)} ended it for all")
            return None
        return {header.site: found[header].body for header in headers}

    # --- the end ------------------------------------------------------------------------------------------------

    def _leave(self, reason: str, round: int, why: str) -> None:
        """End the run before a round. Raises RunLeft if it cannot end there."""
        self.left = reason
        if not all(planned.optional for planned in self.rounds[round]):
            raise RunLeft(f"Run {self.publishing.number} of the study ends before round {round}: {why}.", LEFT)

    def _lost_key(self, round: int) -> RunLeft:
        self.left = "failure"
        return RunLeft(
            f"This site has lost its key of run {self.publishing.number} of the study, which is not backed up, and so "
            f"leaves the run before round {round}.",
            LEFT,
        )


def _after(before: bytes, round: int, planned: Sequence[PlannedRelease], totals: Mapping[str, np.ndarray]) -> bytes:
    vectors = (totals[release.name].astype("<i8").tobytes() for release in planned)
    return _digest(b"round", before, round.to_bytes(8, "big"), *vectors)


def _digest(*parts: bytes) -> bytes:
    """SHA-256 of parts, each with its length."""
    made = hashlib.sha256(b"fedcore sites 1\0")
    for part in parts:
        made.update(len(part).to_bytes(8, "big") + part)
    return made.digest()
