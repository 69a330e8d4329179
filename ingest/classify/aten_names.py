"""PyTorch operators without a formula: views, wrappers, communication, and those whose cost the trace does not tell."""

import re

from tracegap.models.ops import OpClass


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_INDICES = "shapes of the index tensors are not in the trace"
_DATA = "size of the result depends on the data"
_SIZE = "size of the result is not in the trace"
_CONTEXTS = "lengths of the contexts are not in the trace"
REASONS: dict[str, tuple[OpClass, str]] = {
    **dict.fromkeys(("index", "_unsafe_index"), (OpClass.EMBEDDING, _INDICES)),
    **dict.fromkeys(("masked_select", "nonzero", "masked_scatter_", "repeat_interleave"), (OpClass.EMBEDDING, _DATA)),
    **dict.fromkeys(("_unique2", "_unique", "unique_dim", "unique_consecutive"), (OpClass.SORT, _DATA)),
    **dict.fromkeys(("bincount", "histogram"), (OpClass.REDUCTION, _DATA)),
    **dict.fromkeys(("arange", "linspace", "range"), (OpClass.DATA_MOVEMENT, _SIZE)),
    **dict.fromkeys(("randperm", "multinomial"), (OpClass.RANDOM, _SIZE)),
    **dict.fromkeys(("_local_scalar_dense", "_pin_memory"), (OpClass.COPY, "a copy between host and device")),
    **dict.fromkeys(
        (
            "vllm::unified_attention", "vllm::unified_attention_with_output", "_C::paged_attention_v1",
            "_C::paged_attention_v2", "flash_attn::_flash_attn_with_kvcache", "_rocm_C::paged_attention",
            "vllm::unified_mla_attention", "vllm::unified_mla_attention_with_output", "sgl_kernel::cutlass_mla_decode",
            "_flashmla_C::fwd_kvcache_mla", "sgl_kernel::merge_state_v2", "aiter::mla_decode_stage1_asm_fwd",
        ),
        (OpClass.ATTENTION, _CONTEXTS),
    ),
    **dict.fromkeys(
        ("_sparse_semi_structured_mm", "_sparse_semi_structured_linear", "_cslt_sparse_mm", "_sparse_mm"),
        (OpClass.MATMUL, "a sparse product: the peaks of the catalogue are dense"),
    ),
    **dict.fromkeys(("_ctc_loss", "_cudnn_ctc_loss"), (OpClass.REDUCTION, "lengths of the targets are not in the trace")),
    **dict.fromkeys(
        ("linalg_qr", "_linalg_svd", "_linalg_eigh"), (OpClass.OTHER, "its iterations depend on the library and the data")
    ),
    **dict.fromkeys(
        ("FusedAttnFunc", "FusedAttnFunc_qkvpacked", "FusedAttnFunc_kvpacked"),
        (OpClass.ATTENTION, "whether tokens or sequences come first is not in the trace"),
    ),
    "LigerFusedLinearCrossEntropyFunction": (OpClass.SOFTMAX, "rows of a chunk are not in the trace"),
    "MambaSplitConv1dScanCombinedFn": (OpClass.OTHER, "length of a chunk is not in the trace"),
}  # fmt: skip
"""Operators whose cost the recorded arguments do not determine: class and reason."""

COMMUNICATION = re.compile(r"^(?:_?c10d(?:_functional)?|symm_mem)::|^record_param_comms$|^(?:nccl|gloo):")
"""Calls of collectives: their size comes from the trace's own metadata."""

VIEWS = _words(
    "view reshape _reshape_alias _unsafe_view as_strided as_strided_ transpose transpose_ t t_ permute movedim "
    "moveaxis swapaxes swapdims expand expand_as broadcast_to squeeze squeeze_ unsqueeze unsqueeze_ slice select "
    "narrow detach detach_ alias split split_with_sizes chunk unsafe_split unsafe_split_with_sizes unsafe_chunk "
    "tensor_split unbind unfold flatten unflatten unflatten_dense_tensors diagonal view_as view_as_real "
    "view_as_complex real imag numpy_T matrix_H mT mH adjoint T lift lift_fresh data conj _conj _neg_view "
    "resolve_conj resolve_neg empty empty_like empty_strided empty_permuted new_empty new_empty_strided resize_ "
    "resize_as_ set_ result_type values indices crow_indices col_indices vsplit hsplit dsplit record_stream "
    "is_pinned size stride numel dim atleast_1d atleast_2d atleast_3d requires_grad_ "
    "_has_compatible_shallow_copy_type is_floating_point is_nonzero rename refine_names"
)
"""`aten::` operators that make views or allocate: no kernel, no bytes."""

WRAPPERS = _words(
    "linear matmul __matmul__ einsum tensordot inner outer kron chain_matmul linalg_multi_dot bilinear _trilinear "
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d conv_tbc cudnn_convolution_backward "
    "miopen_convolution_backward layer_norm batch_norm _batch_norm_impl_index _batch_norm_impl_index_backward "
    "instance_norm group_norm rms_norm scaled_dot_product_attention _scaled_dot_product_attention_math "
    "_fused_sdp_choice softmax log_softmax cross_entropy_loss nll_loss nll_loss_nd nll_loss2d kl_div l1_loss "
    "cosine_embedding_loss cosine_similarity binary_cross_entropy_with_logits margin_ranking_loss "
    "triplet_margin_loss ctc_loss dropout dropout_ feature_dropout alpha_dropout to _to_copy type_as float half "
    "double int long cpu cuda zeros ones full zeros_like ones_like full_like new_zeros new_ones new_full "
    "scalar_tensor eye rand randn randint rand_like randn_like randint_like normal repeat pad hstack vstack "
    "dstack column_stack concat concatenate embedding_bag max_pool1d max_pool2d max_pool3d adaptive_avg_pool1d "
    "adaptive_avg_pool2d adaptive_avg_pool3d gather_backward _embedding_bag_backward embedding_backward "
    "select_backward slice_backward index_put slice_scatter select_scatter flatten_dense_tensors "
    "value_selecting_reduction_backward linalg_norm linalg_matrix_norm dist cdist pairwise_distance addr ger "
    "meshgrid cartesian_prod tile broadcast_tensors one_hot sum_to_size log_sigmoid item allclose equal "
    "is_same_size lstm gru rnn_tanh rnn_relu divide divide_ multiply multiply_ subtract subtract_ greater less "
    "greater_equal less_equal not_equal negative absolute clip clip_ __and__ __or__ __xor__"
)
"""`aten::` operators that only call others: their leaves count. One that stays a leaf and has a formula is used."""

AUTOGRAD = re.compile(
    r"^autograd::engine::evaluate_function: |^torch::autograd::|^torch(?:::|\.)distributed|^\w*Backward\d*$"
    r"|^Optimizer\.|^ProfilerStep#|^## |^torch::jit::|^<(?:forward|backward) op>$"
    r"|^(?:Torch-Compiled Region|CompiledFunction|TorchDynamo|AOTDispatcher|Pregraph)"
)
"""Nodes of the autograd graph, and ranges that Kineto lists among operators."""
