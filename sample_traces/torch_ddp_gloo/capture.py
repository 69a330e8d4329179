"""Records two ranks of PyTorch under DistributedDataParallel (gloo, CPU): `python capture.py FOLDER`.

A small transformer is trained; of seven steps the profiler skips one, warms up in two and records four, with shapes.
The batches come from a DataLoader, and the loss is averaged over the ranks after each step.
"""

import gzip
import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile, record_function, schedule
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

RANKS = 2
LAYERS, HIDDEN, HEADS, FFN, VOCAB, SEQ, BATCH = 2, 128, 4, 512, 512, 64, 4
WAIT, WARMUP, ACTIVE = 1, 2, 4
BUCKET_CAP_MB = 0.5


class Block(nn.Module):
    """Attention and MLP, each behind a layer norm and beside a residual path."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.qkv, self.out = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.up, self.down = nn.Linear(HIDDEN, FFN), nn.Linear(FFN, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        parts = self.qkv(self.attention_norm(x)).chunk(3, -1)
        q, k, v = (p.view(batch, length, HEADS, -1).transpose(1, 2) for p in parts)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, HIDDEN))
        return x + self.down(functional.gelu(self.up(self.mlp_norm(x))))


class Model(nn.Module):
    """Decoder without position embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, HIDDEN)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Linear(HIDDEN, VOCAB, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.embedding(tokens)))


def train(rank: int, meeting_place: str, folder: str) -> None:
    """What one rank does."""
    os.chdir(folder)  # the trace keeps the name it is exported under: a bare one tells nothing of the machine
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting_place}", rank=rank, world_size=RANKS)
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(Model(), bucket_cap_mb=BUCKET_CAP_MB)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    steps = WAIT + WARMUP + ACTIVE
    data = TensorDataset(torch.randint(0, VOCAB, (RANKS * BATCH * steps, SEQ + 1)))
    loader = DataLoader(data, batch_size=BATCH, sampler=DistributedSampler(data, RANKS, rank))
    plan = schedule(wait=WAIT, warmup=WARMUP, active=ACTIVE, repeat=1)

    def save(done: profile) -> None:
        done.export_chrome_trace(f"rank{rank}.pt.trace.json")

    with profile(
        activities=[ProfilerActivity.CPU], schedule=plan, on_trace_ready=save, record_shapes=True, acc_events=True
    ) as profiler:
        for (tokens,) in loader:
            with record_function("forward"):
                logits = model(tokens[:, :-1])
                loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            with record_function("backward"):
                loss.backward()
            with record_function("optimizer"):
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            profiler.step()
    if rank == 0:
        print(f"loss {mean.item() / RANKS:.4f}")
    dist.destroy_process_group()


def main(out: Path) -> None:
    """Runs the ranks and compresses their traces into `out`."""
    with tempfile.TemporaryDirectory() as folder:
        meeting_place = str(Path(folder) / "meeting")
        torch.multiprocessing.spawn(train, (meeting_place, folder), nprocs=RANKS)
        for rank in range(RANKS):
            name = f"rank{rank}.pt.trace.json"
            (out / f"{name}.gz").write_bytes(gzip.compress((Path(folder) / name).read_bytes(), 9, mtime=0))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
