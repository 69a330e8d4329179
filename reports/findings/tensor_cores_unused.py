"""Products of 16-bit or TF32 numbers in kernels that multiply on the vector lanes."""

from tracegap.reports.finding import Rule

RULE = Rule(
    sentence="{operation:name} {shapes:shapes}: its {dtype} product runs {kernel:name}, which does not use the "
    "tensor cores: align its sizes and strides to 16 bytes",
    query="""
        select operation, shapes, any_value(name) as kernel, any_value(dtype) as dtype, count(*) / any_value(n) as calls,
               100.0 * sum(min_ns) / nullif(sum(cut_ns), 0) as efficiency,
               cast(sum(kernel_inefficiency_ns) / any_value(n) as bigint) as saves_ns, list(unit) as units
        from typical_op, typical_size
        where op_class in ('matmul', 'convolution', 'attention') and dtype in ('bf16', 'fp16', 'fp8', 'tf32') and modelled
          and regexp_matches(name, 'simt|sgemm|ffma|magma_', 'i')
          and not regexp_matches(name, 'tensorop|mma|s1688|s16816|wgmma', 'i')
        group by operation, shapes order by saves_ns desc limit 3
    """,
    draws=("kernel_inefficiency",),
)
