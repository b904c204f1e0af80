"""How workflow code runs one of our transactions: at once in the workflow's own task, else patiently."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from workflows.options import LOCAL_TRANSACTION, PATIENT_TRANSACTION

RequestT = TypeVar("RequestT")
ResultT = TypeVar("ResultT")


async def transact(method: Callable[[Any, RequestT], Awaitable[ResultT]], request: RequestT) -> ResultT:
    """Run an idempotent transaction as a local activity and, if the database is away, as a normal one.

    Raises:
        ApplicationError: the transaction refused, and would again.
        ActivityError: the database stayed away for an hour.
    """
    try:
        return await workflow.execute_local_activity_method(method, request, **LOCAL_TRANSACTION)
    except ActivityError as error:
        if isinstance(error.cause, ApplicationError) and error.cause.non_retryable:
            raise error.cause from error
    return await workflow.execute_activity_method(method, request, **PATIENT_TRANSACTION)
