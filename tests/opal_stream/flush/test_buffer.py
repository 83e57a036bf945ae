"""The moment when a flush is due."""

from opal_stream.flush.buffer import Buffer, FlushLimits
from tests.opal_stream.orders import batch, decode, order


def buffer_at(now_s: float, **limits: float) -> Buffer:
    values = [order(1), order(2)]
    buffer = Buffer(limits=FlushLimits(**{"interval_s": 1.0, **limits}))  # type: ignore[arg-type]  # rows are whole
    buffer.add(batch(values), decode(values), now_s)
    return buffer


def test_an_interval_counts_from_the_first_message() -> None:
    buffer = buffer_at(10.0)
    assert (buffer.is_due(10.9), buffer.is_due(11.0), buffer.is_due(11.0, has_more=True)) == (
        False,
        True,
        True,
    )


def test_messages_that_waited_for_a_flush_count_from_its_beginning() -> None:
    buffer = buffer_at(10.0)
    buffer.waited_from_s = 9.4
    assert (round(buffer.wait_s(10.0), 6), buffer.is_due(10.3), buffer.is_due(10.5)) == (
        0.4,
        False,
        True,
    )
    buffer.clear()
    assert (buffer.wait_s(20.0), buffer.is_due(20.0)) == (1.0, False)


def test_after_a_long_flush_all_that_waited_is_taken_for_an_interval_at_most() -> None:
    buffer = buffer_at(10.0)
    buffer.waited_from_s = 5.0
    assert (
        buffer.is_due(10.0),
        buffer.is_due(10.9, has_more=True),
        buffer.is_due(11.0, has_more=True),
    ) == (True, False, True)


def test_a_full_buffer_is_flushed_immediately() -> None:
    buffer = buffer_at(10.0, rows=2)
    assert (buffer.is_due(10.0, has_more=True), buffer_at(10.0, rows=3).is_due(10.0)) == (
        True,
        False,
    )
