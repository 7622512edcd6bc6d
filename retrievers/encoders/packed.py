"""BERT and RoBERTa encoders without padding: the tokens of all texts of a batch in one row.

One forward pass serves all of them; its products and its attention are arguments. Pooling starts
from packed tokens for every network. ``T`` is the number of tokens of a batch and ``n`` of its
texts; text ``i`` is the tokens ``cu_seqlens[i]`` to ``cu_seqlens[i + 1]``. Devlin et al., BERT,
2019; Liu et al., RoBERTa, 2019.

In half precision on CUDA they run compiled, with variable-length attention (torch 2.10, compute
capability 8.0). From torch 2.13 on, the kernel does not split a text's keys, so that attention to
a text does not depend on the rest of the batch. Matrix products may, in the last bits of the dtype.
Otherwise on CUDA, they are not compiled, and texts are padded for attention alone.

On the CPU, products are oneDNN's, by the operators of PyTorch's own compiler. PyTorch's linear
layer copies the bias before each product, and GELU reads the result again; oneDNN adds the bias and
applies exact (erf) GELU while the product is in the cache, with weights that are laid out once. On
processors with AVX2 alone, GELU stays an operator of its own. Sums are float32 in a different
order: unit vectors differ by about 1e-6.

In int8 (Zafrir et al., Q8BERT, 2019), weights have one scale for each output. Inputs of a layer
have one scale and one zero, calibrated on `probe_texts`. Before that, features are divided by
factors that make their ranges more alike, and weights are multiplied by them (as in Xiao et al.,
SmoothQuant, 2023). Inputs are unsigned, which VNNI instructions sum without saturation. Products
are exact and summed in int32, so a text's vector does not depend on the rest of its batch, except
for networks of width 256 or less with AMX: oneDNN multiplies up to 8 of their tokens by a kernel
whose last bits differ. The result of GELU is rounded within the product. Layer norms are float32;
attention is bfloat16 if the processor has instructions for it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import groupby
from subprocess import CalledProcessError
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.activations import GELUActivation

from foundation.arrays import Int64Array
from foundation.errors import BenchError, first_line
from foundation.machine import cpu_instructions, emulates_bfloat16, keep_freed_memory
from retrievers.encoders.device import use_full_precision, use_one_thread
from retrievers.encoders.tokens import Tokens
from retrievers.models.card import EVERY_POOLING, StoredPooling

# (query, key, value, cu_seqlens, max_length) to (T, heads, head width), the shape of query.
Attention = Callable[[Tensor, Tensor, Tensor, Tensor, int], Tensor]

BERT = frozenset({"BertModel"})
ROBERTA = frozenset({"RobertaModel", "XLMRobertaModel", "CamembertModel"})

# Most tokens of a text whose attention scores in bfloat16 are one product; 12 heads take 25 MB.
# With AMX, PyTorch's own kernel is faster.
LONGEST_SCORED = 0 if "amx_bf16" in cpu_instructions() else 1024
WIDEST_HEAD = 256  # and a multiple of 8, for the variable-length kernel

VARLEN_MODULE = "torch.nn.attention.varlen"
MIN_CAPABILITY = (8, 0)
# Lengths of the texts that the network is compiled with. The number of tokens, of texts and the
# longest length differ, since the compiler takes equal sizes for one size.
EXAMPLE_LENGTHS = (7, 11, 3)
RECOMPILE_LIMITS = ("recompile_limit", "accumulated_recompile_limit")
MAX_COMPILES = 1 << 12  # times a network may be compiled in one process

OPERATORS = (
    *("mkldnn._linear_pointwise", "mkldnn._reorder_linear_weight"),
    *("onednn.qlinear_prepack", "onednn.qlinear_pointwise"),
)
MAX_INT8 = 127  # weights are symmetric: the minimum is -127
# Added to a float32 number, it rounds the number to an integer, which is then in the lowest byte:
# near this value, float32 has steps of 1.
ROUNDING_OFFSET = 1.5 * 2**23
# Exponent of an input's range in the factor of its feature. On abstracts of SciFact, all-MiniLM-L6
# has the same cosine to float32 from 0.6 to 0.8 (.9963 to .9967), and .9948 without factors.
RANGE_EXPONENT = 0.7
LEAST_RANGE = 0.01  # of the widest feature, since other texts may use what these leave idle
TINY = torch.finfo(torch.float32).tiny


@dataclass(frozen=True)
class PackedBatch:
    """Inputs of a `PackedNetwork`.

    Attributes:
        input_ids, positions, types: int64 ``(T,)``.
        cu_seqlens: int32 ``(n + 1,)``, ends of the texts, from 0.
        max_length: a power of two that no text exceeds. The kernel skips the rest, and does not
            have to be launched for every length.
    """

    input_ids: Tensor
    positions: Tensor
    types: Tensor
    cu_seqlens: Tensor
    max_length: int


def is_plain_bert(network: nn.Module) -> bool:
    """Return whether ``network`` is a BERT or RoBERTa encoder with absolute positions."""
    config: Any = getattr(network, "config", None)
    return (
        type(network).__name__ in BERT | ROBERTA
        and type(network).__module__.startswith("transformers.")
        and getattr(config, "position_embedding_type", None) in (None, "absolute")
        and not config.is_decoder
    )


class FusedLinear(nn.Module):
    """Linear layers with the same input as one product, whose weights they share from then on.

    Args:
        layers: layers whose outputs are concatenated.
        after: activation of the result, if any.
    """

    weight: Tensor
    bias: Tensor

    def __init__(self, layers: Sequence[nn.Linear], after: Any = None) -> None:
        super().__init__()
        self.after = after
        for name in ("weight", "bias"):
            parts = [getattr(layer, name).detach() for layer in layers]
            self.register_buffer(name, torch.cat(parts), persistent=False)
            shares = getattr(self, name).split([len(part) for part in parts])
            for layer, share in zip(layers, shares, strict=True):
                setattr(layer, name, nn.Parameter(share, requires_grad=False))

    def forward(self, inputs: Tensor, residual: Tensor | None = None) -> Tensor:
        """Map ``inputs`` of shape ``(..., in)`` to ``(..., out)``.

        A ``residual`` is added to the result of layers without activation; it may be overwritten.
        """
        output = functional.linear(inputs, self.weight, self.bias)
        if residual is not None:
            return output + residual
        return output if self.after is None else cast(Tensor, self.after(output))


def has_onednn() -> bool:
    """Return whether this processor and this build of PyTorch have oneDNN's `OPERATORS`.

    They belong to PyTorch's compiler and may disappear; networks then run without them.
    """
    return torch.backends.cpu.get_cpu_capability().startswith("AVX") and all(
        hasattr(getattr(torch.ops, library), operator)
        for library, operator in (name.split(".") for name in OPERATORS)
    )


def has_bfloat16() -> bool:
    """Return whether oneDNN multiplies in bfloat16 with this processor's own instructions."""
    return not emulates_bfloat16() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


