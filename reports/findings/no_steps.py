"""A trace without any step mark."""

from tracegap.reports.finding import Rule

RULE = Rule(
    sentence="no step is marked: the whole trace counts as one (PyTorch: profile(schedule=...) and prof.step(); "
    "JAX: StepTraceAnnotation; Nsight: an NVTX range a step)",
    query="select count(*) as devices from steps where run_id = $1 and source = 'whole_trace' having count(*) > 0",
    severity="low",
)
