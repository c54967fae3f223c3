"""The happens-before model: which reuse is safe."""

from stalloc_accel._core import SimulatedStreams

MIB = 1 << 20


def test_bytes_come_back_on_their_own_stream_at_once():
    streams = SimulatedStreams()
    assert streams.claim(0, MIB, 1) == ""
    streams.release(0, 0)
    assert streams.claim(0, MIB, 1) == ""


def test_live_bytes_are_never_given_out_again():
    streams = SimulatedStreams()
    streams.claim(0, MIB, 1)
    assert "live" in streams.claim(MIB - 512, 512, 1)


def test_another_stream_may_not_have_them():
    streams = SimulatedStreams()
    streams.claim(0, MIB, 1)
    streams.release(0, 0)
    assert "another stream" in streams.claim(512, 512, 2)


def test_an_audited_host_hands_over_when_the_new_stream_waited_for_all_others():
    streams = SimulatedStreams(handover_audited=True)
    streams.claim(0, MIB, 1)
    streams.claim(4 * MIB, MIB, 3)
    streams.advance(10)
    streams.release(0, 10)
    streams.wait_on_stream(2, streams.record_fence(1))
    assert "another stream" in streams.claim(0, 512, 2)  # stream 3 may read it too
    streams.wait_on_stream(2, streams.record_fence(3))
    assert streams.claim(0, 512, 2) == ""


def test_without_an_audit_waiting_is_not_enough():
    streams = SimulatedStreams()
    streams.claim(0, MIB, 1)
    streams.release(0, 0)
    streams.wait_on_stream(2, streams.record_fence(1))
    assert "another stream" in streams.claim(0, MIB, 2)


def test_a_recorded_block_waits_for_its_completion():
    streams = SimulatedStreams()
    streams.claim(0, MIB, 1)
    streams.release(0, 100)
    streams.advance(99)
    assert "recorded stream" in streams.claim(0, MIB, 1)
    streams.advance(100)
    assert streams.claim(0, MIB, 1) == ""


def test_a_recorded_block_goes_to_its_own_stream_when_that_waits_for_the_recorded_one():
    streams = SimulatedStreams()
    streams.claim(0, MIB, 1)
    early = streams.record_fence(2)
    streams.advance(10)
    streams.release(0, 100, recorded=2)
    streams.wait_on_stream(1, early)
    assert "recorded stream" in streams.claim(0, 512, 1)
    streams.wait_on_stream(1, streams.record_fence(2))
    assert streams.claim(0, 512, 1) == ""
    assert "recorded stream" in streams.claim(512, 512, 3)


def test_waiting_on_the_host_ends_what_was_submitted_before():
    streams = SimulatedStreams()
    streams.claim(0, MIB, 1)
    streams.release(0, 100)
    fence = streams.record_fence(2)
    assert not streams.fence_done(fence)
    streams.wait_on_host(fence)
    assert streams.fence_done(fence)
    assert streams.claim(0, MIB, 1) == ""


def test_a_range_goes_back_only_when_nothing_in_it_is_used():
    streams = SimulatedStreams()
    streams.claim(MIB, MIB, 1)
    assert "live" in streams.forget(0, 4 * MIB, 1)
    streams.release(MIB, 0)
    assert streams.forget(0, 4 * MIB, 1) == ""
