"""The command line: parses what is typed, runs the command, and makes one line of every mistake."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn, Self, TextIO

from policysearch.commands.registry import Command, commands, groups
from policysearch.commands.shared import say
from policysearch.commands.trust import guard
from policysearch.values import InputError, near_miss, printable

MEANT = {
    "start": "init",
    "search": "run",
    "train": "run",
    "resume": "run",
    "results": "show",
    "status": "show",
    "front": "show",
    "devices": "hardware",
    "html": "report",
    "compare": "why",
}
"""What people type for a command that is called otherwise."""

USER_ERROR = 2
INTERRUPTED = 130


class Parser(argparse.ArgumentParser):
    """Reports a mistake as one line, and takes options as they are spelled."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        choice = re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message)
        if choice:
            message += _hint(choice[1], choice[2].replace("'", "").split(", "))
        self.exit(USER_ERROR, f"{self.prog}: {message}; see {self.prog} --help\n")


def _hint(given: str, valid: Sequence[str]) -> str:
    """Return the end of a message on a wrong choice: what was probably meant."""
    if given.endswith(".toml"):
        return f"; did you mean 'policysearch run {given}'?"
    if given.endswith(".py"):
        return f"; did you mean 'policysearch init {given}'?"
    return near_miss(MEANT.get(given, given), valid)


class CommandParser(Parser):
    """The parser of one command, which learns its arguments when it is the one that parses."""

    def __init__(self, row: Command, **options: Any) -> None:
        super().__init__(**options)
        self.set_defaults(run=row.run)
        self._row: Command | None = row

    def with_arguments(self) -> Self:
        """Return the parser itself, after the command's arguments were added to it."""
        if self._row is not None:
            self._row.arguments(self)
            self._row = None
        return self

    def parse_known_args(self, *arguments: Any, **options: Any) -> Any:
        self.with_arguments()
        found, others = super().parse_known_args(*arguments, **options)
        if others:
            known = [name for name in self._option_string_actions if name.startswith("--")]
            given = next((text for text in others if text.startswith("-")), "").partition("=")[0]
            self.error(f"unrecognized arguments: {' '.join(others)}{near_miss(given, known)}")
        return found, others


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib import metadata  # reads files, which only this should wait for

        print(f"policysearch {metadata.version('policysearch')}")
        parser.exit(0)


def parser(rows: Sequence[Command] | None = None) -> Parser:
    """Return the parser of these commands, of all by default, which sets `run`."""
    finds = "Finds the mixed-precision training policies worth using for a net, recipe and device."
    as_written = argparse.RawDescriptionHelpFormatter
    top = Parser(prog="policysearch", description=finds, formatter_class=as_written)
    top.usage = "policysearch [-h] [--version] COMMAND ..."
    top.add_argument("--version", action=_Version, nargs=0, help="print the version and stop")
    choices = top.add_subparsers(
        prog="policysearch",
        required=True,
        metavar="COMMAND",
        parser_class=CommandParser,
        help=argparse.SUPPRESS,
    )
    shown = commands() if rows is None else rows
    for row in shown:
        says = f"{row.help[0].upper()}{row.help[1:]}."
        choices.add_parser(row.name, row=row, description=says, epilog=f"example: {row.typed}")
    top.epilog = "\n\n".join(
        "\n".join([f"{name}:", *(f"  {row.name:10} {row.help}" for row in those)])
        for name, those in groups(shown).items()
    )
    top.epilog += "\n\n`policysearch COMMAND --help` has arguments and an example."
    return top


def main(arguments: Sequence[str] | None = None, line: Parser | None = None) -> int:
    """Run the command line and return its exit code: 0, 2 for a user's mistake, 130 for Ctrl-C.

    `line` is another parser than `parser()`, which sets `run` as well.
    """
    make_streams_safe()
    with _shown():
        return _run(arguments, line)


def _run(arguments: Sequence[str] | None, line: Parser | None) -> int:
    try:
        options = (line or parser()).parse_args(arguments)
        with guard(getattr(options, "trust", False)):
            options.run(options)
        sys.stdout.flush()
    except InputError as error:
        return _refuse(str(error))
    except KeyboardInterrupt:
        say("policysearch: interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        drop_output()  # The reader of our output left, as `head` does.
    except OSError as error:
        drop_output()
        return _refuse(f"{error.filename or 'output'}: {error.strerror}; expected room and access")
    except MemoryError:
        return _refuse("memory: not enough for this; expected a smaller task or a larger machine")
    return 0


def _refuse(message: str) -> int:
    say(f"policysearch: {' '.join(message.split())}")
    return USER_ERROR


class _Shown:
    """A stream on which what a terminal would act on is written as its escape."""

    def __init__(self, stream: TextIO, kept: str) -> None:
        self._stream, self._kept = stream, kept

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        return self._stream.write(printable(text, self._kept))


@contextlib.contextmanager
def _shown() -> Iterator[None]:
    """Have all that a command says of files go through one filter; a bar may go back in its line.

    Names and messages come from studies, policies, journals, nets and rows of somebody else.
    """
    streams: tuple[Any, Any] = (_Shown(sys.stdout, "\n\t"), _Shown(sys.stderr, "\n\t\r"))
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
        yield


def make_streams_safe() -> None:
    """Let a closed stream swallow what is written, and any text be written in any encoding."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def drop_output() -> None:
    """Point standard output at nothing, so that the interpreter's last flush is silent."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
