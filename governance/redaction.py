"""Find secrets and personal data in text, and take them out of JSON values. Pure: no I/O.

Every pattern is tied to what its kind looks like and nothing else does: a fixed beginning, a length, a
checksum. Patterns never repeat what can be matched in two ways, so that a text costs time in proportion to
its length. What cannot be told from an ordinary word (a name, an address) is not looked for.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from governance.canonical import JSON, is_array, is_object


class Finding(StrEnum):
    """What a piece of text is."""

    PRIVATE_KEY = "private_key"
    JWT = "jwt"
    BEARER_TOKEN = "bearer_token"  # noqa: S105 - a kind of thing.
    API_KEY = "api_key"
    PASSWORD = "password"  # noqa: S105 - a kind of thing.
    CARD = "card"
    IBAN = "iban"
    EMAIL = "email"
    PHONE = "phone"
    US_SSN = "us_ssn"


SECRETS: Final = frozenset(
    {Finding.PRIVATE_KEY, Finding.JWT, Finding.BEARER_TOKEN, Finding.API_KEY, Finding.PASSWORD}
)
"""What lets somebody in."""

PERSONAL: Final = frozenset({Finding.CARD, Finding.IBAN, Finding.EMAIL, Finding.PHONE, Finding.US_SSN})
"""What tells of a person."""

GROUPS: Final[Mapping[str, frozenset[Finding]]] = {"secrets": SECRETS, "personal": PERSONAL}
"""The names under which several kinds are asked for at once."""


@dataclass(frozen=True)
class Span:
    """A finding and where it stands in a text: [start, end) in characters."""

    start: int
    end: int
    kind: Finding


def kinds_of(names: Collection[str]) -> frozenset[Finding]:
    """Return the kinds of names, each a group or a kind.

    Raises:
        ValueError: a name is neither.
    """
    kinds: set[Finding] = set()
    for name in names:
        kinds |= GROUPS[name] if name in GROUPS else {Finding(name)}
    return frozenset(kinds)


def find(text: str, kinds: Collection[Finding] = SECRETS | PERSONAL) -> list[Span]:
    """Return what is found in a text, in order and without overlaps; the wider kind wins."""
    taken: list[Span] = []
    lowered = text.lower()
    for detector in _DETECTORS:
        if detector.kind in kinds and (detector.needs is None or detector.needs in lowered):
            starts = [span.start for span in taken]
            found = [span for span in detector.spans(text) if not _overlaps(span, taken, starts)]
            taken = sorted([*taken, *found], key=lambda span: span.start)
    return taken


def redact_text(text: str, kinds: Collection[Finding] = SECRETS | PERSONAL) -> tuple[str, list[Finding]]:
    """Return a text with each finding replaced by `[redacted:<kind>]`, and the kinds that were found."""
    spans = find(text, kinds)
    if not spans:
        return text, []
    parts: list[str] = []
    at = 0
    for span in spans:
        parts += [text[at : span.start], f"[redacted:{span.kind.value}]"]
        at = span.end
    parts.append(text[at:])
    return "".join(parts), [span.kind for span in spans]


def redact_json(value: JSON, kinds: Collection[Finding]) -> tuple[JSON, dict[str, int]]:
    """Return a JSON value with its strings and property names redacted, and how much of each kind was found.

    A string under a property whose name asks for a secret (`password`, `api_key`) is one whatever it looks
    like. The same object comes back where nothing was found; the value is nested as deep as JSON that was
    parsed here may be.
    """
    work = _Redaction(kinds)
    redacted = work.value(value)
    return (redacted, work.counts) if work.counts else (value, {})


class _Redaction:
    """One pass over a value."""

    def __init__(self, kinds: Collection[Finding]) -> None:
        self._kinds = kinds
        self.counts: dict[str, int] = {}

    def value(self, value: JSON) -> JSON:
        if isinstance(value, str):
            return self._text(value)
        if is_array(value):
            return [self.value(item) for item in value]
        if is_object(value):
            return self._object(value)
        return value

    def _object(self, value: dict[str, JSON]) -> dict[str, JSON]:
        made: dict[str, JSON] = {}
        for name, item in value.items():
            shown = self._text(name)
            while shown in made:
                # Two names that are redacted to the same text are both kept.
                shown += "'"
            secret = isinstance(item, str) and self._is_named_secret(name, item)
            made[shown] = self._count(Finding.PASSWORD) if secret else self.value(item)
        return made

    def _is_named_secret(self, name: str, value: str) -> bool:
        return (
            Finding.PASSWORD in self._kinds
            and _SECRET_NAME.fullmatch(name) is not None
            and is_like_a_password(value.strip())
        )

    def _text(self, text: str) -> str:
        redacted, found = redact_text(text, self._kinds)
        for kind in found:
            self._count(kind)
        return redacted

    def _count(self, kind: Finding) -> str:
        self.counts[kind.value] = self.counts.get(kind.value, 0) + 1
        return f"[redacted:{kind.value}]"


@dataclass(frozen=True)
class _Detector:
    """A pattern whose group `found`, or else the whole match, is a finding if `holds` says so."""

    kind: Finding
    pattern: re.Pattern[str]
    holds: Callable[[str], bool] = lambda _found: True
    needs: str | None = None
    """Text without which there is no match, in lower case: looked for first, since that is cheap."""

    def spans(self, text: str) -> Iterator[Span]:
        named = [name for name in ("found", "quoted") if name in self.pattern.groupindex]
        for match in self.pattern.finditer(text):
            group: str | int = next((name for name in named if match[name] is not None), 0)
            if self.holds(match[group]):
                yield Span(match.start(group), match.end(group), self.kind)


def _overlaps(span: Span, taken: list[Span], starts: list[int]) -> bool:
    """Say whether a span meets one of those taken, which are in order and apart."""
    place = bisect_left(starts, span.end)
    return place > 0 and taken[place - 1].end > span.start


def luhn_holds(digits: str) -> bool:
    """Say whether the check digit of a card number is right. Source: ISO/IEC 7812-1, annex B."""
    total = 0
    for place, digit in enumerate(reversed(digits)):
        value = int(digit) * (2 if place % 2 else 1)
        total += value - 9 if value > 9 else value
    return total % 10 == 0


def iban_holds(text: str) -> bool:
    """Say whether length and check digits of an account number are right. Source: ISO 13616."""
    compact = re.sub(r"[ -]", "", text).upper()
    if _IBAN_LENGTHS.get(compact[:2]) != len(compact):
        return False
    moved = compact[4:] + compact[:4]
    return int("".join(str(int(character, 36)) for character in moved)) % 97 == 1


def _card_holds(text: str) -> bool:
    digits = re.sub(r"[ -]", "", text)
    return _CARD_NUMBER.fullmatch(digits) is not None and len(set(digits)) > 1 and luhn_holds(digits)


def is_like_a_password(text: str) -> bool:
    """Say whether a value beside a word like `password` is one, and no placeholder, type or sentence."""
    if not 6 <= len(text) <= 200 or any(character.isspace() for character in text):
        return False
    lowered = text.lower().strip("'\"`")
    if lowered in _ORDINARY or _PLACEHOLDER.search(lowered) or len(set(lowered)) < 4:
        return False
    return any(character.isdigit() for character in text) or any(
        not character.isalnum() and character not in "._-/\\()[]{}:" for character in text
    )


def _is_mixed(text: str) -> bool:
    """Say whether a token is random enough to be a key: digits and letters, and not one repeated."""
    return (
        any(character.isdigit() for character in text)
        and any(character.isalpha() for character in text)
        and len(set(text)) > 8
        and not _PLACEHOLDER.search(text.lower())
    )


def _ssn_holds(text: str) -> bool:
    area, group, serial = text.split("-")
    return area not in ("000", "666") and area < "900" and group != "00" and serial != "0000"


def _email_holds(text: str) -> bool:
    local, _, domain = text.rpartition("@")
    return ".." not in text and not local.endswith(".") and not _FILE_NAME.search(domain)


def _phone_holds(text: str) -> bool:
    digits = re.sub(r"[^0-9]", "", text)
    return 8 <= len(digits) <= 15 and len(set(digits)) > 2


_SECRETIVE: Final = (
    r"(?:pass(?:word|wd|phrase)|pwd|secret(?:[_-]?key)?|api[_-]?(?:key|secret|token)"
    r"|(?:access|auth|refresh|session|client)[_-]?(?:token|secret|key)|private[_-]?key|passcode)"
)
_SECRET_NAME: Final = re.compile(rf"(?:[a-z0-9]{{1,24}}[_-])?{_SECRETIVE}", re.IGNORECASE)
_PLACEHOLDER: Final = re.compile(
    r"redacted|xxxx|\*\*\*|\.\.\.|…|<[^>]{0,40}>|\$\{|\{\{|%\(|your[_-]|example|placeholder|changeme"
    r"|dummy|process\.env|os\.environ|getenv|env\["
)
_ORDINARY: Final = frozenset({"string", "optional", "required", "password1", "hidden", "undefined"})
_FILE_NAME: Final = re.compile(r"\.(?:png|jpe?g|gif|svg|webp|css|js|ts|py|md|html?)$", re.IGNORECASE)

_CARD_NUMBER: Final = re.compile(
    r"4[0-9]{15}(?:[0-9]{3})?|5[1-5][0-9]{14}|2[2-7][0-9]{14}|3[47][0-9]{13}|35[0-9]{14}"
    r"|3(?:0[0-5]|[68][0-9])[0-9]{11}|6(?:011|22[1-9]|4[4-9][0-9]|5[0-9]{2})[0-9]{12}(?:[0-9]{3})?"
)
"""Beginnings and lengths of the card schemes. Source: ISO/IEC 7812-1 and the schemes' own lists."""

