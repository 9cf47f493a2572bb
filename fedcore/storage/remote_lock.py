"""A lock on data in object storage, where no lock of a file system reaches: an object that names its holder.

The object is created only if there is none, renewed by a thread for as long as the lock is held, and removed at the
end. A lock that outlived its holder is taken over. The token decides, not whether a process seems alive. A process that
was wrongly taken for dead finds another token in the object when it looks next, and stops. So if the thread is late,
fails or dies, only time is lost.

No clock is compared with that of another host. A process that wants a lock of another host watches the object: a holder
that renews it is alive. A holder that is silent for longer than the time it has stated is dead.
"""

from __future__ import annotations

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
from fedcore.storage.parsing import parse_json
from fedcore.storage.plain import plain
from fedcore.storage.process import Holder, this_process

if TYPE_CHECKING:
    from upath import UPath

SECONDS = 60.0  # silence after which a holder on another host counts as dead
BEATS = 6  # renewals in that time: some may fail
LOOKS = 30  # of a watching process, in that time
LONGEST = 3600.0  # silence that an object may ask others to wait for, seconds
STOPPING = 5.0  # wait at the end for a renewal that is under way, seconds
ATTEMPTS = 5  # to take a lock that changes hands meanwhile
_own_tokens: set[str] = set()  # tokens of the locks of this process, which may live longer than they do


