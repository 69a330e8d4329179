"""The tables of the store as declarations: DDL, comments and documentation are made from these.

Names and units are public (design, section 4); tables marked internal feed the views and may change.
"""

from itertools import chain

from tracegap.ingest.relation import FORM, Split, Table, View
from tracegap.ingest.relation import columns_of as _columns

SCHEMA_VERSION = 2
"""Raised with every change of a table; a store of another version is refused with what to do."""


_RUN = "run_id VARCHAR run of the trace, a runs.run_id"
_TRACE = "trace_id VARCHAR trace, a traces.trace_id"
_DEVICE = "device_id VARCHAR device within the trace, a devices.device_id"
_STEP = "step BIGINT step number"

_OP_WINDOWS = _columns(f"""
    {_TRACE}
    op_id BIGINT an ops.op_id
    {_DEVICE}
    step BIGINT step whose window it lies in
    state VARCHAR compute, exposed_comm, exposed_copy: the state that the operation counts for
    dur_ns BIGINT its duration, cut at the ends of the window, ns
    share_ns BIGINT its share of the time of that state in the window, ns
""")

RELATIONS: tuple[Table | View | Split, ...] = (
    Table(
        "runs",
        "a run of a job: the traces of all its ranks",
        _columns("""
            run_id VARCHAR name of the run in this store
            job VARCHAR name of the job that the run belongs to; history is kept by job
            started_at TIMESTAMP start of the run, UTC; from the manifest, else the earliest trace
            framework VARCHAR pytorch, jax, tensorflow, cuda; several are joined by +
            world_size BIGINT ranks of the job as the traces or the manifest say it; NULL = unknown
            simulated BOOLEAN true where the manifest says that the data is simulated
            config JSON configuration: flat object, from manifest and traces, secrets removed
            model JSON description of the model from the manifest; NULL = unknown
            mesh JSON mesh axes and their sizes from the manifest; NULL = unknown
            topology JSON shape and wraparound of the torus, ranks in a domain, from the manifest; NULL = unknown
            recipe JSON how it is trained (sharding stage, recomputation, schedule), from the manifest; NULL = not said
            calibration JSON list of measured ceilings, from the manifest or --calibration; NULL = none
            tokens_per_step BIGINT tokens of one step over all ranks, from the manifest; NULL = unknown
            git_commit VARCHAR commit of the training code, from the manifest; NULL = unknown
            tags JSON free words from the manifest
            evaluated_at TIMESTAMP when theory was last joined, UTC; NULL = not since the last change
        """),
        key=("run_id",),
    ),
    Table(
        "traces",
        "an ingested trace file",
        _columns(f"""
            trace_id VARCHAR first 16 hexadecimal digits of the SHA-256 of the file
            {_RUN}
            rank BIGINT rank of the process; NULL = the file does not say it
            host VARCHAR host as the trace names it; NULL = unknown
            path VARCHAR where the file was read from
            format VARCHAR reader: kineto, xspace, xla_chrome, nsys
            framework VARCHAR what ran: pytorch, jax, tensorflow, cuda
            origin_unix_ns BIGINT Unix time of t = 0 of the trace, ns; NULL = unknown
            sha256 VARCHAR SHA-256 of the file
            size_bytes BIGINT size of the file as it lies, bytes
            status VARCHAR ok, or partial: something of the file is lost (see diagnostics)
            diagnostics JSON list of objects with code, severity, count, where, message
            facts JSON counts of the raw file, free form by format
            clock_offset_ns BIGINT added to times of this trace to compare ranks, at its t = 0, ns; NULL = not aligned
            clock_drift_frac DOUBLE part of its own time that is added further
            clock_residual_ns BIGINT 95th percentile of the disagreement of aligned completions, ns; NULL = not aligned
            clock_error_ns BIGINT standard error of the offset at most, ns; NULL = not aligned, or too few completions
            clock_reference VARCHAR trace whose clock the others of its part of the job are brought to; ranks compare within it
            parser_version BIGINT version of the reader
            manifest_sha256 VARCHAR SHA-256 of the manifest that lay beside it; NULL = none
            ingested_at TIMESTAMP when the file was read, UTC
        """),
        key=("trace_id",),
    ),
    Table(
        "devices",
        "a device in a trace",
        _columns(f"""
            {_TRACE}
            device_id VARCHAR device within the trace: 0, TPU:0, GPU:1, cpu
            kind VARCHAR gpu, tpu, cpu, accelerator
            name VARCHAR part as the trace names it; NULL = not named
            ordinal BIGINT number among the devices of the run where one file holds several; NULL = one a file
            hardware VARCHAR catalogue id, a hardware.id; NULL = unknown part
            matched_by VARCHAR how the part was recognised, or why not
            hbm_bytes_per_s DOUBLE memory bandwidth that the theory uses, bytes a second; NULL = unknown
            hbm_source VARCHAR trace or catalogue
            properties JSON what the trace says of the device
        """),
        key=("trace_id", "device_id"),
    ),
    Table(
        "peaks",
        "the dense peak that the theory uses for one math dtype on one device",
        _columns(f"""
            {_TRACE}
            {_DEVICE}
            unit VARCHAR matrix or vector
            dtype VARCHAR math dtype
            flops_per_s DOUBLE dense peak of one device of the trace, FLOP a second
            source VARCHAR trace, or catalogue with the part
        """),
        key=("trace_id", "device_id", "unit", "dtype"),
        public=False,
    ),
    Table(
        "ceilings",
        "a measured ceiling of a device, from the calibration of its run; it stands beside the peaks, never in their place",
        _columns(f"""
            {_TRACE}
            {_DEVICE}
            kind VARCHAR matmul, hbm, busbw
            dtype VARCHAR math dtype of a matmul; NULL = of no dtype
            collective VARCHAR collective of a busbw; NULL = all that no row of their own have
            flops_per_s DOUBLE best measured matrix product, FLOP a second; NULL = not of a matmul
            bytes_per_s DOUBLE best measured memory or bus bandwidth, bytes a second; NULL = of a matmul
            source VARCHAR what the calibration says of it; NULL = nothing
        """),
    ),
    Table(
        "steps",
        "a step on a device: windows tile the device timeline",
        _columns(f"""
            {_RUN}
            {_TRACE}
            rank BIGINT rank; for a file that holds several devices, the device ordinal
            {_DEVICE}
            {_STEP}
            start_ns BIGINT start of the window: first kernel of the step, ns since the origin of the trace
            wall_ns BIGINT length of the window, ns
            source VARCHAR what marked it: xplane_steps, profiler_step, nvtx, step_trace_annotation, inferred, whole_trace
            complete BOOLEAN false: kept, but left out of averages
            incomplete_reason VARCHAR why not complete
            kernels BIGINT kernels that this step launched
            compute_ns BIGINT time in which a kernel runs that is neither communication nor copy, ns
            exposed_comm_ns BIGINT time in which communication runs and no compute, ns
            exposed_copy_ns BIGINT time in which only copies and fills run, ns
            idle_ns BIGINT time in which nothing runs, ns
            idle_host_ns BIGINT part of idle: the host had not begun to launch, ns
            idle_sync_ns BIGINT part of idle: the host sat in a synchronisation, ns
            idle_input_ns BIGINT part of idle: the host was loading data, ns
            idle_pipeline_ns BIGINT part of idle: the host sat in a receive from another rank, ns
            idle_gap_ns BIGINT part of idle: after the launch call began, ns
            idle_unknown_ns BIGINT part of idle: nothing in the trace tells, ns
            mark_thread VARCHAR host thread that carries the step marks; NULL = they are on the device, or none
        """),
        key=("trace_id", "device_id", "step"),
    ),
    Table(
        "idle_causes",
        "idle time of a device in a step by its cause and by what the host did meanwhile",
        _columns(f"""
            {_TRACE}
            {_DEVICE}
            step BIGINT step in whose window it lies
            cause VARCHAR bucket of the waterfall: idle_host, idle_sync, idle_input, idle_pipeline, idle_gap, idle_unknown
            activity VARCHAR what the host did: operator, python, annotation (in a named range, nothing else recorded), \
garbage_collection, data_loading, allocation, compilation, synchronisation, copy, launch, communication, thread_wait, \
system_call, runtime (another call of driver or runtime), profiler, device (it had launched: the device had not begun), \
nothing_recorded; NULL = the launch is not in the file
            name VARCHAR host event that tells it; NULL = none, or the names that take least time together
            caller VARCHAR what called it: operator, Python frame, module or range around it; NULL = none
            of_thread VARCHAR launching: of the thread that launches the next operation; other: that one had nothing \
recorded or waited, and this is the thread of the step marks, or the one that launched the operation before
            idle_ns BIGINT idle time, ns; over the rows of a step and cause it adds up to that column of steps
            gaps BIGINT idle intervals that it lies in
        """),
    ),
    Split(
        "ops",
        "an operation on a device (leaves only; asynchronous ones from start to done)",
        _columns(f"""
            {_TRACE}
            op_id BIGINT number within the trace
            {_DEVICE}
            stream VARCHAR stream, queue or line of the device
            step BIGINT step that launched it; NULL = its launch is not in the file
            name VARCHAR kernel or instruction as the trace names it
            op_class VARCHAR matmul, attention, convolution, normalization, softmax, elementwise, reduction, embedding, \
optimizer, data_movement, sort, random, collective, copy, memset, graph, custom, other
            framework_op VARCHAR operation of the framework that launched it; NULL = unknown
            module VARCHAR path of the module or name scope; NULL = unknown
            start_ns BIGINT start, ns since the origin of the trace
            dur_ns BIGINT duration, ns
            share_ns BIGINT part of the device time that is its own: 1/k of each instant in which k operations of the \
winning state run, ns
            dtype VARCHAR math dtype; NULL = unknown
            shapes JSON shapes of the inputs; NULL = not recorded
            flops BIGINT FLOPs done (a multiply-add is 2); NULL = unknown
            bytes BIGINT bytes from and to device memory at least; NULL = unknown
            cost_source VARCHAR where flops and bytes come from: trace, hlo, shapes, nvtx, config, none
            cost_note VARCHAR why the cost is unknown, or what it assumes
            correlation_id BIGINT id that joins it to its launch; NULL = none
            launch_ns BIGINT start of its launch call on the host, ns; NULL = not in the file
            launch_thread VARCHAR thread of its launch call, a host_events.thread
        """),
        part="op",
        own={
            "op_id": "INTEGER",
            "step": "BIGINT",
            "start_ns": "BIGINT",
            "dur_ns": "BIGINT",
            "share_ns": "BIGINT",
            "correlation_id": "BIGINT",
            "launch_ns": "BIGINT",
        },
        key=("trace_id", "op_id"),
        hidden=_columns("""
            state VARCHAR compute, exposed_comm, exposed_copy: the state that the operation counts for
            whole BOOLEAN it lies in the window of the step that launched it, and in no other; else it is in op_parts
        """),
    ),
    Table(
        "recomputed_ops",
        "an operation of a forward pass that ran again for the backward pass (activation checkpointing)",
        _columns(f"""
            {_TRACE}
            op_id BIGINT an ops.op_id
            {_DEVICE}
            step BIGINT step that launched it; NULL = unknown
            recognised_by VARCHAR checkpoint: below a checkpoint of the backward pass; module: a module called in the backward \
pass; operator: the same operator at the same shapes as in the forward pass, in a node of the backward pass; scope: \
rematted_computation in the name scope; compiler: rematerialised by XLA
        """),
        key=("trace_id", "op_id"),
    ),
    Table(
        "op_parts",
        "the part of an operation that lies in one step window, where it is not the whole in the window of its step",
        _OP_WINDOWS,
        public=False,
    ),
    View(
        "op_windows",
        "the part of an operation that lies in one step window",
        _OP_WINDOWS,
        key=("trace_id", "op_id", "step"),
        public=False,
        sql=f"""
            select f.trace_id, cast(r.op_id as bigint) as op_id, f.device_id, r.step, f.state, r.dur_ns, r.share_ns
            from op_rows r join op_forms f using ({FORM}) where f.whole
            union all
            select * from op_parts
        """,
    ),
    Split(
        "host_events",
        "an event on a host thread",
        _columns(f"""
            {_TRACE}
            event_id BIGINT number within the trace
            thread VARCHAR process/thread
            kind VARCHAR op, python, module, annotation, step, launch, sync, input, runtime, memory, overhead, collective, other
            name VARCHAR name as the trace has it
            start_ns BIGINT start, ns since the origin of the trace
            dur_ns BIGINT duration, ns; NULL = it never ends
            self_ns BIGINT duration less what its children on the thread cover, ns; NULL = not a nested span
            parent_id BIGINT event_id of the enclosing span on the thread
            correlation_id BIGINT id that joins it to device operations
        """),
        part="host",
        own={
            "event_id": "INTEGER",
            "start_ns": "BIGINT",
            "dur_ns": "BIGINT",
            "self_ns": "BIGINT",
            "parent_id": "INTEGER",
            "correlation_id": "BIGINT",
        },
        key=("trace_id", "event_id"),
    ),
    Table(
        "collectives",
        "a collective on a rank",
        _columns(f"""
            {_TRACE}
            op_id BIGINT an ops.op_id of class collective
            {_DEVICE}
            rank BIGINT rank within the run (device ordinal where one file holds several)
            collective VARCHAR all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce, gather, scatter, send, \
recv, send_recv, permute, barrier; NULL = unknown kind
            group_id VARCHAR group of ranks; the same text on all of them; NULL = unknown
            group_ranks JSON list of ranks of the group; NULL = unknown
            group_size BIGINT ranks in the group; NULL = unknown
            group_desc VARCHAR what the framework calls the group; NULL = nothing
            seq BIGINT number of the call within its group; NULL = unknown
            message_bytes BIGINT size as nccl-tests counts it, bytes: all-gather output, reduce-scatter input, else the buffer
            dtype VARCHAR dtype on the wire; NULL = unknown
            peer BIGINT the other rank of a send or receive
            sent_bytes BIGINT of an all-to-all: bytes that leave this rank; NULL = no all-to-all, or unknown
            received_bytes BIGINT of an all-to-all: bytes that reach this rank; over the ranks they add up to what is sent
            send_splits JSON bytes for each rank of the group, itself included; NULL = even, or unknown
            recv_splits JSON bytes from each rank of the group; NULL = even, or unknown
            exposed_ns BIGINT part of its duration in which no compute runs, ns
            hidden_ns BIGINT the rest of its duration, ns
        """),
        key=("trace_id", "op_id"),
    ),
    Table(
        "collective_matches",
        "a collective on a rank, matched over the ranks and predicted",
        _columns(f"""
            {_TRACE}
            op_id BIGINT an ops.op_id of class collective
            instance_id BIGINT number of the collective within the run: equal on all its ranks; NULL = not matched
            matched_by VARCHAR seq, order, pair, time, or why it is not matched
            arrival_ns BIGINT latest start over the ranks, on the clock of this trace, ns; NULL = not matched
            last_rank BIGINT rank that started last; NULL = nobody by more than the clocks agree
            late_ns BIGINT how much later it started than the last but one, ns
            predicted_ns BIGINT time that the collective model gives, ns; NULL = unknown
            predicted_by VARCHAR model, size and topology used, or why there is none
            tuned_ns BIGINT time that NCCL's own model gives the algorithm and protocol that it would take, ns; NULL = see tuned_by
            tuned_by VARCHAR that algorithm and protocol, or why there is none
        """),
        key=("trace_id", "op_id"),
        public=False,
    ),
    Table(
        "device_links",
        "a link of a device that copies go over",
        _columns(f"""
            {_TRACE}
            {_DEVICE}
            link VARCHAR host, peer (another device of its scale-up domain), memory (its own)
            gb_per_s DOUBLE nominal rate in one direction, 10^9 bytes a second; NULL = unknown
            source VARCHAR where the rate is from, or why there is none
        """),
        key=("trace_id", "device_id", "link"),
        public=False,
    ),
    Table(
        "collective_groups",
        "a group of ranks, and which axis of the mesh it is",
        _columns(f"""
            {_RUN}
            group_id VARCHAR group of ranks, a collectives.group_id
            group_size BIGINT ranks in the group; NULL = unknown
            group_ranks JSON list of ranks of the group; NULL = unknown
            axis VARCHAR what the group divides: data, fsdp, tensor, pipeline, expert, context, expert_data (replicas of an \
expert), or the name of an axis of the mesh; several that it spans are joined by +; NULL = unknown
            axis_source VARCHAR mesh (of the manifest), config (sizes in the configuration), name (of the group), inferred (from \
what runs on it), or why it is not known
            calls BIGINT collectives on it, on all ranks of the run
            bytes BIGINT their messages in all, bytes; NULL = none is known
            exposed_ns BIGINT their time in which no compute runs, on all ranks of the run, ns
        """),
        key=("run_id", "group_id"),
    ),
    Table(
        "late_arrivals",
        "how often a rank came last to the collectives of a group in a step, by how much, and why",
        _columns(f"""
            {_RUN}
            {_TRACE}
            {_DEVICE}
            rank BIGINT the rank that came last; NULL = nobody did, the collectives were slow on all ranks (cause collective)
            step BIGINT step that launched them; NULL = unknown
            group_id VARCHAR group of ranks, a collectives.group_id
            collective VARCHAR kind, a collectives.collective
            cause VARCHAR what the rank had more of than the others since the group's collective before: compute, communication \
(it waited in another group), copy, host, sync, input, gap; unknown: there is none before; or collective
            arrivals BIGINT collectives
            late_ns BIGINT how much later it came than the last but one, in all, ns; of cause collective: time beyond the prediction
            wait_ns BIGINT what the other ranks waited in them, in all, ns
        """),
    ),
    Table(
        "comm_windows",
        "how the exposed share of a collective within one step window is split",
        _columns(f"""
            {_TRACE}
            op_id BIGINT an ops.op_id of class collective
            {_DEVICE}
            step BIGINT step whose window it lies in
            wait_ns BIGINT before the last rank arrived, ns
            pipeline_ns BIGINT a receive that waits for the sender, ns
            minimum_ns BIGINT unavoidable by the collective model, ns
        """),
        key=("trace_id", "op_id", "step"),
        public=False,
    ),
    Table(
        "step_work",
        "operations of a step window added up with their theory, on a device",
        _columns(f"""
            {_TRACE}
            {_DEVICE}
            step BIGINT step number
            math_ns BIGINT t_math of modelled compute operations, cut at the window, ns
            matrix_math_ns BIGINT part of it in matrix products, attention and convolutions, ns
            memory_bound_ns BIGINT what memory bandwidth adds to it, ns
            kernel_inefficiency_ns BIGINT share less t_min of modelled compute operations, ns
            unmodelled_compute_ns BIGINT share of compute operations whose cost is unknown, ns
            comm_minimum_ns BIGINT unavoidable part of exposed communication, ns
            comm_wait_ns BIGINT exposed communication before the last rank arrived, ns
            pipeline_ns BIGINT receives that wait for their sender, ns
            predicted_share_ns BIGINT share of exposed communication that is predicted, ns
            flops_done BIGINT FLOPs of compute operations whose FLOPs are known
            matrix_flops_done BIGINT those of them in matrix products, attention and convolutions
            recomputed_flops BIGINT those of matrix_flops_done that the step had done before: forward operations run again \
(recomputed_ops), and the scores that fused attention computes again in its backward pass
            matrix_unknown_ns BIGINT share of compute operations whose FLOPs are unknown and that may be matrix products, ns
        """),
        key=("trace_id", "device_id", "step"),
        public=False,
    ),
    Table(
        "step_theory",
        "model FLOPs and the peak that MFU is taken against, for a step on a device",
        _columns(f"""
            {_TRACE}
            {_DEVICE}
            step BIGINT step number
            model_flops BIGINT FLOPs that the mathematics needs on this device in this step; NULL = unknown
            model_flops_source VARCHAR config: from the description of the model; operations: FLOPs done less those recomputed; \
NULL = unknown
            peak_flops_per_s DOUBLE dense peak of the dtype of mfu_dtype, FLOP a second; NULL = unknown
            measured_flops_per_s DOUBLE measured ceiling of matrix products of mfu_dtype, FLOP a second; NULL = not measured
            mfu_dtype VARCHAR dtype of most of the matrix FLOPs
            mfu_note VARCHAR convention of MFU, or why there is none
        """),
        key=("trace_id", "device_id", "step"),
        public=False,
    ),
    Table(
        "run_theory",
        "a quantity of the typical step of a run on a device, measured and as the plan of its model and mesh predicts it",
        _columns(f"""
            {_RUN}
            quantity VARCHAR step, compute, optimizer, bubble, exposed_communication, communication, matrix_flops, mfu, memory, \
collective_bytes
            axis VARCHAR mesh axis of a communication, several joined by +; unknown = of groups that are no axes; NULL = none
            unit VARCHAR ns, bytes, flops, frac
            measured DOUBLE mean over devices, in that unit; NULL = see note
            predicted DOUBLE what the plan expects, in that unit; NULL = see note
            least DOUBLE what the plan says it must take at least, in that unit; NULL = no such bound
            ratio_frac DOUBLE measured over predicted; NULL = one of them is unknown or zero
            note VARCHAR what the two count, or why one is unknown
        """),
    ),
    Table(
        "mfu_conventions",
        "utilisation of the typical step of a run by one convention of counting",
        _columns(f"""
            {_RUN}
            convention VARCHAR word for the way of counting
            flops DOUBLE FLOPs of the step on one device by that convention; NULL = unknown
            peak_flops_per_s DOUBLE rate that they are held against, FLOP a second; NULL = unknown
            step_ns BIGINT wall time of the typical step, mean over devices, ns
            utilisation_frac DOUBLE flops over step time times peak; NULL = unknown
            note VARCHAR what counts, and who counts so; or why it is unknown
        """),
        key=("run_id", "convention"),
    ),
    Table(
        "pipeline_bubbles",
        "what waiting for other stages of a pipeline costs a step on a device, beside what the schedule must cost",
        _columns(f"""
            {_RUN}
            {_TRACE}
            {_DEVICE}
            rank BIGINT rank
            {_STEP}
            stage BIGINT stage of the rank, from 0; NULL = its messages do not tell
            stages BIGINT stages of the pipeline, p; NULL = unknown
            microbatches BIGINT microbatches of a step, m; NULL = unknown
            schedule VARCHAR gpipe, 1f1b, interleaved, zero_bubble_h1, zero_bubble_h2, dualpipe; NULL = not recognised
            bubble_ns BIGINT exposed time in which it waits for another stage, ns
            busy_ns BIGINT time in which it computes, ns
            bubble_over_busy_frac DOUBLE bubble_ns over busy_ns; NULL = it computes nothing
            plain_over_busy_frac DOUBLE (p - 1) / m, the same of GPipe and 1F1B with equal stages; NULL = p or m unknown
            schedule_over_busy_frac DOUBLE the same by the formula of the schedule; NULL = not recognised
            told_by VARCHAR what stages, microbatches and schedule are taken from, or why they are unknown
        """),
        key=("trace_id", "device_id", "step"),
    ),
    Table(
        "critical_path",
        "a piece of the critical path of a step over all ranks: the typical step and the slowest one",
        _columns(f"""
            {_RUN}
            step BIGINT step number; the step is that of the device whose window ends last
            place BIGINT number of the piece within the step, from 0
            rank BIGINT rank on which it lies
            {_TRACE}
            {_DEVICE}
            kind VARCHAR kernel, copy, collective, device_gap, launch_latency, launch_call, sync_call, sync_return, \
host, input, unknown
            op_id BIGINT operation that runs or is waited to begin, an ops.op_id; the longest of several; NULL = on the host
            name VARCHAR framework operation, else kernel, of op_id; NULL = on the host
            at_ns BIGINT begin of its first piece since the begin of the step, ns
            dur_ns BIGINT time on the path, ns; the rows of a step add up to its wall time
            unexplained_ns BIGINT part of dur_ns beyond every latency that the trace shows elsewhere, ns
            pieces BIGINT pieces that the row stands for
            why VARCHAR what happened meanwhile
        """),
    ),
    Table(
        "what_if",
        "what a change would make of the typical step, by replaying its dependencies; savings of several do not add up",
        _columns(f"""
            {_RUN}
            step BIGINT step number
            change VARCHAR kernel_at_bound, collective_at_prediction, collective_hidden, straggler_gone, launches_free, \
syncs_gone, input_gone, bubble_gone
            what VARCHAR operation, collective, rank or thing that is changed
            before_ns BIGINT wall time of the step as measured, mean over devices, ns
            after_ns BIGINT wall time with the change, likewise, ns
            saves_ns BIGINT before_ns less after_ns
            note VARCHAR what the answer rests on or leaves out; NULL = nothing more
        """),
    ),
    Table(
        "counters",
        "a sample of a counter",
        _columns(f"""
            {_TRACE}
            {_DEVICE}
            name VARCHAR counter
            ts_ns BIGINT time, ns since the origin of the trace
            value DOUBLE value in the unit of the counter
        """),
    ),
    Table(
        "notes",
        "what people said of a change in the history of a job",
        _columns(f"""
            {_RUN}, the first with the change
            metric VARCHAR column of run_gap that changed: wall_ns, a bucket, mfu
            state VARCHAR acknowledged: seen, not yet understood; explained: understood; reopened
            note VARCHAR what was said
            author VARCHAR who said it
            noted_at TIMESTAMP when, UTC
        """),
    ),
    Table(
        "memory_events",
        "a piece of device memory handed out or given back",
        _columns(f"""
            {_TRACE}
            {_DEVICE}
            thread VARCHAR host thread, a host_events.thread; NULL = not told
            ts_ns BIGINT time on the host, ns since the origin of the trace
            address BIGINT address of the piece; NULL = not told
            bytes BIGINT size of the piece, bytes; negative = given back; NULL = not told
            allocated_bytes BIGINT in use after it, as the allocator counts, bytes; NULL = not told
            reserved_bytes BIGINT held by the allocator after it, bytes; NULL = not told
            peak_bytes BIGINT most that was in use since the allocator began, as it says, bytes; NULL = not told
            name VARCHAR operation that asked for it, where the event says it; NULL = not told
            source VARCHAR torch_allocator, xla_allocator, cuda_calls
        """),
    ),
    Table(
        "memory",
        "device memory at its peak: a total, or a part of one",
        _columns(f"""
            {_TRACE}
            {_DEVICE}
            step BIGINT step in whose window on the host the peak lies; NULL = the whole trace
            part VARCHAR peak_allocated (most in use at once), peak_reserved (most that the allocator held), predicted (what \
the plan of model and mesh needs), program (what the compiler planned for the largest program), or a part of one of them: \
before_recording, earlier_steps, input, forward, backward, \
optimizer, communication, recording (handed out while recording, phase not told) by when it was handed out; in_use, cached; \
weights, gradients, optimizer, activations, buffers, margin; parameters, outputs, constants, temporaries
            part_of VARCHAR the total that it is a part of; NULL = it is a total
            name VARCHAR of a part of a part: module or operator that asked for it; NULL = the part itself, or the rest
            operator VARCHAR the operator, where name is a module; NULL = none
            bytes BIGINT measured, bytes; the parts of a total without name add up to it, and so do those with a name, with \
their rest (detail), to the part; NULL = unknown, see note
            predicted_bytes BIGINT what the plan expects on the fullest device, or the compiler on each, bytes; NULL = not \
predicted
            at_ns BIGINT when, ns since the origin of the trace
            detail BOOLEAN true: a part of a part
            source VARCHAR torch_allocator, xla_allocator, cuda_calls, plan, hlo
            note VARCHAR what it counts, or why it is unknown
        """),
    ),
    Table(
        "findings",
        "something worth a person's look",
        _columns(f"""
            {_RUN}
            severity VARCHAR high, medium, low, info
            kind VARCHAR stable word
            what VARCHAR a sentence for a person
            evidence JSON numbers behind it
            saves_ns BIGINT time of a median step that mending it would save at most, ns; NULL = cannot be said
            config_keys JSON configuration keys that it points at
        """),
    ),
)
"""All that the store has, in the order in which it is made."""

SPLITS = {r.name: r for r in RELATIONS if isinstance(r, Split)}
PARTS = tuple(chain.from_iterable((r.forms, r.rows, r.view) if isinstance(r, Split) else (r,) for r in RELATIONS))
"""The same, the two tables of each `Split` in its place with the view over them."""
TABLES = tuple(p for p in PARTS if isinstance(p, Table))
"""Base tables."""
BY_NAME = {r.name: r for r in (*TABLES, *RELATIONS)}
OF_TRACE = tuple(t.name for t in TABLES if "trace_id" in t.names and t.name != "traces")
"""Tables whose rows belong to one trace and go with it."""
OF_RUN = (*(t.name for t in TABLES if "run_id" in t.names and "trace_id" not in t.names and t.name != "runs"), "runs")
"""Tables whose rows belong to a run and go with it, the run itself the last."""
FORMS_OF = {s.rows.name: s.forms.name for s in SPLITS.values()}
"""Tables whose rows go with those that they belong to."""
