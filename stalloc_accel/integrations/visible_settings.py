"""Sections that can be seen before any host is imported: in the environment and in files named on the command line.

Found here, a section is known inside `import torch`, before the first CUDA allocation.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from stalloc_accel import environment
from stalloc_accel.config import SECTION, Source, section_from_token

_MAX_FILE_BYTES = 1 << 20  # a configuration is small; a data set that ends in .json is not
_DEEPSPEED_FLAGS = ("--deepspeed", "--deepspeed_config", "--deepspeed-config", "--deepspeed_config_file")


def find() -> Iterator[tuple[Any, Source, str]]:
    """(section, source, origin), the strongest source first, so that a weaker one never starts what it turns off."""
    num_found = 0
    for text, origin in _deepspeed_candidates(sys.argv[1:]):
        section = section_of(text)
        if section is not None:
            num_found += 1
            yield section, Source.DEEPSPEED, origin
            break
    token = environment.config_token()
    if token:
        num_found += 1
        yield section_from_token(token), Source.YAML, environment.config_source() or "STALLOC_CONFIG"
    if not num_found and environment.is_enabled():
        yield environment.section(), Source.ENVIRONMENT, "environment"


def _deepspeed_candidates(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(text, origin) of what may be a DeepSpeed configuration: a path, JSON or base64 JSON."""
    text = os.environ.get("ACCELERATE_DEEPSPEED_CONFIG_FILE")
    if text:
        yield text, _origin(text, "ACCELERATE_DEEPSPEED_CONFIG_FILE")
    for position, argument in enumerate(arguments):
        flag, equals, value = argument.partition("=")
        if flag in _DEEPSPEED_FLAGS:
            if not equals:
                value = arguments[position + 1] if position + 1 < len(arguments) else ""
        elif not argument.endswith(".json"):
            continue
        elif not equals:
            value = argument
        if value and not value.startswith("-"):
            yield value, _origin(value, flag)


def _origin(text: str, place: str) -> str:
    return text if os.path.isfile(text) else place


def section_of(text: str) -> Any:
    """The section in a DeepSpeed configuration given as a path, JSON or base64 JSON; None if there is none.

    What cannot be read is the host's to complain about. One level is followed: an arguments file of a Trainer script
    names its DeepSpeed configuration under "deepspeed".
    """
    outer = _parsed(text)
    if isinstance(outer, dict) and SECTION not in outer and outer.get("deepspeed"):
        inner = outer["deepspeed"]
        outer = _parsed(inner) if isinstance(inner, str) else inner
    return outer.get(SECTION) if isinstance(outer, dict) else None


def _parsed(text: str) -> Any:
    try:
        if os.path.isfile(text):
            if os.path.getsize(text) > _MAX_FILE_BYTES:
                return None
            with open(text, encoding="utf-8") as file:
                text = file.read()
        elif not text.lstrip().startswith("{"):
            text = base64.urlsafe_b64decode(text).decode()
        if f'"{SECTION}"' not in text and '"deepspeed"' not in text:
            return None
        return json.loads(text)
    except (OSError, ValueError, RecursionError):
        return None
