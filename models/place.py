"""Where a program's caller stands: its version's profiles and the policy of its conversation, read once."""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy.orm import Session

from governance.handshake import ProgramDefinition
from governance.profiles import allowed_names, profile_key
from governance.subagents import merged_policy, withheld_tools
from models.catalog import CallerPlace
from models.conversation import Conversation
from models.program import ProgramVersion
from models.subagent import SubagentSession, find_session_of, place_of

NO_PROGRAM = ProgramDefinition(fingerprint="", protocol_version="", sdk_version="")
"""What a caller without a program has in place of a definition: no tools, no profiles, no configuration."""


@dataclass(frozen=True)
class Standing:
    """A caller's place, with the facts that it follows from."""

    place: CallerPlace
    definition: ProgramDefinition
    profile_key: str
    subagent: SubagentSession | None


def load_standing(
    session: Session,
    version: ProgramVersion | None,
    conversation: Conversation | None,
    wanted_profile: str | None = None,
    implementations: Mapping[str, str] | None = None,
) -> Standing:
    """Work out a caller's profile and subagent policy.

    The profile is the subagent session's, else the one asked for, else the program's configured one.
    """
    definition = NO_PROGRAM if version is None else version.definition()
    subagent = find_session_of(session, None if conversation is None else conversation.id)
    key = profile_key(
        subagent.profile_key if subagent is not None else wanted_profile, definition.default_config_snapshot
    )
    policy = merged_policy(
        definition.default_config_snapshot, None if conversation is None else conversation.override_payload
    )
    place = CallerPlace(
        program_version_id=None if version is None else version.id,
        profile_names=allowed_names(definition.profile_catalog, key),
        withheld_names=withheld_tools(policy, place_of(subagent)),
        implementations=dict(implementations or {}),
    )
    return Standing(place, definition, key, subagent)


def place_in(
    session: Session,
    conversation: Conversation | None,
    wanted_profile: str | None = None,
    implementations: Mapping[str, str] | None = None,
) -> CallerPlace:
    """Say where a caller stands: with its conversation's program, or at the gateway without one."""
    version_id = None if conversation is None else conversation.program_version_id
    version = None if version_id is None else session.get(ProgramVersion, version_id)
    return load_standing(session, version, conversation, wanted_profile, implementations).place
