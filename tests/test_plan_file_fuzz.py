"""Coverage-guided fuzzing of the plan reader: what it accepts may be served from, what it refuses it refuses in one line."""

import json
import random
import sys
import time

import numpy as np

from stalloc_accel import _core, plan_file
from stalloc_accel.errors import PlanFileError
from test_plan_file import DATA, KEY, PLAN, split, with_new_checksum


class PlanFileFuzzer:
    """Changes plan files; those that reach new lines of plan_file are changed further."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.corpus = [DATA]
        self.seen: set[tuple[str, int]] = set()
        self.accepted = 0

    def run(self, data: bytes) -> None:
        lines: set[tuple[str, int]] = set()

        def trace(frame, event, _):
            if frame.f_code.co_filename != plan_file.__file__:
                return None
            lines.add((frame.f_code.co_name, frame.f_lineno))
            return trace

        sys.settrace(trace)
        try:
            plan = plan_file.decode(data, KEY.digest).plan
        except PlanFileError as refusal:
            assert "\n" not in str(refusal)
            plan = None
        finally:
            sys.settrace(None)
        if plan is not None:
            self.serve(plan)
        if not lines <= self.seen:
            self.seen |= lines
            self.corpus.append(data)

    def serve(self, plan: dict) -> None:
        """Whatever was accepted may be used: it is useless at worst."""
        self.accepted += 1
        host = _core.HostEngine(64 << 20)
        host.engine.arm(plan, 0)
        for size in plan["slot_size"].tolist():
            if size < 1 << 20:
                host.free(host.allocate(size))
        host.engine.end_step()

    def changed(self) -> bytes:
        data = self.draw.choice(self.corpus)
        return self.forged() if self.draw.random() < 0.5 else self.damaged(data)

    def damaged(self, data: bytes) -> bytes:
        data = bytearray(data)
        for _ in range(self.draw.randint(1, 4)):
            at, span = self.draw.randrange(len(data)), self.draw.randint(1, 16)
            change = self.draw.randrange(4)
            if change == 0:
                data[at] ^= 1 << self.draw.randrange(8)
            elif change == 1:
                del data[at:at + span]
            elif change == 2:
                data[at:at] = self.draw.choice([b"{", b"[", b"1e999", b'"', b"-", b"NaN", b"\xff", b"[[[[" * 8])
            else:
                data[at:at] = data[at:at + span]
            data = data or bytearray(b"\0")
        return bytes(data)

    def forged(self) -> bytes:
        """Whole but for its contents: the checksum is right."""
        header, arrays = split(DATA)
        name = self.draw.choice(sorted(plan_file.ARRAYS))
        begin, end = header[name]["data_offsets"]
        values = np.frombuffer(arrays[begin:end], PLAN[name].dtype).copy()
        if len(values):
            at = self.draw.randrange(len(values))
            value = self.draw.choice([0, 1, 512, -1, 255, values[self.draw.randrange(len(values))], 1 << 20, 1 << 44, 2**63 - 1])
            values[at] = np.array(value).astype(values.dtype)
        numbers = json.loads(header["__metadata__"]["numbers"])
        if self.draw.random() < 0.3:
            numbers[self.draw.choice(sorted(numbers))] = self.draw.choice([0, 1, 2, -1, 65, 1 << 31, 1 << 62, 1.5, None, "1"])
        header["__metadata__"]["numbers"] = json.dumps(numbers)
        return with_new_checksum(header, arrays[:begin] + values.tobytes() + arrays[end:])


def test_plan_files_that_reach_new_code_are_refused_in_one_line_or_harmless(seed):
    fuzzer = PlanFileFuzzer(seed)
    fuzzer.run(DATA)
    deadline, runs = time.monotonic() + 5, 0
    while runs <= 50 or time.monotonic() < deadline:
        fuzzer.run(fuzzer.changed())
        runs += 1
    print(f"{runs} files, {len(fuzzer.corpus)} kept, {fuzzer.accepted} accepted")
    assert len(fuzzer.corpus) > 3 and fuzzer.accepted > 1
