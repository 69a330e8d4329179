"""An H100 SXM in this simulation: its peaks, the kernels of PyTorch on it, what they cost and how long they take."""

from dataclasses import dataclass

from _sim.schedule import Collective, Cost
from _sim.truth import Chip, half_even_ns

# From the NVIDIA H100 data sheet and Hopper white paper (sparse figures halved):
# bf16 989.4 TFLOP/s dense on tensor cores, fp32 67 TFLOP/s, HBM3 3352 GB/s, NVLink 450 GB/s a GPU and direction.
H100 = Chip(matrix_flops_per_s=9894 * 10**11, vector_flops_per_s=67 * 10**12, hbm_bytes_per_s=3352 * 10**9)
NVLINK_BYTES_PER_S = 450 * 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """How an operation runs on the device."""

    name: str
    op_class: str
    permille: int
    """Share of its bound that it reaches."""
    floor_ns: int = 900
    grid: tuple[int, int, int] = (132, 1, 1)
    block: tuple[int, int, int] = (128, 1, 1)


def _elementwise(functor: str, arrays: int, permille: int) -> Kernel:
    name = (
        f"void at::native::vectorized_elementwise_kernel<4, at::native::{functor}, std::array<char*, {arrays}ul> >"
        f"(int, at::native::{functor}, std::array<char*, {arrays}ul>)"
    )
    return Kernel(name=name, op_class="elementwise", permille=permille, grid=(3072, 1, 1))


def _gemm(tiles: str, layout: str, permille: int) -> Kernel:
    name = (
        f"sm90_xmma_gemm_bf16bf16_bf16f32_f32_{layout}_n_tilesize{tiles}"
        "_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas"
    )
    return Kernel(name=name, op_class="matmul", permille=permille, floor_ns=1800, block=(384, 1, 1))


_FLASH = "pytorch_flash::Flash_{}_kernel_traits<64, 128, 128, 4, false, false, cutlass::bfloat16_t"
KERNELS = {
    "embedding": Kernel(
        name="void at::native::(anonymous namespace)::indexSelectLargeIndex<c10::BFloat16, long, unsigned int, 2, 2, "
        "-2, true>(at::cuda::detail::TensorInfo<c10::BFloat16, unsigned int>, "
        "at::cuda::detail::TensorInfo<c10::BFloat16 const, unsigned int>, at::cuda::detail::TensorInfo<long const, "
        "unsigned int>, int, int, unsigned int, unsigned int, long)",
        op_class="embedding",
        permille=430,
        grid=(1056, 1, 1),
    ),
    "add": _elementwise("CUDAFunctor_add<c10::BFloat16>", 3, 760),
    "gelu": _elementwise(
        "GeluCUDAKernelImpl(at::TensorIteratorBase&, at::native::GeluType)::{lambda()#2}::operator()() const::"
        "{lambda()#4}::operator()() const::{lambda(c10::BFloat16)#1}",
        2,
        720,
    ),
    "gelu_backward": _elementwise(
        "GeluBackwardCUDAKernelImpl(at::TensorIteratorBase&, at::native::GeluType)::{lambda()#2}::operator()() const::"
        "{lambda()#4}::operator()() const::{lambda(c10::BFloat16, c10::BFloat16)#1}",
        3,
        700,
    ),
    "layer_norm": Kernel(
        name="void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>(int, float, "
        "c10::BFloat16 const*, c10::BFloat16 const*, c10::BFloat16 const*, float*, float*, c10::BFloat16*)",
        op_class="normalization",
        permille=520,
        grid=(2048, 1, 1),
        block=(32, 4, 1),
    ),
    "layer_norm_backward": Kernel(
        name="void at::native::(anonymous namespace)::layer_norm_grad_input_kernel_vectorized<c10::BFloat16, float>"
        "(c10::BFloat16 const*, c10::BFloat16 const*, float const*, float const*, c10::BFloat16 const*, "
        "c10::BFloat16*, int)",
        op_class="normalization",
        permille=390,
        grid=(2048, 1, 1),
    ),
    "sum": Kernel(
        name="void at::native::reduce_kernel<128, 4, at::native::ReduceOp<c10::BFloat16, at::native::func_wrapper_t"
        "<c10::BFloat16, at::native::sum_functor<c10::BFloat16, float, "
        "c10::BFloat16>::operator()(at::TensorIterator&)::{lambda(float, float)#1}>, unsigned int, c10::BFloat16, 4> "
        ">(at::native::ReduceOp<c10::BFloat16, at::native::func_wrapper_t<c10::BFloat16, "
        "at::native::sum_functor<c10::BFloat16, float, "
        "c10::BFloat16>::operator()(at::TensorIterator&)::{lambda(float, float)#1}>, unsigned int, c10::BFloat16, 4>)",
        op_class="reduction",
        permille=560,
        block=(32, 16, 1),
    ),
    "addmm": _gemm("128x128x64", "tn", 640),
    "mm_tn": _gemm("128x256x64", "tn", 700),
    "mm_nn": _gemm("128x128x64", "nn", 660),
    "mm_nt": _gemm("128x128x64", "nt", 610),
    "flash_forward": Kernel(
        name=f"void pytorch_flash::flash_fwd_kernel<{_FLASH.format('fwd')}, pytorch_flash::Flash_kernel_traits<64, "
        f"128, 128, "
        "4, cutlass::bfloat16_t> >, false, true, false, false, true, true, false>(pytorch_flash::Flash_fwd_params)",
        op_class="attention",
        permille=410,
        grid=(8, 2, 12),
    ),
    "flash_backward": Kernel(
        name="void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<"
        f"{_FLASH.format('bwd')}> , false, true, false, false, true, true>(pytorch_flash::Flash_bwd_params)",
        op_class="attention",
        permille=370,
        grid=(8, 2, 12),
        block=(256, 1, 1),
    ),
    "adamw": Kernel(
        name="void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
        "FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::FusedAdamMathFunctor<c10::BFloat16, "
        "4, (at::native::ADAM_MODE)1, false>, float const*, double, double, double, double, double, bool, float*, "
        "float*, (at::native::ADAM_MODE)1>(at::native::(anonymous namespace)::FusedOptimizerTensorListMetadata<4>, "
        "at::native::(anonymous namespace)::FusedAdamMathFunctor<c10::BFloat16, 4, (at::native::ADAM_MODE)1, false>, "
        "float const*, double, double, double, double, double, bool, float*, float*, (at::native::ADAM_MODE)1)",
        op_class="optimizer",
        permille=810,
        grid=(320, 1, 1),
        block=(512, 1, 1),
    ),
}
"""Kernels as the libraries of PyTorch 2.4 and CUDA 12.4 name them."""