_IBAN_LENGTHS: Final[Mapping[str, int]] = {
    "AT": 20, "BE": 16, "BG": 22, "CH": 21, "CY": 28, "CZ": 24, "DE": 22, "DK": 18, "EE": 20, "ES": 24,
    "FI": 18, "FR": 27, "GB": 22, "GR": 27, "HR": 21, "HU": 28, "IE": 22, "IS": 26, "IT": 27, "LI": 21,
    "LT": 20, "LU": 20, "LV": 21, "MC": 27, "MT": 31, "NL": 18, "NO": 15, "PL": 28, "PT": 25, "RO": 24,
    "SA": 24, "SE": 24, "SI": 19, "SK": 24, "SM": 27, "TR": 26, "AE": 23, "IL": 23, "BR": 29,
}  # fmt: skip

_DETECTORS: Final = (
    _Detector(
        Finding.PRIVATE_KEY,
        re.compile(
            r"-----BEGIN (?:[A-Z0-9]{1,12} ){0,3}PRIVATE KEY(?: BLOCK)?-----"
            r"(?:[A-Za-z0-9+/=\s:,.()_\\-](?!----END)){0,20000}+"
            r"(?:.?-----END (?:[A-Z0-9]{1,12} ){0,3}PRIVATE KEY(?: BLOCK)?-----)?"
        ),
        needs="private key",
    ),
    _Detector(
        Finding.JWT,
        re.compile(r"\beyJ[A-Za-z0-9_-]{8,2000}+\.eyJ[A-Za-z0-9_-]{8,8000}+(?:\.[A-Za-z0-9_-]{0,2000}+)?"),
        needs="eyj",
    ),
    _Detector(
        Finding.BEARER_TOKEN,
        re.compile(r"\b(?:bearer|token)[ :]{1,3}(?P<found>[A-Za-z0-9._~+/-]{16,4000}+=*)", re.IGNORECASE),
        _is_mixed,
    ),
    _Detector(
        Finding.BEARER_TOKEN,
        re.compile(r"\bbasic (?P<found>[A-Za-z0-9+/]{12,4000}+={0,2})(?![\w.])", re.IGNORECASE),
        lambda text: _is_mixed(text) and len(text) % 4 == 0,
        needs="basic ",
    ),
    _Detector(
        Finding.API_KEY,
        re.compile(
            r"(?<![A-Za-z0-9_])(?:"
            r"(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{16}"
            r"|gh[pousr]_[A-Za-z0-9]{30,255}+|github_pat_[A-Za-z0-9_]{30,255}+|glpat-[A-Za-z0-9_-]{18,64}+"
            r"|sk-(?:[a-z]{2,8}-){0,2}+[A-Za-z0-9_-]{20,255}+|(?:sk|pk|rk|whsec)_(?:live_|test_)?[A-Za-z0-9]{16,255}+"
            r"|xox[abeoprs]-[A-Za-z0-9-]{10,255}+|xapp-[A-Za-z0-9-]{10,255}+"
            r"|AIza[A-Za-z0-9_-]{35}|ya29\.[A-Za-z0-9_-]{20,500}+|GOCSPX-[A-Za-z0-9_-]{20,64}+"
            r"|SG\.[A-Za-z0-9_-]{16,64}+\.[A-Za-z0-9_-]{16,128}+|key-[0-9a-f]{32}"
            r"|npm_[A-Za-z0-9]{36}|pypi-[A-Za-z0-9_-]{50,255}+|dckr_pat_[A-Za-z0-9_-]{20,64}+"
            r"|hf_[A-Za-z0-9]{30,64}+|lin_api_[A-Za-z0-9]{30,64}+|shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}"
            r"|dop_v1_[0-9a-f]{64}|sq0[a-z]{3}-[A-Za-z0-9_-]{22,64}+|NRAK-[A-Z0-9]{27}"
            r"|sg[akpr]_[A-Za-z0-9_-]{30,64}+|[0-9]{8,10}+:AA[A-Za-z0-9_-]{33}"
            r")(?![A-Za-z0-9])"
        ),
        _is_mixed,
    ),
    _Detector(
        Finding.API_KEY,
        re.compile(
            r"(?:aws|azure|account|storage)[a-z_ ]{0,24}(?:secret|key)[a-z_ ]{0,16}"
            r"[\"']?\s{0,3}[:=]\s{0,3}[\"']?"
            r"(?P<found>[A-Za-z0-9/+]{40,88}={0,2})(?![A-Za-z0-9/+=])",
            re.IGNORECASE,
        ),
        _is_mixed,
    ),
    _Detector(
        Finding.PASSWORD,
        re.compile(
            r"\b[a-z][a-z0-9+.-]{1,15}://[^\s:/@\"']{1,64}:(?P<found>[^\s/@\"']{3,128})@", re.IGNORECASE
        ),
        lambda text: not _PLACEHOLDER.search(text.lower()) and len(set(text)) > 2,
        needs="://",
    ),
    _Detector(
        Finding.PASSWORD,
        re.compile(
            rf"(?<![A-Za-z]){_SECRETIVE}[\"']?\s{{0,3}}(?:[:=]|=>|\bis\b)\s{{0,3}}"
            r"(?:[\"'](?P<quoted>[^\"'\n]{6,200})[\"']|(?P<found>[^\s\"',;&]{6,200}))",
            re.IGNORECASE,
        ),
        is_like_a_password,
    ),
    _Detector(
        Finding.IBAN,
        re.compile(
            r"(?<![A-Za-z0-9])[A-Z]{2}[0-9]{2}(?:[ -]?[A-Z0-9]{4}){2,7}(?:[ -]?[A-Z0-9]{1,3})?(?![A-Za-z0-9])"
        ),
        iban_holds,
    ),
    _Detector(
        Finding.CARD,
        re.compile(
            r"(?<![A-Za-z0-9.,/_-])[2-6][0-9]{3}(?:"
            r"(?P<gap>[ -])[0-9]{4}(?P=gap)[0-9]{4}(?P=gap)[0-9]{4}(?:(?P=gap)[0-9]{3})?"
            r"|(?P<amex>[ -])[0-9]{6}(?P=amex)[0-9]{4,5}|[0-9]{9,15})(?![A-Za-z0-9_]|[.,/-][0-9])"
        ),
        _card_holds,
    ),
    _Detector(
        Finding.US_SSN,
        re.compile(r"(?<![A-Za-z0-9.-])[0-9]{3}-[0-9]{2}-[0-9]{4}(?![A-Za-z0-9]|[.-][0-9])"),
        _ssn_holds,
    ),
    _Detector(
        Finding.EMAIL,
        re.compile(
            r"(?<![A-Za-z0-9._%+/@-])[A-Za-z0-9][A-Za-z0-9._%+-]{0,63}+@"
            r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.){1,6}[A-Za-z]{2,24}(?![A-Za-z0-9@-]|:[^\s])"
        ),
        _email_holds,
        needs="@",
    ),
    _Detector(
        Finding.PHONE,
        re.compile(
            r"(?<![A-Za-z0-9+.,/_=-])(?:"
            r"\+[1-9][0-9]{0,2}+(?:[ .-]?+(?:\([0-9]{1,4}\)|[0-9]{1,5}+)){1,6}+"
            r"|\([2-9][0-9]{2}\) ?[0-9]{3}-[0-9]{4}"
            r"|(?:tel|telephone|telefon|phone|mobile|cell|fax|call|sms|whatsapp|handy|电话|手机)\b"
            r"[.:]{0,2} {0,3}(?:number)?[:#]? {0,2}"
            r"(?P<found>0?[0-9]{2,5}[ ./-]?[0-9]{3,4}[ .-]?[0-9]{3,5})"
            r")(?![A-Za-z0-9]|[.-][0-9])",
            re.IGNORECASE,
        ),
        _phone_holds,
    ),
)
"""In the order in which they take text: a card number in a token is part of the token."""
