"""Compilation in the middle of a run: of steps that should all run what was compiled before."""

from tracegap.reports.finding import Rule

RULE = Rule(
    sentence="the host compiles in {steps} of {all_steps} steps ({name:name}, {compile_ns:ns} in all): sizes or "
    "guards change from step to step; mark them dynamic or pad them",
    query="""
        with own as (
            -- Steps of the host follow each other as their device windows do; the first may compile.
            select s.step, h.name, h.dur_ns from steps s
            join host_events h on h.trace_id = s.trace_id and h.start_ns >= s.start_ns and h.start_ns < s.start_ns + s.wall_ns
            where s.run_id = $1 and s.source not in ('whole_trace', 'inferred') and h.kind <> 'python' and h.dur_ns > 0
              and regexp_matches(h.name, '^(backend_compile|XlaCompile|PjRtCompile|.*CompileAndLoad|_compile\\.compile_inner'
                  || '|.*\\(dynamo_timed\\)|TorchDynamo|.*fx_codegen_and_compile|GpuCompiler::Compile.*|XlaCompiler::.*'
                  || '|cu(Module|Library)LoadData.*|compile_file|async_compile.*)', 'i')
              and s.step > (select min(step) from steps where run_id = $1)
        )
        select count(distinct step) as steps, (select count(distinct step) from steps where run_id = $1) as all_steps,
               arg_max(name, dur_ns) as name, sum(dur_ns) as compile_ns, count(*) as calls
        from own having steps >= 2
    """,
    severity="medium",
)
