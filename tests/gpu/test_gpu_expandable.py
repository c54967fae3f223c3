"""torch's expandable_segments, on while we record. Each in a process of its own: the setting is the process's."""

from __future__ import annotations

PREPARE = """
import torch
from stalloc_accel import extension
module = extension.load("cuda")
module.install()
MIB = 1 << 20

def is_expandable(tensor):
    address = tensor.untyped_storage().data_ptr()
    return next(s["is_expandable"] for s in torch.cuda.memory_snapshot()
                if s["address"] <= address < s["address"] + s["total_size"])
"""


def test_what_is_born_while_it_is_on_lies_in_expandable_segments_and_nothing_else(run_python):
    run_python(PREPARE + """
before = torch.ones(32 * MIB, dtype=torch.uint8, device="cuda")
assert module.turn_expandable_segments_on() == ""
during = torch.ones(32 * MIB, dtype=torch.uint8, device="cuda")
module.turn_expandable_segments_off()
after = torch.ones(32 * MIB, dtype=torch.uint8, device="cuda")
assert [is_expandable(t) for t in (before, during, after)] == [False, True, False]
assert module.turn_expandable_segments_on() == ""  # the settings are the program's again, which names none
module.turn_expandable_segments_off()
del during
torch.cuda.empty_cache()
assert torch.cuda.memory_reserved() == 64 * MIB
""")


def test_it_waits_for_cuda_where_we_come_first(run_python):
    run_python(PREPARE + """
assert module.turn_expandable_segments_on() == "" and not torch.cuda.is_initialized()
assert is_expandable(torch.ones(32 * MIB, dtype=torch.uint8, device="cuda"))
""")


def test_the_programs_own_setting_is_left_alone(run_python):
    run_python(PREPARE + """
torch.ones(1, device="cuda")
assert "the program set" in module.turn_expandable_segments_on()
assert not is_expandable(torch.ones(32 * MIB, dtype=torch.uint8, device="cuda"))
""", {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"})


def test_other_settings_stay_in_force(run_python):
    run_python(PREPARE + """
torch.ones(1, device="cuda")
assert module.turn_expandable_segments_on() == ""
tensor = torch.ones(5 * MIB + 1, dtype=torch.uint8, device="cuda")
block = next(b for s in torch.cuda.memory_snapshot() for b in s["blocks"] if b["address"] == tensor.data_ptr())
assert block["size"] == 6 * MIB  # 4 parts between 4 and 8 MiB
""", {"PYTORCH_CUDA_ALLOC_CONF": "roundup_power2_divisions:4"})


def test_a_memory_pool_ends_it(run_python):
    run_python(PREPARE + """
torch.ones(1, device="cuda")
assert module.turn_expandable_segments_on() == ""
with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
    inside = torch.ones(32 * MIB, dtype=torch.uint8, device="cuda")
assert not is_expandable(torch.ones(64 * MIB, dtype=torch.uint8, device="cuda"))
assert "memory pool" in module.turn_expandable_segments_on()
""")


def test_pinned_pages_are_what_an_empty_cache_leaves(run_python):
    run_python(PREPARE + """
from stalloc_accel.memory import CudaMemory
torch.ones(1, device="cuda")
torch.cuda.empty_cache()
assert module.turn_expandable_segments_on() == ""
memory = CudaMemory(0, module)
tensors = [torch.ones(size * MIB, dtype=torch.uint8, device="cuda") for size in (1, 30, 3, 50, 7, 90, 2, 11)]
del tensors[1::2], tensors[0]
pinned = memory.pinned_bytes()
torch.cuda.empty_cache()
assert pinned == torch.cuda.memory_reserved(), (pinned, torch.cuda.memory_reserved())
""")


def test_a_tensor_born_meanwhile_is_shared_with_another_process(run_python, tmp_path):
    script = tmp_path / "share.py"
    script.write_text(PREPARE + """
import torch.multiprocessing

def add_one(queue, done):
    tensor = queue.get()
    tensor += 1
    torch.cuda.synchronize()
    done.put(float(tensor.sum()))
    del tensor

if __name__ == "__main__":
    torch.ones(1, device="cuda")
    reason = module.turn_expandable_segments_on()
    tensor = torch.ones(4 * MIB, device="cuda")
    assert is_expandable(tensor) == (reason == ""), reason
    context = torch.multiprocessing.get_context("spawn")
    queue, done = context.Queue(), context.Queue()
    process = context.Process(target=add_one, args=(queue, done))
    process.start()
    queue.put(tensor)
    assert done.get(timeout=120) == 8 * MIB
    process.join()
    assert process.exitcode == 0 and bool((tensor == 2).all())
""")
    run_python(f"import runpy, sys\nsys.argv = [{str(script)!r}]\nimport subprocess\n"
               f"subprocess.run([sys.executable, {str(script)!r}], check=True, timeout=200)")
