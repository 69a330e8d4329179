"""Attention whose scores go through device memory: softmax over [.., queries, keys] between two products."""

from tracegap.reports.finding import Rule

RULE = Rule(
    sentence="attention is not fused: {calls:.0f} softmax a step over scores of {shapes:shapes}, and what is "
    "done to the scores, take {alone_ns:ns} that a fused kernel does not need (scaled_dot_product_attention, "
    "FlashAttention)",
    query="""
        with score as (
            select *, json_extract(nullif(shapes, ''), '$[0]') as first from typical_op where state = 'compute' and modelled
        ),
        wide as (
            select distinct first from score
            where op_class = 'softmax' and json_array_length(first) >= 3
              and cast(first ->> '$[#-1]' as bigint) >= 256 and cast(first ->> '$[#-2]' as bigint) >= 256
        )
        select count(*) filter (op_class = 'softmax') / any_value(n) as calls, arg_max(shapes, share_ns) as shapes,
               count(*) / any_value(n) as kernels,
               cast(sum(kernel_inefficiency_ns) / any_value(n) as bigint) as kernel_inefficiency_saves_ns,
               cast(sum(memory_bound_ns) / any_value(n) as bigint) as memory_bound_saves_ns, list(unit) as units
        from score join wide using (first), typical_size
        where op_class in ('softmax', 'elementwise', 'data_movement') having count(*) > 0
    """,
    draws=("kernel_inefficiency", "memory_bound"),
    config="attention|attn|sdpa|flash",
)
