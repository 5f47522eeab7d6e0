"""Text of any length in a memory that does not grow with it."""

import json
import subprocess
import sys
import tracemalloc

import pytest

from flatminima.text.leakage import shared_documents, shared_windows
from flatminima.text.packing import pack
from tests.workflow import ROOT

COLLECT = """
import resource, sys
from flatminima.text.collecting import collect

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

folder, amount = sys.argv[1], int(sys.argv[2])
source = {"source": "files", "validation": [{"path": f"{folder}/val.jsonl"}],
          "train": [{"path": f"{folder}/train.jsonl"}]}
wanted = {"validation": {"amount": 1000}, "train": {"amount": amount}}
collect({"text": source, "wanted": wanted}, f"{folder}/a.jsonl", f"{folder}/b.jsonl")
print(peak())
"""


def test_tokens_are_packed_in_little_more_than_their_own_size():
    """A list of Python's integers would take nine times as much."""
    document = list(range(1000, 2000))
    tracemalloc.start()
    try:
        tokens = pack((document for _ in range(2000)), sequences=1000, length=2000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert tokens.nbytes == 8_000_000
    assert peak < tokens.nbytes + 200_000


def test_the_search_for_validation_in_training_keeps_nothing_of_training():
    validation = [" ".join(f"w{n + m}" for m in range(50)) for n in range(20)]
    training = (" ".join(f"t{n * m}" for m in range(300)) for n in range(400))
    tracemalloc.start()
    try:
        shared_windows(training, validation)
        again = (" ".join(f"t{n * m}" for m in range(300)) for n in range(400))
        shared_documents(again, validation)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 300_000  # all of training is 0.7 MB


@pytest.mark.slow
def test_a_long_training_text_is_collected_as_a_stream(tmp_path):
    """Ten times as much text takes about the same memory."""
    (tmp_path / "val.jsonl").write_text(json.dumps({"text": "held out " * 200}) + "\n")
    with open(tmp_path / "train.jsonl", "w") as stream:
        for n in range(100_000):  # 400 MB
            stream.write(json.dumps({"text": f"{n} " * (4000 // (len(str(n)) + 1))}) + "\n")
    peaks = []
    for amount in (30_000_000, 300_000_000):
        command = [sys.executable, "-c", COLLECT, str(tmp_path), str(amount)]
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
        assert run.returncode == 0, run.stderr[-2000:]
        peaks.append(int(run.stdout.split()[-1]))
        assert (tmp_path / "a.jsonl").stat().st_size > amount
    assert peaks[1] < peaks[0] + 60, f"{peaks} MiB"
