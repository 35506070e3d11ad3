# SPDX-License-Identifier: Apache-2.0
"""What a kernel's name says: whose it is, what it does, for which hardware and number type.

A name is all that a trace has. Whatever no rule knows stays ``unknown``; nothing is guessed from
a word somewhere in a template argument.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

#: Characters of a name that are read; CUTLASS's real ones reach 6,000.
NAME_LIMIT = 8192
#: Characters of ``KernelName.short``.
SHORT_LIMIT = 40
_KEPT_TAIL = 14
#: Distinct names that are remembered; a serving process has some hundred.
_CACHED = 4096


class KernelClass(enum.StrEnum):
    """What a kernel does."""

    GEMM = "gemm"  # matrix products, their split-K sums and epilogues included
    ATTENTION = "attention"
    STATE_SPACE = "state-space"  # Mamba, gated delta rule: attention with a running state
    NORM = "norm"
    ROPE = "rope"  # rotary position embedding
    ACTIVATION = "activation"
    MOE = "moe"  # routing, permuting and combining; the experts' products are gemm
    QUANT = "quant"
    KV_WRITE = "kv-write"
    SAMPLING = "sampling"  # random numbers included
    COMMUNICATION = "communication"
    GATHER = "gather"  # and scatter: embeddings, indexing
    COPY = "copy"  # casts, concatenation and changes of layout included
    FILL = "fill"
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"  # softmax outside attention included
    SORT = "sort"  # and scan, compaction, top-k
    CONVOLUTION = "convolution"
    POOLING = "pooling"
    WAIT = "wait"  # spins on purpose
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class KernelName:
    """A name, read.

    Attributes:
        short: At most ``SHORT_LIMIT`` printable characters for a table; not unique.
        cls: What the kernel does.
        library: Whose it is: ``cutlass``, ``cublas``, ``triton``, ...; None when the name does
            not tell.
        arch: What it was compiled for: ``sm120``, ``gfx942``; where several are named, the
            newest, since a kernel may use what older hardware had.
        dtype: The narrowest number type that it names, which of a product is that of an operand;
            ``fp8`` where the variant is not named.
        schedule: Of ``tma``, ``warp-specialized``, ``pingpong``, ``cooperative``, ``split-k``,
            ``stream-k``, those that it names.
        fusion: What TorchInductor generated: ``poi`` (pointwise), ``red`` (reduction in a loop),
            ``per`` (reduction of a row held at once), ``tem`` (template), ``for`` (foreach).
        fused_ops: The operators that TorchInductor fused. Not kernels of their own: an
            ``cutlass_scaled_mm`` among them tells where an input comes from.
    """

    short: str
    cls: KernelClass
    library: str | None = None
    arch: str | None = None
    dtype: str | None = None
    schedule: tuple[str, ...] = ()
    fusion: str | None = None
    fused_ops: tuple[str, ...] = ()


def decode(name: str) -> KernelName:
    """What a kernel's name says, C++ names mangled or not; remembered, and never raises.

    Names of copies and fills by the driver are not kernels' names: they come out ``unknown``.
    """
    return _decode(name[:NAME_LIMIT])


@lru_cache(maxsize=_CACHED)
def _decode(name: str) -> KernelName:
    text = "".join(c if c.isprintable() else "?" for c in name).strip()
    if text.startswith("_Z"):
        text = _demangled(text) or text
    text = _UNNAMED.sub("", text)
    chain, typed = _chain(text)
    subject = " ".join(chain)
    function = chain[-1].rpartition("::")[2]
    fused = _INDUCTOR.match(function)
    ops = _fused_ops(function[fused.end() :]) if fused else ()
    arch, dtype = _arch(typed), _dtype(function, typed)
    return KernelName(
        short=_clip(_short(chain, typed, arch, dtype)),
        cls=_fused_class(fused[1], ops) if fused else _first(_CLASSES, subject, _UNKNOWN),
        library=_first(_LIBRARIES, subject, None) or _first(_SIGNATURES, text, None),
        arch=arch,
        dtype=dtype,
        schedule=tuple(word for word, pattern in _SCHEDULES if pattern.search(typed)),
        fusion=fused[1] if fused else None,
        fused_ops=ops,
    )


# --- C++ names ------------------------------------------------------------------------------

_UNNAMED = re.compile(r"(?:\(anonymous namespace\)|<unnamed>|\{anonymous\})::")
_BRACKET = re.compile(r"[<>(){}\[\],]")
_CLOSES = {">": "<", ")": "(", "}": "{", "]": "["}
#: ``(int)128,`` before the first type among template arguments.
_NUMBERS = re.compile(r"(?:\s*(?:\(\w+\))?[0-9]\w*\s*,)*")


def _split(text: str) -> tuple[str, str, int]:
    """The qualified name of the function or class, its template arguments, where they end."""
    open_: list[str] = []
    outside: list[str] = []
    start, arguments, opened, end = 0, "", 0, len(text)
    for match in _BRACKET.finditer(text):
        bracket, at = match[0], match.start()
        if bracket in _CLOSES:
            # A lone ``>`` compares, or belongs to an arrow.
            if open_ and open_[-1] == _CLOSES[bracket]:
                open_.pop()
                if not open_:
                    start = at + 1
                    arguments = text[opened:at] if bracket == ">" else arguments
        elif open_:
            if bracket != ",":
                open_.append(bracket)
        else:
            outside.append(text[start:at])
            start = end = at
            if bracket in "(,":
                break
            open_.append(bracket)
            opened, end = at + 1, len(text)
    else:
        if open_:  # cut off: what is there of the arguments
            arguments = text[opened:]
        else:
            outside.append(text[start:])
    words = "".join(outside).split()
    return (words[-1].strip(":") if words else ""), arguments, end


#: Templates that only launch what their first type argument names.
_WRAPPER = re.compile(
    r"cutlass::(?:device_kernel|Kernel2?)"  # CUTLASS 3 and 2
    r"|(?:\w+::)*enable_sm\w+"  # FlashAttention 3
    r"|ck_tile::kentry"  # Composable Kernel
)
#: PyTorch's loops over elements, which only their functor tells apart.
_LOOP = re.compile(
    r"(?:at::native::)?(?:(index)_elementwise_kernel\w*|(distribution)_elementwise\w+"
    r"|\w*?(elementwise)_kernel\w*|(reduce)_kernel|(multi_tensor)_apply_kernel)$"
)
_LOOP_WORDS = {"multi_tensor": "foreach", "distribution": "random"}
_FUNCTOR = re.compile(r"at::native::(?:\w+::)*(\w+)")
#: Without a namespace: apex, and where a mangled name abbreviates it.
_BARE_FUNCTOR = re.compile(r"\b(\w*(?:Functor\w*|_kernel_cuda|_kernel_impl|KernelImpl|Ops))\b")
_GENERIC = re.compile(
    r"gpu_\w*kernel\w*|[AB]?UnaryFunctor|BinaryFunctor|UnaryOpFunctor|ReduceOp|func_wrapper_t"
    r"|TensorListMetadata|OpaqueType|CUDAFunctor$"
)


def _chain(text: str) -> tuple[list[str], str]:
    """The function and, where it only launches another, that one; and the text of its types."""
    name, arguments, end = _split(text)
    typed, chain = text[:end], [name]
    for _ in range(4):
        if not _WRAPPER.fullmatch(name):
            break
        numbers = _NUMBERS.match(arguments)
        name, arguments, _end = _split(arguments[numbers.end() if numbers else 0 :])
        name = name.removesuffix("::GemmKernel")
        chain.append(name)
    if _LOOP.match(name):
        chain.append(_functor(arguments))
    return [part for part in chain if part] or [""], typed


def _functor(arguments: str) -> str:
    for pattern in (_FUNCTOR, _BARE_FUNCTOR):
        for match in pattern.finditer(arguments):
            if not _GENERIC.fullmatch(match[1]):
                return match[1]
    return ""


# Names as the Itanium C++ ABI mangles them, far enough for the names and their nesting: what a
# substitution (S1_) stands for is not followed, and what comes after the name is not read.
_TOKEN = re.compile(
    r"L[a-z]n?([0-9]+)E|(S[0-9A-Z]*_)|T[0-9]*_|DF16[b_]|U[lt]|[1-9][0-9]{0,3}|.",
    re.ASCII | re.DOTALL,
)
_BUILTIN = {
    "f": "float", "d": "double", "a": "signed char", "h": "unsigned char", "i": "int",
    "j": "unsigned int", "l": "long", "m": "unsigned long", "b": "bool",
    "DF16b": "__bf16", "DF16_": "_Float16",
}  # fmt: skip
_OPENS = {"N": "N", "J": "J", "X": "X", "Z": "X", "F": "X", "Ul": "X", "Ut": "X", "L": "L"}


class _Demangler:
    """Reads one mangled name from left to right.

    ``nest`` is what an ``E`` closes: ``N`` a qualified name, ``n`` the same once it has a part,
    ``<`` template arguments, ``J`` a pack of them, ``L`` a value whose type comes, ``V`` one
    whose number comes, ``X`` anything else.
    """

    def __init__(self) -> None:
        self.out: list[str] = []
        self.nest: list[str] = []

    def top(self) -> str:
        return self.nest[-1] if self.nest else ""

    def item(self, word: str) -> None:
        """Something beside what is there."""
        if self.out and self.out[-1] != "<":
            self.out.append(", ")
        self.out.append(word)

    def named(self, word: str) -> None:
        """A part of a name."""
        if self.top() == "L":
            self.nest[-1] = "V"
        elif self.top() == "n":
            self.out.append(f"::{word}")
        else:
            self.item(word)
            if self.top() == "N":
                self.nest[-1] = "n"

    def closed(self) -> None:
        """What an ``E`` ends."""
        last = self.nest.pop() if self.nest else ""
        if last == "<":
            self.out.append(">")
        if last in "Nn" and self.top() == "L":
            self.nest[-1] = "V"

    def token(self, token: str, value: str | None) -> None:
        """Anything but a part of a name."""
        if token == "E":
            self.closed()
        elif token == "I":
            self.nest.append("<")
            self.out.append("<")
        elif token in _OPENS:
            self.nest.append(_OPENS[token])
        elif self.top() in ("<", "J") and (value or token in _BUILTIN):
            self.item(value or _BUILTIN[token])


def _demangled(name: str) -> str:
    """A mangled name with its template arguments, as far as it can be read."""
    reader = _Demangler()
    at = 3 if name.startswith("_ZL") else 2
    while at < len(name):
        match = _TOKEN.match(name, at)
        if match is None:
            break
        token, at = match[0], match.end()
        if token[0] in "123456789":
            if reader.top() != "V":
                part = name[at : at + int(token)]
                at += len(part)
                if not part.startswith("_GLOBAL__N"):
                    reader.named(part)
        elif match[2]:
            # Before a part of a name it stands for the namespace, which is left out.
            if reader.top() != "N" or not name[at : at + 1].isdigit():
                reader.named("_")
        else:
            reader.token(token, match[1])
        if reader.out and not reader.nest and name[at : at + 1] != "I":
            break
    return "".join(reader.out)


# --- what TorchInductor fused -----------------------------------------------------------------

_INDUCTOR = re.compile(r"triton_(poi|red|per|tem|for|spl|mix)_fused(?=_|$)")
#: Operators of more than one word, ATen's and vLLM's; any other falls into its words.
_LONG_OPS = sorted(
    """
    _flash_attention_forward _fused_rms_norm _log_softmax _native_batch_norm_legit _scaled_mm
    _softmax _to_copy _unsafe_view _unsafe_index _unsafe_index_put arange_start as_strided
    avg_pool2d batch_norm bitwise_and bitwise_not bitwise_or bitwise_xor causal_conv1d clamp_max
    clamp_min constant_pad_nd convert_element_type copy_ cross_entropy cutlass_scaled_mm
    dynamic_per_token_scaled_fp8_quant dynamic_scaled_fp8_quant dynamic_scaled_int8_quant
    embedding_dense_backward empty_like exponential_ fill_ flex_attention floor_divide full_like
    fused_add_rms_norm fused_moe gelu_and_mul group_norm grouped_mm hardswish_ index_add index_put
    index_put_ index_select layer_norm leaky_relu linalg_vector_norm log_softmax logical_and
    logical_not logical_or masked_fill masked_scatter max_pool2d moe_forward moe_forward_shared
    mul_ native_dropout native_group_norm native_layer_norm new_empty new_empty_strided new_full
    new_ones new_zeros nll_loss_forward ones_like per_token_group_quant_fp8
    per_token_group_quant_8bit pow_ relu_ repeat_interleave rms_norm rocm_unquantized_gemm
    rotary_embedding scalar_tensor scaled_fp4_quant scaled_dot_product_attention scatter_add
    scatter_reduce select_scatter silu_and_mul slice_scatter split_with_sizes
    static_scaled_fp8_quant threshold_backward true_divide unified_attention
    unified_attention_with_output unified_mla_attention var_mean view_as view_as_complex
    view_as_real zeros_like add_ sub_ div_
    """.split(),
    key=len,
    reverse=True,
)
#: The underscore before an operator, then the operator: a known one, or one word.
_OP = re.compile(rf"_((?:{'|'.join(map(re.escape, _LONG_OPS))})(?=_|$)|_?[^_]+)")


def _fused_ops(rest: str) -> tuple[str, ...]:
    """The operators in what follows ``fused``: ``_add_mean_mul_3``."""
    ops, _, counter = rest.rpartition("_")
    return tuple(_OP.findall(ops if counter.isdigit() else rest))


# These move no number, or only where it lies: they do not say what a kernel computes.
_VIEWS = frozenset(
    "view _unsafe_view unsqueeze squeeze slice reshape permute transpose t expand split detach "
    "split_with_sizes getitem alias select as_strided unbind view_as view_as_complex "
    "view_as_real scalar_tensor arange lift empty new_empty empty_like".split()
)
_COPIES = frozenset("_to_copy clone copy copy_ cat stack convert_element_type repeat".split())
_FILLS = frozenset(
    "full zeros ones fill fill_ zero new_zeros new_ones new_full zeros_like ones_like "
    "full_like".split()
)
_NORMS = frozenset(
    "fused_add_rms_norm rms_norm _fused_rms_norm layer_norm native_layer_norm group_norm "
    "native_group_norm batch_norm _native_batch_norm_legit".split()
)
_QUANTS = frozenset(op for op in _LONG_OPS if "_quant" in op)
_ACTIVATIONS = frozenset(
    "silu gelu relu relu_ silu_and_mul gelu_and_mul leaky_relu hardswish_ elu mish "
    "softplus threshold_backward".split()
)
_GATHERS = frozenset(
    "embedding index index_select gather scatter index_put index_put_ _unsafe_index "
    "scatter_add _unsafe_index_put embedding_dense_backward".split()
)
_PRODUCTS = frozenset("mm addmm bmm baddbmm _scaled_mm grouped_mm".split())


def _fused_class(fusion: str, ops: tuple[str, ...]) -> KernelClass:
    """What a generated kernel mainly does: the first of these that is among its operators."""
    done = set(ops) - _VIEWS
    if fusion == "tem":  # a hand-written template of PyTorch with something after it
        if "flex_attention" in done:
            return KernelClass.ATTENTION
        if "convolution" in done:
            return KernelClass.CONVOLUTION
        return KernelClass.GEMM if done & _PRODUCTS else KernelClass.UNKNOWN
    written_out = "rsqrt" in done and bool(done & {"mean", "var_mean"})
    if done & _NORMS or written_out:
        return KernelClass.NORM
    if done & _QUANTS or ({"abs", "clamp"} <= done and done & {"max", "amax"}):
        return KernelClass.QUANT
    for cls, known in ((KernelClass.ACTIVATION, _ACTIVATIONS), (KernelClass.GATHER, _GATHERS)):
        if done & known:
            return cls
    if fusion in ("red", "per", "mix"):
        return KernelClass.REDUCTION
    if fusion == "spl":  # a scan in several parts
        return KernelClass.SORT
    for cls, known in ((KernelClass.FILL, _FILLS), (KernelClass.COPY, _COPIES | _FILLS)):
        if done and done <= known:
            return cls
    return KernelClass.ELEMENTWISE


# --- rules --------------------------------------------------------------------------------
#
# A subject is the function's qualified name without template arguments; after a blank, what it
# launches for (see ``_chain``): ``cutlass::device_kernel flash::FlashAttnFwdSm90``,
# ``at::native::elementwise_kernel FillFunctor``. The first rule that fits counts.

_UNKNOWN = KernelClass.UNKNOWN


_Value = TypeVar("_Value")
_Default = TypeVar("_Default")
_Rules = tuple[tuple[_Value, re.Pattern[str]], ...]


def _rules(*rules: tuple[_Value, str]) -> _Rules[_Value]:
    return tuple((value, re.compile(pattern, re.VERBOSE)) for value, pattern in rules)


def _first(rules: _Rules[_Value], text: str, default: _Default) -> _Value | _Default:
    return next((value for value, pattern in rules if pattern.search(text)), default)


_CLASSES: _Rules[KernelClass] = _rules(
    # NCCL, and RCCL, which names its kernels alike; MSCCL in RCCL.
    (KernelClass.COMMUNICATION, r"^nccl(?:Dev)?Kernel | ^ncclSym\w*Kernel | ^mscclKernel"),
    # vLLM's and SGLang's own all-reduce, also its name in aiter.
    (KernelClass.COMMUNICATION, r"^(?:vllm|sglang|aiter)::(?:\w+::)*cross_device_reduce_\dstage"),
    # PyTorch's symmetric memory.
    (KernelClass.COMMUNICATION, r"^(?:multimem_)?(?:all_reduce|one_shot_all_reduce|all_gather"
        r"|two_shot_all_reduce\w*|reduce_scatter)_kernel\w*$"),
    # TensorRT-LLM's all-reduces, in FlashInfer too: a norm may follow within.
    (KernelClass.COMMUNICATION, r"^(?:flashinfer|tensorrt_llm)::(?:\w+::)*\w*(?:allreduce|"
        r"all_reduce|moereduce|moefinalize_allreduce)"),
    # DeepEP's dispatch and combine of tokens between experts.
    (KernelClass.COMMUNICATION, r"^deep_ep::(?:\w+::)*(?:dispatch|combine|notify_dispatch|"
        r"cached_notify\w*|barrier)"),
    # vLLM's writes to its paged cache; the CUDA, MLA and fused forms.
    (KernelClass.KV_WRITE, r"^vllm::(?:reshape_and_cache|concat_and_cache|fused_\w*_and_cache"
        r"|indexer_k_quant_and_cache)\w*"),
    # The same in Triton.
    (KernelClass.KV_WRITE, r"^_?reshape_and_cache(?:_kernel)?_flash\w*$"),
    # FlashInfer's.
    (KernelClass.KV_WRITE, r"^flashinfer::AppendPaged\w*"),
    # SGLang's: rotates and stores in one; and its plain store.
    (KernelClass.KV_WRITE, r"\bfused_rope_store_kernel$ | \bstore_kvcache\w*$"
        r"| ^set_mla_kv_buffer_kernel$"),
    # FlashAttention 2 and 3, PyTorch's copy of it, and what they run before and after.
    (KernelClass.ATTENTION, r"\b(?:pytorch_)?flash::(?:flash_|FlashAttn|prepare_varlen)"),
    # FlashMLA.
    (KernelClass.ATTENTION, r"\bflash_fwd_(?:splitkv_)?mla\w*kernel | \bsm90::decode::|"
        r"\bflash_fwd_mla_combine_kernel"),
    # The memory-efficient attention of xformers and PyTorch; NVIDIA's trtllm-gen and fmha_v2.
    (KernelClass.ATTENTION, r"^fmha_cutlass[FB]\w* | ^fmhaSm\d+\w*Kernel_ | ^fmha_v2_\w+"),
    # cuDNN's.
    (KernelClass.ATTENTION, r"^cudnn_generated_fort_native_sdpa_"),
    # CUTLASS's examples as vLLM and FlashInfer use them: Sm100FmhaMla..., FmhaKernel...
    (KernelClass.ATTENTION, r"^cutlass::\S+[ ](?:cutlass::)?fmha::kernel::"),
    # FlashInfer.
    (KernelClass.ATTENTION, r"\bflashinfer::(?:\w+::)*(?:Batch|Single)(?:Prefill|Decode|MLA)\w*"
        r"| \bflashinfer::(?:\w+::)*(?:\w*MergeStates?\w*|Prefill\w+Kernel|BatchMLA\w*)"),
    # vLLM in CUDA; the two parts of its Triton kernel, the second a plain reduce_segments.
    (KernelClass.ATTENTION, r"^vllm::(?:paged_attention|merge_attn_states)\w*"
        r"| ^(?:kernel_)?paged_attention_[v2d]\w*$ | ^kernel_unified_attention_[23]d$"
        r"| ^reduce_segments$ | ^merge_attn_states_kernel$"),
    # Flash-decoding in Triton: vLLM and SGLang.
    (KernelClass.ATTENTION, r"^_fwd_(?:grouped_)?kernel_stage[12](?:_\w+)?$"),
    # AMD: Composable Kernel and aiter.
    (KernelClass.ATTENTION, r"^ck_tile::kentry[ ](?:ck_tile::)?Fmha\w+Kernel"
        r"| ^aiter::(?:fmha_|pa_|mla_)"),
    # Gated delta rule of flash-linear-attention; Mamba's scans and convolutions.
    (KernelClass.STATE_SPACE, r"^(?:chunk|fused_recurrent)_\w*(?:delta_rule|kda)\w*"
        r"| ^_?causal_conv1d_\w+$ | \bselective_scan_fwd_kernel | ^_selective_scan_update_kernel$"
        r"| ^_(?:chunk_scan|chunk_state|state_passing|bmm_chunk)_fwd_kernel$"),
    # vLLM's norms, those that add or quantise too; Qwen's of queries and keys.
    (KernelClass.NORM, r"^vllm::(?:fused_add_)?rms_norm\w*"
        r"| \b(?:fused_qknorm\w*|fused_qk_norm_rope\w*)$"),
    # FlashInfer in CUDA and, with its modules' names run together, in CuTe's Python.
    (KernelClass.NORM, r"^flashinfer::norm::\w+ | ^kernel_cutlass_\w*?flashinfernorm"),
    # PyTorch: layer, RMS, group and batch norm.
    (KernelClass.NORM, r"^at::native::\w*(?:layer_norm|LayerNorm|RMSNorm|RowwiseMoments|"
        r"GroupNorm|batch_norm|GammaBetaBackward)\w*"),
    # cuDNN's batch norm; AMD's RMS norm.
    (KernelClass.NORM, r"^cudnn::bn_(?:fw|bw)_"
        r"| ^ck_tile::kentry[ ](?:ck_tile::)?(?:Rmsnorm|Layernorm)2dFwd"
        r"| ^aiter::(?:add_)?(?:rmsnorm|layernorm)\w*"),
    (KernelClass.ROPE, r"^vllm::(?:batched_)?rotary_embedding_kernel"
        r"| ^flashinfer::\w*ApplyRotary\w* | ^_triton_[mq]*rope_forward$"),
    # vLLM's and FlashInfer's gated activations; some quantise their result.
    (KernelClass.ACTIVATION, r"^(?:vllm|flashinfer::activation)::(?:act_and_mul|activation|"
        r"silu_(?:and_)?mul|swigluoai_and_mul|silu_mul)\w*"
        r"| ^tensorrt_llm::(?:\w+::)*doActivationKernel"),
    # Routing and combining: TensorRT-LLM (trtllm-gen and CUTLASS), vLLM and SGLang.
    (KernelClass.MOE, r"^moe::dev::(?:routing|finalize|permute|activation)::"
        r"| ^tensorrt_llm::(?:\w+::)*(?:finalizeMoeRouting|expandInputRows|fusedBuildExpert\w*|"
        r"blockExpertPrefixSum|globalExpertPrefixSum|mergeExpertPrefixSum)\w*"
        r"| ^vllm::moe::(?:topk|moe_|grouped_topk|count_and_sort)\w*"
        r"| ^(?:moe_align_block_size|count_and_sort_expert_tokens|moe_sum)\w*kernel$"),
    # The same in triton_kernels (gpt-oss), finalize sums the experts of a token.
    (KernelClass.MOE, r"^_combined_routing_\w+$ | ^_topk_forward$ | ^_sum_bitmatrix_rows$"
        r"| ^_finalize_matmul_scatter\w*$"),
    # vLLM's quantisation to FP8, FP4 and INT8; TensorRT-LLM's, in FlashInfer too; SGLang's.
    (KernelClass.QUANT, r"^vllm::(?:\w*scaled_(?:fp8|int8)_quant\w*|cvt_fp16_to_fp4\w*|"
        r"segmented_max_reduction\w*|per_token_group_quant\w*|rms_norm_\w*quant\w*)"
        r"| ^tensorrt_llm::kernels::quantize_\w+"
        r"| ^_?per_token_group_quant_(?:8bit|fp8|int8)\w*$"),
    # Weights packed for Marlin, once at the start.
    (KernelClass.QUANT, r"^marlin::(?:gptq|awq)_marlin_repack_kernel"),
    # FlashInfer's choice of tokens; vLLM's penalties, rejection and Gumbel sampling in Triton.
    (KernelClass.SAMPLING, r"^flashinfer::sampling::\w+ | ^vllm::(?:apply_repetition_penalties|"
        r"topKPerRow)\w*"
        r"| ^rejection_(?:greedy|random)_sample_kernel$ | ^sample_recovered_tokens_kernel$"
        r"| ^_(?:topk_topp|gumbel_sample|penalties|temperature|min_p)_kernel$"),
    # Products. NVIDIA's cuBLAS: nvjet, xmma, and those of each generation, gc of complex numbers;
    # its products with thin matrices; what sums and finishes them.
    (KernelClass.GEMM, r"^nvjet_ | ^sm\d+_xmma_(?:sparse_)?gemm_"
        r"| ^(?:maxwell|pascal|volta|turing|ampere|hopper)_\w*gemm_"
        r"| ^(?:gemv\w*|gemmSN_\w+|gemmk1|magma_sgemmEx|gemm_kernel\dx\d_\w+)_kernel(?:_val)?$"
        r"| ^(?:internal::)?gem[mv]x?::kernel$"
        r"| ^(?:cublasLt::)?splitKreduce_kernel$ | ^epilogue::impl::globalKernel$"),
    # CUTLASS: its library's names, its templates, vLLM's wrappers of them.
    (KernelClass.GEMM, r"\bcutlass_\d+_\w*gemm_ | ^cutlass3x_sm\d+_\w*gemm_"
        r"| ^cutlass::\S+[ ]\S*(?:\bGemmUniversal\b|gemm::kernel::Gemm\w*|"
        r"\bcutlass_[23]x_gemm\w*)"),
    # NVIDIA's trtllm-gen; DeepGEMM; Marlin of vLLM and SGLang.
    (KernelClass.GEMM, r"^(?:bmm|gemm)_\w+_sm\d+[af]?$ | ^deep_gemm::\w*gemm\w*"
        r"| ^marlin(?:_moe_wna16)?::Marlin$"),
    # In Triton: vLLM's and SGLang's experts, block-scaled FP8, triton_kernels.
    (KernelClass.GEMM, r"^fused_moe_kernel(?:_gptq_awq)?$ | ^_w8a8_\w*(?:matmul|scaled_mm)\w*$"
        r"| ^_(?:p_)?matmul_ogs_\w+$"),
    # AMD: Tensile of hipBLASLt and rocBLAS; Composable Kernel; aiter.
    (KernelClass.GEMM, r"^Cijk_A | ^ck(?:_tile)?::(?:\w+::)*kernel_(?:\w+_)?gemm\w*"
        r"| ^ck_tile::kentry[ ](?:ck_tile::)?\w*Gemm\w*Kernel | ^aiter::(?:\w*gemm_|fmoe_)"),
    # Convolutions: cuDNN, its Winograd and Fourier steps, its layout of offsets; xmma.
    (KernelClass.CONVOLUTION, r"^sm\d+_xmma_(?:fprop|dgrad|wgrad)_"
        r"| ^(?:cudnn_(?:infer_|train_)?)?(?:maxwell|volta|turing|ampere)_[sh]?(?:\w*_)?[sh]cudnn_"
        r"| ^cask_cudnn(?:_infer|_train)?::compute\w*Offsets"
        r"| ^cudnn::(?:\w+::)*(?:[dw]grad_\w+|im2col4d\w*|reduce_wgrad\w*)$"
        r"| ^cudnn::winograd(?:_nonfused)?::\w+"
        r"| ^(?:cudnn::\w+::)?(?:im|ex)plicit_convolve_sgemm$ | ^wgrad_alg0_engine$"
        r"| ^fft2d_[rc]2[rc]_"),
    # PyTorch's concatenation; cuDNN's change of layout; vLLM's list of pages for FlashInfer.
    (KernelClass.COPY, r"^at::native::CatArrayBatchedCopy\w*"
        r"| ^(?:cudnn::ops::)?n(?:chw|hwc)ToN(?:chw|hwc)Kernel$ | ^_copy_page_indices_kernel$"),
    # PyTorch's loops over elements, whose functor copies, casts or fills.
    (KernelClass.COPY, r"[ ](?:direct_copy_kernel|\w*float\w*_copy_kernel|copy_device_to_device|"
        r"Copy$|CopyFunctor$)"),
    (KernelClass.FILL, r"[ ]FillFunctor$ | ^_combined_routing_memset$"),
    # The same where it is an activation.
    (KernelClass.ACTIVATION, r"[ ](?:Gelu|silu|threshold|leaky_relu|elu|hardswish|mish|softplus|"
        r"sigmoid|tanh|glu|relu)\w*$"),
    # Random numbers in PyTorch.
    (KernelClass.SAMPLING, r"^at::native::distribution_"),
    # PyTorch: rows by index, to and from; embeddings.
    (KernelClass.GATHER, r"^at::native::(?:index_elementwise_kernel|vectorized_gather_kernel|"
        r"indexSelect\w+|index_copy\w*|_scatter_gather\w+|embedding_\w+|EmbeddingBag\w+)"
        r"| ^indexing_backward_kernel\w*$"),
    # FBGEMM: tables of embeddings, and permuting and bucketing their indices.
    (KernelClass.GATHER, r"^(?:split|dense)_embedding_\w+ | ^(?:bounds_check_indices|"
        r"linearize_index|permute_pooled_embs)_kernel$"
        r"| ^fbgemm_gpu::(?:permute_|_block_bucketize_)\w+"),
    # SGLang: tokens of the step before, which were not known when this one was put together.
    (KernelClass.GATHER, r"^resolve_future_token_ids_kernel$"),
    # CUB's sorts and scans, also within PyTorch, Thrust and AMD's rocPRIM; PyTorch's top-k.
    (KernelClass.SORT, r"\b(?:cub|rocprim)::(?:\w+::)*(?:Device(?:RadixSort|MergeSort|Scan|Select|"
        r"Compact|SegmentedSort|SegmentedRadixSort)|(?:radix_sort|lookback_scan|onesweep))\w*"
        r"| ^at::native::(?:\w+::)*(?:gatherTopK|radixSort|bitonicSort|radixFind|computeBlock|"
        r"tensor_kernel_scan)\w*"),
    (KernelClass.REDUCTION, r"\bcub::(?:\w+::)*Device(?:Segmented)?Reduce\w*"),
    # PyTorch's, its softmax and its loss; cuBLAS's dot product.
    (KernelClass.REDUCTION, r"^at::native::reduce_kernel | \bsoftmax_warp_(?:for|back)ward$"
        r"| ^(?:at::native::)?cunn_(?:SoftMax|ClassNLLCriterion)\w*"
        r"| ^(?:dot_kernel|reduce_1Block_kernel)$"),
    (KernelClass.POOLING, r"^at::native::(?:max_pool|avg_pool|adaptive_average_pool)\w*"),
    # What is left of PyTorch's loops: a functor for each element. apex's optimisers.
    (KernelClass.ELEMENTWISE, r"^(?:at::native::)?(?:\w*elementwise_kernel\w*|"
        r"multi_tensor_apply_kernel)[ ]\w"),
    (KernelClass.ELEMENTWISE, r"^at::native::fused_dropout_kernel | ^elementwise_kernel_with_index"
        r"| ^cudnn::ops::scalePackedTensor_kernel$ | ^clamp_position_kernel$"),
    # torch.cuda._sleep.
    (KernelClass.WAIT, r"^at::cuda::spin_kernel$"),
)  # fmt: skip

_LIBRARIES: _Rules[str] = _rules(
    # What a namespace or a generated name says. What launches through CUTLASS is its own first.
    ("nccl", r"^nccl"),
    ("rccl", r"^mscclKernel"),
    ("flash-attn", r"\b(?:pytorch_)?flash::"),
    ("flashinfer", r"\bflashinfer:: | ^kernel_cutlass_\w*?flashinfer"),
    ("cutlass", r"^cutlass:: | ^cutlass(?:_\d+|3x)_ | ^kernel_cutlass_"),
    ("deep_gemm", r"^deep_gemm::"),
    ("deep_ep", r"^deep_ep::"),
    ("marlin", r"^marlin(?:_\w+)?::"),
    ("vllm", r"^vllm::"),
    ("sglang", r"^sglang:: | ^sgl_"),
    # trtllm-gen is the part of TensorRT-LLM that comes compiled, in FlashInfer too.
    ("tensorrt-llm", r"^tensorrt_llm:: | ^moe::dev:: | ^fmhaSm\d+ | ^(?:bmm|gemm)_\w+_sm\d+[af]?$"
        r"| ^fmha_v2_"),
    ("cudnn", r"^cudnn | ^cask_cudnn | _[sh]cudnn_ | _cudnn$ | ^(?:im|ex)plicit_convolve_sgemm$"
        r"| ^wgrad_alg0_engine$ | ^n(?:chw|hwc)ToN(?:chw|hwc)Kernel$"),
    ("cublas", r"^nvjet_ | _cublas$ | ^cublas(?:Lt)?::"
        r"| ^(?:maxwell|pascal|volta|turing|ampere|hopper)_\w*gemm_"),
    ("tensile", r"^Cijk_A"),
    ("ck", r"^ck(?:_tile)?::"),
    ("aiter", r"^aiter::"),
    ("rocprim", r"^rocprim::"),
    ("cub", r"^(?:\w+::)?cub:: | ^thrust::"),
    ("at::native", r"^at::(?:native|cuda):: | \bsoftmax_warp_(?:for|back)ward$ | ^cunn_"
        r"| ^indexing_backward_kernel\w*$ | ^multimem_all_reduce_kernel$"
        r"| ^elementwise_kernel_with_index"),
    ("fbgemm", r"^fbgemm_gpu:: | ^(?:split|dense)_embedding_\w*codegen"
        r"| ^(?:bounds_check_indices|linearize_index|permute_pooled_embs)_kernel$"),
    # Generated by TorchInductor; before PyTorch 2.1 it named no operators.
    ("triton", r"^triton_(?:[a-z]{3}_fused|_\d)"),
    # Functions of Python, which nothing but their known names tells from C: vLLM, triton_kernels.
    ("triton", r"^kernel_unified_attention_[23]d$ | ^reduce_segments$ | ^fused_moe_kernel"
        r"| ^_(?:p_)?matmul_ogs_ | ^_combined_routing_ | ^_topk_forward$ | ^_sum_bitmatrix_rows$"
        r"| ^_finalize_matmul_scatter | ^_copy_page_indices_kernel$"
        r"| ^_fwd_(?:grouped_)?kernel_stage[12] | ^_w8a8_"),
)  # fmt: skip

#: Where the name says nothing, its argument types may: only these libraries use them.
_SIGNATURES: _Rules[str] = _rules(
    ("cublas", r"\bcublas(?:Lt|Gemv|Gemm|Dot|SplitK)\w+"),
    ("cudnn", r"\bcudnn(?:::|[A-Z])"),
    ("apex", r"\badamMode_t\b"),
)

_DTYPES: _Rules[str] = _rules(
    # Narrowest first. ue4m3 and ue8m0 are scales, not operands; nvjet: see _NVJET.
    ("fp4", r"(?i: e2m1 | fp4(?![0-9]) | ue4m3xf4 | f4gemm | nv_float4)"),
    # vLLM: 1 is kFp8E4M3.
    ("e4m3", r"(?i: (?<!u)e4m3) | Fp8KVCacheDataType\)1"),
    ("e5m2", r"(?i: e5m2)"),
    ("fp8", r"(?i: fp8(?!kvcache) | (?<![a-z])float8)"),
    ("i8", r"(?<![a-z])int8(?![0-9]) | \bsigned[ ]char\b | (?<![a-z0-9])i8816gemm"
        r"| (?<![a-z0-9])i8(?=i8|_)"),
    ("bf16", r"(?i: bf16 | bfloat16)"),
    ("f16", r"\b__half2?\b | \bHalf\b | \bhalf(?:_t)?\b | (?i: (?<![a-z])_?f(?:p|loat)?16)"
        r"| (?<![a-z0-9])h(?:gemm|\d{3,}gemm|cudnn)"),
    # Tensor cores of Ampere take single precision as TF32 only: 16x8x8 without another type.
    ("tf32", r"tf32 | _tensorop_s1688gemm_\d"),
    ("f32", r"\bfloat[234]?\b | (?<![a-z])(?:f|fp)32 | (?<![a-z0-9])(?:sgemm|scudnn)"
        r"| (?i: float32)"),
    ("f64", r"\bdouble\b | (?<![a-z0-9])dgemm"),
)  # fmt: skip
#: cuBLAS's letters for A: seen with operands of that type, not documented.
_NVJET = re.compile(r"nvjet_(?:sm[0-9]+_)?(qq|oo|[a-z])[a-z]{2,3}_")
_NVJET_TYPES = {"t": "bf16", "h": "f16", "qq": "e4m3", "oo": "fp4"}
#: Tensile writes the types of A, of C and of the sums; B is that of A.
_TENSILE = re.compile(r"Cijk_\w{4}_\w{4}_(F8|B8|I8|[SDHB])")
_TENSILE_TYPES = {
    "F8": "e4m3", "B8": "e5m2", "I8": "i8", "S": "f32", "D": "f64", "H": "f16", "B": "bf16",
}  # fmt: skip
_NCCL = re.compile(r"nccl\w*Kernel_\w*?_(bf16|f16|half|float|f32|f8e4m3|f8e5m2)(?:_|$)")
_NCCL_TYPES = {"half": "f16", "float": "f32", "f8e4m3": "e4m3", "f8e5m2": "e5m2"}
#: Integers only where they are what a loop of PyTorch computes with, not its sizes.
_INTEGER = re.compile(
    r"(?:Functor\w*|_add|Ops|sum_functor|compare_scalar_kernel)<(long|int|bool)\b"
    r"|lambda\((?:bool, )?(long|int|bool)(?:, (?:long|int|bool))*\)"
)
_INTEGERS = {"long": "i64", "int": "i32", "bool": "bool"}


def _dtype(function: str, typed: str) -> str | None:
    if match := _NVJET.match(function):
        return _NVJET_TYPES.get(match[1])
    if match := _TENSILE.match(function):
        return _TENSILE_TYPES[match[1]]
    if function.startswith("nccl"):  # int8 there is bytes of anything
        match = _NCCL.match(function)
        return _NCCL_TYPES.get(match[1], match[1]) if match else None
    if _INDUCTOR.match(function):
        return None  # what it names are operators
    found = _first(_DTYPES, typed, None)
    if found is None and "at::native::" in typed and "OpaqueType" not in typed:
        match = _INTEGER.search(typed)
        return _INTEGERS[match[1] or match[2]] if match else None
    return found


_SM = re.compile(r"(?:Sm|SM|(?<![A-Za-z])sm_?|\bcutlass_)([0-9]{2,3})(?![0-9])")
_SM_KNOWN = frozenset(
    "50 52 60 61 70 72 75 80 86 87 88 89 90 100 101 103 110 120 121".split()
)  # fmt: skip
#: Instructions of older hardware and "or later" say what is used, not what it was compiled for.
_ENABLED = re.compile(r"enable_sm\w+")
_GENERATION = re.compile(r"(?:^|_)(maxwell|pascal|volta|turing|ampere|hopper)_")
_GENERATIONS = {
    "maxwell": "sm50", "pascal": "sm60", "volta": "sm70", "turing": "sm75", "ampere": "sm80",
    "hopper": "sm90",
}  # fmt: skip
_GFX = re.compile(r"(?:_ISA|\bgfx|_gfx)([0-9]{2,3}[0-9a-c])(?![0-9a-z])")


def _arch(typed: str) -> str | None:
    named = [sm for sm in _SM.findall(_ENABLED.sub("", typed)) if sm in _SM_KNOWN]
    if named:
        return f"sm{max(named, key=int)}"
    if match := _GENERATION.search(typed):
        return _GENERATIONS[match[1]]
    if match := _GFX.search(typed):
        return f"gfx{match[1]}"
    return None


_SCHEDULES: _Rules[str] = _rules(
    ("tma", r"Tma(?![a-z]) | (?<![A-Za-z])(?:tma|TMA)(?![a-z])"),
    ("warp-specialized", r"WarpSpecialized | warpspecialized"),
    ("pingpong", r"Pingpong | PingPong | pingpong"),
    ("cooperative", r"WarpSpecialized\w*Cooperative | warpspecialized_cooperative"),
    # Not FlashAttention's split of keys and values.
    ("split-k", r"(?i: split_?k)(?!v|V)"),
    # Tensile: SK0 is none.
    ("stream-k", r"StreamK | stream_?k | ^Cijk_\w*_SK[1-9]"),
)

# --- short names --------------------------------------------------------------------------

_XMMA = re.compile(r"(sm[0-9]+)_xmma_([a-z_]+?)_(?:[a-z]+[0-9]+)+_(\w*?)_?tilesize([0-9x]+)_")
_CIJK = re.compile(r"(Cijk_\w{4}_\w{4})_([A-Z0-9]+)_\w*?_?(MT[0-9x]+)_")
_TRTLLM = re.compile(r"(bmm|gemm)_(\w+?)_Fp32_(?:bA\w+?_)?t([0-9]+x[0-9]+x[0-9]+)")
#: CuTe's Python runs the modules' names together; the class is what begins in capitals.
_CUTE_CLASS = re.compile(r"[a-z_]([A-Z][A-Za-z0-9]{2,80})$")
#: What a table can do without: the fields say it, or all of them have it.
_NOISE = re.compile(r"^cudnn_(?:infer_|train_)?|(?<=[0-9])_tensorop(?=_)|_align[0-9]+$")
_TILE = re.compile(r"tuple<" + r", ?".join([r"(?:cute::)?C<(?:\(int\))?([0-9]+)>"] * 3) + r" ?>")
#: Less is the shape of a cluster of thread blocks, at most 16 of them.
_SMALLEST_TILE = 1024


def _short(chain: list[str], typed: str, arch: str | None, dtype: str | None) -> str:
    function = chain[-1].rpartition("::")[2]
    if match := _XMMA.match(function):
        return f"{match[1]} xmma {match[2]} {dtype or ''} {match[4]}".replace("  ", " ")
    if match := _CIJK.match(function) or _TRTLLM.match(function):
        return " ".join(match.groups())
    if function.startswith("kernel_cutlass_"):
        match = _CUTE_CLASS.search(function.partition("_object_at_")[0])
        return match[1] if match else function
    tile = _tile(typed) if chain[0].startswith("cutlass::") else None
    if function == "GemmUniversal" or function.startswith("Mainloop"):
        kind = "group-gemm" if "GroupProblemShape" in typed else "gemm"
        return " ".join(filter(None, ("cutlass", kind, arch, dtype, tile)))
    if len(chain) > 1 and (match := _LOOP.match(chain[-2])):
        word = next(filter(None, match.groups()))
        function = f"{_LOOP_WORDS.get(word, word)} {function}"
    if function == "kernel":  # cuBLAS's internal::gemvx::kernel
        function = "::".join(chain[-1].split("::")[-2:])
    function = _NOISE.sub("", function)
    return f"{function} {tile}" if tile else function


def _tile(typed: str) -> str | None:
    for match in _TILE.finditer(typed):
        m, n, k = map(int, match.groups())
        if m * n * k >= _SMALLEST_TILE:
            return f"{m}x{n}x{k}"
    return None


def _clip(text: str) -> str:
    """The text, or its start and its end: what tells variants apart is often last."""
    if len(text) > SHORT_LIMIT:
        text = f"{text[: SHORT_LIMIT - _KEPT_TAIL - 1]}…{text[-_KEPT_TAIL:]}"
    return text or "(no name)"
