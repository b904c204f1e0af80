"""Seals and opens secrets at rest with AES-256-GCM; the API seals, only activities open."""

import base64
import binascii
import os
import secrets
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

KEY_BYTES = 32
NONCE_BYTES = 12
FORMAT = b"v1"
"""The first bytes of everything sealed; a later format begins otherwise."""


class VaultError(Exception):
    """The root of what this module raises."""


class VaultKeyError(VaultError):
    """The vault's key is missing or malformed."""


class CannotOpenError(VaultError):
    """The sealed bytes were sealed by another key, for another purpose, or were changed."""

    def __init__(self) -> None:
        """Say it without saying which, since none of them can be told apart."""
        super().__init__("The sealed value cannot be opened with this vault key.")


class Vault:
    """Seals byte strings, each bound to a purpose, so that a value cannot be moved to another row."""

    def __init__(self, key: bytes) -> None:
        """Use a key of 32 bytes."""
        if len(key) != KEY_BYTES:
            raise VaultKeyError(f"A vault key has {KEY_BYTES} bytes, not {len(key)}.")
        self._cipher = AESGCM(key)
        self._key = key

    def derive(self, purpose: str) -> bytes:
        """Return a key of 32 bytes for one purpose, which tells nothing of the vault's. Source: RFC 5869."""
        return HKDF(SHA256(), KEY_BYTES, salt=None, info=purpose.encode()).derive(self._key)

    def seal(self, value: bytes, purpose: str) -> bytes:
        """Encrypt `value` so that only `open` with the same purpose gives it back."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        return FORMAT + nonce + self._cipher.encrypt(nonce, value, purpose.encode())

    def open(self, sealed: bytes, purpose: str) -> bytes:
        """Decrypt what `seal` returned.

        Raises:
            CannotOpenError: another key, another purpose, or changed bytes.
        """
        if sealed[: len(FORMAT)] != FORMAT or len(sealed) < len(FORMAT) + NONCE_BYTES:
            raise CannotOpenError
        nonce, body = sealed[len(FORMAT) : len(FORMAT) + NONCE_BYTES], sealed[len(FORMAT) + NONCE_BYTES :]
        try:
            return self._cipher.decrypt(nonce, body, purpose.encode())
        except InvalidTag as error:
            raise CannotOpenError from error


def vault_from_text(text: str) -> Vault:
    """Make a vault from a key in URL-safe base64.

    Raises:
        VaultKeyError: the text is not base64 of 32 bytes.
    """
    try:
        key = base64.urlsafe_b64decode(text.strip() + "==")
    except (binascii.Error, ValueError) as error:
        raise VaultKeyError("The vault key is not URL-safe base64.") from error
    return Vault(key)


def vault_from_file(path: Path) -> Vault:
    """Read the vault's key from a file, made with mode 0600 if it is not there.

    Raises:
        VaultKeyError: the file can be read by others, or holds no key.
    """
    if not path.exists():
        _make_key_file(path)
    if path.stat().st_mode & 0o077:
        raise VaultKeyError(f"The vault key {str(path)!r} can be read by others; run: chmod 600 {path}")
    return vault_from_text(path.read_text("ascii"))


def _make_key_file(path: Path) -> None:
    """Write a new key beside `path` and link it there, so that no process ever reads half a key."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(base64.urlsafe_b64encode(secrets.token_bytes(KEY_BYTES)))
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(draft, path)
    except FileExistsError:
        pass  # Another process was first; its key is the one.
    finally:
        draft.unlink()