class OneDNNLinear(FusedLinear):
    """Linear layers as one product of oneDNN, in the dtype of their weights: see `FusedLinear`."""

    def __init__(self, layers: Sequence[nn.Linear], after: Any = None) -> None:
        # GELU by erf, which oneDNN has
        is_erf = isinstance(after, GELUActivation) and after.act is functional.gelu
        fused = is_erf and self.fuses()
        super().__init__(layers, None if fused else after)
        self._fused = "gelu" if fused else "none"
        self._prepare()

    @staticmethod
    def fuses() -> bool:
        """Return whether products apply GELU and add residuals faster than PyTorch does after them.

        AVX2 has 16 registers, which the product needs itself. The results are equal in every bit.
        """
        return torch.backends.cpu.get_cpu_capability() != "AVX2"

    def _prepare(self) -> None:
        """Lay out the weights."""
        self.weight = torch.ops.mkldnn._reorder_linear_weight(self.weight)

    def forward(self, inputs: Tensor, residual: Tensor | None = None) -> Tensor:
        """Map ``inputs`` as `FusedLinear` does."""
        multiply, weights = torch.ops.mkldnn._linear_pointwise, (self.weight, self.bias)
        if residual is not None and self.fuses():
            return cast(Tensor, multiply.binary(inputs, residual, *weights, "add"))
        output: Tensor = multiply(inputs, *weights, self._fused, [], "none")
        if residual is not None:
            return output.add_(residual)
        return output if self.after is None else cast(Tensor, self.after(output))


