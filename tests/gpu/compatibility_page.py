"""Puts what a run of test_parity.py found into the page that shows it.

    python tests/gpu/compatibility_page.py ROWS.json [docs/compatibility.md]

Without a page the table goes to the standard output.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- parity table: begin -->", "<!-- parity table: end -->"
MAX_CELL = 90


def cell(value: Any) -> str:
    """A value in the space of a cell: what is for the reader only, else the value itself, shortened."""
    if isinstance(value, dict):
        shown = {key.removeprefix("shown "): item for key, item in value.items() if key.startswith("shown ")} or value
        text = ", ".join(f"{key}: {item}" for key, item in shown.items())
    elif value is None:
        text = ""
    else:
        text = value if isinstance(value, str) else json.dumps(value)
    text = " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
    return text if len(text) <= MAX_CELL else text[: MAX_CELL - 3] + "..."


def verdict(row: dict[str, Any]) -> str:
    """What the last column says."""
    if row["status"] == "skipped":
        return f"not run: {row['problem']}"
    if row["status"] == "differs":
        return f"**differs**: {cell(row['problem'])}"
    return "same" + (f"; {row['why']}" if row["why"] else "")


def table(found: dict[str, Any]) -> str:
    """The section of the page, in Markdown."""
    named = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    rows = found["rows"]
    counts = {status: sum(row["status"] == status for row in rows) for status in ("same", "differs", "skipped")}
    lines = [f"Run on {found['date']}: {named}. {counts['same']} of {len(rows)} rows are the same, {counts['differs']} differ, "
             f"{counts['skipped']} were not run. *Served* counts the requests that came from the arena during the feature.", ""]
    for area, variant in dict.fromkeys((row["area"], row["variant"]) for row in rows):
        lines += [f"### {area}" + (f", {variant}" if variant else ""), "",
                  "| feature | native | ours | served | verdict |", "|---|---|---|---|---|"]
        lines += [f"| {cell(row['feature'])} | {cell(row['native'])} | {cell(row['ours'])} | {row['served']} | {verdict(row)} |"
                  for row in rows if (row["area"], row["variant"]) == (area, variant)]
        lines.append("")
    return "\n".join(lines)


def put_into(page: str, section: str) -> str:
    """`page` with `section` between its two marks. Raises ValueError where it lacks them."""
    if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(BEGIN) > page.index(END):
        raise ValueError(f"page: marks={page.count(BEGIN)}, must have {BEGIN} and {END} once each. Put them in.")
    return f"{page[: page.index(BEGIN)]}{BEGIN}\n\n{section.strip()}\n\n{page[page.index(END):]}"


def main(arguments: list[str]) -> int:
    section = table(json.loads(Path(arguments[0]).read_text()))
    if len(arguments) < 2:
        print(section)
        return 0
    page = Path(arguments[1])
    page.write_text(put_into(page.read_text(), section))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
