"""What a device kernel is, by its name alone: class, collective, math dtype. Pure.

Names are demangled C++ signatures, mangled ones, or what Triton, XLA, cuBLAS and Tensile make up. The class is read
from the function's own name first (what stands before its template arguments), and for general launchers of PyTorch and
CUB (`vectorized_elementwise_kernel`, `reduce_kernel`, ...) from the functor that they carry.
"""

import re
from collections.abc import Sequence
from functools import lru_cache

from tracegap.models.ops import CollectiveKind, OpClass

_CACHE = 1 << 16
_NOISE = re.compile(
    r"\(anonymous namespace\)::|<unnamed>::|^void |^std::enable_if<.*?>::type |\.kd$|\s*\[clone[^\]]*\]|^__omni_func_"
)
_OWN_NAME = re.compile(r"[^<(]*")


def _own_name(name: str) -> str:
    """The function's qualified name without template arguments and parameters."""
    match = _OWN_NAME.match(_NOISE.sub("", name))
    return match.group().strip() if match else name


# Communication

_COLLECTIVE = re.compile(
    r"""(?ix) ^(?:\w+::)*? (?:
        nccl | rccl | msccl | nvshmem | rocshmem | oneccl | multimem_ | quickreduce | k?userbuffers_
        | cross_device_reduce_ | (?:one|two)_?shot_?all_?reduce | lamport_?(?:style_)?all_?reduce
        | (?:fused_)?all_?reduce_?(?:kernel|fusion|prototype)
        | deep_ep:: | mori::
    )"""
)
"""At the start of the function's name, namespaces aside: `triton_poi_fused_all_gather_...` is no collective."""

_KINDS = [
    (kind, re.compile(pattern.lower()))
    for kind, pattern in (
        (CollectiveKind.REDUCE_SCATTER, r"reduce_?scatter"),
        (CollectiveKind.ALL_REDUCE, r"all_?reduce|cross_device_reduce"),
        (CollectiveKind.ALL_GATHER, r"all_?gather"),
        (CollectiveKind.ALL_TO_ALL, r"all_?2?_?to_?all|all2all|(?:deep_ep|mori)::.*(?:dispatch|combine)"),
        (CollectiveKind.SEND_RECV, r"send_?recv|isend_?irecv"),
        (CollectiveKind.BROADCAST, r"broadcast"),
        (CollectiveKind.BARRIER, r"barrier"),
        (CollectiveKind.PERMUTE, r"permute"),
        (CollectiveKind.REDUCE, r"reduce"),
        (CollectiveKind.GATHER, r"gather"),
        (CollectiveKind.SCATTER, r"scatter"),
        (CollectiveKind.SEND, r"send"),
        (CollectiveKind.RECV, r"recv"),
    )
]
"""First match wins: reduce-scatter holds the word reduce, an all-reduce too."""


def _kind(text: str) -> CollectiveKind | None:
    lower = text.lower()
    return next((kind for kind, pattern in _KINDS if pattern.search(lower)), None)


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
    return _kind(_own_name(name)) if is_collective(name) else None


@lru_cache(_CACHE)
def collective_kind_of_call(name: str) -> CollectiveKind | None:
    """Kind of a framework's call: `_allgather_base` (Kineto's `Collective name`), `nccl:all_reduce`, `c10d::send`."""
    return _kind(re.sub(r"^\w+::?", "", name))


# Classes

_LAUNCHERS = re.compile(
    r"(?:^|::)(?:\w*elementwise_kernel\w*|reduce_kernel|multi_tensor_apply_kernel|distribution_\w+|fused_dropout_\w+"
    r"|EigenMetaKernel|trampoline_kernel|_?kernel_agent|Device\w+Kernel|kentry|Kernel2?|kernel)$"
)
"""Kernels that run whatever functor they are made with."""

_LAUNCHER_DEFAULTS = {
    "reduce": OpClass.REDUCTION,
    "Reduce": OpClass.REDUCTION,
    "cutlass": OpClass.MATMUL,
    "EigenMetaKernel": OpClass.ELEMENTWISE,
}
"""By a word in a launcher's own name, where its functor says nothing."""