class Int8Linear(OneDNNLinear):
    """Linear layers as one int8 product of oneDNN: see `FusedLinear`.

    The first call calibrates the scale of the inputs.

    Attributes:
        dtype: dtype of the result; float32 if it has a residual.
        following: the layer that gets the result, which is rounded for it if the activation is
            GELU; otherwise None.
        is_smooth: whether input features get factors, which a layer before cannot apply.
        step, zero: scale of a step of the inputs, 0 before the first call, and the byte of 0.
    """

    @staticmethod
    def fuses() -> bool:
        """Return True: products also round the result of GELU to bytes."""
        return True

    def _prepare(self) -> None:
        """Set the state before calibration. The first call rounds the weights."""
        self.dtype, self.is_smooth = torch.float32, True
        self.following: Int8Linear | None = None
        self.step, self.zero = 0.0, 0

    def forward(self, inputs: Tensor, residual: Tensor | None = None) -> Tensor:
        """Map ``inputs``, numbers or bytes from the layer before, to ``(tokens, out)``.

        A ``residual`` is added to the result and overwritten, float32 ``(tokens, out)``.
        """
        if not self.step:
            self._calibrate(inputs)
        if inputs.dtype != torch.uint8:
            inputs = self._round(inputs)
        factors = (inputs, self.step, self.zero, self.weight, self._scales, self._zeros)
        multiply = torch.ops.onednn.qlinear_pointwise
        result: tuple[float, int, torch.dtype] = (1.0, 0, self.dtype)
        if residual is not None:
            others = (residual, self.bias, *result, 1.0, 0)
            return cast(Tensor, multiply.binary(*factors, *others, "sum", 1.0, "none", [], "none"))
        if self.following and self.following.step and self.after is None:
            result = (self.following.step, self.following.zero, torch.uint8)
        output: Tensor = multiply(*factors, self.bias, *result, self._fused, [], "none")
        return output if self.after is None else cast(Tensor, self.after(output))

    def _calibrate(self, tokens: Tensor) -> None:
        """Choose scales for inputs like ``tokens``, and round the weights."""
        low, high = tokens.amin(dim=0).clamp_max(0), tokens.amax(dim=0).clamp_min(0)
        factors = torch.ones_like(low)
        if self.is_smooth:
            ranges = torch.maximum(high, -low)
            ranges = ranges.clamp_min(max(float(ranges.max()) * LEAST_RANGE, TINY))
            weights = self.weight.abs().amax(dim=0).clamp_min(TINY)
            factors = ranges**RANGE_EXPONENT / weights ** (1 - RANGE_EXPONENT)
        least, most = float((low / factors).min()), float((high / factors).max())
        self.step = max((most - least) / 255, TINY)
        self.zero = round(-least / self.step)
        self._steps_per_unit = 1 / (factors * self.step)
        self._shift = torch.tensor(ROUNDING_OFFSET + self.zero)
        rounded, self._scales = quantize_rows(self.weight * factors)
        self.weight = torch.ops.onednn.qlinear_prepack(rounded, None)
        self._zeros = torch.zeros(len(rounded), dtype=torch.int32)

    def _round(self, tokens: Tensor) -> Tensor:
        """Return ``tokens`` as unsigned bytes."""
        steps = torch.addcmul(self._shift, tokens.float(), self._steps_per_unit)
        steps.clamp_(ROUNDING_OFFSET, ROUNDING_OFFSET + 255)
        return steps.view(torch.int32).to(torch.uint8)


