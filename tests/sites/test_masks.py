"""Masks cancel over all sites, hide every proper subset, and depend on all that the sites must agree on."""

import hmac
import itertools
import json
import struct
import time
from dataclasses import fields, replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from scipy import stats

from fedcore.errors import PrivacyError
from fedcore.sites import masks
from fedcore.sites.masks import MaskContext, mask, new_run_key, public_bytes

CONTEXT = MaskContext(b"s" * 32, b"m" * 32, 4, 2, b"t" * 32)
CELLS = 20_000
ALPHA = 1e-6


def keys_of(m):
    """Repeatable keys of sites whose names are in no special order."""
    names = [f"site-{'zxyabcw'[i]}" for i in range(m)]
    return {name: X25519PrivateKey.from_private_bytes(bytes([i + 1] * 32)) for i, name in enumerate(names)}


def mask_of(keys, name, context=CONTEXT, release="sums", cells=CELLS):
    peers = {other: public_bytes(key) for other, key in keys.items() if other != name}
    return mask(keys[name], name, peers, context, release, cells)


def masked(keys, values, **more):
    """What each site posts of its values."""
    return {name: value.astype(np.uint64) + mask_of(keys, name, **more) for name, value in values.items()}


def summed(vectors):
    total = np.zeros(CELLS, np.uint64)
    for vector in vectors:
        total = total + vector
    return total.astype(np.int64)


def is_uniform(words) -> bool:
    """Of 64-bit words: high bits, low bits, and bits in between by chi-square, and each bit by its count."""
    for shift in (56, 28, 0):
        counts = np.bincount((words >> np.uint64(shift) & np.uint64(255)).astype(int), minlength=256)
        if stats.chisquare(counts).pvalue < ALPHA:
            return False
    ones = np.array([(words >> np.uint64(bit) & np.uint64(1)).sum() for bit in range(64)])
    return bool((np.abs(ones - len(words) / 2) < 6 * np.sqrt(len(words)) / 2).all())


def correlation(a, b) -> float:
    return abs(float(np.corrcoef(a.astype(float), b.astype(float))[0, 1]))


@pytest.mark.parametrize("m", [2, 3, 7])
def test_masks_cancel_over_all_sites_in_any_order(m):
    keys, random = keys_of(m), np.random.default_rng(m)
    values = {name: random.integers(-(2**40), 2**40, CELLS) for name in keys}
    found = masked(keys, values)
    orders = list(itertools.permutations(found))[:6] if m < 7 else [[*found], [*found][::-1]]
    for order in orders:
        assert np.array_equal(summed(found[name] for name in order), sum(values.values()))
    shuffled = {name: keys[name] for name in sorted(keys)}
    again = masked(shuffled, values)  # the order of the peers does not matter either
    assert all(np.array_equal(found[name], again[name]) for name in keys)
    assert not np.array_equal(mask_of(keys, [*keys][0]), np.zeros(CELLS, np.uint64))