_FUNCTORS = [
    (op_class, re.compile(pattern.lower()))
    for op_class, pattern in (
        (OpClass.CONVOLUTION, r"fprop|dgrad|wgrad|ImplicitGemm|conv2d|conv3d"),
        (OpClass.ATTENTION, r"attention|fmha|flash_"),
        (OpClass.MATMUL, r"gemm|gemv|matmul"),
        (OpClass.NORMALIZATION, r"batch_?norm|group_?norm|layer_?norm|rms_?norm|rmsnorm2d|layernorm2d"),
        (OpClass.SOFTMAX, r"softmax"),
        (OpClass.OPTIMIZER, r"adam|adagrad|fused_?sgd|lamb(?![a-z])"),
        (
            OpClass.RANDOM,
            r"bernoulli|random_from_to|(?:uniform|normal)_and_transform|dropout|exponential_kernel|philox",
        ),
        (OpClass.SORT, r"radix_?sort|merge_?sort|sort_config|topk"),
        (
            OpClass.EMBEDDING,
            r"index_kernel_impl|index_put|gather|scatter|index_fill|index_copy|take_kernel|partition_|select_",
        ),
        (
            OpClass.DATA_MOVEMENT,
            r"direct_copy|float\d+_copy|copy_kernel|copy_device_to_device|FillFunctor|(?<!masked_)fill_kernel|flip_kernel|(?<![a-z])roll_"
            r"|CatArray|TensorConversionOp|TensorBroadcastingOp",
        ),
        (OpClass.REDUCTION, r"reduce|(?<![a-z])scan"),
    )
]
"""By what a launcher carries, in small letters; none of these: as its own name says."""

_CLASSES = [
    (op_class, re.compile(pattern.lower()))
    for op_class, pattern in (
        (OpClass.COPY, r"^\[?(?:cuda |hip )?memcpy|^__amd_rocclr_copyBuffer|^copy(?:Host|Device|Buffer)"),
        (OpClass.MEMSET, r"^\[?(?:cuda |hip )?memset|^__amd_rocclr_fillBuffer"),
        (OpClass.GRAPH, r"^(?:cuda|hip)_?graph"),
        # compilers name what they fused; only templates are one known operation
        (OpClass.ELEMENTWISE, r"^triton_(?:poi|for|unk)_"),
        (OpClass.REDUCTION, r"^triton_(?:red|per|split_scan)_|^input_\w*reduce\w*fusion"),
        (OpClass.ATTENTION, r"^triton_tem_\w*attention"),
        (OpClass.CONVOLUTION, r"^triton_tem_\w*conv"),
        (OpClass.MATMUL, r"^triton_tem_\w*(?:mm|matmul)|^gemm_fusion"),
        (OpClass.CUSTOM, r"^triton_tem_"),
        (OpClass.DATA_MOVEMENT, r"^(?:input|loop|wrapped)_\w*(?:transpose|concatenate|slice|copy|gather|pad)\w*"),
        (OpClass.ELEMENTWISE, r"^(?:loop_|input_|wrapped_|fusion)"),
        # tables of recommendation models and the key/value cache: before the words inside them mislead
        (OpClass.ELEMENTWISE, r"rotary|(?<![a-z])rope(?![a-z])"),
        (OpClass.EMBEDDING, r"embedding|permute_pooled_embs|bounds_check_indices|linearize_index|table_batched"),
        (OpClass.DATA_MOVEMENT, r"reshape_and_cache|kv_cache|copy_blocks|swap_blocks"),
        (OpClass.ATTENTION, r"flash|fmha|attention|attn|sdpa|(?<![a-z])mha_|(?<![a-z])mla_"),
        (
            OpClass.RANDOM,
            r"dropout|philox|curand|rocrand|bernoulli|random(?!_access)|threefry|multinomial|distribution_",
        ),
        (OpClass.SOFTMAX, r"softmax|log_?sum_?exp|cross_entropy"),
        (
            OpClass.CONVOLUTION,
            r"conv(?!ert)|wgrad|dgrad|fprop|winograd|scudnn|im2d?2?col|im3d2col|igemm_(?:fwd|bwd|wrw)|miopen(?!batchnorm)|gcnasm"
            r"|cask_cudnn|SubTensorOpWith|bwd_weight|cudnn::cnn|fft2d_|flip_filter",
        ),
        (
            OpClass.OPTIMIZER,
            r"adam(?![a-z])|adamw|(?<![a-z])lamb(?![a-z])|(?<![a-z])sgd(?![a-z])|adagrad|(?<![a-z])lion(?![a-z])",
        ),
        (
            OpClass.MATMUL,
            r"gemm|cutlass|nvjet|^cijk_|gemv|matmul|scaled_mm|_mm_kernel|splitk_?reduce|cublas|dot_kernel|tensile|fused_moe"
            r"|marlin|epilogue::impl|reduce_1Block_kernel|(?<![a-z])(?:scal|axpy|syrk|trsm)_kernel|(?<![a-z])bmm(?![a-z])",
        ),
        (
            OpClass.NORMALIZATION,
            r"(?:layer|batch|group|instance|rms)_?norm|(?<![a-z])[bl]n_(?:fwd|bwd|fw|bw)|RowwiseMoments|GammaBeta|FusedParams"
            r"|ComputeInternalGradients|welford|l2_?norm",
        ),
        (OpClass.SORT, r"sort|top_?k|bitonic|kthvalue|(?<![a-z])unique"),
        (OpClass.REDUCTION, r"pool|nll|loss|histogram|bincount"),
        (
            OpClass.EMBEDDING,
            r"index_?select|indexing_backward|index_elementwise|gather|scatter|index_?put|index_?add|index_?copy|lookup|nonzero"
            r"|krn_partial|compute_grad_weight|take_kernel|permute_indices|permute_2D",
        ),
        (
            OpClass.DATA_MOVEMENT,
            r"catarray|concat|transpose|permute|nchw|nhwc|cnhw|copy|fill|(?<![a-z])pad|reorder|reshape|slice|(?<![a-z])roll_|flip"
            r"|repeat|tensorTransform|upsample|interpolate|pixel_shuffle|unpack|(?<![a-z])pack|memset|memcpy|arange|with_index"
            r"|(?<![a-z])tri[lu]_|(?<![a-z])range_|quantize|(?<![a-z])cast|to_float|relayout|chunk_cat|split_with_sizes",
        ),
        (
            OpClass.REDUCTION,
            r"reduce|(?<![a-z])sum|(?<![a-z])mean|norm(?![a-z])|scan|cumsum|arg(?:max|min)|(?<![a-z])amax|segments|prefix",
        ),
        (
            OpClass.ELEMENTWISE,
            r"element_?wise|pointwise|relu|gelu|silu|swiglu|tanh|sigmoid|activation|act_and_mul|(?<![a-z])add|_add|(?<![a-z])mul_"
            r"|scalePackedTensor|op_?tensor|tensor_?apply|scale|clamp|mask|(?<![a-z])bias|transform_kernel|unary|binary|lerp|axpy",
        ),
    )
]
"""Searched in the function's own name, in small letters, in this order."""


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
        carried = name.lower()
        default = next((c for word, c in _LAUNCHER_DEFAULTS.items() if word in own), None)
        found = next((c for c, pattern in _FUNCTORS if pattern.search(carried)), default)
        if found is not None:
            return found
    lower = own.lower()
    return next((c for c, pattern in _CLASSES if pattern.search(lower)), OpClass.OTHER)


