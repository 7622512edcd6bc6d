"""An encoder through ONNX Runtime on the CPU, in float32.

The network is exported once as it is loaded, with free batch and sequence axes, and what comes
out is compared with it at other shapes: tracing can freeze a number that happened to be there.
onnx and onnxruntime are an optional extra.
"""

import inspect
import tempfile
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from foundation.errors import BenchError, first_line

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
EXAMPLE = (2, 11)
OTHER_SHAPES = ((1, 3), (3, 17))
TOLERANCE = 1e-4  # of the largest value of the hidden states
OPSET = 17


class OnnxNetwork(nn.Module):
    """A transformer's last hidden states, computed by ONNX Runtime.

    A call computes on the thread that makes it, so that batches can be computed side by side.

    Args:
        network: a Hugging Face encoder in float32 on the CPU, in evaluation mode.

    Raises:
        BenchError: ONNX Runtime is missing, or the network has no faithful ONNX graph.
    """

    def __init__(self, network: Any) -> None:
        super().__init__()
        parameter = next(network.parameters())
        if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
            raise BenchError("back end onnx starts from float32 on the CPU", "use --device cpu")
        self.config = network.config
        hidden = _LastHiddenState(network).eval()
        self._session = _session(hidden)
        self._inputs = tuple(node.name for node in self._session.get_inputs())
        self._check(hidden)

    def forward(self, **inputs: Tensor) -> SimpleNamespace:
        """``input_ids``, ``attention_mask`` and ``token_type_ids``, int64 ``(n, tokens)``.

        Token types that are left out are 0. ``last_hidden_state`` of what is returned is float32
        ``(n, tokens, width)``.
        """
        if "token_type_ids" not in inputs:
            inputs["token_type_ids"] = torch.zeros_like(inputs["input_ids"])
        feed = {name: inputs[name].numpy() for name in self._inputs}
        return SimpleNamespace(last_hidden_state=torch.from_numpy(self._session.run(None, feed)[0]))

    @torch.inference_mode()
    def _check(self, hidden: "_LastHiddenState") -> None:
        """Refuse a graph whose hidden states of tokens are not those of the network."""
        for shape in OTHER_SHAPES:
            inputs = _example(hidden.network, shape)
            present = inputs["attention_mask"].bool()
            expected = hidden(*(inputs[name] for name in hidden.inputs))[present]
            actual = self.forward(**inputs).last_hidden_state[present]
            difference = float((actual - expected).abs().max() / expected.abs().max())
            if not difference <= TOLERANCE:
                raise BenchError(
                    f"the ONNX graph of this {self.config.model_type} differs from the network by "
                    f"{difference:.1e} of its largest value at {shape[0]} texts of {shape[1]} "
                    "tokens",
                    "use --backend torch",
                )


class _LastHiddenState(nn.Module):
    """The network as a function of positional inputs, as the exporter wants it."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network
        reads = inspect.signature(network.forward).parameters
        self.inputs = tuple(name for name in INPUTS if name in reads)

    def forward(self, *inputs: Tensor) -> Tensor:
        output = self.network(**dict(zip(self.inputs, inputs, strict=True)))
        hidden = getattr(output, "last_hidden_state", None)
        if not isinstance(hidden, Tensor):
            raise BenchError(
                "back end onnx needs a network with last hidden states", "use --backend torch"
            )
        return hidden


def _session(hidden: _LastHiddenState) -> Any:
    try:
        import onnx  # noqa: F401  (the exporter imports it late and explains less)
        import onnxruntime  # type: ignore[import-untyped,unused-ignore]
    except ImportError as error:
        raise BenchError(
            f"back end onnx needs {error.name}, which is not installed",
            "pip install onnx onnxruntime",
        ) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # A file, and not memory: above 2 GB the weights need files of their own beside the graph.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "network.onnx"
        _export(hidden, path)
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _export(hidden: _LastHiddenState, path: Path) -> None:
    example = _example(hidden.network, EXAMPLE)
    axes = {name: {0: "texts", 1: "tokens"} for name in (*hidden.inputs, "last_hidden_state")}
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # of tracing: the graph is checked afterwards
            torch.onnx.export(
                hidden,
                tuple(example[name] for name in hidden.inputs),
                str(path),
                input_names=list(hidden.inputs),
                output_names=["last_hidden_state"],
                dynamic_axes=axes,
                opset_version=OPSET,
                dynamo=False,  # the other exporter needs onnxscript
            )
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        first = first_line(error)
        raise BenchError(
            f"this {hidden.network.config.model_type} cannot be exported to ONNX: {first}",
            "use --backend torch",
        ) from error


def _example(network: Any, shape: tuple[int, int]) -> dict[str, Tensor]:
    """Inputs of a shape; all texts but the first are padded."""
    pad = getattr(network.config, "pad_token_id", None) or 0
    most = int(network.config.vocab_size)
    ids = (torch.arange(shape[0] * shape[1]).reshape(shape) * 7 + 3) % most
    ids[ids == pad] = (pad + 1) % most
    mask = torch.ones_like(ids)
    mask[1:, shape[1] // 2 :] = 0
    ids[mask == 0] = pad
    return dict(zip(INPUTS, (ids, mask, torch.zeros_like(ids)), strict=True))
