"""What a newcomer is told: each help text, and each command line of the help and of the pages."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from podwire.cli.__main__ import main
from podwire.cli.app import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ENDS = {"#", "&", "&&", "|", ">", ";"}


def commands(command: Any, *names: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield names, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, *names, name)


COMMANDS = dict(commands(typer.main.get_command(app)))


def accept(line: str) -> None:
    """Parse a command line, with its callbacks, and run nothing."""
    words = shlex.split(line)[1:]
    names: tuple[str, ...] = ()
    while words and (*names, words[0]) in COMMANDS:
        names = (*names, words.pop(0))
    command = COMMANDS[names]
    assert not hasattr(command, "commands") or not words or words[0].startswith("-"), f"no command {words[0]}"
    command.make_context("podwire", words)


def lines_of(text: str) -> list[str]:
    """The command lines of ours in a text, each without the remark that stands behind it."""
    found = []
    for line in text.splitlines():
        for part in re.split(r" && | \| ", line):
            if re.match(r"\s*podwire [a-z-]", part):
                words = re.split(r" {2,}", part.strip())[0].split()
                found.append(
                    " ".join(words[: next((i for i, word in enumerate(words) if word in ENDS), None)])
                )
    return found


def documented() -> list[tuple[str, str]]:
    return [
        (str(page.relative_to(ROOT)), line)
        for page in PAGES
        for block in re.findall(r"^```(?:sh|console)?\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
        for line in lines_of(block)
    ]


@pytest.mark.parametrize("names", COMMANDS, ids=" ".join)
def test_the_examples_of_the_help_can_be_typed(names: tuple[str, ...]) -> None:
    for line in lines_of(COMMANDS[names].epilog or ""):
        accept(line)


@pytest.mark.parametrize(("page", "line"), documented())
def test_the_command_lines_of_the_pages_can_be_typed(page: str, line: str) -> None:
    accept(line)


def test_examples_were_found() -> None:
    assert len(documented()) > 25
    assert len(lines_of(COMMANDS["up",].epilog)) == 5


@pytest.mark.parametrize(
    "names", [names for names, each in COMMANDS.items() if hasattr(each, "commands")], ids=" ".join
)
def test_each_command_is_told_in_one_whole_line(
    names: tuple[str, ...], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    main([*names, "--help"])
    listed = capfd.readouterr().out.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    assert len(listed) == len(COMMANDS[names].commands)
    for line in listed:
        assert line.endswith(".")
        assert not line.endswith("...")


@pytest.mark.parametrize("names", COMMANDS, ids=" ".join)
def test_each_option_and_argument_is_told(names: tuple[str, ...]) -> None:
    for each in COMMANDS[names].params:
        assert getattr(each, "help", None) or each.hidden, each.name
