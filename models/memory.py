# ruff: noqa: N803 - formulas use the letters of the scaling book, each defined where it is used
"""Bytes of model states and activations on a device.

Letters: s sequence length, b microbatch in sequences, h or D model width, L layers, a heads, t tensor and pp pipeline
degree, `virtual` stages a rank. Formula codes Y1 to Y12 are those of the theory reference (EleutherAI Transformer Math;
Korthikanti et al. 2022; Megatron-LM; ZeRO; DeepSpeed's estimators; Scaling Book, chapter 6). Left out: contexts,
workspaces, fragmentation and what an allocator keeps.
"""

from math import ceil

from tracegap.models.errors import NoFormula
from tracegap.models.quantities import quantity

OPTIMIZER_BYTES = {"adamw": 12, "adam": 12, "adam8bit": 6, "sgd_momentum": 8, "adam_fp32": 8}
"""Bytes a parameter [Y1]: fp32 master and moments; `adam_fp32` trains in fp32 and needs no master."""


@quantity("weight_bytes", "Y10")
def weight_bytes(*, params: float, bytes_per_param: float, overhead: float = 1) -> float:
    """[Y10] Bytes of weights; times an overhead such as 1.2 as a rule of thumb for serving."""
    return params * bytes_per_param * overhead


@quantity("model_state_bytes", "Y1")
def model_state_bytes(
    *,
    params: float,
    param_bytes: float,
    grad_bytes: float,
    optimizer_bytes: float | None = None,
    optimizer: str | None = None,
) -> float:
    """[Y1] Bytes of weights, gradients and optimizer; the optimizer by its bytes a parameter, or by name."""
    if optimizer_bytes is None:
        if optimizer not in OPTIMIZER_BYTES:
            raise NoFormula(f"optimizer {optimizer}: known are {', '.join(OPTIMIZER_BYTES)}; or give optimizer_bytes")
        optimizer_bytes = OPTIMIZER_BYTES[optimizer]
    return params * (param_bytes + grad_bytes + optimizer_bytes)


@quantity("model_state_bytes_per_gpu", "Y1")
def model_state_bytes_per_gpu(*, L: float, h: float, t: float, pp: float, bytes_per_param: float) -> float:
    """[Y1] Bytes of the states of GPT blocks (12 h^2 parameters each) on a rank; embeddings left out."""
    return 12 * L * h**2 * bytes_per_param / (t * pp)


@quantity("zero1_bytes_per_gpu", "Y2")
def zero1_bytes_per_gpu(
    *, params: float, gpus: float, param_bytes: float, grad_bytes: float, optimizer_bytes: float
) -> float:
    """[Y2] Bytes of states with the optimizer sharded."""
    return params * (param_bytes + grad_bytes + optimizer_bytes / gpus)


@quantity("zero2_bytes_per_gpu", "Y3")
def zero2_bytes_per_gpu(
    *, params: float, gpus: float, param_bytes: float, grad_bytes: float, optimizer_bytes: float
) -> float:
    """[Y3] Bytes of states with optimizer and gradients sharded."""
    return params * (param_bytes + (grad_bytes + optimizer_bytes) / gpus)


@quantity("zero3_bytes_per_gpu", "Y4")
def zero3_bytes_per_gpu(
    *, params: float, gpus: float, param_bytes: float, grad_bytes: float, optimizer_bytes: float
) -> float:
    """[Y4] Bytes of states with everything sharded; the layers gathered at the moment come on top."""
    return params * (param_bytes + grad_bytes + optimizer_bytes) / gpus


@quantity("bytes_per_param_distributed_optimizer", "Y2m")
def bytes_per_param_distributed_optimizer(*, dp: float) -> float:
    """[Y2m] Megatron: 2-byte weights and 4-byte gradients whole, 12 bytes of optimizer over the data ranks."""
    return 6 + 12 / dp


@quantity("deepspeed_zero2_gpu_bytes", "Y3d")
def deepspeed_zero2_gpu_bytes(*, params: float, gpus: float, offload: bool = False) -> float:
    """[Y3d] DeepSpeed's estimator of stages 1 and 2; offload keeps only the 2-byte weights on the GPU."""
    return 2 * params + (0 if offload else 18 * params / gpus)


