"""Lets a round that was started through Temporal begin only with a grant that the API minted for it."""

import time
from collections.abc import Callable, Mapping

from sqlalchemy import bindparam, exists, select
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from governance.canonical import JSON
from governance.codes import ErrorCode
from governance.start_grants import GrantFault, check_grant
from models.audit import AuditFact, AuditKind, append_audit
from models.database import Database, WriteSession
from models.round import Round

ROUND_NOT_GRANTED = "RoundNotGranted"
"""Failure type: rounds need a start grant here, and this one has none that holds for it."""

_REASONS = {
    GrantFault.MISSING: "it has none",
    GrantFault.MALFORMED: "what it has is no grant",
    GrantFault.EXPIRED: "its grant has expired",
    GrantFault.OTHER_ROUND: "its grant was minted for another round, or with another vault key",
}

_IS_STORED = select(exists().where(Round.workflow_id == bindparam("workflow")))


class StartGate:
    """Refuses what was started without the API's word. A grant is checked before anything is stored."""

    def __init__(self, database: Database, secret: bytes, clock: Callable[[], float] = time.time) -> None:
        """Check grants with the secret that the API mints them with; `clock` gives Unix seconds."""
        self._database = database
        self._secret = secret
        self._clock = clock

    async def require(self, workflow_id: str, asked: Mapping[str, JSON], grant: str) -> None:
        """Let a round begin, or write down that it may not.

        A round that is stored already was let in before, and goes on however old its grant is now.

        Raises:
            ApplicationError: of type RoundNotGranted; it does not get better by retrying.
        """
        fault = check_grant(self._secret, asked, grant, self._clock())
        if fault is None or not await self._database.write(_refuse, workflow_id, asked["key_id"], fault):
            return
        raise ApplicationError(
            f"This installation starts rounds through Temporal only with a start grant; {_REASONS[fault]}."
            " Ask for one with POST /v1/rounds/grants, and start what it returns.",
            type=ROUND_NOT_GRANTED,
            non_retryable=True,
            category=ApplicationErrorCategory.BENIGN,
        )


def _refuse(session: WriteSession, workflow_id: str, key_id: str, fault: GrantFault) -> bool:
    """Append the audit row of a refusal; False where the round is stored, so that it is none."""
    if session.scalar(_IS_STORED, {"workflow": workflow_id}):
        return False
    append_audit(
        session,
        AuditFact(
            AuditKind.REQUEST_REFUSED,
            # Not the key: that it was named shows nothing of who asked.
            actor="unknown",
            request_id=workflow_id[:64],
            code=ErrorCode.START_GRANT_REQUIRED.value,
            data={"key": key_id[:64], "reason": fault.value},
        ),
    )
    return True
