"""What a device kernel is, by its name alone: class, collective, math dtype. Pure.

Names are demangled C++ signatures, mangled ones, or what Triton, cuBLAS and Tensile make up. The class is read from the
function's own name first (what stands before its template arguments), and for the general launchers of PyTorch
(`vectorized_elementwise_kernel`, `reduce_kernel`, ...) from the functor that they carry.
"""

import re
from functools import lru_cache

from tracegap.models.ops import CollectiveKind, OpClass

_NOISE = re.compile(r"\(anonymous namespace\)::|^void |^std::enable_if<.*?>::type |\.kd$|\[clone[^\]]*\]")
_CACHE = 1 << 16

# --- communication -----------------------------------------------------------------------------------------------------

_COLLECTIVE = re.compile(
    r"""(?ix) ^(?:\w+::)*? (?:
        nccl | rccl | msccl | nvshmem | oneccl | onccl
        | cross_device_reduce_ | (?:one|two)_?shot_?all_?reduce | multimem_ | (?:fused_)?all_?reduce_?(?:kernel|fusion|prototype)
        | lamport_?(?:style_)?all_?reduce | quickreduce | (?:k)?userbuffers_
        | deep_ep:: | mori::
    )"""
)
"""At the start of the function's name, namespaces aside: `triton_poi_fused_all_gather_...` is no collective."""

_KINDS: list[tuple[CollectiveKind, str]] = [
    (CollectiveKind.REDUCE_SCATTER, r"reduce_?scatter"),
    (CollectiveKind.ALL_REDUCE, r"all_?reduce|cross_device_reduce"),
    (CollectiveKind.ALL_GATHER, r"all_?gather"),
    (CollectiveKind.ALL_TO_ALL, r"all_?to_?all"),
    (CollectiveKind.SEND_RECV, r"send_?recv|isend_?irecv"),
    (CollectiveKind.BROADCAST, r"broadcast"),
    (CollectiveKind.BARRIER, r"barrier"),
    (CollectiveKind.PERMUTE, r"permute"),
    (CollectiveKind.REDUCE, r"reduce"),
    (CollectiveKind.GATHER, r"gather"),
    (CollectiveKind.SCATTER, r"scatter"),
    (CollectiveKind.SEND, r"send"),
    (CollectiveKind.RECV, r"recv"),
]
"""First match wins: reduce-scatter holds the word reduce, an all-reduce too."""

