"""What made a measured file: written as JSON beside it, without times or host names."""

import json
import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from flatminima.files import atomic_path

PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "scipy", "pandas", "ruptures")


def describe_run(*, device: str = "cpu", threads: int = 1, **details: object) -> dict:
    """Versions, device, numeric settings and whatever else made a result."""
    import torch

    device_name = torch.cuda.get_device_name() if device == "cuda" else platform.machine()
    return {
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in PACKAGES},
        "device": device,
        "device_name": device_name,
        "threads": threads,
        "dtype": "float32",
        "tf32": torch.backends.cuda.matmul.allow_tf32,
        **details,
    }


def write_json(path: str | Path, content: Mapping) -> None:
    """Write JSON with a stable layout."""
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(content, indent=2, default=str) + "\n", encoding="utf-8")


def read_json(path: str | Path) -> dict:
    """Read what ``write_json`` wrote."""
    return json.loads(Path(path).read_text(encoding="utf-8"))