def test_negative_totals_and_the_ends_of_the_range_come_back():
    keys = keys_of(3)
    ends = np.resize(np.array([-(2**62), -1, 0, 1, 2**62 - 1]), CELLS)
    values = dict(zip(keys, (ends, -ends // 2, ends // 4), strict=True))
    assert np.array_equal(summed(masked(keys, values).values()), sum(values.values()))


@pytest.mark.parametrize("m", [2, 3, 7])
def test_what_fewer_than_all_sites_posted_is_uniform(m):
    """Sites with nothing but small values: alone, added up in any number below m, and next to each other."""
    keys = keys_of(m)
    found = masked(keys, {name: np.arange(CELLS) % 3 for name in keys})
    for size in range(1, m):
        for some in list(itertools.combinations(found, size))[:7]:
            total = np.zeros(CELLS, np.uint64)
            for name in some:
                total = total + found[name]
            assert is_uniform(total), some
    if m > 2:  # jointly: no two of them hang together
        for one, other in itertools.combinations(found, 2):
            assert is_uniform(found[one] - found[other]) and correlation(found[one], found[other]) < 0.05
    assert not is_uniform(summed(found.values()).astype(np.uint64))


@pytest.mark.parametrize("changed", [field.name for field in fields(MaskContext)])
def test_a_mask_of_another_context_is_unrelated(changed):
    other = {"run": 5, "round": 3}.get(changed, b"x" * 32)
    keys = keys_of(3)
    first, *_ = keys
    one, two = mask_of(keys, first), mask_of(keys, first, replace(CONTEXT, **{changed: other}))
    assert is_uniform(one - two) and is_uniform(one + two) and correlation(one, two) < 0.05
    # one site that saw something else: the sum over all is noise
    zeros = np.zeros(CELLS, np.int64)
    found = masked(keys, dict.fromkeys(keys, zeros)) | {first: two}
    assert is_uniform(summed(found.values()).astype(np.uint64))


def test_a_mask_is_of_one_release_and_of_one_pair_of_names_and_keys():
    keys = keys_of(2)
    first, second = keys
    one = mask_of(keys, first)
    peers = {second: public_bytes(keys[second])}
    others = [
        mask_of(keys, first, release="sums2"),
        mask(keys[first], "someone", peers, CONTEXT, "sums", CELLS),
        mask(keys[first], first, {"another": peers[second]}, CONTEXT, "sums", CELLS),
        mask(new_run_key(), first, peers, CONTEXT, "sums", CELLS),
        mask(keys[first], first, {second: public_bytes(new_run_key())}, CONTEXT, "sums", CELLS),
        mask(keys[first], first, {second: public_bytes(keys[first])}, CONTEXT, "sums", CELLS),  # it sent back ours
    ]
    for other in others:
        assert is_uniform(one - other) and is_uniform(one + other)
    short = mask_of(keys, first, cells=7)
    assert np.array_equal(short, one[:7]) and short.dtype == np.uint64 and len(mask_of(keys, first, cells=0)) == 0


def test_names_cannot_be_shifted_into_each_other():
    """What is hashed has one spelling for each value."""
    found = {
        masks._info(replace(CONTEXT, run=run), release, first, second)
        for first, second, release, run in (
            ("a", "b", "c", 4),
            ("a", 'b","c', "", 4),
            ("ab", "", "c", 4),
            ("a", "b", "c", 42),
            ("b", "a", "c", 4),
            ("a", "b", "4c", 4),
        )
    }
    assert len(found) == 6


@pytest.mark.parametrize("public", [bytes(32), b"\x01" + bytes(31), b"k" * 31, b"", b"k" * 33])
def test_a_key_that_hides_nothing_is_refused_by_name(public):
    with pytest.raises(PrivacyError, match="run key of site 'mallory'"):
        mask(new_run_key(), "alice", {"mallory": public}, CONTEXT, "sums", 3)


def test_a_site_is_no_peer_of_itself_and_streams_end():
    key = new_run_key()
    with pytest.raises(PrivacyError, match="with itself"):
        mask(key, "alice", {"alice": public_bytes(key)}, CONTEXT, "sums", 3)
    with pytest.raises(PrivacyError, match="at most"):
        mask(key, "alice", {}, CONTEXT, "sums", masks.MOST_CELLS + 1)
    assert not mask(key, "alice", {}, CONTEXT, "sums", 3).any()
    assert public_bytes(key) != public_bytes(new_run_key())


def chacha_block(key: bytes, counter: int) -> bytes:
    """The block function of RFC 8439, section 2.3, for a nonce of zeros."""
    words = [0x61707865, 0x3320646E, 0x79622D32, 0x6B206574, *struct.unpack("<8I", key), counter, 0, 0, 0]
    state = list(words)

    def quarter(*at):
        for (x, y, z), turn in zip(((0, 1, 3), (2, 3, 1)) * 2, (16, 12, 8, 7), strict=True):
            x, y, z = at[x], at[y], at[z]
            state[x] = state[x] + state[y] & 0xFFFFFFFF
            mixed = state[z] ^ state[x]
            state[z] = (mixed << turn | mixed >> 32 - turn) & 0xFFFFFFFF

    for _ in range(10):
        for i in range(4):
            quarter(i, i + 4, i + 8, i + 12)
        for i in range(4):
            quarter(i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4)
    return struct.pack("<16I", *((x + y) & 0xFFFFFFFF for x, y in zip(words, state, strict=True)))


def test_the_stream_is_that_of_the_standards():
    """HKDF as RFC 5869 writes it, ChaCha20 as RFC 8439 does (its appendix A.1 begins with the block of zeros)."""
    assert (
        chacha_block(bytes(32), 0).hex().startswith("76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7")
    )
    keys = keys_of(2)
    second, first = sorted(keys, reverse=True)
    secret = keys[first].exchange(keys[second].public_key())
    context = ["s" * 32, "m" * 32, "t" * 32]
    study, members, totals = (text.encode().hex() for text in context)
    info = json.dumps(["fedcore mask 1", first, second, study, members, 4, 2, totals, "sums"], separators=(",", ":"))
    extracted = hmac.digest(bytes(32), secret, "sha256")
    key = hmac.digest(extracted, info.encode() + b"\x01", "sha256")
    stream = b"".join(chacha_block(key, counter) for counter in range(3))
    assert mask_of(keys, first, cells=24).astype("<u8").tobytes() == stream
    assert not (mask_of(keys, first, cells=24) + mask_of(keys, second, cells=24)).any()


def test_a_mask_used_for_two_rounds_shows_their_difference():
    """The sabotage that the round in the derivation prevents: the difference of two vectors under one mask is bare."""
    keys, random = keys_of(2), np.random.default_rng(1)
    first, _ = keys
    rounds = [random.integers(-1000, 1000, CELLS) for _ in range(2)]

    def seen(second):
        posted = [
            value.astype(np.uint64) + mask_of(keys, first, context)
            for value, context in zip(rounds, (CONTEXT, second), strict=True)
        ]
        return posted[1] - posted[0]

    assert np.array_equal(seen(CONTEXT).astype(np.int64), rounds[1] - rounds[0])
    assert not is_uniform(seen(CONTEXT)) and is_uniform(seen(replace(CONTEXT, round=3)))


@pytest.mark.slow
def test_a_mask_costs_little():
    """At most 0.2 ms of CPU for 10,000 cells and a peer, with the key exchange at most 0.3 ms."""
    keys = keys_of(2)
    first, _ = keys
    mask_of(keys, first)
    began = time.process_time()
    for _ in range(100):
        mask_of(keys, first, cells=10_000)
    assert (time.process_time() - began) / 100 < 0.3e-3
