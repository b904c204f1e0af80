"""Profiles: which key applies to a caller, which names its profile admits. Pure: no I/O.

Source: core document, visible catalog and profile filtering.
"""

from collections.abc import Mapping
from typing import Final

from governance.canonical import JSON, is_array, is_object

DEFAULT_PROFILE: Final = "main"
"""The profile of a caller for whom nothing names another."""

SUBAGENT_DEFAULT: Final = "default"
"""What spawn's caller writes for "the profile that subagents get"."""

ALLOWED_NAMES: Final = "allowed_tool_names"
"""The field of a profile that masks the catalog."""

DEFAULT_FOR_SUBAGENTS: Final = "default_subagent_profile"
"""The field of a profile, true for the one that subagents get by default."""


def profile_key(session_profile: str | None, default_config: Mapping[str, JSON]) -> str:
    """Return the profile key of a caller: its subagent session's, `interactive.profile`, or `main`."""
    return session_profile or interactive_profile(default_config)


def interactive_profile(default_config: Mapping[str, JSON]) -> str:
    """Return the profile key of a conversation with a person."""
    interactive = default_config.get("interactive")
    configured = interactive.get("profile") if is_object(interactive) else None
    return configured if isinstance(configured, str) and configured else DEFAULT_PROFILE


def allowed_names(profiles: Mapping[str, JSON] | None, key: str) -> frozenset[str] | None:
    """Return the tool names that a profile admits; None where it does not filter.

    Without a profile catalog nothing is filtered. A catalog that lacks the key admits nothing: an unknown
    profile must not see more than a known one. A profile with `allowed_tool_names` admits exactly those.
    """
    if not profiles:
        return None
    profile = profiles.get(key)
    if not is_object(profile):
        return frozenset()
    if ALLOWED_NAMES not in profile:
        return None
    return _names(profile)


def knows_profile(profiles: Mapping[str, JSON] | None, default_config: Mapping[str, JSON], key: str) -> bool:
    """Say whether a profile may be asked for; without a profile catalog only the configured one may."""
    return key in profiles if profiles else key == interactive_profile(default_config)


def union_of_allowed_names(profiles: Mapping[str, JSON] | None) -> frozenset[str] | None:
    """Return the names that any profile lists; None where none of them has a list, which filters nothing."""
    lists = [_names(profile) for profile in (profiles or {}).values() if _has_list(profile)]
    return frozenset(name for names in lists for name in names) if lists else None


def subagent_profile(
    profiles: Mapping[str, JSON] | None, default_config: Mapping[str, JSON], wanted: str | None
) -> str | None:
    """Return the profile of a new subagent; None for a key that the catalog does not have.

    Blank and `default` mean the profile flagged as the subagents' default, else the first one in the
    catalog's order that is not the interactive one, else the interactive one.
    """
    catalog = profiles or {}
    if wanted and wanted in catalog:
        return wanted
    if wanted and wanted != SUBAGENT_DEFAULT:
        return None
    for key, profile in catalog.items():
        if is_object(profile) and profile.get(DEFAULT_FOR_SUBAGENTS) is True:
            return key
    interactive = interactive_profile(default_config)
    return next((key for key in catalog if key != interactive), interactive)


def _has_list(profile: JSON) -> bool:
    return is_object(profile) and ALLOWED_NAMES in profile


def _names(profile: Mapping[str, JSON]) -> frozenset[str]:
    listed = profile[ALLOWED_NAMES]
    return frozenset(name for name in listed if isinstance(name, str)) if is_array(listed) else frozenset()
