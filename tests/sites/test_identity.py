"""The identity of a site: made once, private, and known by a fingerprint that people can read aloud."""

import json
import re

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedcore.errors import FileRefused, IdentityError
from fedcore.sites.identity import FILE, Identity, fingerprint, verify


def test_an_identity_is_made_once_and_loaded_again(tmp_path):
    made = Identity.create("hospital-a", tmp_path / "site")
    found = Identity.load(tmp_path / "site")
    assert found == made and len(found.public) == 32
    assert (tmp_path / "site").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "site" / FILE).stat().st_mode & 0o777 == 0o600
    with pytest.raises(IdentityError, match="holds the identity of a site already"):
        Identity.create("hospital-b", tmp_path / "site")
    assert Identity.load(tmp_path / "site") == made
    assert [file.name for file in (tmp_path / "site").iterdir()] == [FILE]


def test_without_a_folder_it_is_in_the_data_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    made = Identity.create("hospital-a")
    assert Identity.load() == made and (tmp_path / "fedcore" / "site" / FILE).is_file()


@pytest.mark.parametrize(
    "name", ["", "Hospital", "a.b", "a/b", "../a", "-a", "a" * 41, "a\n", "ä", "a b", ".", "a\x1b[31m"]
)
def test_a_name_is_a_part_of_a_file_name(tmp_path, name):
    with pytest.raises(IdentityError, match="cannot be the name of a site") as caught:
        Identity.create(name, tmp_path)
    assert str(caught.value).isprintable() and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-9],
        lambda text: "",
        lambda text: "\xff" * 9,
        lambda text: text.replace("hospital-a", "../x"),
        lambda text: json.dumps([text]),
        lambda text: re.sub('"secret": "..', '"secret": "', text),
        lambda text: text.replace('"format": 1', '"format": 2'),
        lambda text: text.replace('"secret"', '"public"'),
    ],
)
def test_a_damaged_identity_is_refused(tmp_path, damage):
    Identity.create("hospital-a", tmp_path)
    file = tmp_path / FILE
    file.write_bytes(damage(file.read_text()).encode("latin-1"))
    with pytest.raises(IdentityError, match="is damaged"):
        Identity.load(tmp_path)


def test_an_identity_that_others_can_read_is_refused(tmp_path):
    with pytest.raises(IdentityError, match="fedcore site init"):
        Identity.load(tmp_path)
    Identity.create("hospital-a", tmp_path)
    (tmp_path / FILE).chmod(0o640)
    with pytest.raises(IdentityError, match="could then sign.*chmod 600"):
        Identity.load(tmp_path)


def test_signatures(tmp_path):
    one, other = Identity.create("a", tmp_path / "a"), Identity.create("b", tmp_path / "b")
    signature = one.sign(b"data")
    assert signature == one.sign(b"data") and len(signature) == 64
    verify(one.public, signature, b"data")
    for public, given, data in (
        (other.public, signature, b"data"),
        (one.public, signature, b"date"),
        (one.public, signature[:-1], b"data"),
        (one.public[:-1], signature, b"data"),
        (one.public, bytes(64), b"data"),
    ):
        with pytest.raises(FileRefused):
            verify(public, given, data)


def test_a_signature_for_another_program_is_none_of_a_site():
    key = Ed25519PrivateKey.generate()
    with pytest.raises(FileRefused):
        verify(key.public_key().public_bytes_raw(), key.sign(b"data"), b"data")


def test_a_fingerprint_is_eight_groups_of_digits_and_never_changes(tmp_path):
    assert fingerprint(bytes(32)) == "05625 99372 62906 97479 02909 66074 82547 78405"
    seen = {fingerprint(bytes([number]) * 32) for number in range(256)}
    assert len(seen) == 256 and all(re.fullmatch(r"(\d{5} ){7}\d{5}", text) for text in seen)


def test_the_secret_is_in_no_text_of_the_identity(tmp_path):
    made = Identity.create("a", tmp_path)
    secret = json.loads((tmp_path / FILE).read_text())["secret"]
    assert secret not in repr(made) and "Key" not in repr(made)


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    for name in ("file", "file/site"):
        with pytest.raises(IdentityError, match="in the place of a folder"):
            Identity.create("a", tmp_path / name)
