"""The workflow that verifies a connection and discovers its tools."""

from temporalio import workflow

from activities.connection_sync import ConnectionSyncer, SyncConnection
from workflows.messages import CONNECTION_SYNC, ConnectionSyncInput, ConnectionSyncResult
from workflows.options import SYNC_RETRY, SYNC_TIMEOUT


@workflow.defn(name=CONNECTION_SYNC)
class ConnectionSync:
    """Contacts one server once."""

    @workflow.run
    async def run(self, request: ConnectionSyncInput) -> ConnectionSyncResult:
        """Contact the server and return what that showed; a failing server is a result, not a failure."""
        report = await workflow.execute_activity_method(
            ConnectionSyncer.sync_connection,
            SyncConnection(request.connection_id),
            start_to_close_timeout=SYNC_TIMEOUT,
            retry_policy=SYNC_RETRY,
        )
        return ConnectionSyncResult(
            ok=report.ok,
            tools=report.tools,
            added=report.added,
            changed=report.changed,
            retired=report.retired,
            dropped=report.dropped,
            failure=report.failure,
        )
