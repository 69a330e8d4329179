from tracegap.ingest.classify.hlo_memory import _PROTO, program_memory


def test_allocations_are_parameters_outputs_constants_or_temporary() -> None:
    """Two arguments, one of which the result takes over; memory of another space and of a thread is not counted."""
    allocations = [
        {"size": 100, "is_parameter": True},
        {"size": 200, "is_parameter": True, "maybe_live_out": True},
        {"size": 40, "maybe_live_out": True},
        {"size": 8, "is_constant": True},
        {"size": 1000},
        {"size": 500},
        {"size": 7, "is_thread_local": True},
        {"size": 9000, "color": 5},
    ]
    proto = _PROTO["HloProto"](buffer_assignment={"buffer_allocations": allocations})
    assert program_memory(proto.SerializeToString()) == {
        "parameters": 300, "outputs": 40, "constants": 8, "temporaries": 1500
    }  # fmt: skip


def test_without_a_buffer_assignment_nothing_is_known() -> None:
    assert program_memory(b"") is None
    assert program_memory(b"\xff\xff") is None
