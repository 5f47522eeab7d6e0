"""How much memory a model's weights take and how much there is."""

import resource
from pathlib import Path

import psutil
import torch
from torch import nn

# A probe keeps a layer's quantized copy, activations and logits beside the weights.
SHARE = 0.5  # of what is available, above which a model is streamed


def float32_bytes(model: nn.Module) -> int:
    """Bytes of a model's weights in float32; shared ones count once."""
    return 4 * sum(parameter.numel() for parameter in model.parameters())


def available_bytes(device: str) -> int:
    """Bytes that this process can still take on a device, its own limits kept."""
    if device == "cuda":
        return torch.cuda.mem_get_info()[0]
    return min(psutil.virtual_memory().available, _left_of_address_space(), left_of_cgroup())


def _left_of_address_space() -> int:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return 2**63
    return max(0, limit - psutil.Process().memory_info().vms)


def left_of_cgroup(
    root: Path = Path("/sys/fs/cgroup"), of: Path = Path("/proc/self/cgroup")
) -> int:
    """What the smallest limit of a container or a batch job leaves; cgroup version 2."""
    try:
        line = next(line for line in of.read_text().splitlines() if line.startswith("0::"))
    except (OSError, StopIteration):
        return 2**63
    left, folder = 2**63, root / line.removeprefix("0::").lstrip("/")
    for place in (folder, *folder.parents):
        if not place.is_relative_to(root):
            break
        try:
            limit = (place / "memory.max").read_text().strip()
            used = int((place / "memory.current").read_text())
        except (OSError, ValueError):
            continue
        if limit != "max":
            left = min(left, max(0, int(limit) - used))
    return left
