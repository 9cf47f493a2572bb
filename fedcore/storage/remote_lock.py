"""Who works on what lies in object storage, where no lock of a file system reaches: an object that names its holder.

It is created only if there is none, renewed by a thread for as long as it is held, and removed at the end. One that its
holder outlived is taken over. Its token decides, not whether somebody seems alive: a process that was taken for dead
wrongly finds another token in the object when it looks next, and stops. So the thread may be late, fail or die, and
nothing but patience is lost.

No clock is compared with that of another host. Who wants what another host holds watches the object: a holder that
renews it lives, and one that stays silent for as long as it said that it never would is dead.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
import weakref
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from fedcore.errors import FedcoreError, LeaseLost, RunBusy
from fedcore.storage import objects as object_storage
from fedcore.storage.files import json_bytes
from fedcore.storage.process import Holder, this_process

if TYPE_CHECKING:
    from upath import UPath

SECONDS = 60.0  # silence after which a holder on another host counts as dead
BEATS = 6  # renewals in that time: some may fail
LOOKS = 30  # of somebody who watches, in that time
LONGEST = 3600.0  # silence that an object may ask others to wait for, seconds
STOPPING = 5.0  # to wait at the end for a renewal that is under way, seconds
ATTEMPTS = 5
_held: set[str] = set()  # tokens of the claims of this process, which may live longer than they do


class Claim:
    """The right of this process to change what `what` names, from `take` to `close`. A claim that nobody refers to any
    more is no longer renewed.

    path: of the object.
    """

    def __init__(self, path: UPath, what: str):
        self.path = path
        self.what = what
        self.token = secrets.token_hex(8)
        self.renewals = 0
        self.renewed = 0.0  # on this process's own clock, which rests while the machine is suspended
        self._holder = this_process()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def take(self, take_over: bool = False) -> bool:
        """True if it was somebody else's until now, who is dead, or not asked with `take_over`.

        Raises RunBusy if that one lives. For a holder on another host this takes a moment; and for one that is dead,
        up to the silence that it has announced (`SECONDS`).
        """
        taken = self._take(take_over)
        _held.add(self.token)
        self.renewed = time.monotonic()
        self._keep_renewing()
        return taken

    def _take(self, take_over: bool) -> bool:
        for _ in range(ATTEMPTS):
            content = self._content()
            try:
                object_storage.create(self.path, content)
                return False
            except FileExistsError:
                pass
            try:
                version, there = self._read()
                if there.get("token") == self.token:  # made by a request whose answer was lost
                    return False
                if not take_over:
                    self._refuse_if_alive(there)
                object_storage.replace(self.path, content, version)  # not if it was renewed in the last moment
                if self._there().get("token") == self.token:
                    return True
            except (FileNotFoundError, FileExistsError):  # given back, or taken by a third one: look again
                continue
        raise RunBusy(f"other processes want {self.what} as well.", "Wait for them, or stop them.")

    def check(self, content: bytes | None = None) -> None:
        """Raises LeaseLost if another process has it now. content: of the object, if it was fetched just now."""
        with suppress(FileNotFoundError):
            if (self._there() if content is None else _parsed(content)).get("token") == self.token:
                return
        silent = time.monotonic() - self.renewed
        why = f" It could not renew its claim for {silent:.0f} s." if silent > SECONDS else ""
        raise LeaseLost(
            f"another process has gone on with {self.what}.", f"This process stops; the other one goes on.{why}"
        )

    def renew(self) -> None:
        """See to it that the claim is being renewed: the thread may have died. Raises LeaseLost."""
        self._keep_renewing()
        self.check()

    def close(self) -> None:
        """As far as possible: a claim that stays behind is nobody's any more."""
        _held.discard(self.token)
        self._stop.set()
        if self._thread is not None:
            self._thread.join(STOPPING)  # what it may still put later is put over an object that is gone
            self._thread = None
        with suppress(FedcoreError, FileNotFoundError):
            if self._there().get("token") == self.token:
                object_storage.remove(self.path)

    # --- renewing -----------------------------------------------------------------------------------------------

    def _keep_renewing(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._stop = threading.Event()
            self._thread = threading.Thread(
                target=_renewing, args=(weakref.ref(self), self._stop), name="renews a claim", daemon=True
            )
            self._thread.start()

    def _beat(self) -> bool:
        """Say that this process lives. False: there is nothing to renew any more."""
        try:
            version, there = self._read()
            if there.get("token") != self.token:
                return False
            object_storage.replace(self.path, self._content(), version)
            self.renewed = time.monotonic()
        except FileNotFoundError:
            return False
        except (FedcoreError, OSError):  # the store does not answer now, or somebody was quicker: next time tells
            pass
        return True

    def _content(self) -> bytes:
        """Another one each time. `renewed` is for people: nobody compares it with a clock."""
        self.renewals += 1
        return json_bytes(
            {
                "token": self.token,
                "holder": self._holder.to_json(),
                "renewals": self.renewals,
                "seconds": SECONDS,
                "renewed": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
            }
        )

    # --- looking ------------------------------------------------------------------------------------------------

    def _read(self) -> tuple[str | None, dict[str, Any]]:
        """(version, content): what was read is of this version or of a newer one. Raises FileNotFoundError."""
        version = object_storage.version(self.path)
        return version, self._there()

    def _there(self) -> dict[str, Any]:
        """The content of the object; {} if it is damaged. Raises FileNotFoundError."""
        return _parsed(object_storage.read_bytes(self.path))

    def _refuse_if_alive(self, there: dict[str, Any]) -> None:
        """Raises RunBusy; FileNotFoundError, FileExistsError if it changed hands meanwhile."""
        try:
            holder, seconds, token = Holder(**there["holder"]), float(there.get("seconds", SECONDS)), there["token"]
            alive = holder.alive(expired=False)
            if not 0 < seconds <= LONGEST:
                raise ValueError(seconds)
        except (KeyError, TypeError, ValueError):
            raise RunBusy(
                f"{self.path} does not say who works on {self.what}.",
                "If nobody does, remove this object, or resume with --take-over.",
            ) from None
        if holder == self._holder:  # a claim that it could not give back
            alive = token in _held
        elif holder.host != self._holder.host:
            alive = self._renewed_within(seconds, there)
        if alive:
            raise RunBusy(
                f"process {holder.pid} on {holder.host.split()[0]} is working on {self.what}.",
                "Wait for it, or stop it; if it hangs, resume with --take-over.",
            )

    def _renewed_within(self, seconds: float, there: dict[str, Any]) -> bool:
        """Watch the object for so long. Time is counted by looks too, so that a machine that was suspended in between
        does not take its own absence for the holder's.
        """
        started, looks = time.monotonic(), 0
        while looks < LOOKS or time.monotonic() - started < seconds:
            time.sleep(seconds / LOOKS)
            looks += 1
            now = self._there()
            if now.get("token") != there["token"]:
                raise FileExistsError(str(self.path))
            if now != there:
                return True
        return False


def _renewing(reference: weakref.ref[Claim], stop: threading.Event) -> None:
    while not stop.wait(SECONDS / BEATS):
        claim = reference()
        if claim is None or not claim._beat():
            return
        del claim  # not held while it waits


def _parsed(content: bytes) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except ValueError:
        value = {}
    return value if isinstance(value, dict) else {}
