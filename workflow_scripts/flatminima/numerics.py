"""Float32 means float32: the numeric mode of every measurement and every training."""

import torch
from torch import nn


def prepare_backend() -> None:
    """Turn TF32 off and flush subnormals to zero."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.set_flush_denormal(True)


def assert_float32(model: nn.Module) -> None:
    """Raise ``TypeError`` where any parameter is not float32, or where TF32 is allowed."""
    for name, parameter in model.named_parameters():
        if parameter.dtype != torch.float32:
            raise TypeError(f"{name} is {parameter.dtype}; measurements need float32")
    if torch.backends.cuda.matmul.allow_tf32:
        raise TypeError("TF32 is allowed; call prepare_backend() before measuring")
