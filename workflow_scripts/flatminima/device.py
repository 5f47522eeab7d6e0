"""The device of a job: its numeric mode, its GPU, and the memory that is free on it."""

import ctypes
import os
import platform
from contextlib import suppress
from pathlib import Path

import psutil
import torch

from flatminima.errors import UserError
from flatminima.jobs import own_gpu, slots_folder

SMALL_MODEL = 5_000_000  # parameters; smaller models run on one thread
# The lock on this process's GPU. The kernel releases it when the process ends.
_GPU_LOCKS: list[object] = []


# Parameters of glibc's mallopt, from malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_KEPT_BYTES = 2**30
_LARGEST_FROM_HEAP = 2**25  # glibc accepts no more


def keep_freed_memory() -> None:
    """Make the C library reuse freed memory instead of returning it to the system.

    A small model frees and allocates the same arrays in every update. By default glibc returns
    them each time, and the kernel clears new pages: 62,000 page faults per second, about a tenth of
    the time. Numbers do not change. Without glibc nothing is done.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        library.mallopt(_M_MMAP_THRESHOLD, _LARGEST_FROM_HEAP)


def prepare_backend() -> None:
    """Turn TF32 off and flush subnormals to zero."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.set_flush_denormal(True)


def choose_device(device: str) -> str:
    """The device to use: ``device``, or the fastest one for ``auto``.

    Raises ``UserError`` for a device that this machine does not have.
    """
    available_devices = ["cpu"]
    if torch.backends.mps.is_available():
        available_devices.insert(0, "mps")
    if torch.cuda.is_available():
        available_devices.insert(0, "cuda")
    if device == "auto":
        return available_devices[0]
    if device not in available_devices:
        valid = ", ".join(("auto", *available_devices))
        raise UserError(f"device: {device!r} is not available on this machine; valid: {valid}")
    return device


def take_device(device: str, threads: int) -> str:
    """The device for a job; sets torch's threads and numeric mode.

    On a machine with several GPUs, the job takes one and hides the others from itself.
    """
    torch.set_num_threads(threads)
    keep_freed_memory()
    prepare_backend()
    # Before torch looks for GPUs: it keeps the list that it finds first.
    _GPU_LOCKS.append(own_gpu(device, torch.cuda.device_count(), os.environ, slots_folder()))
    return choose_device(device)


def choose_threads(model: torch.nn.Module) -> tuple[int, str]:
    """Number of threads for a model on this machine, and the reason in words.

    The products of a small model take less time than threads need to meet. Threads beyond the
    processors that are free wait for each other: on a busy machine a model of 395,000 parameters
    took 338 s with two threads and 54 s with one.
    """
    processors = torch.get_num_threads()  # OMP_NUM_THREADS limits it
    weights = sum(parameter.numel() for parameter in model.parameters())
    if weights < SMALL_MODEL:
        return 1, f"the model is small ({weights:,} parameters)"
    load = os.getloadavg()[0]
    idle = max(1, min(processors, round(processors - load)))
    return idle, f"{processors} processors, load {load:.1f}"


def available_bytes(
    device: str,
    cgroups: Path = Path("/sys/fs/cgroup"),
    own_cgroup: Path = Path("/proc/self/cgroup"),
) -> int:
    """Bytes that a model can still take on a device.

    On a CPU this respects the limits of the process's cgroups, in which batch jobs run.
    """
    if device.startswith("cuda"):
        return torch.cuda.mem_get_info()[0]

    free_bytes = psutil.virtual_memory().available
    cgroup_name = ""
    if own_cgroup.exists():
        # Version 2 of cgroups has one line, "0::/name".
        cgroup_name = own_cgroup.read_text().partition("0::/")[2].split("\n")[0]

    # A limit may be set on the group of the process or on any group above it.
    innermost = cgroups / cgroup_name
    for cgroup in (innermost, *innermost.parents):
        with suppress(OSError, ValueError):  # this group has no limit
            limit = int((cgroup / "memory.max").read_text())
            used = int((cgroup / "memory.current").read_text())
            free_bytes = min(free_bytes, limit - used)
    return max(0, free_bytes)


def check_memory(folder: Path, device: str, numbers: int) -> None:
    """Raise ``UserError`` if ``numbers`` in float32 do not fit into the free memory.

    A model is loaded on the CPU and then moved, so both places need room.
    """
    needed_gib = 4 * numbers / 2**30
    for place in dict.fromkeys(("cpu", device)):
        free_gib = available_bytes(place) / 2**30
        if needed_gib > free_gib:
            raise UserError(
                f"{folder}: its weights take {needed_gib:.1f} GiB in float32 and "
                f"{free_gib:.1f} GiB are free on {place}; "
                f"{needed_gib - free_gib:.1f} GiB are missing"
            )