UNMODELLED = {
    "acme::head_loss_forward": ("void acme::head_loss_fwd_kernel<__nv_bfloat16, 256>(HeadLossParams)", 96_000),
    "acme::head_loss_backward": ("void acme::head_loss_bwd_kernel<__nv_bfloat16, 256>(HeadLossParams)", 118_000),
    "acme::grad_stats": ("void acme::grad_stats_kernel<__nv_bfloat16>(GradStatsParams)", 5_200),
}
"""Operations of an in-house library that no table of formulas knows: kernel and duration in ns."""


def duration_ns(cost: Cost, kernel: Kernel) -> int:
    """How long the simulated kernel takes."""
    return kernel.floor_ns + bound_ns(cost) * 1000 // kernel.permille


def bound_ns(cost: Cost) -> int:
    """How long it must take."""
    peak = H100.matrix_flops_per_s if cost.matrix else H100.vector_flops_per_s
    return max(half_even_ns(cost.flops, peak), half_even_ns(cost.bytes, H100.hbm_bytes_per_s))


def transfer_ns(call: Collective, ranks: int) -> int:
    """How long the simulated all-reduce moves data: 250 GB/s of bus bandwidth at most, 80 us to start."""
    return 80_000 + half_even_ns(call.message_bytes * 2 * (ranks - 1), 250 * 10**9 * ranks)


def predicted_ns(call: Collective, ranks: int) -> int:
    """What an all-reduce over NVLink should take.

    Latency of NCCL's ring with the LL protocol, 6.6 us + 2 (n - 1) x 0.6 us (theory N3), plus S x 2 (n - 1) / n over
    the egress of a GPU (theory G2). A rank alone sends nothing.
    """
    if ranks == 1:
        return 0
    latency = 6600 + 2 * (ranks - 1) * 600
    return latency + half_even_ns(call.message_bytes * 2 * (ranks - 1), NVLINK_BYTES_PER_S * ranks)


def gemm_cost(m: int, k: int, n: int, bias: int = 0) -> Cost:
    return Cost(flops=2 * m * k * n, bytes=2 * (m * k + k * n + m * n + bias), matrix=True)


def vector_cost(flops: int, nbytes: int) -> Cost:
    return Cost(flops=flops, bytes=nbytes, matrix=False)
