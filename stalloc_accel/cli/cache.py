"""`stalloc cache`: look into the plan store, compare keys, and remove plans."""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Mapping
from typing import Any

from stalloc_accel import environment
from stalloc_accel.errors import PlanFileError, describe
from stalloc_accel.fingerprint.key import Key, explain
from stalloc_accel.plan_store import Entry, PlanStore

_GIB = 1 << 30
_MIN_PREFIX = 4


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("cache", help="list, show, compare and remove kept plans")
    commands = parser.add_subparsers(dest="cache_command", metavar="command", required=True)
    _add_command(commands, "list", "all plans, the last used first")
    _add_command(commands, "show", "one plan: its key, field by field, and its figures").add_argument("key", metavar="KEY")
    compared = _add_command(commands, "explain", "what differs between two keys, of plans or of launches")
    compared.add_argument("a", metavar="A")
    compared.add_argument("b", metavar="B")
    _add_command(commands, "remove", "one plan and the launches that lead to it").add_argument("key", metavar="KEY")
    _add_command(commands, "clear", "all plans")


def _add_command(commands: Any, name: str, text: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=text, description=f"{text}. A KEY may be shortened to its first characters.")
    parser.add_argument("--dir", metavar="DIR", help="the store's directory (default: STALLOC_CACHE_DIR, else the user's)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def run(args: argparse.Namespace) -> int:
    # Looking does not count as use, or it would change what is evicted first.
    store = PlanStore(args.dir or environment.cache_dir(), "readonly")
    commands = {"list": _list, "show": _show, "explain": _explain, "remove": _remove, "clear": _clear}
    return commands[args.cache_command](store, args)


def _list(store: PlanStore, args: argparse.Namespace) -> int:
    entries, launches = store.entries(), store.launches()
    rows = [{**_summary(entry), "launches": [launch for launch, key in launches.items() if key == entry.digest]}
            for entry in entries]
    document = {"cache_dir": str(store.path), "total_bytes": sum(entry.size_bytes for entry in entries), "plans": rows}
    if args.json:
        return _print_json(document)
    from rich.table import Table

    console = _console()
    if not rows:
        console.print(_text(f"{store.path}: no plans"), soft_wrap=True)
        return 0
    table = Table(title=f"{len(rows)} plans, {document['total_bytes'] / (1 << 20):.1f} MiB in {_printable(store.path)}",
                  title_justify="left")
    for column in ("key", "model", "rank", "arena GiB", "file MiB", "last used", "state"):
        table.add_column(column, overflow="fold", no_wrap=column == "key")
    for row in rows:
        table.add_row(*(_text(cell) for cell in (
            row["key"][:12], row["model"], row["rank"], _gib(row["arena_bytes"]), f"{row['bytes'] / (1 << 20):.2f}",
            row["last_used"], row["problem"] or "good")))
    console.print(table)
    return 0


def _summary(entry: Entry) -> dict[str, Any]:
    fields = entry.key.fields if entry.key is not None else {}
    used = datetime.datetime.fromtimestamp(int(entry.used_at)).isoformat(" ")
    arena = entry.facts.get("arena_bytes")
    return {"key": entry.digest, "bytes": entry.size_bytes, "last_used": used, "problem": entry.problem,
            "model": str(fields.get("model.class", "-")).rsplit(".", 1)[-1], "rank": _rank_of(fields),
            "arena_bytes": arena if type(arena) is int else None}


def _rank_of(fields: Mapping[str, Any]) -> str:
    for host in ("deepspeed", "trainer", "accelerate", "launch"):
        rank, size = fields.get(f"{host}.rank"), fields.get(f"{host}.world_size")
        if rank is not None:
            return f"{rank} of {size}"
    return "-"


def _show(store: PlanStore, args: argparse.Namespace) -> int:
    digest = _resolved(store, args.key, [entry.digest for entry in store.entries()])
    stored = store.load(digest)
    launches = sorted(launch for launch, key in store.launches().items() if key == digest)
    numbers = {name: value for name, value in stored.plan.items() if isinstance(value, int)}
    document = {"key": digest, "fields": dict(stored.key.fields), "facts": dict(stored.facts), "launches": launches,
                "plan": {**numbers, "slots": len(stored.plan["slot_size"]),
                         "arena_bytes": int(stored.plan["arena_bytes"].sum()),
                         "lower_bound_bytes": int(stored.plan["lower_bound_bytes"].sum())}}
    if args.json:
        return _print_json(document)
    console = _console()
    for title in ("fields", "plan", "facts"):
        console.print(f"{title} of {digest}" if title == "fields" else title)
        for name, value in sorted(document[title].items()):
            console.print(_text(f"  {name} = {value if isinstance(value, str) else json.dumps(value)}"), soft_wrap=True)
    console.print(f"launches: {', '.join(launches) or 'none'}", markup=False, soft_wrap=True)
    return 0


def _explain(store: PlanStore, args: argparse.Namespace) -> int:
    a, b = (_any_key(store, given) for given in (args.a, args.b))
    lines = explain(a, b)
    if args.json:
        return _print_json({"a": a.digest, "b": b.digest, "differences": lines})
    console = _console()
    for line in lines or ["The keys are equal."]:
        console.print(_text(line), soft_wrap=True)
    return 0


def _any_key(store: PlanStore, given: str) -> Key:
    """The key of a plan or of a launch. A plan whose arrays are damaged can still be compared by its header."""
    entries = {entry.digest: entry for entry in store.entries()}
    launches = store.launches()
    digest = _resolved(store, given, [*entries, *launches])
    if digest not in entries:
        return store.launch(digest)
    entry = entries[digest]
    if entry.key is None:
        raise PlanFileError(str(entry.problem))
    return entry.key


def _remove(store: PlanStore, args: argparse.Namespace) -> int:
    digest = _resolved(store, args.key, [entry.digest for entry in store.entries()])
    store.remove(digest)
    return _tell(args, {"removed": [digest]}, f"removed {digest}")


def _clear(store: PlanStore, args: argparse.Namespace) -> int:
    digests = [entry.digest for entry in store.entries()]
    num_removed = store.clear()
    return _tell(args, {"removed": digests}, f"removed {num_removed} plans from {store.path}")


def _resolved(store: PlanStore, given: str, digests: list[str]) -> str:
    """The one digest that begins with `given`."""
    found = sorted({digest for digest in digests if digest.startswith(given.lower())}) if len(given) >= _MIN_PREFIX else []
    if len(found) == 1:
        return found[0]
    rule = f"must be the beginning of one key in {store.path}, at least {_MIN_PREFIX} characters"
    remedy = f"It fits {', '.join(found[:5])}." if found else "List them with `stalloc cache list`."
    raise PlanFileError(describe("plan store", "key", given, rule, remedy))


def _tell(args: argparse.Namespace, document: dict[str, Any], text: str) -> int:
    if args.json:
        return _print_json(document)
    _console().print(_text(text), soft_wrap=True)
    return 0


def _print_json(document: dict[str, Any]) -> int:
    json.dump(document, sys.stdout, indent=2)
    sys.stdout.write("\n")
    return 0


def _console() -> Any:
    from rich.console import Console

    return Console(highlight=False)


def _text(value: object) -> Any:
    """Text from a file, shown as it is: neither markup nor a terminal's control characters take effect."""
    from rich.text import Text

    return Text(_printable(value))


def _printable(value: object) -> str:
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in str(value))


def _gib(num_bytes: int | None) -> str:
    return "-" if num_bytes is None else f"{num_bytes / _GIB:.3f}"
