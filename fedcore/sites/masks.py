"""Masks that cancel in the sum over all sites, and hide the vector of each. Argument: docs/privacy/sites.md.

Each site has an X25519 key pair (RFC 7748) for each run. Two sites share a secret, and HKDF-SHA256 (RFC 5869) makes of
it the key of a ChaCha20 stream (RFC 8439) for each release. The site whose name is first in order adds the stream's
words modulo 2**64, and the other one subtracts them. Everything that both must agree on is part of the derivation:
sites that saw other members or other totals have unrelated streams, and their vectors add up to noise.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from fedcore.errors import PrivacyError

LABEL = "fedcore mask 1"
MOST_CELLS = 2**35  # of a stream: ChaCha20 counts 2**32 blocks of 8 words
NONCE = bytes(16)  # the block counter and the nonce of RFC 8439: each key makes one stream


@dataclass(frozen=True, slots=True)
class MaskContext:
    """What all sites must agree on, so that their masks cancel.

    study: SHA-256 of the study. members: of all member files of the run. run, round: counted from 1.
    totals: digest of all totals of the run so far.
    """

    study: bytes
    members: bytes
    run: int
    round: int
    totals: bytes


def new_run_key() -> X25519PrivateKey:
    """A site's key for one run, from the operating system. It is destroyed at the end of the run."""
    return X25519PrivateKey.generate()


def public_bytes(key: X25519PrivateKey) -> bytes:
    """The public half, 32 bytes, that the site's member file states."""
    return key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


def mask(
    own: X25519PrivateKey, own_name: str, peers: Mapping[str, bytes], context: MaskContext, release: str, cells: int
) -> np.ndarray:
    """The sum of the masks that a site shares with each of its peers, modulo 2**64: (cells,) uint64.

    own_name: of the site. peers: public half of each other site's run key, by the site's name. release: its name in the
    plan. The masks of all sites add up to 0. Raises PrivacyError for a site that is its own peer, for a key that is not
    32 bytes or that has small order, and for more cells than one stream has.
    """
    if own_name in peers:
        raise PrivacyError(f"Site {own_name!r} cannot have a mask with itself.")
    if not 0 <= cells <= MOST_CELLS:
        raise PrivacyError(f"Release {release!r} has {cells} cells, and a mask has at most {MOST_CELLS}.")
    total = np.zeros(cells, np.uint64)
    for name, public in peers.items():
        secret, first = _secret(own, name, public), own_name < name
        info = _info(context, release, *((own_name, name) if first else (name, own_name)))
        stream = Cipher(ChaCha20(HKDF(SHA256(), 32, None, info).derive(secret), NONCE), mode=None).encryptor()
        words = np.frombuffer(stream.update(bytes(8 * cells)), "<u8")
        total = total + words if first else total - words
    return total


def _secret(own: X25519PrivateKey, name: str, public: bytes) -> bytes:
    """The X25519 secret of a pair."""
    try:
        return own.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:  # another length, or a point of small order: the secret would be known to all
        raise PrivacyError(
            f"The run key of site {name!r} is not a usable X25519 key. Nothing was released.",
            "The site must start a new run with another key.",
        ) from None


def _info(context: MaskContext, release: str, first: str, second: str) -> bytes:
    """One spelling of everything that the two sites must agree on."""
    parts = [LABEL, first, second, context.study.hex(), context.members.hex(), context.run, context.round]
    return json.dumps([*parts, context.totals.hex(), release], separators=(",", ":")).encode()