class RemoteLock:
    """The right of this process to change something in object storage, from `take` to `close`.

    A lock that no variable refers to any more is no longer renewed.

    path: of the object
    what: the name, in messages, of what is locked
    """

    def __init__(self, path: UPath, what: str) -> None:
        self.path = path
        self.what = what
        self.token = secrets.token_hex(8)
        self.renewals = 0
        self.renewed = 0.0  # on this process's own clock, which rests while the machine is suspended
        self._holder = this_process()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def take(self, take_over: bool = False) -> bool:
        """Take the lock. Returns whether another process held it until now.

        take_over: take it even from a holder that lives. Otherwise raises RunBusy if the holder lives. To find that
        out takes a moment if the holder is on another host, and up to the silence that it has announced (`SECONDS`)
        if it is dead.
        """
        taken = self._take(take_over)
        _own_tokens.add(self.token)
        self.renewed = time.monotonic()
        self.keep_renewing()
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
                version, stored = self._read()
                if stored.get("token") == self.token:  # made by a request whose answer was lost
                    return False
                if not take_over:
                    self._refuse_if_alive(stored)
                object_storage.replace(self.path, content, version)  # not if it was renewed in the last moment
                if self._fetch().get("token") == self.token:
                    return True
            except (FileNotFoundError, FileExistsError):  # given back, or taken by a third one: look again
                continue
        raise RunBusy(f"other processes want {self.what} as well.", "Wait for them, or stop them.")

    def check(self, content: bytes | None = None) -> None:
        """Raises LeaseLost if another process holds the lock now. content: of the object, if it was just fetched."""
        with suppress(FileNotFoundError):
            if (self._fetch() if content is None else _parsed(content)).get("token") == self.token:
                return
        silent = time.monotonic() - self.renewed
        why = f" It could not renew its lock for {silent:.0f} s." if silent > SECONDS else ""
        raise LeaseLost(
            f"another process has continued {self.what}.", f"This process stops; the other one continues.{why}"
        )

    def close(self) -> None:
        """Give the lock back, as far as possible: if the object stays behind, it will be outlived."""
        _own_tokens.discard(self.token)
        self._stop.set()
        if self._thread is not None:
            self._thread.join(STOPPING)  # what it may still put later is put over an object that is gone
            self._thread = None
        with suppress(FedcoreError, FileNotFoundError):
            if self._fetch().get("token") == self.token:
                object_storage.remove(self.path)

    # --- renewing -----------------------------------------------------------------------------------------------

    def keep_renewing(self) -> None:
        """Make sure that a thread renews the lock: the earlier one may have died."""
        if self._thread is None or not self._thread.is_alive():
            self._stop = threading.Event()
            self._thread = threading.Thread(
                target=_renewing, args=(weakref.ref(self), self._stop), name="renews a lock", daemon=True
            )
            self._thread.start()

    def _beat(self) -> bool:
        """Renew the object once. Returns False if there is nothing to renew any more."""
        try:
            version, stored = self._read()
            if stored.get("token") != self.token:
                return False
            object_storage.replace(self.path, self._content(), version)
            self.renewed = time.monotonic()
        except FileNotFoundError:
            return False
        except (FedcoreError, OSError):  # the store does not answer now, or another process was quicker: see next time
            pass
        return True

    def _content(self) -> bytes:
        """What the object shall hold, which differs each time. `renewed` is for people, never compared with a clock."""
        self.renewals += 1
        return json_bytes(
            {
                "token": self.token,
                "holder": plain(self._holder),
                "renewals": self.renewals,
                "seconds": SECONDS,
                "renewed": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
            }
        )

    # --- looking ------------------------------------------------------------------------------------------------

    def _read(self) -> tuple[str | None, dict[str, Any]]:
        """(version, content), where the content is of this version or of a newer one. Raises FileNotFoundError."""
        version = object_storage.version(self.path)
        return version, self._fetch()

    def _fetch(self) -> dict[str, Any]:
        """The content of the object; {} if it is damaged. Raises FileNotFoundError."""
        return _parsed(object_storage.read_bytes(self.path))

    def _refuse_if_alive(self, stored: dict[str, Any]) -> None:
        """Raises RunBusy if the holder lives; FileNotFoundError, FileExistsError if the lock changed hands."""
        try:
            holder, seconds, token = Holder(**stored["holder"]), float(stored.get("seconds", SECONDS)), stored["token"]
            alive = holder.alive(expired=False)
            if not 0 < seconds <= LONGEST:
                raise ValueError(seconds)
        except (KeyError, TypeError, ValueError):
            raise RunBusy(
                f"{self.path} does not name the process that works on {self.what}.",
                "If no process does, remove this object, or resume with --take-over.",
            ) from None
        if holder == self._holder:  # a lock that it could not give back
            alive = token in _own_tokens
        elif holder.host != self._holder.host:
            alive = self._renewed_within(seconds, stored)
        if alive:
            raise RunBusy(
                f"process {holder.pid} on {holder.host.split()[0]} is working on {self.what}.",
                "Wait for it, or stop it; if it hangs, resume with --take-over.",
            )

    def _renewed_within(self, seconds: float, stored: dict[str, Any]) -> bool:
        """Whether the object is renewed while it is watched for so long.

        Time is counted by looks too, so that a machine that was suspended meanwhile does not take its own absence for
        the holder's.
        """
        started, looks = time.monotonic(), 0
        while looks < LOOKS or time.monotonic() - started < seconds:
            time.sleep(seconds / LOOKS)
            looks += 1
            now = self._fetch()
            if now.get("token") != stored["token"]:
                raise FileExistsError(str(self.path))
            if now != stored:
                return True
        return False


def _renewing(reference: weakref.ref[RemoteLock], stop: threading.Event) -> None:
    while not stop.wait(SECONDS / BEATS):
        lock = reference()
        if lock is None or not lock._beat():
            return
        del lock  # not held while it waits


def _parsed(content: bytes) -> dict[str, Any]:
    try:
        value = parse_json(content)
    except ValueError:
        value = {}
    return value if isinstance(value, dict) else {}


def holder_may_live(path: UPath) -> bool:
    """Whether the lock at this object is held by a process that may be alive, by one look. On another host, any may
    be."""
    try:
        stored = _parsed(object_storage.read_bytes(path))
        return Holder(**stored["holder"]).alive(expired=False)
    except FileNotFoundError:
        return False
    except (FedcoreError, KeyError, TypeError):
        return True
