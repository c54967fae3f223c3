"""Graph captures and memory pools have their own memory, and nothing of ours disturbs a capture."""

from __future__ import annotations

import threading

import torch
from gpu_helpers import MIB, pattern_is


def test_a_capture_is_not_served_and_replays_right(arena):
    arena.open(32 * MIB)
    static_input = torch.ones(1000, device="cuda")
    assert arena.holds(static_input)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        inner = static_input * 3
        output = inner + 1
    assert not arena.contains(inner.data_ptr()) and not arena.contains(output.data_ptr())
    for value in (2.0, 5.0):
        static_input.fill_(value)
        noise = [torch.full((1000,), -1.0, device="cuda") for _ in range(50)]
        graph.replay()
        assert pattern_is(output, 3 * value + 1)
        assert all(pattern_is(tensor, -1.0) for tensor in noise)
    after = torch.ones(1000, device="cuda")
    assert arena.holds(after)


def test_frees_and_requests_of_other_threads_do_not_break_a_capture(arena):
    arena.open(32 * MIB)
    side = torch.cuda.Stream()
    recorded = [torch.ones(10_000, device="cuda") for _ in range(20)]
    for tensor in recorded:
        tensor.record_stream(side)
    del tensor
    capturing, done = threading.Event(), threading.Event()

    def disturb() -> None:
        capturing.wait(60)
        # Without our restraint each of these frees would record an event, which a global capture forbids.
        while recorded:
            recorded.pop()
            torch.empty(10_000, device="cuda")
        done.set()

    thread = threading.Thread(target=disturb)
    thread.start()
    static_input = torch.ones(1000, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        first = static_input + 1
        capturing.set()
        done.wait(60)
        output = first * 2
    thread.join()
    assert arena.engine.stats()["awaiting_bytes"] >= 20 * 40_000
    graph.replay()
    assert pattern_is(output, 4.0)
    torch.cuda.synchronize()
    for _ in range(3):
        arena.engine.poll_fences()
    assert arena.engine.stats()["awaiting_bytes"] == 0


def test_a_graph_over_memory_that_is_served_again_would_overwrite_it(arena):
    arena.open(8 * MIB)
    block = torch.zeros(100_000, device="cuda")
    address = block.data_ptr()
    assert arena.holds(block)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        block.fill_(7)
    del block
    after = torch.ones(100_000, device="cuda")
    assert after.data_ptr() == address
    graph.replay()
    assert not pattern_is(after, 1.0)


def test_what_a_capture_allocated_is_never_served(arena):
    arena.open(32 * MIB)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        block = torch.full((100_000,), 7.0, device="cuda")
        del block
    after = [torch.ones(100_000, device="cuda") for _ in range(40)]
    assert arena.holds(after[0])
    graph.replay()
    assert all(pattern_is(tensor, 1.0) for tensor in after)


def test_an_event_call_would_have_broken_the_capture(run_python):
    out = run_python(
        """
        import threading, torch
        graph, event = torch.cuda.CUDAGraph(), torch.cuda.Event()
        x = torch.ones(10, device="cuda")
        side = torch.cuda.Stream()
        errors = []
        def touch():
            try:
                event.record(side)
                event.query()
            except Exception as error:
                errors.append(error)
        try:
            with torch.cuda.graph(graph):
                y = x + 1
                thread = threading.Thread(target=touch)
                thread.start()
                thread.join()
                z = y + 1
        except Exception as error:
            errors.append(error)
        print(len(errors) > 0)
        """
    )
    assert out == "True"


def test_a_memory_pool_gets_its_own_memory(arena):
    arena.open(32 * MIB)
    pool = torch.cuda.MemPool()
    elsewhere = []
    with torch.cuda.use_mem_pool(pool):
        inside = torch.ones(1000, device="cuda")
        thread = threading.Thread(target=lambda: elsewhere.append(torch.ones(1000, device="cuda")))
        thread.start()
        thread.join()
    outside = torch.ones(1000, device="cuda")
    assert not arena.contains(inside.data_ptr())
    assert arena.holds(elsewhere[0]) and arena.holds(outside)
    assert torch._C._has_Standard_Deleter(inside.untyped_storage()._cdata)
    segments = pool.snapshot()
    assert any(s["address"] <= inside.data_ptr() < s["address"] + s["total_size"] for s in segments)


def test_graphed_callables_train_as_without_graphs(arena):
    arena.open(64 * MIB)
    torch.manual_seed(0)
    plain = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)).cuda()
    twin = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)).cuda()
    twin.load_state_dict(plain.state_dict())
    graphed = torch.cuda.make_graphed_callables(twin, (torch.randn(32, 64, device="cuda"),))
    for seed in range(4):
        inputs = torch.randn(32, 64, device="cuda", generator=torch.Generator("cuda").manual_seed(seed))
        grads = []
        for model, call in ((plain, plain), (twin, graphed)):
            model.zero_grad(set_to_none=True)
            call(inputs).square().mean().backward()
            grads.append([parameter.grad.clone() for parameter in model.parameters()])
        for a, b in zip(*grads):
            torch.testing.assert_close(a, b)


def test_reduce_overhead_runs_on_graphs_beside_an_arena(arena):
    arena.open(64 * MIB)
    weight = torch.randn(64, 64, device="cuda", requires_grad=True)

    def function(x):
        return torch.relu(x @ weight).sin().sum(dim=0)

    compiled = torch.compile(function, mode="reduce-overhead")
    for seed in range(5):
        inputs = torch.randn(32, 64, device="cuda", generator=torch.Generator("cuda").manual_seed(seed))
        torch.compiler.cudagraph_mark_step_begin()
        got = compiled(inputs)
        got.sum().backward()
        grad = weight.grad.clone()
        weight.grad = None
        wanted = function(inputs)
        wanted.sum().backward()
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(grad, weight.grad, rtol=1e-3, atol=1e-3)
        weight.grad = None
    from torch._inductor.cudagraph_trees import get_container

    assert get_container(0).tree_manager is not None
    torch._dynamo.reset()  # else the compiled function keeps its inputs, and they the arena, for the tests after this


def test_a_graph_captured_before_us_keeps_us_off(run_python):
    out = run_python(
        """
        import torch
        from stalloc_accel import extension
        x = torch.ones(10, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x + 1
        module = extension.load("cuda")
        try:
            module.install()
        except ValueError as error:
            print(error)
        assert not module.is_installed()
        graph.replay()
        assert float(y.sum()) == 20
        """
    )
    assert "before the first graph is captured" in out
