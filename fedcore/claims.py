"""Who works on what lies in object storage, where no lock of a file system reaches: an object that names its holder.

It is created only if there is none, renewed, and removed at the end. One that its holder outlived is taken over. Its
token decides, not whether somebody seems alive: a process that was taken for dead wrongly finds another token in the
object when it looks next, and stops.
"""

from __future__ import annotations

import json
import math
import secrets
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from fedcore import object_storage
from fedcore.errors import FedcoreError, LeaseLost, RunBusy
from fedcore.files import json_bytes
from fedcore.privacy.leases import Holder, this_process

if TYPE_CHECKING:
    from upath import UPath

SECONDS = 120.0  # a holder on another host that has not renewed for so long counts as dead
ATTEMPTS = 5
_held: set[str] = set()  # tokens of the claims of this process, which may live longer than they do


class Claim:
    """The right of this process to change what `what` names, from `take` to `close`.

    path: of the object. Rounds that take longer than `SECONDS` make the next time to live longer.
    """

    def __init__(self, path: UPath, what: str):
        self.path = path
        self.what = what
        self.token = secrets.token_hex(8)
        self.renewed = -math.inf

    def take(self, take_over: bool = False) -> bool:
        """True if it was somebody else's until now. Raises RunBusy if that one lives and `take_over` is not given."""
        taken = self._take(take_over)
        _held.add(self.token)
        return taken

    def _take(self, take_over: bool) -> bool:
        for _ in range(ATTEMPTS):
            content = self._content(SECONDS)
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
                object_storage.replace(self.path, content, version)
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
        raise LeaseLost(f"another process has gone on with {self.what}.", "This process stops; the other one goes on.")

    def renew(self) -> None:
        """Say that this process still lives, unless it said so a moment ago. Raises LeaseLost."""
        silent = time.time() - self.renewed
        if silent < SECONDS / 4:
            return
        try:
            version, there = self._read()
            if there.get("token") == self.token:
                object_storage.replace(self.path, self._content(max(SECONDS, 3 * silent)), version)
        except (FileNotFoundError, FileExistsError):
            pass
        self.check()

    def close(self) -> None:
        """As far as possible: a claim that stays behind is nobody's any more."""
        _held.discard(self.token)
        with suppress(FedcoreError, FileNotFoundError):
            if self._there().get("token") == self.token:
                object_storage.remove(self.path)

    def _content(self, seconds: float) -> bytes:
        self.renewed = time.time()
        return json_bytes({"token": self.token, "holder": this_process().to_json(), "renewed": self.renewed,
                           "expires": self.renewed + seconds})  # fmt: skip

    def _read(self) -> tuple[str | None, dict[str, Any]]:
        """(version, content): what was read is of this version or of a newer one. Raises FileNotFoundError."""
        version = object_storage.version(self.path)
        return version, self._there()

    def _there(self) -> dict[str, Any]:
        """The content of the object; {} if it is damaged. Raises FileNotFoundError."""
        return _parsed(object_storage.read_bytes(self.path))

    def _refuse_if_alive(self, there: dict[str, Any]) -> None:
        try:
            holder, expires = Holder(**there["holder"]), float(there["expires"])
            alive = holder.alive(expired=time.time() > expires)
            if holder == this_process():  # a claim that it could not give back
                alive = there["token"] in _held
        except (KeyError, TypeError, ValueError):
            raise RunBusy(f"{self.path} does not say who works on {self.what}.",
                          "If nobody does, remove this object, or resume with --take-over.") from None  # fmt: skip
        if alive:
            raise RunBusy(f"process {holder.pid} on {holder.host.split()[0]} is working on {self.what}.",
                          "Wait for it, or stop it; if that host is gone, wait "
                          f"{max(0.0, expires - time.time()):.0f} s, or resume with --take-over.")  # fmt: skip


def _parsed(content: bytes) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except ValueError:
        value = {}
    return value if isinstance(value, dict) else {}