# Math dtype

_ARITHMETIC = frozenset({OpClass.MATMUL, OpClass.CONVOLUTION, OpClass.ATTENTION})
_AUXILIARY = re.compile(
    r"splitk_?reduce|reduce_splitk|reduce_?kernel|split_?k_?offsets|computeoffsets|computewgrad\w*offsets|transpose|nchw_?to|nhwc_?to"
    r"|cnhw|subtensorop|scalepackedtensor|generatewinograd|winograd(?:forward|wgrad)(?:data|filter|output|delta)|im2d?2?col"
    r"|col2im|im3d2col|flip_?filter|memset|fill|copy|convert|cast|precompute|dot_do_o|combine|postprocess|zero_?out|bias_?grad"
)
"""Transforms, workspaces and sums of parts beside the kernel that multiplies."""
_FAST_CONVOLUTION = re.compile(r"winograd|fft(?:2d)?_|xdlops_wino")


@lru_cache(_CACHE)
def multiplies(name: str) -> bool:
    """Whether a kernel of a product, convolution or attention does its arithmetic, and is no transform or sum beside it."""
    return kernel_class(name) in _ARITHMETIC and _AUXILIARY.search(_own_name(name).lower()) is None


def flops_by(op_class: OpClass | None, names: Sequence[str], dur: Sequence[int]) -> list[int]:
    """Weights by which kernels of one operation share its FLOPs: their times, of a product only where they multiply."""
    does = [multiplies(name) for name in names] if op_class in _ARITHMETIC else []
    return [max(d, 1) if does_it else 0 for d, does_it in zip(dur, does, strict=True)] if any(does) else list(dur)


@lru_cache(_CACHE)
def is_fast_convolution(name: str) -> bool:
    """Whether a kernel is part of a convolution by Winograd's or Fourier's transform, with fewer multiplications."""
    return _FAST_CONVOLUTION.search(_own_name(name).lower()) is not None


