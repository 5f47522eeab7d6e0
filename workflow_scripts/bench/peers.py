"""Other tools, where they are installed; ``envs/bench.txt`` lists them."""

import os
from collections.abc import Callable

from torch import Tensor

GROUP = 128
Quantize = Callable[[Tensor], Tensor]


def _torchao() -> Quantize:
    from torch import float32, uint8
    from torchao.quantization import quant_primitives as names

    block = (1, GROUP)

    def quantize(weight: Tensor) -> Tensor:
        kind = names.MappingType.ASYMMETRIC
        scale, zero = names.choose_qparams_affine(weight, kind, block, uint8, 0, 15)
        codes = names.quantize_affine(weight, block, scale, zero, uint8, 0, 15)
        return names.dequantize_affine(
            codes, block, scale, zero, uint8, 0, 15, output_dtype=float32
        )

    return quantize


def _hqq() -> Quantize:
    from hqq.core.quantize import Quantizer as tool
    from torch import float32

    def quantize(weight: Tensor) -> Tensor:
        codes, meta = tool.quantize(
            weight, nbits=4, channel_wise=True, group_size=GROUP, optimize=False, axis=1,
            device=weight.device.type, compute_dtype=float32,
        )  # fmt: skip
        return tool.dequantize(codes, meta)

    return quantize


def _quanto() -> Quantize:
    from optimum import quanto

    def quantize(weight: Tensor) -> Tensor:
        qtype = quanto.qint4
        scale, shift = quanto.MaxOptimizer()(weight, qtype=qtype, axis=0, group_size=GROUP)
        codes = quanto.quantize_weight(
            weight, qtype=qtype, axis=0, scale=scale, shift=shift, group_size=GROUP
        )
        return codes.dequantize()

    return quantize


def _bitsandbytes() -> Quantize:
    from bitsandbytes import functional as functions

    def quantize(weight: Tensor) -> Tensor:
        codes, state = functions.quantize_4bit(weight, blocksize=GROUP, quant_type="nf4")
        return functions.dequantize_4bit(codes, state)

    return quantize


QUANTIZERS = {
    "torchao affine primitives": _torchao,
    "HQQ without optimiser": _hqq,
    "optimum-quanto MaxOptimizer": _quanto,
    "bitsandbytes nf4": _bitsandbytes,
}


def quantizers() -> tuple[dict[str, Quantize], dict[str, str]]:
    """Quantize-and-dequantize of each tool that is there, and why the others are not."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    there, absent = {}, {}
    for name, load in QUANTIZERS.items():
        try:
            there[name] = load()
        except Exception as error:  # a tool may fail in any way on a machine it was not made for
            absent[name] = " ".join(str(error).split())[:120]
    return there, absent
