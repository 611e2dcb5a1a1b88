"""The rows of the command line, and the page of them; a file of this folder that has rows adds its.

What a command needs is imported where it runs: `--help` reads every file of this folder.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

HEAD = """# The commands

What `policysearch --help` and `policysearch COMMAND --help` say, in one page. It is made from the
code by `make docs`."""


GROUPS = (
    (0, "search"),
    (100, "look"),
    (200, "explain"),
    (300, "export"),
    (400, "machine"),
)
"""The first place of each group of commands."""


def _no_arguments(command: argparse.ArgumentParser) -> None:
    """Let the command take nothing."""


@dataclass(frozen=True)
class Command:
    """One command: `help` is its line, `place` its place among the others, lowest first.

    The place says the group too, see GROUPS. `example` is a line as it is typed, where the name
    alone is none. `run` gets what `arguments` lets the command take; it raises InputError for a
    user's mistake.
    """

    place: int
    name: str
    help: str
    run: Callable[[argparse.Namespace], None]
    arguments: Callable[[argparse.ArgumentParser], None] = _no_arguments
    example: str = ""

    @property
    def group(self) -> str:
        """What the command is for: the last of GROUPS that begins at its place or before."""
        return [name for first, name in GROUPS if first <= self.place][-1]

    @property
    def typed(self) -> str:
        """The example with the program before it."""
        return f"policysearch {self.example or self.name}"


def groups(rows: Sequence[Command]) -> dict[str, list[Command]]:
    """Return the commands by their groups, in the order of their places."""
    named = {name: [row for row in rows if row.group == name] for _, name in GROUPS}
    return {name: those for name, those in named.items() if those}


@cache
def commands() -> tuple[Command, ...]:
    """Return the `COMMANDS` of all files of this folder, by their places."""
    names = [module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)])]
    modules = [importlib.import_module(f"{__package__}.{name}") for name in names]
    rows = [row for module in modules for row in getattr(module, "COMMANDS", ())]
    return tuple(sorted(rows, key=lambda row: row.place))


def commands_page() -> str:
    """Return all commands and their arguments as Markdown."""
    parts = [HEAD]
    for name, rows in groups(commands()).items():
        parts.append(f"## {name.capitalize()}")
        parts += ["\n\n".join(_section(row)) for row in rows]
    return "\n\n".join(parts)


def _section(row: Command) -> Iterator[str]:
    yield f"### {row.name}"
    yield f"{row.help[0].upper()}{row.help[1:]}."
    yield f"```sh\n{row.typed}\n```"
    parser = argparse.ArgumentParser(add_help=False)
    row.arguments(parser)
    lines = [f"| `{_spelling(action)}` | {_meaning(action)} |" for action in parser._actions]
    if lines:
        yield "\n".join(["| argument | meaning |", "|---|---|", *lines])


def _spelling(action: argparse.Action) -> str:
    """Return the argument as it is typed: with its value, in brackets where it may be left out."""
    name, value = "".join(action.option_strings), action.metavar
    if value is None and action.choices:
        value = "{" + ",".join(action.choices) + "}"
    if value is None and action.nargs != 0:
        value = action.dest.upper()
    spelled = " ".join(map(str, filter(None, (name, value)))) + " ..." * (action.nargs == "+")
    spelled = spelled.replace("|", "\\|")
    return f"[{spelled}]" if action.nargs == "?" or not (action.required or not name) else spelled


def _meaning(action: argparse.Action) -> str:
    return (action.help or "").replace("<", "&lt;")


if __name__ == "__main__":
    print(commands_page())
