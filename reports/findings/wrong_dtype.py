"""Matrix products in fp32 on a part whose matrix units multiply a narrower dtype many times faster."""

from tracegap.reports.finding import Rule

RULE = Rule(
    sentence="{calls:.0f} matrix products a step run in fp32 and take {share_ns:ns}; in {other} this part multiplies "
    "{times:.1f} times faster: {how}",
    query="""
        with other as (
            select trace_id, device_id, dtype as other, flops_per_s as other_flops_per_s
            from peaks where unit = 'matrix' and dtype in ('tf32', 'bf16', 'fp16')
            qualify row_number() over (partition by trace_id, device_id
                                       order by array_position(['tf32', 'bf16', 'fp16'], dtype)) = 1
        ),
        priced as (
            select o.*, x.other, x.other_flops_per_s / p.flops_per_s as times,
                   -- At the efficiency that they have: the part of their bound that the other dtype needs.
                   greatest(o.math_ns * p.flops_per_s / x.other_flops_per_s,
                            case when o.min_ns > o.math_ns then o.min_ns else 0 end) / nullif(o.min_ns, 0) as needs_frac
            from typical_op o
            join peaks p on p.trace_id = o.trace_id and p.device_id = o.device_id and p.unit = 'matrix' and p.dtype = 'fp32'
            join other x on x.trace_id = o.trace_id and x.device_id = o.device_id
            where o.op_class in ('matmul', 'convolution', 'attention') and o.dtype = 'fp32' and o.state = 'compute'
              and x.other_flops_per_s > 1.5 * p.flops_per_s
        )
        select other, max(times) as times, count(*) / any_value(n) as calls,
               case other when 'tf32' then 'torch.set_float32_matmul_precision("high"), or train in bf16'
                          else 'train in mixed precision' end as how,
               cast(sum(share_ns) / any_value(n) as bigint) as share_ns,
               cast(sum(useful_math_ns * (1 - needs_frac)) / any_value(n) as bigint) as useful_math_saves_ns,
               cast(sum(kernel_inefficiency_ns * (1 - needs_frac)) / any_value(n) as bigint) as kernel_inefficiency_saves_ns,
               cast(sum(unmodelled_compute_ns * (1 - 1 / times)) / any_value(n) as bigint) as unmodelled_compute_saves_ns,
               list(unit) as units
        from priced, typical_size group by other
    """,
    draws=("kernel_inefficiency", "unmodelled_compute", "useful_math"),
    config="tf32|precision|dtype|amp|autocast",
)
