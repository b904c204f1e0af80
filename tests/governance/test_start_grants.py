"""Start grants: one round, one key, one time."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.freezing import FreezeRound
from governance.start_grants import GRANTED_FIELDS, GrantFault, check_grant, mint_grant
from workflows.messages import RoundInput

SECRET = bytes(range(32))
ASKED: dict[str, Any] = {
    "key_id": "key",
    "round_key": "once",
    "calls": [{"id": "c1", "name": "bank-pay", "arguments": {"amount": 2**70, "note": "é"}}],
    "include_clients": None,
    "include_tools": ["bank-*"],
    "on_unknown": "fail",
    "task_id": None,
    "conversation_id": None,
    "implementations": {},
    "profile_key": None,
}
OTHERS: Mapping[str, Any] = {
    "key_id": "other",
    "round_key": "twice",
    "calls": [{"id": "c1", "name": "bank-pay", "arguments": {"amount": 2**70 + 1, "note": "é"}}],
    "include_clients": [],
    "include_tools": None,
    "on_unknown": "wait",
    "task_id": "task",
    "conversation_id": "conversation",
    "implementations": {"bank-pay": "other"},
    "profile_key": "profile",
}


def test_a_grant_holds_until_it_expires() -> None:
    grant = mint_grant(SECRET, ASKED, expires_at=1000)
    assert check_grant(SECRET, ASKED, grant, 999.9) is None
    assert check_grant(SECRET, ASKED, grant, 1000) is GrantFault.EXPIRED


@pytest.mark.parametrize("name", GRANTED_FIELDS)
def test_a_grant_holds_for_no_other_round(name: str) -> None:
    grant = mint_grant(SECRET, ASKED, expires_at=1000)
    assert check_grant(SECRET, {**ASKED, name: OTHERS[name]}, grant, 0) is GrantFault.OTHER_ROUND


def test_a_grant_holds_for_no_other_time_and_with_no_other_secret() -> None:
    grant = mint_grant(SECRET, ASKED, expires_at=1000)
    assert check_grant(SECRET, ASKED, grant.replace("_1000_", "_9000_"), 2000) is GrantFault.OTHER_ROUND
    assert check_grant(bytes(32), ASKED, grant, 0) is GrantFault.OTHER_ROUND
    # An old grant of another's round tells nothing of its age.
    assert check_grant(bytes(32), ASKED, grant, 2000) is GrantFault.OTHER_ROUND


@given(st.one_of(st.text(), st.from_regex(r"sgg_[0-9\u0660-\u0669]{0,14}_?[0-9a-fé]{0,70}")))
def test_what_the_api_did_not_mint_never_holds(text: str) -> None:
    fault = check_grant(SECRET, ASKED, text, 0)
    assert fault is (GrantFault.MISSING if text == "" else fault)
    assert fault is not None


def test_arguments_without_a_json_form_have_no_grant() -> None:
    calls = [{"id": "c1", "name": "bank-pay", "arguments": {"note": "\ud800"}}]
    grant = mint_grant(SECRET, ASKED, expires_at=1000)
    assert check_grant(SECRET, {**ASKED, "calls": calls}, grant, 0) is GrantFault.OTHER_ROUND


def test_every_field_that_decides_what_a_round_does_is_granted() -> None:
    # What names the workflow and the stored row, and what says how it is run, decides nothing.
    frozen = {field.name for field in fields(FreezeRound)}
    assert frozen - set(GRANTED_FIELDS) == {"workflow_id", "round_id", "body_digest", "grant"}
    given = {field.name for field in fields(RoundInput)}
    how = {"round_id", "body_digest", "grant", "search_attributes", "heartbeat_timeout_s"}
    assert given - set(GRANTED_FIELDS) == how
    assert set(GRANTED_FIELDS) == set(OTHERS)