def quantize_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Round float32 ``rows`` to int8 with one scale each: ``row ~ scale * int8``."""
    scales = rows.abs().amax(dim=1).clamp_min(TINY) / MAX_INT8
    return (rows / scales.unsqueeze(1)).round_().to(torch.int8), scales


class PackedNetwork(nn.Module):
    """A forward pass over packed tokens, with the weights of a Hugging Face encoder.

    Args:
        network: an encoder for which `is_plain_bert` holds, in eval mode.
        attention: attention within each text.
        product: class of the linear layers.

    Attributes:
        padding_idx: id of RoBERTa's padding token, which determines positions; None for BERT.
    """

    def __init__(
        self, network: nn.Module, attention: Attention, product: type[FusedLinear]
    ) -> None:
        super().__init__()
        parts: Any = network
        self.embeddings, self.pooler = parts.embeddings, parts.pooler
        self.layers = nn.ModuleList(
            _Layer(layer, parts.config.num_attention_heads, attention, product)
            for layer in parts.encoder.layer
        )
        roberta = type(network).__name__ in ROBERTA
        self.padding_idx: int | None = self.embeddings.padding_idx if roberta else None

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        types: Tensor,
        cu_seqlens: Tensor,
        max_length: int,
    ) -> Tensor:
        """Return the last hidden states ``(T, width)`` of the fields of a `PackedBatch`."""
        table = self.embeddings
        hidden: Tensor = table.word_embeddings(input_ids) + table.token_type_embeddings(types)
        hidden = table.LayerNorm(hidden + table.position_embeddings(positions))
        for layer in self.layers:
            hidden = layer(hidden, cu_seqlens, max_length)
        return hidden


class _Layer(nn.Module):
    def __init__(
        self, layer: Any, heads: int, attention: Attention, product: type[FusedLinear]
    ) -> None:
        super().__init__()
        inputs, mix, wide = layer.attention.self, layer.attention.output, layer.intermediate
        self.query_key_value = product([inputs.query, inputs.key, inputs.value])
        self.mix, self.mix_norm = product([mix.dense]), mix.LayerNorm
        self.widen = product([wide.dense], wide.intermediate_act_fn)
        self.narrow, self.norm = product([layer.output.dense]), layer.output.LayerNorm
        self.heads, self.attention = heads, attention

    def forward(self, hidden: Tensor, ends: Tensor, longest: int) -> Tensor:
        projected = self.query_key_value(hidden).view(len(hidden), 3, self.heads, -1)
        q, k, v = projected.unbind(1)
        mixed = self.attention(q, k, v, ends, longest).flatten(1)
        hidden = self.mix_norm(self.mix(mixed, hidden))
        output: Tensor = self.norm(self.narrow(self.widen(hidden), hidden))
        return output


def attend_by_length(
    query: Tensor, key: Tensor, value: Tensor, ends: Tensor, longest: int
) -> Tensor:
    """Compute attention within each text on any device, for neighbours of equal length together.

    ``query``, ``key`` and ``value`` are ``(T, heads, head width)``; ``longest`` is not used.
    """
    attended, start = [], 0
    for length, texts in groupby(ends.diff().tolist()):
        rows = slice(start, start + length * sum(1 for _ in texts))
        block = [x[rows].view(-1, length, *x.shape[1:]) for x in (query, key, value)]
        q, k, v = (x.transpose(1, 2) for x in block)
        attended.append(_attend(q, k, v).transpose(1, 2).flatten(0, 1))
        start = rows.stop
    return torch.cat(attended)


def attend_padded(query: Tensor, key: Tensor, value: Tensor, ends: Tensor, longest: int) -> Tensor:
    """Compute attention within each text on any device, in texts padded to ``longest``.

    Only queries, keys and values are padded. Nothing waits for the device. ``query``, ``key`` and
    ``value`` are ``(T, heads, head width)``.
    """
    tokens = torch.arange(len(query), device=ends.device, dtype=ends.dtype)
    texts = torch.searchsorted(ends[1:], tokens, right=True)
    places = texts * longest + tokens - ends[texts]
    shape = len(ends) - 1, longest, *query.shape[1:]
    q, k, v = (
        x.new_zeros(shape).flatten(0, 1).index_copy_(0, places, x).view(shape).transpose(1, 2)
        for x in (query, key, value)
    )
    mask = torch.arange(longest, device=ends.device) < ends.diff()[:, None]
    attended = functional.scaled_dot_product_attention(q, k, v, mask[:, None, None])
    return attended.transpose(1, 2).flatten(0, 1)[places]


def _attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Compute attention within texts of equal length, each ``(texts, heads, length, width)``.

    In bfloat16 on a CPU without AMX, oneDNN's products of all heads are several times as fast as
    those in PyTorch's kernel, which needs less memory for long texts.
    """
    length = query.shape[2]
    if query.dtype != torch.bfloat16 or query.device.type != "cpu" or length > LONGEST_SCORED:
        return functional.scaled_dot_product_attention(query, key, value)
    q, k, v = (x.flatten(0, 1) for x in (query, key, value))
    scale = float(q.shape[2] ** -0.5)
    scores = torch.baddbmm(q.new_empty(1), q, k.transpose(1, 2), beta=0, alpha=scale)
    return torch.bmm(scores.softmax(dim=2), v).view_as(query)


