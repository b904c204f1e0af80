"""Guardrails as the control plane edits and shows them; each function is one transaction."""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from api.changes import record_change
from api.errors import APIProblem, malformed
from api.etags import check_if_match, etag_of
from governance.canonical import JSON
from governance.codes import ErrorCode
from governance.guardrail_settings import SEALED_FIELD
from governance.guardrails import GuardrailKind
from models.database import ReadSession, WriteSession
from models.guardrail import guardrail_purpose, load_latest, replace_guardrails
from models.vault import Vault

HASH_FIELD: Final = "secret_hash"
"""The SHA-256 of a webhook's secret, by which it is told whether it changed."""


@dataclass(frozen=True)
class Shown:
    """The guardrails in order, without secrets, and their revision."""

    guardrails: Sequence[JSON]
    revision: int

    @property
    def etag(self) -> str:
        """The entity tag, made from the guardrails alone."""
        return etag_of(list(self.guardrails))

    def to_json(self) -> dict[str, JSON]:
        """Return the guardrails as shown."""
        return {"guardrails": list(self.guardrails), "revision": self.revision, "etag": self.etag}


def read_guardrails(session: ReadSession) -> Shown:
    """Return the guardrails in force."""
    return _shown(session)


def put_guardrails(
    session: WriteSession, vault: Vault, guardrails: Sequence[JSON], if_match: str | None, request_id: str
) -> Shown:
    """Set the whole list, which is checked; a webhook without a secret keeps the one of its name and URL.

    Raises:
        APIProblem: precondition_failed, also where somebody else set the list at the same time;
            invalid_request with 422 for a webhook that has no secret at all.
    """
    before = _shown(session)
    check_if_match(if_match, before.etag, "guardrails")
    _, kept = load_latest(session)
    stored = [_stored(vault, guardrail, kept) for guardrail in guardrails]
    for number, guardrail in enumerate(stored):
        if guardrail["kind"] == GuardrailKind.WEBHOOK and SEALED_FIELD not in guardrail:
            problem = {"path": f"guardrails[{number}].secret", "problem": "is needed: requests are signed"}
            raise malformed(f"{problem['path']} {problem['problem']}", status=422, problems=[problem])
    if [_without_secret(one) for one in stored] != list(before.guardrails):
        try:
            replace_guardrails(session, stored)
        except IntegrityError as error:
            details = {"what": "guardrails", "etag": None}
            raise APIProblem(ErrorCode.PRECONDITION_FAILED, details) from error
    after = _shown(session)
    record_change(
        session,
        request_id,
        "put_guardrails",
        revision=after.revision,
        before=list(before.guardrails),
        after=list(after.guardrails),
    )
    return after


def _shown(session: Session) -> Shown:
    revision, stored = load_latest(session)
    return Shown([_without_secret(one) for one in stored], revision)


def _without_secret(stored: Mapping[str, JSON]) -> dict[str, JSON]:
    return {name: value for name, value in stored.items() if name != SEALED_FIELD}


def _stored(vault: Vault, guardrail: Mapping[str, JSON], kept: Sequence[Mapping[str, JSON]]) -> JSON:
    """Return a guardrail as it is stored: its secret sealed, and what was left out left out."""
    values = {name: value for name, value in guardrail.items() if value is not None and name != "secret"}
    secret = guardrail.get("secret")
    if secret is not None:
        sealed = vault.seal(secret.encode(), guardrail_purpose(guardrail["name"]))
        values[SEALED_FIELD] = base64.urlsafe_b64encode(sealed).decode("ascii")
        values[HASH_FIELD] = hashlib.sha256(secret.encode()).hexdigest()
        old = _of_name(kept, guardrail)
        if old is not None and old.get(HASH_FIELD) == values[HASH_FIELD]:
            values[SEALED_FIELD] = old[SEALED_FIELD]
        return values
    old = _of_name(kept, guardrail)
    if old is not None and SEALED_FIELD in old and _url(old) == _url(guardrail):
        values |= {SEALED_FIELD: old[SEALED_FIELD], HASH_FIELD: old[HASH_FIELD]}
    return values


def _of_name(kept: Sequence[Mapping[str, JSON]], guardrail: Mapping[str, JSON]) -> Mapping[str, JSON] | None:
    return next((one for one in kept if one["name"] == guardrail["name"]), None)


def _url(guardrail: Mapping[str, JSON]) -> JSON:
    settings: Mapping[str, JSON] = guardrail.get("settings") or dict[str, JSON]()
    return settings.get("url")