_TENSILE = re.compile(r"^Cijk_[A-Z][a-z]+_[A-Z][a-z]+_(F8|B8|I8|[BHSDCZ])")
_TENSILE_DTYPES = {
    "F8": "fp8",
    "B8": "fp8",
    "I8": "int8",
    "B": "bf16",
    "H": "fp16",
    "S": "fp32",
    "D": "fp64",
    "C": "complex64",
    "Z": "complex128",
}

_DTYPES = [
    (dtype, re.compile(pattern.lower()))
    for dtype, pattern in (
        ("fp4", r"e2m1|nvfp4|mxf4|fp4"),
        ("fp8", r"e4m3|e5m2|fp8|float_?8|nvjet_(?:sm\d+_)?qq"),
        ("bf16", r"bf16|bfloat16|DF16b|nvjet_(?:sm\d+_)?tst"),
        ("tf32", r"tf32"),
        (
            "fp16",
            r"(?<![bt])f16|fp16|__half|c10::Half|half_t|Eigen::half|float16|(?<![a-z])h(?:884|1688|16816)|hgemm|_half(?![a-z])"
            r"|DF16_|nvjet_(?:sm\d+_)?hsh",
        ),
        ("int8", r"i8i8|_s8_|int8_t gemm|imma|(?<![a-z])i(?:8816|16832)"),
        ("fp64", r"(?<![a-z])d884|dgemm|(?<![a-z])f64|fp64"),
        ("tf32", r"(?<![a-z])s1688"),
        ("fp32", r"sgemm|scudnn|simt|ffma|(?<![a-z])float(?![a-z0-9_])|(?<![a-z])f32|fp32"),
        ("fp64", r"(?<![a-z])double(?![a-z])"),
    )
]
"""First match wins: accumulators (f32) stand beside narrower operands, and those are the math's."""


@lru_cache(_CACHE)
def kernel_dtype(name: str) -> str | None:
    """Math dtype that a kernel's name tells, a key of `models.ops.DTYPE_BYTES`; None where it tells none.

    Says what a trace's shapes cannot: that an fp32 matrix product runs as TF32 (`tf32`, or `s1688` tensor-core tiles
    without a 16-bit word).
    """
    if match := _TENSILE.match(name):
        return _TENSILE_DTYPES[match.group(1)]
    lower = name.lower()
    return next((d for d, pattern in _DTYPES if pattern.search(lower)), None)


_OPAQUE = re.compile(r"OpaqueType<(?:\(unsigned int\))?(\d+)u?>")
_OPAQUE_DTYPES = {"1": "uint8", "2": "int16", "4": "int32", "8": "int64", "16": "complex128"}
_FUNCTOR = re.compile(r"Functor\w*<((?:\w|::)+)")
_LIST_TYPES = [
    (dtype, re.compile(pattern))
    for dtype, pattern in (
        ("bf16", r"c10::BFloat16"),
        ("fp16", r"c10::Half"),
        ("fp64", r"(?<!\w)double(?!\w)"),
        ("fp32", r"(?<!\w)float(?!\w)"),
    )
]


@lru_cache(_CACHE)
def element_dtype(name: str) -> str | None:
    """Dtype of the elements that a kernel over a list of tensors works on, for `aten.describe(list_dtype=...)`.

    Kineto records no element types of lists. Concatenations know only the size (`OpaqueType<2u>`): then an integer of
    that size stands for it. None where the name does not tell.
    """
    if match := _OPAQUE.search(name):
        return _OPAQUE_DTYPES.get(match.group(1))
    if "multi_tensor_apply" not in name and "CatArray" not in name:
        return None
    functor = _FUNCTOR.search(name)  # further arguments (a learning rate, say) are of other types
    said = name if functor is None else functor[1]
    return next((d for d, pattern in _LIST_TYPES if pattern.search(said)), None)


_FLASH = re.compile(
    r"flash_(?:fwd_kernel|bwd_dq_dk_dv_loop_seqk_parallel_kernel)<.*?> ?, (?:true|false|\(bool\)[01]), "
    r"(true|false|\(bool\)[01])\b"
)
"""Flash attention 2: after the traits of the kernel its template has Is_dropout, then Is_causal."""


@lru_cache(_CACHE)
def causal_mask(name: str) -> bool | None:
    """Whether a flash attention kernel masks causally, for `aten.describe(causal=...)`; None where its name does not tell."""
    match = _FLASH.search(name)
    return None if match is None else match[1] in ("true", "(bool)1")
