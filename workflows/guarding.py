"""How a round lets guardrails judge its calls before any of them starts."""

import asyncio
from dataclasses import replace

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

from activities.freezing import FrozenRound
from activities.guardrails import Guardrails, GuardRound
from workflows.options import GUARD_ACTIVITY


async def guard(plan: FrozenRound) -> FrozenRound:
    """Let guardrails judge the calls; what they refuse, or could not judge, is not in the plan any more.

    Raises:
        asyncio.CancelledError: the round was canceled meanwhile.
    """
    try:
        judged = await workflow.execute_activity_method(
            Guardrails.guard_round, GuardRound(plan.round_id), summary="guardrails", **GUARD_ACTIVITY
        )
    except ActivityError as error:
        if is_cancelled_exception(error):
            raise asyncio.CancelledError from error
        # No row says that they passed, so nobody can open them; they end as not sent.
        workflow.logger.warning("The calls of round %s could not be judged.", plan.round_id)
        return replace(plan, calls=[])
    calls = [call for call in plan.calls if call.position not in judged.refused]
    return replace(plan, calls=calls, refused=plan.refused + len(plan.calls) - len(calls))
