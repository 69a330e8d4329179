"""Large messages of which even the fastest is far slower than its links allow."""

from tracegap.reports.finding import Rule

RULE = Rule(
    sentence="{collective} over {group_size} ranks at {mean_bytes:bytes}: even the fastest of {known} equal "
    "calls reaches {busbw:digits} of {possible:digits} GB/s; look at the algorithm, the protocol and the "
    "topology that were chosen (NCCL_DEBUG=INFO)[[; {doubt}]]",
    query="""
        with equal as (
            select collective, group_size, message_bytes, count(*) as known, max(busbw_gb_per_s) as busbw,
                   max(efficiency_frac) as best_frac, any_value(predicted_ns) as predicted_ns,
                   bool_or(transfer_ns is not null) as told
            from collective_gap where run_id = $1 and predicted_ns > 0 and message_bytes > 0 group by all
        ),
        own as (
            select o.*, e.known, e.busbw as best_busbw, e.best_frac, e.told from typical_op o
            join equal e using (collective, group_size, message_bytes)
            where e.best_frac < 0.6 and o.state = 'exposed_comm'
              -- Far from where latency counts: a tenth of a millisecond of transfer.
              and e.predicted_ns > 100000
        )
        select collective, group_size, cast(sum(known) filter (i = 1) as bigint) as known, avg(message_bytes) as mean_bytes,
               max(best_busbw) as busbw,
               case when not bool_and(told) then 'unless each of them waited for a rank that is not in the run' end as doubt,
               max(best_busbw / best_frac) as possible, 100 * max(best_frac) as percent,
               cast(sum(comm_inefficiency_ns) / any_value(n) as bigint) as saves_ns, list(unit) as units
        from (select *, row_number() over (partition by collective, group_size, message_bytes order by unit) as i from own)
             , typical_size
        group by collective, group_size
    """,
    draws=("comm_inefficiency",),
    config=r"nccl[._](?!version)|topology",
)
