-- a copy with what the link that it goes over allows
-- run_id: run of the trace
-- rank: rank; for a file that holds several devices, the device ordinal
-- way: host_to_device, device_to_host, peer (from device to device), device (inside one); NULL = the name does not tell
-- link: what it goes over: host (PCIe or what stands for it), peer (scale-up links), memory (read and written)
-- exposed_ns: its share of the time in which only copies and fills run, ns
-- gb_per_s: bytes over duration, 10^9 bytes a second
-- link_gb_per_s: nominal rate of the link in one direction, 10^9 bytes a second; NULL = unknown
-- predicted_ns: bytes over that rate, ns, a lower bound: start-up and staging through pageable memory come on top
-- efficiency_frac: predicted_ns over the duration
-- unknown_because: why it is not predicted
create or replace view copy_gap as
with ways as (
    select
        o.trace_id, o.op_id, o.device_id, o.stream, o.step, o.name, o.start_ns, o.dur_ns, o.bytes,
        t.run_id, coalesce(d.ordinal, t.rank) as rank, d.hardware,
        case when regexp_matches(o.name, 'HtoD|H2D|HostToDevice') then 'host_to_device'
             when regexp_matches(o.name, 'DtoH|D2H|DeviceToHost') then 'device_to_host'
             when regexp_matches(o.name, 'PtoP|P2P|PeerToPeer') then 'peer'
             when regexp_matches(o.name, 'DtoD|D2D|DeviceToDevice') then 'device' end as way
    from ops o join traces t using (trace_id) join devices d using (trace_id, device_id)
    where o.op_class = 'copy'
),
linked as (
    select *, case when way in ('host_to_device', 'device_to_host') then 'host' when way = 'peer' then 'peer'
                   when way = 'device' then 'memory' end as link
    from ways
)
select
    c.trace_id, c.op_id, c.run_id, c.rank, c.device_id, c.stream, c.step, c.name, c.start_ns, c.dur_ns, c.bytes, c.way, c.link,
    coalesce(w.share_ns, 0) as exposed_ns,
    c.bytes / nullif(c.dur_ns, 0) as gb_per_s,
    l.gb_per_s as link_gb_per_s,
    cast(round(c.bytes / l.gb_per_s) as bigint) as predicted_ns,
    c.bytes / l.gb_per_s / nullif(c.dur_ns, 0) as efficiency_frac,
    case when c.bytes is not null and l.gb_per_s is not null then null
         when c.way is null then 'its name does not say from where to where'
         when c.bytes is null then 'its size is not in the trace'
         else coalesce(l.source, 'unknown part') end as unknown_because
from linked c
left join device_links l on l.trace_id = c.trace_id and l.device_id = c.device_id and l.link = c.link
left join (
    select trace_id, op_id, cast(sum(share_ns) as bigint) as share_ns
    from op_windows where state = 'exposed_copy' group by trace_id, op_id
) w on w.trace_id = c.trace_id and w.op_id = c.op_id;
