"""What the commands that read a trace share: its argument, and how a file that cannot be read ends them."""

from __future__ import annotations

import argparse
import sys

EXIT_BAD_INPUT = 2


def add_argument(parser: argparse.ArgumentParser, name: str) -> None:
    parser.add_argument(name, metavar=name.upper(),
                        help="torch snapshot (gzip too), recording of ours, or STAlloc text trace")


def refuse(command: str, error: Exception) -> int:
    """Tells the error in one line; returns the exit status."""
    print(f"stalloc {command}: {error}", file=sys.stderr)
    return EXIT_BAD_INPUT
