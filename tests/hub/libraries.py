"""Pointing the hub's libraries at a tiny hub after they were imported.

They read the environment once, when they are imported; a subprocess needs only
``TinyHub.environment``.
"""

from pathlib import Path

import pytest

from tests.hub.server import TinyHub


def point_at(monkeypatch: pytest.MonkeyPatch, hub: TinyHub, home: str | Path) -> None:
    """Use ``hub`` with a cache under ``home`` and no token, in this process."""
    import datasets
    from huggingface_hub import constants, hf_api

    cache = str(Path(home) / "hub")
    monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
    template = hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", cache)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(Path(home) / "token"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hf_api.api, "endpoint", hub.endpoint)
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", hub.endpoint)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