def pack_batch(tokens: Tokens, padding_idx: int | None) -> PackedBatch:
    """Pack texts of one or more tokens into a batch on the CPU.

    No text is longer than the positions of the model, which `resolve_model` checks. Token types are
    0 if there are none. For ``padding_idx``, see `PackedNetwork`.
    """
    longest = int(tokens.lengths.max())
    ids = tokens.ids.astype(np.int64)
    types = np.zeros_like(ids) if tokens.types is None else tokens.types.astype(np.int64)
    ends = np.concatenate([[0], tokens.lengths.cumsum()])
    return PackedBatch(
        torch.from_numpy(ids),
        torch.from_numpy(_positions(ids, ends, padding_idx)),
        torch.from_numpy(types),
        torch.from_numpy(ends.astype(np.int32)),
        1 << max(4, (longest - 1).bit_length()),
    )


def _positions(ids: Int64Array, ends: Int64Array, padding_idx: int | None) -> Int64Array:
    """Return positions from 0 in each text; RoBERTa's start after its padding id and skip it."""
    counted = np.ones_like(ids) if padding_idx is None else (ids != padding_idx).astype(np.int64)
    running = np.concatenate([[0], counted.cumsum()])
    within: Int64Array = running[1:] - np.repeat(running[ends[:-1]], np.diff(ends))
    return within - 1 if padding_idx is None else within * counted + padding_idx


def pool(mode: StoredPooling, hidden: Tensor | None, ends: Tensor, pooled: Tensor | None) -> Tensor:
    """Pool hidden states to one float32 vector for each text, ``(n, width)``.

    Args:
        mode: ``cls`` (first token), ``mean``, ``last`` (last token), ``pooler`` (the model's own
            pooled output), or ``every``: the first three, concatenated.
        hidden: last hidden states of packed tokens ``(T, width)``; None if the model returns none.
        ends: ends of the texts, int ``(n + 1,)``, from 0.
        pooled: the model's pooled output ``(n, width)``, or None.

    Raises:
        BenchError: the model does not return the output that the mode needs.
    """
    if mode == "pooler" and pooled is not None:
        return pooled.float()
    if hidden is None or mode in ("pooler", "none"):
        raise BenchError(f"this model's output cannot be pooled by {mode!r}")
    ends = ends.long()
    if mode == "every":
        return torch.cat([pool(kind, hidden, ends, None) for kind in EVERY_POOLING], dim=1)
    if mode == "cls":
        return hidden[ends[:-1]].float()
    if mode == "last":
        return hidden[ends[1:] - 1].float()
    # Its checks would wait for the device, and these ends are valid.
    return torch.segment_reduce(hidden.float(), "mean", offsets=ends, axis=0, unsafe=True)


