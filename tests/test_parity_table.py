"""The machinery of the parity suite: what it calls the same, what it does with a process that dies, and its page."""

from __future__ import annotations

import sys
from pathlib import Path

import compatibility_page
import parity
import pytest

SAMPLE = '''
import os, time
from parity import FeatureTable, Unavailable
features = FeatureTable("sample")

@features("first")
def first(side):
    return {"a": [1, 2.0], "shown b": os.getpid()}

@features("dies")
def dies(side):
    os._exit(3)

@features("raises")
def raises(side):
    raise RuntimeError("no luck")

@features("cannot run")
def cannot_run(side):
    raise Unavailable("a second sun is missing")

@features("hangs", seconds=1)
def hangs(side):
    time.sleep(60)

@features("last", served=False)
def last(side):
    return "done"
'''


@pytest.fixture
def sample(tmp_path, monkeypatch):
    (tmp_path / "features_sample.py").write_text(SAMPLE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    yield parity.collect("sample", "rehearsal", "")
    sys.modules.pop("features_sample", None)


def test_a_feature_that_dies_or_hangs_takes_no_other_with_it(sample):
    assert sample["first"]["result"]["a"] == [1, 2.0] and sample["last"]["result"] == "done"
    assert "exit status 3" in sample["dies"]["ended"]
    assert "no luck" in sample["raises"]["raised"]
    assert sample["cannot run"]["unavailable"] == "a second sun is missing"
    assert "hangs" in sample["hangs"]["ended"], "the dump of the stack names the function"


def test_only_equal_results_of_which_something_was_served_are_the_same(sample):
    features = {feature.name: feature for feature in parity.table_of("sample").features}

    def status(name, ours):
        row = parity.judge("sample", "", features[name], sample[name], {**sample[name], **ours})
        return row["status"], row["problem"]

    assert status("first", {"served": 3}) == ("same", "")
    assert status("first", {"served": 3, "result": {"a": [1, 2.0], "shown b": 0}}) == ("same", "")
    assert status("first", {"served": 0})[1].startswith("nothing was served")
    assert status("first", {"served": 3, "result": {"a": [1, 2.5], "shown b": 0}})[1] == ".a[1]: 2.0 against 2.5"
    assert status("first", {"served": 3, "refused": "off"})[0] == "differs"
    assert status("first", {"served": 3, "unclean": "1 bad frees"})[1] == "ours: 1 bad frees"
    assert status("last", {"served": 0}) == ("same", "")
    for broken in ("dies", "raises", "hangs"):
        assert status(broken, {"served": 1})[0] == "differs"
    assert status("cannot run", {"served": 1}) == ("skipped", "a second sun is missing")


@pytest.mark.parametrize(
    ("native", "ours", "tolerance", "found"),
    [
        (1.0, 1.0 + 1e-9, 1e-6, False), (1.0, 1.1, 1e-6, True), (1.0, 1.0 + 1e-9, 0.0, True), (1, 1.0, 0.0, True),
        ([1, 2], [1], 0.0, True), ({"a": 1}, {"b": 1}, 0.0, True), ({"shown a": 1}, {"shown a": 2}, 0.0, False),
        (None, None, 0.0, False), ("x", "y", 0.5, True), (float("nan"), 1.0, 0.5, True),
    ],
)
def test_a_difference_is_found_and_told(native, ours, tolerance, found):
    assert bool(parity.difference(native, ours, tolerance)) is found


def test_numbers_and_their_units_do_not_make_two_texts_differ():
    native = "GPU 0 has a total capacity of 139.80 GiB of which 512.00 KiB is free. 0 bytes allowed; address 0x7f00ab"
    ours = "GPU 0 has a total capacity of 139.80 GiB of which 1.25 MiB is free. 12 bytes allowed; address 0x7fe1"
    assert parity.without_numbers(native) == parity.without_numbers(ours)
    assert "GPU N has a total capacity of N of which N is free" in parity.without_numbers(native)


def test_the_table_goes_between_the_marks_of_the_page(sample):
    rows = [parity.judge("sample", "", feature, sample[feature.name], {**sample[feature.name], "served": 3})
            for feature in parity.table_of("sample").features]
    section = compatibility_page.table({"versions": {"torch": "2.11.0"}, "date": "2026-11-30", "rows": rows})
    page = compatibility_page.put_into(
        f"# Title\n{compatibility_page.BEGIN}\nold\n{compatibility_page.END}\nrest\n", section)
    assert "old" not in page and page.startswith("# Title") and page.endswith("rest\n")
    assert "| last | done | done | 3 | same |" in page and "not run: a second sun is missing" in page
    assert "2 of 6 rows are the same, 3 differ, 1 were not run" in page
    assert compatibility_page.put_into(page, section) == page
    with pytest.raises(ValueError, match="once each"):
        compatibility_page.put_into("no marks", section)


def test_the_page_of_the_documentation_has_the_marks():
    page = (Path(__file__).resolve().parents[1] / "docs" / "compatibility.md").read_text()
    compatibility_page.put_into(page, "")
