"""Response bodies under a cap: bytes counted after decompression, whatever the server sends. Pure: no I/O."""

import zlib
from typing import Final

_COMPRESSED: Final = {"gzip": 31, "x-gzip": 31, "deflate": 15}
"""Content codings to zlib's window bits; ``identity`` is asked for, but some proxies compress anyway."""


class BodyTooLarge(ValueError):
    """A body grew beyond the configured cap."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"the response is larger than {max_bytes} bytes")
        self.max_bytes = max_bytes


class BodyBroken(ValueError):
    """A body does not decode as its ``Content-Encoding`` says, or the encoding is unknown."""


class BodyDecoder:
    """Undoes the content coding of one response and counts what comes out.

    Args:
        content_encoding: The header's value, "" if absent.
        max_bytes: The cap; None for a stream that may go on for ever, which must not be compressed.

    Raises:
        BodyBroken: The coding is not one that can be undone under a cap.
    """

    def __init__(self, content_encoding: str, max_bytes: int | None) -> None:
        coding = content_encoding.strip().lower()
        self._inflater = None
        if coding not in {"", "identity"}:
            if coding not in _COMPRESSED or max_bytes is None:
                raise BodyBroken("the response has a content coding that was not asked for")
            self._inflater = zlib.decompressobj(_COMPRESSED[coding])
        self._max_bytes = max_bytes
        self._count = 0

    def feed(self, chunk: bytes) -> bytes:
        """Return the decoded bytes of `chunk`.

        Raises:
            BodyTooLarge: More than the cap has come out.
            BodyBroken: The compressed data is broken.
        """
        if self._inflater is not None and self._max_bytes is not None:
            chunk = self._inflate(self._inflater, chunk, self._max_bytes)
        self._count += len(chunk)
        if self._max_bytes is not None and self._count > self._max_bytes:
            raise BodyTooLarge(self._max_bytes)
        return chunk

    def _inflate(self, inflater: "zlib._Decompress", chunk: bytes, max_bytes: int) -> bytes:
        # One byte over the cap is enough to notice; zlib then keeps the rest unexpanded.
        room = max_bytes - self._count + 1
        try:
            return inflater.decompress(chunk, room)
        except zlib.error as exc:
            raise BodyBroken("the response is not compressed as it claims") from exc
