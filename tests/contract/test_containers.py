"""The container files name only what exists: folders, settings, commands. No engine is needed to see that."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from api.commands.root import COMMANDS
from settings import Settings

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if service.get("image") == "sluicegate"}
DOCKERFILE = (ROOT / "Dockerfile").read_text()
WHEEL = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]


def variables(text: str) -> set[str]:
    return set(re.findall(r"SLUICEGATE_[A-Z_]+", text))


def test_every_service_runs_a_command_of_ours() -> None:
    named = {service["command"][0] for service in OURS.values()}
    assert named == {"migrate", "serve", "worker"}
    assert named <= set(COMMANDS)


@pytest.mark.parametrize("name", ["Dockerfile", "docker-compose.yml"])
def test_every_variable_is_a_setting(name: str) -> None:
    settings = {f"SLUICEGATE_{field.upper()}" for field in Settings.model_fields}
    assert variables((ROOT / name).read_text()) <= settings


def test_every_process_waits_for_the_migrations() -> None:
    waits = {
        name: service["depends_on"]["migrate"]["condition"]
        for name, service in OURS.items()
        if name != "migrate"
    }
    assert waits == {"api": "service_completed_successfully", "worker": "service_completed_successfully"}


def test_every_service_that_is_waited_for_exists_and_shows_its_health() -> None:
    for service in SERVICES.values():
        for name, condition in service.get("depends_on", {}).items():
            assert condition["condition"] != "service_healthy" or "healthcheck" in SERVICES[name]


def test_no_port_is_open_to_other_machines() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []


def test_every_secret_must_be_given() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    assert set(re.findall(r"\$\{([A-Z_]+)", text)) == set(re.findall(r"\$\{([A-Z_]+):\?", text))


def test_the_image_holds_every_top_level_module_and_nothing_that_is_not_there() -> None:
    copied = {
        name
        for line in re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
        for name in line.split()
    }
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert set(WHEEL["only-include"]) <= copied
    assert copied == kept
    assert [name for name in copied if not (ROOT / name).exists()] == []
