# SPDX-License-Identifier: Apache-2.0
"""Names of kernels as profilers recorded them, decoded; and whatever else a name may hold."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucorrelate.correlator import kernels
from gpucorrelate.correlator.kernels import NAME_LIMIT, SHORT_LIMIT, KernelClass, decode

# vLLM's dense product on a DGX Spark, its experts' product in NVFP4, FP8 on an H100; shortened at
# the end.
SM120 = (
    "void cutlass::device_kernel<vllm::cutlass_3x_gemm_fp8_blockwise<cutlass::bfloat16_t, (int)12"
    "8, (int)1, (int)128, cute::tuple<cute::C<(int)128>, cute::C<(int)32>, cute::C<(int)128>>,"
    " cute::tuple<cute::C<(int)1>, cute::C<(int)1>, cute::C<(int)1>>,"
    " cutlass::epilogue::collective::EpilogueScheduleAuto,"
    " cutlass::gemm::KernelTmaWarpSpecializedBlockwiseCooperativeSm120, (bool)1>::GemmKernel>(T1)"
)
SM120_EXPERTS = (
    "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<"
    "cutlass::gemm::GroupProblemShape<cute::tuple<long, long, long>>,"
    " cutlass::gemm::collective::CollectiveMma<"
    "cutlass::gemm::MainloopSm120ArrayTmaWarpSpecializedBlockScaled<(int)2, (int)3,"
    " cute::tuple<cute::C<1>, cute::C<1>, cute::C<1>>,"
    " cutlass::gemm::KernelPtrArrayTmaWarpSpecializedCooperativeBlockScaledSm120<(int)3>>,"
    " cute::tuple<cute::C<128>, cute::C<128>, cute::C<256>>,"
    " cute::tuple<cutlass::float_e2m1_t, cutlass::float_ue4m3_t>, cute::SM90_TMA_LOAD>>>(T1)"
)
SM90_PINGPONG = (
    "void cutlass::device_kernel<vllm::cutlass_3x_gemm_sm90_fp8<cutlass::float_e4m3_t,"
    " cutlass::bfloat16_t, vllm::c3x::ScaledEpilogue, cute::tuple<cute::C<64>, cute::C<128>,"
    " cute::C<128> >, cute::tuple<cute::C<2>, cute::C<1>, cute::C<1> >,"
    " cutlass::gemm::KernelTmaWarpSpecializedPingpongFP8FastAccum,"
    " cutlass::epilogue::TmaWarpSpecialized, false>::GemmKernel>(vllm::cutlass_3x_gemm_sm90_fp8<"
    "cutlass::float_e4m3_t>::GemmKernel::Params)"
)
# SGLang on a B200, cut after the types; vLLM's INT8 product as PTX has it.
MANGLED_SM100 = (
    "_ZN7cutlass13device_kernelINS_4gemm6kernel13GemmUniversalIN4cute5tupleIJiiiiEEENS1_10collect"
    "ive13CollectiveMmaINS1_35MainloopSm100TmaUmmaWarpSpecializedILi13ELi2ELi4ENS5_IJNS4_1CILi1EE"
    "ENSA_ILi4EEESB_EEEEENS5_IJNSA_ILi64EEESF_NSA_ILi128EEEEEENS_12float_e4m3_tENS5_IJlSB_lEEESI_"
    "SJ_NS4_8TiledMMAINS4_8MMA_AtomIJNS4_10MMA_TraitsINS4_19SM100_MMA_F8F6F4_SSEJSI_SI_fSF_SF_NS4"
    "_17integral_constantINS4_4UMMA5MajorELSQ_0EEESR_NSO_INSP_7ScaleInELSS_0EEEST_EEEEEE"
)
MANGLED_INT8 = (
    "_ZN7cutlass13device_kernelIN49_GLOBAL__N__8bf0e19b_16_scaled_mm_c3x_cu_2bec3df915cutlass_3x_"
    "gemmIaNS_6half_tENS1_14ScaledEpilogueEN4cute5tupleIJNS5_1CILi64EEENS7_ILi128EEES9_EEENS6_IJN"
    "S7_ILi2EEENS7_ILi1EEESC_EEENS_4gemm32KernelTmaWarpSpecializedPingpongENS_8epilogue18TmaWarpS"
    "pecializedEE10GemmKernelEEEvNT_6ParamsE"
)
MANGLED_CK = (
    "_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdINS_27Rmsnorm2dFwdPipelineOnePassINS_27Rmsnorm2dFwdP"
    "ipelineProblemIDF16bDF16bfDF16bDF16bDF16bffNS_19Generic2dBlockShapeINS_8sequenceIJLi1ELi3072"
    "EEEE"
)
FA3 = (
    "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<"
    "flash::CollectiveMainloopFwdSm90<2, cute::tuple<cute::C<1>, cute::C<1>, cute::C<1> >,"
    " cute::tuple<cute::C<128>, cute::C<176>, cute::C<128> >, 128, cutlass::bfloat16_t, float,"
    " cutlass::arch::Sm90, false> > > >(T1)"
)
TENSILE = (
    "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT16x16x256_MI16x16x1_SN_LDSB1_AFC1_GSUAMBSK_GL"
    "S0_ISA942_IU1_K1_SK0_SKXCCM0_TLDS1"
)
BMM = (
    "bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16_m128x16x32_cga1x1x1_16dp256b_rM_TN_tr"
    "ansOut_schedP2x1x2x3_biasM_bN_tma_tmaOpt_clmp_swiGlu_dynBatch_sm100f"
)
FILL = (
    "void at::native::vectorized_elementwise_kernel<(int)4, at::native::FillFunctor<int>,"
    " std::array<char *, (unsigned long)1>>(int, T2, T3)"
)
COPY = (
    "void at::native::elementwise_kernel<(int)128, (int)4, void at::native::gpu_kernel_impl_nocas"
    "t<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase &)::[lambda() (instance 3)]::"
    "operator ()() const::[lambda() (instance 12)]::operator ()() const::[lambda(c10::BFloat16)"
    " (instance 1)]>(at::TensorIteratorBase &, const T1 &)::[lambda(int) (instance 1)]>(int, T3)"
)
ADD_NORM = (
    "std::enable_if<(((8)>(0)))&&vllm::_typeConvert<c10::BFloat16>::exists, void>::type"
    " vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, long, float, int, int)"
)
KV_WRITE = (
    "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, unsigned char,"
    " (vllm::Fp8KVCacheDataType)1>(__nv_bfloat16 const*, unsigned char*, long const*, long)"
)
INDUCTOR = (
    "triton_red_fused__to_copy__unsafe_view_abs_add_clamp_clone_cutlass_scaled_mm_div_max_mean_mu"
    "l_pow_reciprocal_rsqrt_silu_unsqueeze_view_1"
)

# Name, class, library, arch, dtype, schedule.
DECODED = [
    (SM120, "gemm", "cutlass", "sm120", "fp8", "tma warp-specialized cooperative"),
    (SM120_EXPERTS, "gemm", "cutlass", "sm120", "fp4", "tma warp-specialized cooperative"),
    (SM90_PINGPONG, "gemm", "cutlass", "sm90", "e4m3", "tma warp-specialized pingpong"),
    (MANGLED_SM100, "gemm", "cutlass", "sm100", "e4m3", "tma warp-specialized"),
    (MANGLED_INT8, "gemm", "cutlass", None, "i8", "tma warp-specialized pingpong"),
    (MANGLED_CK, "norm", "ck", None, "bf16", ""),
    (FA3, "attention", "flash-attn", "sm90", "bf16", ""),
    (TENSILE, "gemm", "tensile", "gfx942", "bf16", ""),
    (BMM, "gemm", "tensorrt-llm", "sm100", "fp4", "tma"),
    (FILL, "fill", "at::native", None, "i32", ""),
    (COPY, "copy", "at::native", None, "bf16", ""),
    (ADD_NORM, "norm", "vllm", None, "bf16", ""),
    (KV_WRITE, "kv-write", "vllm", None, "e4m3", ""),
    ("nvjet_sm103_tst_32x64_64x16_4x1_v_bz_splitK_TNN", "gemm", "cublas", "sm103", "bf16",
     "split-k"),
    ("nvjet_sm100_qqtst_128x256_128x6_2x1_2cta_v_bz_bias_TNT", "gemm", "cublas", "sm100", "e4m3",
     ""),
    ("cutlass3x_sm120_bstensorop_s16864gemm_block_scaled_ue4m3xe2m1_ue4m3xe2m1_f32_bf16_bf16_128x"
     "128x256_1x1x1_0_tnn_align32_o_vs16_bias_bf16_relu", "gemm", "cutlass", "sm120", "fp4", ""),
    ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x128_32x3_nn_align1>(cutlass_80_tenso"
     "rop_s1688gemm_256x128_32x3_nn_align1::Params)", "gemm", "cutlass", "sm80", "tf32", ""),
    ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x256x8_stage3_warpsize1x4x1_ffma_aligna4_al"
     "ignc4_execute_split_k_kernel__5x_cublas", "gemm", "cublas", "sm80", "f32", "split-k"),
    ("void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float, __nv_bfloat16,"
     " false>(cublasLt::cublasSplitKParams<float>)", "gemm", "cublas", None, "bf16", "split-k"),
    ("volta_sgemm_128x32_nt", "gemm", "cublas", "sm70", "f32", ""),
    ("_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu", "gemm", "triton", None, "fp4", ""),
    ("void marlin_moe_wna16::Marlin<1125899906909960l, 562949953487106l, 128, 1>(int4 const*)",
     "gemm", "marlin", None, None, ""),
    ("void deep_gemm::sm90_fp8_gemm_1d2d_impl<(cute::UMMA::Major)0, 0u, 4096u>(float*, int*)",
     "gemm", "deep_gemm", "sm90", "fp8", ""),
    ("fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16VarSeqQ128Kv128PersistentContext",
     "attention", "tensorrt-llm", "sm100", "e4m3", ""),
    ("void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4,"
     " false, false, cutlass::bfloat16_t> >(pytorch_flash::Flash_fwd_params)", "attention",
     "flash-attn", None, "bf16", ""),
    ("kernel_unified_attention_3d", "attention", "triton", None, None, ""),
    ("_ZN5aiter32fmha_fwd_hd192_hd128_bf16_causalE", "attention", "aiter", None, "bf16", ""),
    ("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256ELi16ELb1ELb0ELb1ELi1EEEvPT0_", "norm",
     "aiter", None, "bf16", ""),
    ("kernel_cutlass_kernel_flashinfernormkernelsfused_add_rmsnormFusedAddRMSNormKernel_object_at"
     "__tensorptrbf16gmemalign128o204820481_tensorptrbf16gmemalign128o204820481_0", "norm",
     "flashinfer", None, "bf16", ""),
    ("void vllm::scaled_fp8_quant_kernel_strided<c10::BFloat16, c10::Float8_e4m3fn>("
     "c10::Float8_e4m3fn*, c10::BFloat16 const*)", "quant", "vllm", None, "e4m3", ""),
    ("void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*)", "rope", "vllm", None,
     "bf16", ""),
    ("void moe::dev::finalize::finalizeKernel<moe::dev::finalize::KernelParams<cutlass::bfloat16_"
     "t> >(int)", "moe", "tensorrt-llm", None, "bf16", ""),
    ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)",
     "communication", "nccl", None, "bf16", ""),
    ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
     "communication", "nccl", None, None, ""),
    ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)",
     "communication", "at::native", None, "bf16", ""),
    ("void at_cuda_detail::cub::detail::scan::DeviceScanInitKernel<at_cuda_detail::cub::"
     "ScanTileState<int, true> >(int)", "sort", "cub", None, None, ""),
    ("void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>, float, adamMode_t"
     ">(int)", "elementwise", "apex", None, "f32", ""),
    ("alloc_decode_kernel", "unknown", None, None, None, ""),
    ("triton__0d1d2d3d4d5d6d", "unknown", "triton", None, None, ""),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "cls", "library", "arch", "dtype", "schedule"), DECODED, ids=lambda v: str(v)[:40]
)
def test_a_recorded_name_is_decoded(name, cls, library, arch, dtype, schedule) -> None:
    read = decode(name)
    assert (read.cls, read.library, read.arch, read.dtype) == (cls, library, arch, dtype)
    assert read.schedule == tuple(schedule.split())


SHORT = [
    (SM120, "cutlass_3x_gemm_fp8_blockwise 128x32x128"),
    (SM120_EXPERTS, "cutlass group-gemm sm120 fp4 128x128x256"),
    (MANGLED_SM100, "cutlass gemm sm100 e4m3"),
    (MANGLED_INT8, "cutlass_3x_gemm"),
    (FA3, "FlashAttnFwdSm90 128x176x128"),
    (TENSILE, "Cijk_Alik_Bljk BBS MT16x16x256"),
    (BMM, "bmm MxE4m3_MxE2m1MxE4m3 128x16x256"),
    (FILL, "elementwise FillFunctor"),
    (COPY, "elementwise direct_copy_kernel_cuda"),
    (ADD_NORM, "fused_add_rms_norm_kernel"),
    (KV_WRITE, "reshape_and_cache_flash_kernel"),
    (INDUCTOR, "triton_red_fused__to_copy…squeeze_view_1"),
    ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "ncclDevKernel_SendRecv"),
    ("void (anonymous namespace)::f<1>(int) [clone .kd]", "f"),
    ("void internal::gemvx::kernel<int, int, __nv_bfloat16, float>(T1)", "gemvx::kernel"),
    ("_Z10some_thingIfEvPT_", "some_thing"),
    ("_ZN12_GLOBAL__N_110some_thingEPf", "some_thing"),
    ("cudnn_infer_volta_scudnn_128x64_relu_medium_nn_v1", "volta_scudnn_128x64_relu_medium_nn_v1"),
]


@pytest.mark.parametrize(("name", "short"), SHORT, ids=[short for _, short in SHORT])
def test_the_short_name_is_one_for_a_table(name, short) -> None:
    assert decode(name).short == short


FUSED = [
    ("triton_red_fused_add_mean_mul_pow_rsqrt_3", "red", "add mean mul pow rsqrt", "norm"),
    (INDUCTOR, "red", "_to_copy _unsafe_view abs add clamp clone cutlass_scaled_mm div max mean m"
     "ul pow reciprocal rsqrt silu unsqueeze view", "norm"),
    ("triton_red_fused__to_copy_abs_add_clamp_cutlass_scaled_mm_div_fused_add_rms_norm_max_mul_re"
     "ciprocal_unsqueeze_3", "red", "_to_copy abs add clamp cutlass_scaled_mm div fused_add_rms_n"
     "orm max mul reciprocal unsqueeze", "norm"),
    ("triton_poi_fused__to_copy_mul_silu_0", "poi", "_to_copy mul silu", "activation"),
    ("triton_poi_fused_add_cos_sin_0", "poi", "add cos sin", "elementwise"),
    ("triton_poi_fused_constant_pad_nd_moe_forward_0", "poi", "constant_pad_nd moe_forward",
     "elementwise"),
    ("triton_poi_fused__to_copy_1", "poi", "_to_copy", "copy"),
    ("triton_poi_fused_0", "poi", "", "elementwise"),
    ("triton_tem_fused_mm_1", "tem", "mm", "gemm"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "kind", "ops", "cls"), FUSED, ids=[row[0][:40] for row in FUSED])
def test_what_inductor_fused_is_listed(name, kind, ops, cls) -> None:
    read = decode(name)
    assert (read.library, read.fusion, read.cls) == ("triton", kind, cls)
    assert read.fused_ops == tuple(ops.split())


@pytest.mark.parametrize(
    "name",
    [
        "my_gemm_like_thing",
        "void app::attention_stats<float>(int)",
        "void app::f<at::native::FillFunctor<int> >(int)",
        "void app::apply<vllm::rms_norm_kernel>(int)",
        "[CUDA memcpy DtoD]",
        "Memset (Device)",
        "normalize_logs",
    ],
)
def test_a_telling_word_is_no_rule(name) -> None:
    assert decode(name).cls is KernelClass.UNKNOWN


HOSTILE = [
    "",
    " ",
    "_Z",
    "_ZN",
    "_ZN9999999999x",
    "_Z" + "9" * NAME_LIMIT,
    "\x00\x1b[31mred\n\ud800\u202e",
    "::",
    "<",
    ">(",
    "void ",
    "triton_red_fused_",
    *(
        (unit * (1_000_000 // len(unit)))
        for unit in (
            "a", "<", "(", "1", "_", "a::", "a<", "_Z", "I", "_ZN7cutlassI", "at::native::",
            "cutlass::device_kernel<", "Functor", "int8", "cub::", "_Fp32_bA", "aA",
            "WarpSpecialized",
        )
    ),
    *(
        head + tail * (1_000_000 // len(tail))
        for head in ("_ZN", "sm80_xmma_", "Cijk_Alik_Bljk_", "bmm_", "triton_poi_fused_", "_Z1fI",
                     "kernel_cutlass_", "void cutlass::device_kernel<", "ncclDevKernel_",
                     "void at::native::elementwise_kernel<")
        for tail in ("a1", "1", "_", "aA?", "MT1x", "_Fp32_bA", "N", "L", "E", "(a)1,", "a::")
    ),
]  # fmt: skip


@pytest.mark.timeout(60)  # milliseconds each; with backtracking, for ever
def test_hostile_names_are_read_without_harm() -> None:
    for name in HOSTILE:
        read = decode(name)
        assert read.short
        assert read.short.isprintable()
        assert len(read.short) <= SHORT_LIMIT


@given(st.text() | st.from_regex(re.compile(r"_Z[NIJLSTEXFDaf0-9_]{0,60}"), fullmatch=True))
def test_any_text_is_read(name) -> None:
    read = decode(name)
    assert read.short
    assert read.short.isprintable()


def test_a_name_is_read_once() -> None:
    kernels._decode.cache_clear()
    for _ in range(100):
        for i in range(300):
            decode(f"kernel_{i}")
    info = kernels._decode.cache_info()
    assert (info.misses, info.hits) == (300, 29_700)
    assert info.maxsize is not None
