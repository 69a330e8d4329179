import pytest

from tracegap.ingest.classify.kernel import (
    collective_kind,
    collective_kind_of_call,
    element_dtype,
    is_collective,
    kernel_class,
    kernel_dtype,
)
from tracegap.models.ops import CollectiveKind, OpClass

ELEMENTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, {}, std::array<char*, 3ul> >(int, {}, std::array<char*, 3ul>)"
)


def launcher(functor: str) -> str:
    return ELEMENTWISE.replace("{}", functor)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)", "all_reduce"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_reduce"),
        ("ncclAllReduceRingLLKernel_sum_f32(ncclColl)", "all_reduce"),
        ("ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC_sum_bf16(ncclSymkDevArgs)", "all_reduce"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "reduce_scatter"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevComm*, unsigned long, ncclWork*)", "all_gather"),
        ("nccldevkernel_allgather_ring_ll", "all_gather"),
        ("ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)", "broadcast"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "reduce"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)", "send_recv"),
        ("ncclDevKernel_Generic(ncclDevComm*, channelMasks, ncclWork*)", None),
        ("ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", None),
        ("rcclGenericKernel", None),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*, vllm::RankSignals)", "all_reduce"),
        ("void (anonymous namespace)::one_shot_all_reduce_kernel<c10::BFloat16, 16, 8>(c10::BFloat16**)", "all_reduce"),
        ("multimem_all_reduce_kernel", "all_reduce"),
        ("void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*, int*)", "all_to_all"),
        ("void deep_ep::internode::combine<4>(int4*)", "all_to_all"),
        ("nvshmemi_signal_op_kernel(unsigned long*)", None),
    ],
)
def test_collectives_by_kernel_name(name: str, kind: str | None) -> None:
    assert is_collective(name)
    assert kernel_class(name) is OpClass.COLLECTIVE
    assert collective_kind(name) == kind


@pytest.mark.parametrize(
    "name",
    [
        "triton_poi_fused_all_gather_into_tensor_copy_0",
        "triton_red_fused_all_reduce_mean_3",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float> >(at::native::ReduceOp<float>)",
        "void cub::DeviceReduceKernel<cub::DeviceReducePolicy<float>, float*>(float*)",
        "void at::native::_scatter_gather_elementwise_kernel<128, 4, at::native::func>(int, at::native::func)",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float>(cublasLt::cublasSplitKParams<float>)",
        "triton_poi_fused_nccl_wait_0",
        "void broadcast_add_kernel<float>(float*, ncclComm*)",
    ],
)
def test_names_that_only_sound_like_collectives(name: str) -> None:
    assert not is_collective(name)
    assert collective_kind(name) is None
    assert kernel_class(name) is not OpClass.COLLECTIVE


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        ("allreduce", CollectiveKind.ALL_REDUCE),
        ("allreduce_coalesced", CollectiveKind.ALL_REDUCE),
        ("all_reduce_barrier", CollectiveKind.ALL_REDUCE),
        ("_allgather_base", CollectiveKind.ALL_GATHER),
        ("allgather_into_tensor_coalesced", CollectiveKind.ALL_GATHER),
        ("_reduce_scatter_base", CollectiveKind.REDUCE_SCATTER),
        ("reduce_scatter", CollectiveKind.REDUCE_SCATTER),
        ("all_to_allv", CollectiveKind.ALL_TO_ALL),
        ("alltoall_base", CollectiveKind.ALL_TO_ALL),
        ("nccl:all_reduce", CollectiveKind.ALL_REDUCE),
        ("gloo:all_gather", CollectiveKind.ALL_GATHER),
        ("c10d::broadcast_", CollectiveKind.BROADCAST),
        ("nccl:send 0->1", CollectiveKind.SEND),
        ("recv", CollectiveKind.RECV),
        ("batch_isend_irecv", CollectiveKind.SEND_RECV),
        ("gather", CollectiveKind.GATHER),
        ("scatter", CollectiveKind.SCATTER),
        ("reduce", CollectiveKind.REDUCE),
        ("barrier", CollectiveKind.BARRIER),
        ("wait", None),
        ("", None),
    ],
)
def test_collectives_by_call(call: str, kind: CollectiveKind | None) -> None:
    assert collective_kind_of_call(call) is kind


