"""The FastAPI application: the callers' side of Sluicegate. It translates and never decides."""

from importlib.metadata import version

from fastapi import FastAPI

from api.configuration.known_secrets import router as known_secrets
from api.configuration.preview import router as preview
from api.console.auth_failures import AuthFailureLimit
from api.console.page import router as console_page
from api.console.security_headers import SecurityHeaders
from api.deps import APIDeps
from api.docs_page import install_docs
from api.documented import install_openapi
from api.middleware import RequestContext
from api.refusals import install_refusals
from api.routes import (
    argument_rules,
    audit,
    call_cancels,
    chat,
    connections,
    console_login,
    execute,
    guardrails,
    health,
    invocations,
    key_tools,
    keys,
    mcp_endpoint,
    policies,
    program_capabilities,
    program_tasks,
    programs,
    providers,
    quotas,
    records,
    rounds,
    runtimes,
    start_grants,
    tool_governance,
    tools,
    unknown_outcomes,
    usage,
)

ROUTERS = (
    chat.router,
    tools.router,
    execute.router,
    rounds.router,
    start_grants.router,
    call_cancels.router,
    invocations.router,
    usage.own_router,
    mcp_endpoint.router,
    keys.router,
    key_tools.router,
    quotas.router,
    known_secrets,
    preview,
    connections.router,
    policies.router,
    argument_rules.router,
    guardrails.router,
    programs.router,
    runtimes.router,
    tool_governance.router,
    program_capabilities.router,
    program_tasks.router,
    providers.router,
    records.router,
    usage.router,
    audit.router,
    unknown_outcomes.router,
    console_login.router,
    console_page,
    health.router,
)
"""Every route, in the order of the documentation."""


def create_app(deps: APIDeps) -> FastAPI:
    """Build the application; it owns nothing, so whoever built `deps` closes it."""
    app = FastAPI(
        title="Sluicegate",
        version=version("sluicegate"),
        summary="Governed, durable and auditable tool calls for LLM agents",
        # The framework's own pages load scripts from a CDN.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.deps = deps
    for router in ROUTERS:
        app.include_router(router)
    install_refusals(app)
    install_openapi(app)
    install_docs(app)
    app.add_middleware(AuthFailureLimit, per_minute=deps.settings.auth_failures_per_minute)
    app.add_middleware(RequestContext)
    app.add_middleware(SecurityHeaders)
    return app
