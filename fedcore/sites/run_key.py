"""What a site keeps of a run outside of everything that is backed up: the run's key, and what it has posted.

One folder for each run, below the user's cache folder, for its owner's eyes only:

    key           secret X25519 key of the run, 32 bytes, and a random nonce, 32 bytes; destroyed at the end
    answer.ROUND  SHA-256 of the answer of that round, made before the answer is posted
    end           body of the site's end file, made before anything else of the end; nothing is posted afterwards

Files are created once and never replaced. A ledger that lacks an answer that is noted here was restored from an older
copy: its next draw would be a second one under the same masks (docs/privacy/sites.md).
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedcore.errors import LedgerRolledBack, StudyError, Unreachable
from fedcore.sites.masks import new_run_key
from fedcore.storage.files import flush, make_folder
from fedcore.storage.shared import create_in, open_folder, read

HALF: Final = 32  # bytes of the key, and of the nonce
LARGEST: Final = 4096  # bytes of a file here
ROLLED_BACK: Final = "Restore the newest copy of the ledger. If there is none, this site has to leave the run."


class RunKey:
    """The folder of one run at one site. study: digest, 32 bytes. Methods raise Unreachable for a disk that fails."""

    def __init__(self, study: bytes, run: int, site: str) -> None:
        from platformdirs import user_cache_path

        self.folder: Path = user_cache_path("fedcore") / "sites" / study.hex()[:HALF] / f"{run}.{site}"

    def load(self) -> tuple[X25519PrivateKey, bytes] | None:
        """(key, nonce); None if there is none, or none any more. Raises StudyError for a damaged one."""
        content = self._read("key")
        if content is None:
            return None
        if len(content) != 2 * HALF:
            raise StudyError(f"{self.folder / 'key'} is damaged.", "This site has to leave the run: delete the file.")
        return X25519PrivateKey.from_private_bytes(content[:HALF]), content[HALF:]

    def create(self) -> None:
        """A new key, durably, unless another process has made one."""
        with suppress(FileExistsError):
            self._create("key", new_run_key().private_bytes_raw() + secrets.token_bytes(HALF))

    def note(self, round: int, digest: bytes) -> None:
        """Keep, durably, which answer of a round is posted. Raises LedgerRolledBack if another one was."""
        with suppress(FileExistsError):
            self._create(f"answer.{round}", digest)
        if self.noted(round) != digest:
            raise LedgerRolledBack(
                f"This site has posted another answer in round {round} than its ledger holds: the ledger is an older "
                "copy, or another one.",
                ROLLED_BACK,
            )

    def noted(self, round: int) -> bytes | None:
        """The digest of the answer of a round; None if none was posted."""
        return self._read(f"answer.{round}")

    def since(self, round: int) -> float | None:
        """When the answer of a round was noted, or the key made for round 0: seconds since 1970; None if it is not
        there.
        """
        try:
            return (self.folder / (f"answer.{round}" if round else "key")).stat().st_mtime
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unreachable(self.folder, error) from error

    def ended(self) -> bytes | None:
        """Body of the end file, if the run has ended here."""
        return self._read("end")

    def end(self, body: bytes) -> bytes:
        """End the run here, durably, and destroy its key. Returns the body that holds: that of the first call."""
        with suppress(FileExistsError):
            self._create("end", body)
        try:
            (self.folder / "key").unlink(missing_ok=True)
            flush(self.folder)
        except OSError as error:
            raise _unreachable(self.folder, error) from error
        return self.ended() or body

    def _create(self, name: str, content: bytes) -> None:
        try:
            make_folder(self.folder, private=True, durable=True)
            with open_folder(self.folder) as inside:
                create_in(inside, name, content)
        except FileExistsError:
            raise
        except OSError as error:
            raise _unreachable(self.folder, error) from error

    def _read(self, name: str) -> bytes | None:
        if not self.folder.is_dir():
            return None
        try:
            return read(self.folder, name, LARGEST)
        except OSError as error:
            raise _unreachable(self.folder, error) from error


def _unreachable(folder: Path, error: OSError) -> Unreachable:
    return Unreachable(
        f"{folder}, where this site keeps the keys of its runs, cannot be used: {error.strerror}.", "Check the disk."
    )
