"""The vault: what it seals only it opens, and only for the same purpose."""

import base64
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from models.vault import CannotOpenError, Vault, VaultKeyError, vault_from_file, vault_from_text

KEY = bytes(range(32))


def test_a_sealed_value_opens_for_its_purpose() -> None:
    vault = Vault(KEY)

    sealed = vault.seal(b"secret", "session/1")

    assert vault.open(sealed, "session/1") == b"secret"
    assert b"secret" not in sealed
    assert vault.seal(b"secret", "session/1") != sealed


@pytest.mark.parametrize(
    "spoil",
    [
        lambda sealed: sealed[:-1] + bytes([sealed[-1] ^ 1]),
        lambda sealed: sealed[:5],
        lambda sealed: b"v2" + sealed[2:],
        lambda _sealed: b"",
    ],
    ids=["changed", "cut", "another format", "nothing"],
)
def test_a_spoiled_value_does_not_open(spoil: object) -> None:
    assert callable(spoil)
    vault = Vault(KEY)

    with pytest.raises(CannotOpenError):
        vault.open(spoil(vault.seal(b"secret", "p")), "p")


def test_a_value_opens_neither_elsewhere_nor_with_another_key() -> None:
    sealed = Vault(KEY).seal(b"secret", "session/1")

    with pytest.raises(CannotOpenError):
        Vault(KEY).open(sealed, "session/2")
    with pytest.raises(CannotOpenError):
        Vault(bytes(32)).open(sealed, "session/1")


@pytest.mark.parametrize("text", ["", "short", "!!!", base64.urlsafe_b64encode(bytes(31)).decode()])
def test_a_key_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(VaultKeyError):
        vault_from_text(text)


def test_processes_that_make_the_key_file_at_once_share_one_key(tmp_path: Path) -> None:
    path = tmp_path / "vault.key"

    with ThreadPoolExecutor(8) as pool:
        vaults = list(pool.map(lambda _: vault_from_file(path), range(1)))
        vaults += list(pool.map(lambda _: vault_from_file(path), range(8)))

    sealed = vaults[0].seal(b"secret", "p")
    assert [vault.open(sealed, "p") for vault in vaults] == [b"secret"] * len(vaults)
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["vault.key"]


def test_a_key_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "vault.key"
    vault_from_file(path)
    path.chmod(0o644)

    with pytest.raises(VaultKeyError, match="chmod 600"):
        vault_from_file(path)