def can_compile(network: nn.Module, dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether `CompiledNetwork` can run ``network`` in ``dtype`` on ``device``."""
    is_half = dtype in (torch.float16, torch.bfloat16) and device.type == "cuda"
    if not is_half or not is_plain_bert(network) or find_spec(VARLEN_MODULE) is None:
        return False
    config: Any = network.config
    head = config.hidden_size // config.num_attention_heads
    if head % 8 or head > WIDEST_HEAD:
        return False
    return torch.cuda.get_device_capability(device) >= MIN_CAPABILITY


def variable_length_kernel() -> Attention:
    """Return attention by PyTorch's variable-length kernel, for half precision on CUDA."""
    from torch.nn.attention.varlen import varlen_attn

    # 2.12 has the option, but not for the kernel that it comes with.
    whole: dict[str, Any] = {"num_splits": 1} if torch.__version__ >= "2.13" else {}

    def attention(query: Tensor, key: Tensor, value: Tensor, ends: Tensor, longest: int) -> Tensor:
        attended = varlen_attn(query, key, value, ends, ends, longest, longest, **whole)
        return cast(Tensor, attended)

    return attention


@contextmanager
def _compile_reproducibly() -> Iterator[None]:
    """Compile and compute reproducibly within the block.

    Inductor must not choose the order of sums by speed, and cuBLAS must not add in half precision.
    All networks of a process share the limit of recompilations, so it is raised. Numbers such as
    the epsilon of a layer norm are constants. As variables, they would make Dynamo trace twice.
    """
    from torch._dynamo import config as dynamo_config  # slow to import
    from torch._inductor import config as inductor_config

    dynamo = {**dict.fromkeys(RECOMPILE_LIMITS, MAX_COMPILES), "specialize_float": True}
    with ExitStack() as settings:
        settings.enter_context(inductor_config.patch({"deterministic": True}))
        settings.enter_context(dynamo_config.patch(dynamo))
        settings.enter_context(use_full_precision())
        yield


class PackedEncoder:
    """A network over packed tokens, with packing and pooling; see `PackedNetwork`."""

    is_packed = True

    def __init__(
        self,
        network: nn.Module,
        attention: Attention = attend_by_length,
        product: type[FusedLinear] = FusedLinear,
    ) -> None:
        self._network = PackedNetwork(network, attention, product).eval()
        self._device = self._network.embeddings.word_embeddings.weight.device
        if self._device.type == "cpu":
            keep_freed_memory()

    def pack_batch(self, tokens: Tokens) -> PackedBatch:
        """Pack ``tokens`` into a batch on the network's device, copied without waiting."""
        batch = pack_batch(tokens, self._network.padding_idx)
        if self._device.type == "cpu":
            return batch
        moved = {
            name: getattr(batch, name).pin_memory().to(self._device, non_blocking=True)
            for name in ("input_ids", "positions", "types", "cu_seqlens")
        }
        return replace(batch, **moved)

    def __call__(self, batch: PackedBatch) -> Tensor:
        """Return the last hidden states of ``batch``, ``(T, width)``."""
        with torch.inference_mode():
            return cast(Tensor, self._network(**vars(batch)))

    def encode_batch(self, mode: StoredPooling, batch: PackedBatch) -> Tensor:
        """Return the float32 vectors of ``batch``, pooled by ``mode``, ``(n, width)``."""
        hidden, pooled = self(batch), None
        if mode == "pooler" and self._network.pooler is not None:
            pooled = self._network.pooler(hidden[batch.cu_seqlens[:-1].long()].unsqueeze(1))
        return pool(mode, hidden, batch.cu_seqlens, pooled)


class CompiledNetwork(PackedEncoder):
    """A `PackedNetwork` with the variable-length kernel, compiled once for batches of any size.

    Compiling happens here and takes seconds to minutes; PyTorch caches the result on disk.

    Raises:
        BenchError: it cannot be compiled.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__(network, variable_length_kernel())
        self._compiled = torch.compile(self._network, dynamic=True, fullgraph=True)
        self(self.pack_batch(Tokens.of([[0] * length for length in EXAMPLE_LENGTHS])))

    def __call__(self, batch: PackedBatch) -> Tensor:
        """Return the last hidden states of ``batch``, ``(T, width)``."""
        from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException

        try:
            with torch.inference_mode(), _compile_reproducibly():
                return cast(Tensor, self._compiled(**vars(batch)))
        except (TorchDynamoException, FailOnRecompileLimitHit, CalledProcessError) as error:
            first = first_line(error)
            raise BenchError(
                f"torch.compile cannot compile this network for {self._device.type}: {first}",
                "Install a C compiler and the Triton of this build of torch, or use "
                "--dtype float32, which is not compiled.",
            ) from error


class Int8Encoder(PackedEncoder):
    """A Hugging Face BERT or RoBERTa encoder with its dense layers in int8, on the CPU.

    The activations of the texts ``calibration`` determine the scales. Embeddings and layer norms of
    the float32 network are shared.
    """

    def __init__(self, network: Any, calibration: Tokens) -> None:
        if not (is_plain_bert(network) and network.device.type == "cpu" and has_onednn()):
            raise BenchError(
                "int8 runs plain BERT and RoBERTa on the CPU by oneDNN, not this "
                f"{type(network).__name__} on {network.device}",
                "Leave out --dtype int8.",
            )
        super().__init__(network, product=Int8Linear)
        layer: Any
        for layer in self._network.layers:
            if has_bfloat16():
                layer.query_key_value.dtype = torch.bfloat16
            layer.widen.following, layer.narrow.is_smooth = layer.narrow, False
        self(self.pack_batch(calibration))

    def __call__(self, batch: PackedBatch) -> Tensor:
        """Return the last hidden states of ``batch``, float32 ``(T, width)``."""
        with use_one_thread():  # the split of the work could change a last bit
            return super().__call__(batch)