_KIND_PATTERNS = [(kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _KINDS]
_DISPATCH = re.compile(r"(?i)(?:deep_ep|mori)::.*?(?:dispatch|combine)")


def _own_name(name: str) -> str:
    """The function's qualified name without template arguments and parameters."""
    return re.split(r"[<(]", _NOISE.sub("", name), maxsplit=1)[0].strip()


@lru_cache(_CACHE)
def is_collective(name: str) -> bool:
    """Whether a kernel of this name communicates: NCCL, RCCL, MSCCL, NVSHMEM, custom all-reduces, expert dispatch."""
    return _COLLECTIVE.match(_own_name(name)) is not None


@lru_cache(_CACHE)
def collective_kind(name: str) -> CollectiveKind | None:
    """Kind of communication that the kernel's name tells; None = none, or communication of unknown kind.

    `ncclDevKernel_Generic` and the like may run any collective. A SendRecv kernel may be an all-to-all: only the
    framework's metadata can tell (`collective_kind_of_call`). Algorithm and protocol in the name mean nothing.
    """
    own = _own_name(name)
    if _COLLECTIVE.match(own) is None:
        return None
    if _DISPATCH.search(own):
        return CollectiveKind.ALL_TO_ALL
    return _first_kind(own)


@lru_cache(_CACHE)
def collective_kind_of_call(name: str) -> CollectiveKind | None:
    """Kind of a framework's call: Kineto's `Collective name` (`_allgather_base`), `nccl:all_reduce`, `c10d::broadcast_`."""
    return _first_kind(re.sub(r"^[a-z0-9]+::?", "", name, flags=re.IGNORECASE))


def _first_kind(text: str) -> CollectiveKind | None:
    return next((kind for kind, pattern in _KIND_PATTERNS if pattern.search(text)), None)


# --- classes -----------------------------------------------------------------------------------------------------------

_FUNCTORS: list[tuple[OpClass, str]] = [
    (OpClass.NORMALIZATION, r"batch_norm|group_?norm|layer_?norm|rms_?norm"),
    (OpClass.SOFTMAX, r"softmax"),
    (OpClass.OPTIMIZER, r"adam|FusedSgd|FusedAdagrad|lamb_|adagrad"),
    (
        OpClass.RANDOM,
        r"bernoulli|random_from_to|uniform_and_transform|normal_and_transform|dropout|exponential_kernel|Philox",
    ),
    (OpClass.EMBEDDING, r"index_kernel_impl|index_put|gather|scatter|index_fill|index_copy|take_kernel"),
    (
        OpClass.DATA_MOVEMENT,
        r"direct_copy|bfloat16_copy|float16_copy|float8_copy|copy_kernel|copy_device_to_device|FillFunctor|flip_kernel|roll",
    ),
    (OpClass.REDUCTION, r"reduce_kernel|ReduceOp"),
]
"""By the functor of a general launcher; none of them: elementwise."""

_LAUNCHERS = re.compile(
    r"(?:^|::)(?:\w*elementwise_kernel\w*|reduce_kernel|multi_tensor_apply_kernel|unrolled_elementwise_kernel_for_multi_outputs"
    r"|gpu_kernel_impl|distribution_\w+|fused_dropout_\w+)$"
)

_CLASSES: list[tuple[OpClass, str]] = [
    (OpClass.COPY, r"^\[?(?:cuda |hip )?memcpy|^copy(?:Host|Device|Buffer)|__amd_rocclr_copyBuffer"),
    (OpClass.MEMSET, r"^\[?(?:cuda |hip )?memset|__amd_rocclr_fillBuffer"),
    (OpClass.GRAPH, r"^(?:cuda|hip)?graph(?:launch|exec)"),
    # compilers name what they fused; only templates are one known operation
    (OpClass.ELEMENTWISE, r"^triton_(?:poi|for)_|^triton_unk_"),
    (OpClass.REDUCTION, r"^triton_(?:red|per|split_scan)_"),
    (OpClass.ATTENTION, r"^triton_tem_.*(?:flex_attention|attention)"),
    (OpClass.CONVOLUTION, r"^triton_tem_.*conv"),
    (OpClass.MATMUL, r"^triton_tem_.*(?:mm|matmul)"),
    (OpClass.CUSTOM, r"^triton_tem_"),
    # embedding tables and optimizers of recommendation models: before their inner words mislead
    (
        OpClass.EMBEDDING,
        r"split_embedding|permute_pooled_embs|bounds_check_indices|linearize_index|embedding|EmbeddingBag|table_batched",
    ),
    (
        OpClass.ATTENTION,
        r"flash|fmha|attn_(?:fwd|bwd)|(?:un)?fused_attention|attention|sdpa|fused_attn|_attn_|mha_(?:fwd|bwd)|(?<![a-z])mla_|softmax_mask_",
    ),
    (
        OpClass.CONVOLUTION,
        r"conv(?!ert)|wgrad|dgrad|fprop|winograd|scudnn|im2col|col2im|igemm_(?:fwd|bwd|wrw)|im2d2col|col2im|Im3d2Col|miopenSp3Asm|gcnAsm|MIOpenConv"
        r"|cask_cudnn|SubTensorOpWithScalar|naive_conv|explicit_convolve|implicit_convolve|bwd_weight|fft2d|cudnn::cnn",
    ),
    (
        OpClass.OPTIMIZER,
        r"adam(?![a-z])|adamw|(?<![a-z])lamb(?![a-z])|(?<![a-z])sgd|fused_?adam|adagrad|multi_tensor_(?:adam|sgd|lamb|novograd)|lion_",
    ),
    (
        OpClass.MATMUL,
        r"gemm|cutlass|nvjet|cijk_|gemv|(?<![a-z])matmul|_mm_kernel|splitk_?reduce|cublas|dot_kernel|tensile|mfma_|moe_kernel|fused_moe|epilogue::impl::globalKernel"
        r"|scaled_mm|marlin|dequant.*mm|reduce_1Block_kernel|bmm_",
    ),
    (
        OpClass.NORMALIZATION,
        r"(?:layer|batch|group|instance|rms)_?norm|bn_(?:fw|bw)|(?:^|_|::)(?:ln|bn)_(?:fwd|bwd|fw|bw)|RowwiseMoments|GammaBeta|ComputeFusedParams|ComputeInternalGradients"
        r"|ComputeBackwardFusedParams|BatchNorm|welford|rmsnorm|Rmsnorm|norm_kernel|l2norm",
    ),
    (OpClass.SOFTMAX, r"softmax|log_?sum_?exp|cross_entropy"),
    (OpClass.SORT, r"sort|topk|top_k|bitonic|kthvalue|mode_kernel|unique"),
    (OpClass.RANDOM, r"dropout|philox|curand|rocrand|bernoulli|random|rng|threefry|multinomial|distribution_"),
    (
        OpClass.EMBEDDING,
        r"index_?select|indexing_backward|index_elementwise|gather|scatter|index_put|index_?add|index_?copy|(?:^|_)lookup|take_kernel|krn_partial|compute_grad_weight|nonzero",
    ),
    (
        OpClass.DATA_MOVEMENT,
        r"catarray|cat_kernel|concat|transpose|permute|nchw|nhwc|cnhw|copy|fill|pad_?kernel|(?:^|_)pad|reorder|reshape|slice|split_kernel|chunk|roll_|flip|repeat|tile_|"
        r"tensorTransform|upsample|interpolate|pixel_shuffle|(?:un)?pack|relayout|memset|memcpy|layout|arange|range_kernel|tril|triu|reshape_and_cache|kv_cache|quantize|cast",
    ),
    (
        OpClass.REDUCTION,
        r"reduce|(?<![a-z])sum|(?<![a-z])mean|norm|scan|cumsum|pool|nll|classnll|loss|histogram|argmax|argmin|amax|trampoline_kernel|segments|prefix|"
        r"max_kernel|count|compact",
    ),
    (
        OpClass.ELEMENTWISE,
        r"elementwise|element_wise|pointwise|relu|gelu|silu|swiglu|tanh|sigmoid|activation|act_and_mul|rotary|rope|add_|_add|addbias|mul_|scalePackedTensor|OpTensor|"
        r"op_tensor|scale|Tensor(?:Op|Apply)|where|clamp|mask|axpy|loop_\w*fusion|^fusion|wrapped_|bias|transform_kernel|tensor_apply|unary|binary|"
        r"CUDAFunctor|lerp|exp_kernel|multi_tensor",
    ),
]
"""Searched in the function's own name (and the whole one for mangled names) in this order; ignoring case."""

_FUNCTOR_PATTERNS = [(c, re.compile(p, re.IGNORECASE)) for c, p in _FUNCTORS]
_CLASS_PATTERNS = [(c, re.compile(p, re.IGNORECASE)) for c, p in _CLASSES]


@lru_cache(_CACHE)
def kernel_class(name: str) -> OpClass:
    """Class of a device operation by its name; `OpClass.OTHER` where nothing is known.

    A fill that runs as a kernel is `data_movement`, as copies by kernels are: `copy` and `memset` are operations of the
    copy engines and of the driver (`Memcpy DtoH`, `[CUDA memset]`), which are no kernels.
    """
    if is_collective(name):
        return OpClass.COLLECTIVE
    own = _own_name(name)
    if _LAUNCHERS.search(own):
        default = OpClass.REDUCTION if own.endswith("reduce_kernel") else OpClass.ELEMENTWISE
        return next((c for c, pattern in _FUNCTOR_PATTERNS if pattern.search(name)), default)
    return next((c for c, pattern in _CLASS_PATTERNS if pattern.search(own)), OpClass.OTHER)


# --- math dtype --------------------------------------------------------------------------------------------------------

_TENSILE = re.compile(r"^Cijk_[A-Z][a-z]+_[A-Z][a-z]+_(F8|B8|I8|[BHSDCZ])")
_TENSILE_DTYPES = {
    "F8": "fp8", "B8": "fp8", "I8": "int8", "B": "bf16", "H": "fp16", "S": "fp32", "D": "fp64", "C": "complex64", "Z": "complex128",
}  # fmt: skip

_DTYPES = [
    ("fp4", r"e2m1|nvfp4|mxf4|fp4"),
    ("fp8", r"e4m3|e5m2|fp8|float_?8|nvjet_(?:sm\d+_)?qq"),
    ("bf16", r"bf16|bfloat16|DF16b|nvjet_(?:sm\d+_)?tst"),
    ("tf32", r"tf32"),
    (
        "fp16",
        r"(?<![bt])f16|fp16|__half|c10::Half|half_t|float16|(?<![a-z])h(?:884|1688|16816)|hgemm|_half(?![a-z])|DF16_|nvjet_(?:sm\d+_)?hsh",
    ),
    ("int8", r"i8i8|_s8_|int8|imma|(?<![a-z])i(?:8816|16832)"),
    ("fp64", r"(?<![a-z])d884|dgemm|(?<![a-z])double(?![a-z])|f64|fp64"),
    ("tf32", r"(?<![a-z])s1688"),
    ("fp32", r"sgemm|simt|ffma|(?<![a-z])float(?![a-z0-9_])|(?<![a-z])f32|fp32"),
]
_DTYPE_PATTERNS = [(d, re.compile(p, re.IGNORECASE)) for d, p in _DTYPES]


@lru_cache(_CACHE)
def kernel_dtype(name: str) -> str | None:
    """Math dtype that a kernel's name tells, a key of `models.ops.DTYPE_BYTES`; None where it tells none.

    Says what a trace's shapes cannot: an fp32 matrix product that runs as TF32 (`tf32`, `tensorop_s1688` without a
    16-bit word) and whether accumulation types stand beside it (the narrowest operand's type is the math's).
    """
    if match := _TENSILE.match(name):
        return _TENSILE_DTYPES[match.group(1)]
    return next((d for d, pattern in _DTYPE_PATTERNS if pattern.search(name)), None)
