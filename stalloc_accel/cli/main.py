"""`stalloc`: finds the command's module and runs it."""

from __future__ import annotations

import argparse
import os
import pkgutil
import sys
from collections.abc import Sequence
from importlib import import_module

from .. import __version__

__all__ = ["main"]


def _command_names() -> list[str]:
    package = import_module(__package__)
    return sorted(m.name for m in pkgutil.iter_modules(package.__path__) if m.name != "main" and m.name[0] != "_")


def _parser(names: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="stalloc", description="Planned GPU memory for training.")
    parser.add_argument("--version", action="version", version=f"stalloc-accel {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="command", required=True)
    for name in names:
        import_module(f".{name}", __package__).add_parser(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, 1 for a failure that is told in one line, 2 for wrong arguments."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    names = _command_names()
    # One command's module is enough unless help on all of them, or on a misspelt one, is wanted.
    if arguments and arguments[0] in names:
        names = [arguments[0]]
    args = _parser(names).parse_args(arguments)
    from ..errors import StallocError

    try:
        return import_module(f".{args.command}", __package__).run(args)
    except BrokenPipeError:
        # The reader of our output went away, as `head` does: not a failure, but the flush at exit would be one.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (StallocError, OSError) as error:
        print(f"stalloc {args.command}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