@pytest.mark.parametrize(
    ("name", "op_class"),
    [
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1", "matmul"),
        ("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNN", "matmul"),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT320x224x64_MI16x16x1_SN_LDSB0", "matmul"),
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float>(cublasLt::cublasSplitKParams<float>)", "matmul"),
        ("ampere_sgemm_128x64_nn", "matmul"),
        ("void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 2, 2, false>(float)", "matmul"),
        ("_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu", "matmul"),
        ("triton_tem_fused_mm_4", "matmul"),
        ("triton_tem_fused_flex_attention_2", "attention"),
        ("void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, cutlass::bfloat16_t>>()", "attention"),
        ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention)", "attention"),
        ("attn_fwd", "attention"),
        ("void cudnn::cnn::wgrad_alg0_engine<float, 128, 6, 7, 3, 3, 5, false, 512>(int)", "convolution"),
        ("igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x256x32_wt32x32x8", "convolution"),
        ("void cutlass_cudnn_infer::Kernel<cutlass_tensorop_s1688dgrad_optimized_tf32_64x128>(int)", "convolution"),
        ("sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw", "convolution"),
        ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int)", "normalization"),
        ("void at::native::<unnamed>::vectorized_layer_norm_kernel<float, float>(int)", "normalization"),
        ("void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 512, true, 1>(float)", "normalization"),
        ("_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdINS_27Rmsnorm2dFwdPipelineOnePass", "normalization"),
        (launcher("at::native::batch_norm_calc_invstd(at::Tensor const&)::{lambda()#1}"), "normalization"),
        ("void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, true>(float*)", "softmax"),
        (
            "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float> > >()",
            "reduction",
        ),
        ("void at::native::(anonymous namespace)::max_pool_backward_nchw<float, float>(float const*)", "reduction"),
        ("triton_per_fused__to_copy_add_addmm_mean_mul_pow_rsqrt_transpose_view_8", "reduction"),
        ("input_reduce_fusion", "reduction"),
        (launcher("at::native::CUDAFunctor_add<float>"), "elementwise"),
        (launcher("at::native::(anonymous namespace)::masked_fill_kernel(at::TensorIterator&)"), "elementwise"),
        (
            "void at::native::elementwise_kernel_manual_unroll<128, 8, at::native::CUDAFunctor_add<float> >()",
            "elementwise",
        ),
        ("triton_poi_fused__scaled_dot_product_flash_attention_cat_transpose_view_10", "elementwise"),
        ("triton_poi_fused_addmm_gelu_view_15", "elementwise"),
        ("loop_add_fusion_3", "elementwise"),
        ("void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*)", "elementwise"),
        ("void Eigen::internal::EigenMetaKernel<Eigen::TensorCwiseUnaryOp<float> >(int)", "elementwise"),
        (launcher("at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}"), "data_movement"),
        (launcher("at::native::FillFunctor<float>"), "data_movement"),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy_contig<OpaqueType<2u>>(int)", "data_movement"),
        ("batched_transpose_32x32_half", "data_movement"),
        ("input_transpose_fusion.kd", "data_movement"),
        ("void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>(int)", "data_movement"),
        ("void at::native::(anonymous namespace)::indexSelectLargeIndex<float, long, unsigned int, 2>()", "embedding"),
        ("split_embedding_backward_codegen_rowwise_adagrad_unweighted_kernel_cta_per_row_1<c10::Half>", "embedding"),
        ("void cub::DeviceRadixSortOnesweepKernel<cub::DeviceRadixSortPolicy<long, int, int> >(int*)", "sort"),
        ("void rocprim::detail::trampoline_kernel<rocprim::detail::radix_sort_onesweep_config>()", "sort"),
        (
            "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor<float> >()",
            "optimizer",
        ),
        ("void at::native::(anonymous namespace)::fused_dropout_kernel_vec<float, float, 4>(int)", "random"),
        ("Memcpy HtoD (Pinned -> Device)", "copy"),
        ("[CUDA memcpy DtoH]", "copy"),
        ("MemcpyH2D", "copy"),
        ("Memset (Device)", "memset"),
        ("[CUDA memset]", "memset"),
        ("my_kernel(int)", "other"),
    ],
)
def test_classes(name: str, op_class: str) -> None:
    assert kernel_class(name) == op_class


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "bf16"),
        ("sm80_xmma_gemm_f16f16_f16f32_f32_nn_n_tilesize128x128x32", "fp16"),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x128x16", "tf32"),
        ("sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n", "fp8"),
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x64_32x6_nt_align1>(Params)", "tf32"),
        ("void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_256x128_tn_align1>(Params)", "bf16"),
        ("ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x3_tn", "fp16"),
        ("volta_sgemm_128x64_nn", "fp32"),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(Params)", "fp32"),
        ("volta_dgemm_64x64_nn", "fp64"),
        ("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNN", "bf16"),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT", "fp16"),
        ("nvjet_qqtst_128x256_128x6_2x1_v_bz_TNT", "fp8"),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT320x224x64", "bf16"),
        ("Cijk_Ailk_Bljk_HHS_BH_MT256x128x64", "fp16"),
        ("Cijk_Alik_Bljk_SB_Bias_AS_SAV_UserArgs_MT64x16x32", "fp32"),
        ("Cijk_Alik_Bljk_F8BS_BH_MT256x128x64", "fp8"),
        ("attn_fwd", None),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", None),
    ],
)
def test_math_dtypes(name: str, dtype: str | None) -> None:
    assert kernel_dtype(name) == dtype


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("void CatArrayBatchedCopy_contig<at::native::OpaqueType<2u>, unsigned int, 1, 128, 1>()", "int16"),
        ("void CatArrayBatchedCopy_vectorized<OpaqueType<(unsigned int)4>, unsigned int, 3>()", "int32"),
        ("void at::native::CatArrayBatchedCopy<float, unsigned int, 1, 128, 1>(float*)", "fp32"),
        ("void multi_tensor_apply_kernel<TensorListMetadata<1>, BinaryOpScalarFunctor<c10::BFloat16> >()", "bf16"),
        (launcher("at::native::CUDAFunctor_add<float>"), None),
    ],
)
def test_elements_of_lists(name: str, dtype: str | None) -> None:
    assert element_dtype(name) == dtype


def test_a_fused_optimizer_has_the_elements_of_its_functor_and_not_those_of_its_settings() -> None:
    name = (
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
        "FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::FusedAdamMathFunctor<{}, 4, "
        "(at::native::ADAM_MODE)1, false>, float const*, double, double, double, double, double, bool, float*, float*>"
    )
    assert element_dtype(name.format("float")) == "fp32"
    assert element_dtype(name.format("c10::BFloat16")) == "bf16"
