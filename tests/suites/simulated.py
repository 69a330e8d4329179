"""Small jobs of the project's simulator, of any number of ranks and in each format, with their truth beside them."""

import sys
from dataclasses import replace
from pathlib import Path

SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces"
if str(SAMPLES) not in sys.path:
    sys.path.append(str(SAMPLES))

from _sim import ddp, fsdp, sets  # noqa: E402  (found beside the samples)

FORMATS = ("kineto", "nsys", "xspace")
_LIKE = {"kineto": "sim_h100_before", "nsys": "sim_nsys_h100", "xspace": "sim_tpu_v5p"}
_TORUS = {1: (1,), 2: (2,), 8: (2, 2, 2), 64: (4, 4, 4)}


def write(form: str, ranks: int, seed: int, into: Path) -> None:
    """Writes the traces, manifest and truth of a job. The seed moves the numbers of the steps, on which chance depends."""
    like = sets.SETS[_LIKE[form]]
    job = _tpu_job(ranks, seed) if form == "xspace" else _gpu_job(ranks, seed)
    own = {"run": f"{form}-{ranks}-{seed}", "world_size": ranks, "tokens_per_step": ranks * _tokens(job)}
    own["model"] = sets.model(job)
    if isinstance(job, fsdp.Job):
        own |= {"mesh": {"fsdp": ranks}, "topology": {"torus": list(job.axes), "wrap": [False] * len(job.axes)}}
    else:
        own |= {"mesh": {"data": ranks}, "topology": {"ranks_per_domain": ranks}}
    sets.write_set(replace(like, job=job, manifest=dict(like.manifest) | own, before=None), into)


def _tokens(job: ddp.Job | fsdp.Job) -> int:
    return job.seq if isinstance(job, fsdp.Job) else job.tokens


def _gpu_job(ranks: int, seed: int) -> ddp.Job:
    return ddp.Job(
        ranks=ranks,
        layers=2 if ranks < 64 else 1,
        hidden=512,
        heads=4,
        vocab=8192,
        sequences=1,
        seq=512,
        first_step=1000 * seed,
        steps=4 if ranks < 64 else 3,
        bucket_cap_mb=4,
        slow_rank=seed % ranks,
        spared_step=1000 * seed + 1,
        stall_ns=200_000 + 2 * seed,
    )


def _tpu_job(ranks: int, seed: int) -> fsdp.Job:
    first = 1000 * seed
    return fsdp.Job(
        axes=_TORUS[ranks], layers=1, hidden=512, heads=4, seq=1024, vocab=2048, first_step=first, steps=4,
        slow_steps=(first + 1,),
    )  # fmt: skip