@quantity("deepspeed_zero3_gpu_bytes", "Y4d")
def deepspeed_zero3_gpu_bytes(
    *, params: float, largest_layer_params: float, gpus: float, offload: bool = False
) -> float:
    """[Y4d] DeepSpeed's estimator of stage 3; offload of weights and optimizer keeps only the largest layer."""
    return 4 * largest_layer_params + (0 if offload else 18 * params / gpus)


@quantity("3d_zero1_bytes_per_gpu", "Y12")
def zero1_3d_bytes_per_gpu(
    *,
    params: float,
    pp: float,
    tp: float,
    gpus: float,
    param_bytes: float,
    grad_bytes: float,
    optimizer_bytes: float,
    activation_bytes: float = 0,
) -> float:
    """[Y12] Bytes with tensor, pipeline and data parallelism and a sharded optimizer; activations are split by tp."""
    states = params * (param_bytes + grad_bytes) / (pp * tp) + params * optimizer_bytes / gpus
    return states + activation_bytes / tp


@quantity("activation_bytes_no_recompute", "Y5")
def activation_bytes_no_recompute(
    *,
    s: float,
    b: float,
    h: float,
    L: float,
    a: float,
    t: float = 1,
    pp: float = 1,
    virtual: float = 1,
    sequence_parallel: bool = False,
) -> float:
    """[Y5] Bytes of a GPT's saved activations on the first stage, nothing recomputed; ends of the model left out."""
    scores = 5 * a * s / h
    per_value = (34 + scores) / t if sequence_parallel else 10 + (24 + scores) / t
    return s * b * h * L * per_value * _in_flight(pp, virtual)


@quantity("activation_bytes_selective_sp", "Y6")
def activation_bytes_selective_sp(
    *, s: float, b: float, h: float, L: float, t: float = 1, pp: float = 1, virtual: float = 1
) -> float:
    """[Y6] The same with the attention core recomputed and sequence parallelism."""
    return 34 * s * b * h * L / t * _in_flight(pp, virtual)


@quantity("activation_bytes_selective", "Y6")
def activation_bytes_selective(
    *, s: float, b: float, h: float, L: float, t: float = 1, pp: float = 1, virtual: float = 1
) -> float:
    """[Y6] The same without sequence parallelism: 10 bytes a value of norms and dropouts stay whole on each rank."""
    return s * b * h * L * (10 + 24 / t) * _in_flight(pp, virtual)


@quantity("activation_bytes_full_recompute", "Y7")
def activation_bytes_full_recompute(*, s: float, b: float, h: float, L: float) -> float:
    """[Y7] The same with every layer recomputed: its input is all that is kept, and one live layer on top."""
    return 2 * s * b * h * L


def _in_flight(pp: float, virtual: float) -> float:
    """Layers' worth of microbatches that the first stage of a 1F1B schedule keeps, over all layers.

    pp microbatches of L / pp layers are L layers' worth; interleaved schedules keep a little more.
    """
    return 1 + (pp - 1) / (pp * virtual) if virtual > 1 else 1


@quantity("min_chips_raw", "Y11")
def min_chips_raw(*, params: float, weight_bytes: float, hbm_bytes: float) -> float:
    """[Y11] Chips whose memories hold the weights alone, not rounded."""
    return params * weight_bytes / hbm_bytes


@quantity("min_chips_for_training", "Y11")
def min_chips_for_training(
    *,
    params: float,
    param_bytes: float,
    optimizer_bytes: float,
    tokens: float,
    D: float,
    L: float,
    checkpoints_per_layer: float,
    ckpt_bytes: float,
    hbm_bytes: float,
) -> float:
    """[Y11] Chips whose memories hold states and checkpoints of a whole batch."""
    states = params * (param_bytes + optimizer_bytes)
    return ceil((states + tokens * D * L * checkpoints_per_layer * ckpt_bytes) / hbm_bytes)
