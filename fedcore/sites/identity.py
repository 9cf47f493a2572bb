"""Who a site is: a name, and a pair of Ed25519 keys (RFC 8032). The secret half never leaves the folder of the site.

Other sites learn the public half from a study. Its fingerprint is what people compare by telephone or in person.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedcore.errors import FileRefused, IdentityError
from fedcore.storage.files import OTHERS, json_bytes, make_folder
from fedcore.storage.parsing import parse_json
from fedcore.storage.shared import create_in, open_folder, read

FILE: Final = "identity.json"
NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")  # a part of file names, on every file system
SIGNED: Final = b"fedcore site 1\0"  # before all that is signed, so that no signature serves another program
GROUPS: Final = 8  # of a fingerprint, five digits each: 132 bits
LARGEST: Final = 4096  # bytes of an identity's file


@dataclass(frozen=True)
class Identity:
    """A site that this process can sign for. Made by `create` and `load`. public: 32 bytes"""

    name: str
    public: bytes
    _key: Ed25519PrivateKey = field(repr=False, compare=False)

    @classmethod
    def create(cls, name: str, folder: str | Path | None = None) -> Identity:
        """A new identity, in a folder that has none. folder: None for the user's own (`site_folder`).

        Raises IdentityError for a name that cannot be used, and where there is an identity already.
        """
        check_name(name)
        place, key = site_folder(folder), Ed25519PrivateKey.generate()
        try:
            make_folder(place, private=True, durable=True)
            with open_folder(place) as inside:
                secret = key.private_bytes_raw().hex()
                create_in(inside, FILE, json_bytes({"format": 1, "name": name, "secret": secret}))
        except FileExistsError as error:
            if not place.is_dir():
                raise IdentityError(f"{place} is in the place of a folder.", "Choose another folder.") from error
            raise IdentityError(
                f"{place} holds the identity of a site already.",
                "Keep it: studies know the site by it. For another site, choose another folder with --identity.",
            ) from None
        except OSError as error:
            raise IdentityError(f"{place} cannot be written: {error.strerror}.", "Choose another folder.") from error
        return cls(name, key.public_key().public_bytes_raw(), key)

    @classmethod
    def load(cls, folder: str | Path | None = None) -> Identity:
        """The identity in a folder. folder: None for the user's own (`site_folder`).

        Raises IdentityError if there is none, if it is damaged, or if other users can read it.
        """
        place = site_folder(folder)
        try:
            permissions = stat.S_IMODE(os.stat(place / FILE).st_mode)
            content = read(place, FILE, LARGEST)
        except FileNotFoundError:
            content, permissions = None, 0
        except OSError as error:
            raise IdentityError(f"{place / FILE} cannot be read: {error.strerror}.", "Check the folder.") from error
        if content is None:
            raise IdentityError(f"{place} holds no identity of a site.", "Make one: fedcore site init NAME")
        if permissions & OTHERS:
            raise IdentityError(
                f"{place / FILE} can be read or written by other users, who could then sign for this site.",
                f"If that may have happened, make a new identity. Otherwise: chmod 600 {place / FILE}",
            )
        try:
            stored = parse_json(content)
            key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(stored["secret"]))
            if stored["format"] != 1 or not NAME.fullmatch(stored["name"]):
                raise ValueError
        except (ValueError, KeyError, TypeError):
            raise IdentityError(f"{place / FILE} is damaged.", "Restore it from a backup.") from None
        return cls(stored["name"], key.public_key().public_bytes_raw(), key)

    def sign(self, data: bytes) -> bytes:
        """The signature of the data, 64 bytes: always the same for the same data."""
        return self._key.sign(SIGNED + data)


def site_folder(folder: str | Path | None = None) -> Path:
    """The folder of a site: identity and studies. None: in the user's data folder."""
    if folder is not None:
        return Path(folder)
    from platformdirs import user_data_path

    return user_data_path("fedcore") / "site"


def check_name(name: str) -> None:
    """Raises IdentityError for what cannot be the name of a site."""
    if not NAME.fullmatch(name):
        raise IdentityError(
            f"{name[:60]!r} cannot be the name of a site.",
            "Use 1 to 40 small letters, digits and hyphens, such as hospital-a. The first one is no hyphen.",
        )


def verify(public: bytes, signature: bytes, data: bytes) -> None:
    """Raises FileRefused unless the owner of a public key (32 bytes) made this signature (64 bytes) of the data."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, SIGNED + data)
    except (InvalidSignature, ValueError):
        raise FileRefused("The signature is not one of this key.", "Ask the site for its public key.") from None


def fingerprint(public: bytes) -> str:
    """40 decimal digits of the SHA-256 of a public key (32 bytes), in 8 groups: to be read aloud and compared."""
    number = int.from_bytes(hashlib.sha256(b"fedcore fingerprint 1\0" + public).digest()) % 10 ** (5 * GROUPS)
    digits = f"{number:0{5 * GROUPS}}"
    return " ".join(digits[at : at + 5] for at in range(0, len(digits), 5))
