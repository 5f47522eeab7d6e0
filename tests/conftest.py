"""Tiny models and settings shared by the tests; heavy imports happen inside the fixtures."""

import os
import shutil
import sys
import warnings
from types import SimpleNamespace

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
from hypothesis import settings

# The same examples in every run, and no time limit on a busy machine.
settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=100)
settings.load_profile("repeatable")

BROWSER_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--window-size=1400,1000",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)
TINY = {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "max_length": 16}
TINY_VOCABULARY = 64
PROBE = {
    "quantizers": {
        "int4": {"bits": 4, "granularity": "group", "group_size": 8, "symmetric": False},
        "int8": {"bits": 8, "granularity": "channel", "symmetric": True},
    },
    "roles": {"int4": "low_bit", "int8": "high_bit"},
    "batch_size": 4,
    "device": "cpu",
}


def affine(bits, granularity, symmetric, group_size=None, layers="blocks"):
    """An affine quantizer, in few words."""
    from flatminima.quantizer_specs import AffineQuantizer

    return AffineQuantizer(
        bits=bits,
        granularity=granularity,
        symmetric=symmetric,
        group_size=group_size,
        layers=layers,
    )


def weights_of(model):
    """A copy of the weights by name."""
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def assert_equal(first, second):
    """The same tensors under the same names."""
    import torch

    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name


@pytest.fixture(autouse=True)
def _subnormal_numbers_are_kept():
    """What measures sets torch to flush them to zero; the next test starts without that."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_flush_denormal(False)


@pytest.fixture
def pauses(monkeypatch):
    """What we and the hub's own client waited in up to four attempts; it takes no time."""
    import huggingface_hub
    import tenacity

    from flatminima import hub

    found = []
    fake = SimpleNamespace(sleep=found.append)
    for module in (tenacity.nap, huggingface_hub.utils._http, huggingface_hub.file_download):
        monkeypatch.setattr(module, "time", fake)
    monkeypatch.setattr(hub, "ATTEMPTS", 4)
    return found


def in_child(action) -> bool:
    """Run ``action`` in a child of this process; whether it was killed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
        child = os.fork()
    if child == 0:
        try:
            action()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


@pytest.fixture
def tiny_model():
    """A GPT-NeoX of 2 layers, hidden size 16 and 64 tokens, with fresh weights."""
    from flatminima.model import build_model

    return build_model(TINY, TINY_VOCABULARY, seed=0)


@pytest.fixture
def tiny_tokens():
    """Token ids ``[9, 16]``."""
    generator = np.random.default_rng(7)
    return generator.integers(0, TINY_VOCABULARY, (9, 16)).astype(np.int32)


@pytest.fixture(scope="module")
def browser():
    """Chromium without a window and without a network."""
    selenium = pytest.importorskip("selenium.webdriver")
    driver = shutil.which("chromedriver")
    chromium = shutil.which("chromium")
    if not (driver and chromium):
        pytest.skip("chromium and chromedriver are not installed")
    options = selenium.ChromeOptions()
    options.binary_location = chromium
    for flag in BROWSER_FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    window = selenium.Chrome(options, selenium.ChromeService(driver))
    window.implicitly_wait(10)
    yield window
    window.quit()
