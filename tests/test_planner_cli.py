"""`stalloc plan` on good and bad files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stalloc_accel.cli.main import main

_DATA = Path(__file__).parent / "data"
_KEYS = {"num_buffers", "lower_bound_bytes", "peak_bytes", "ratio", "optimal", "elapsed_s", "method"}


def test_it_prints_one_json_object_and_writes_the_offsets(tmp_path, capsys):
    output = tmp_path / "out.csv"
    assert main(["plan", str(_DATA / "plan_z3.csv"), "--json", "-o", str(output)]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert set(answer) == _KEYS and answer["optimal"] and answer["ratio"] == 1.0
    assert output.read_text().startswith("id,lower,upper,size,offset\n")


def test_what_it_wrote_is_a_placement_it_accepts(tmp_path, capsys):
    output = tmp_path / "out.csv"
    main(["plan", str(_DATA / "plan_moe.csv"), "-o", str(output)])
    capsys.readouterr()
    assert main(["plan", str(output), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["optimal"]


def test_rows_with_an_offset_keep_it(tmp_path):
    path, output = tmp_path / "in.csv", tmp_path / "out.csv"
    path.write_text("id,lower,upper,size,offset\na,0,4,10,\nb,2,6,10,0\n")
    assert main(["plan", str(path), "-o", str(output)]) == 0
    assert output.read_text().splitlines()[1:] == ["a,0,4,10,10", "b,2,6,10,0"]


_BAD = {
    "inverted": "id,lower,upper,size\n0,3,2,5\n",
    "negative": "id,lower,upper,size\n0,-3,2,5\n",
    "duplicate": "id,lower,upper,size\n0,1,2,5\n0,1,2,5\n",
    "overflow": "id,lower,upper,size\n0,1,2,99999999999999999999\n",
    "overflow of the sum": "id,lower,upper,size\n0,1,2,2305843009213693951\n1,1,2,2305843009213693951\n",
    "not a number": "id,lower,upper,size\n0,1,2,x\n",
    "a fraction": "id,lower,upper,size\n0,1,2,1.5\n",
    "another number of fields": "id,lower,upper,size\n0,1,2\n",
    "no header": "0,1,2,3\n",
    "empty": "",
    "offsets that share bytes": "id,lower,upper,size,offset\na,1,2,5,0\nb,0,3,4,0\n",
}


@pytest.mark.parametrize("kind", sorted(_BAD))
def test_bad_input_ends_with_one_line_and_status_2(kind, tmp_path, capsys):
    path = tmp_path / "bad.csv"
    path.write_text(_BAD[kind])
    assert main(["plan", str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1 and captured.err.startswith("stalloc plan: ")


def test_a_binary_file_a_missing_file_and_an_infeasible_capacity_end_with_status_2(tmp_path, capsys):
    binary = tmp_path / "binary.csv"
    binary.write_bytes(bytes(range(256)) * 4)
    for arguments in ([str(binary)], [str(tmp_path / "none.csv")], [str(_DATA / "plan_z3.csv"), "--capacity", "1000"]):
        assert main(["plan", *arguments]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_a_capacity_above_the_lower_bound_that_is_proved_infeasible_ends_with_status_2(tmp_path, capsys):
    path = tmp_path / "gap.csv"
    rows = [(0, 2, 4), (3, 5, 1), (1, 4, 2), (2, 4, 3), (0, 1, 4), (1, 2, 1), (1, 3, 2), (2, 3, 2), (0, 1, 1), (3, 4, 3), (4, 5, 8)]
    path.write_text("id,lower,upper,size\n" + "".join(f"{i},{a},{b},{s}\n" for i, (a, b, s) in enumerate(rows)))
    assert main(["plan", str(path), "--capacity", "9", "--deadline", "60"]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1 and "--capacity=9" in captured.err
    assert main(["plan", str(path), "--capacity", "10"]) == 0
