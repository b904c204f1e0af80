"""docs/architecture.md names functions, files and tables that are there, and every table."""

import importlib
import re
from functools import reduce
from pathlib import Path

import pytest

from models.tables import METADATA

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")

FUNCTION = r"`((?:governance|models|workflows|activities|api)/[\w/]+\.py):([\w.]+)`"
NAMED = sorted(set(re.findall(FUNCTION, PAGE)))
FILES = sorted(set(re.findall(r"`([\w/]+\.py)\b", PAGE)))
TABLES = PAGE.partition("## Tables\n")[2].partition("Snapshots, sets")[0]


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_a_function_that_the_page_names_is_in_the_file_it_names(file: str, name: str) -> None:
    module = importlib.import_module(file.removesuffix(".py").replace("/", "."))
    assert reduce(getattr, name.split("."), module)


def test_the_page_follows_a_call_by_name() -> None:
    assert len(NAMED) >= 12
    assert [file for file in FILES if not (ROOT / file).is_file()] == []


def test_the_page_names_every_table_and_no_other() -> None:
    assert set(re.findall(r"`(\w+)`", TABLES)) == set(METADATA.tables)
