"""The search that chose the embedded suite's three free numbers; no part of `all`.

Reads FP32 perplexity only. docs/mini.md gives the criterion, the command and the outcome.

REQUIRED INPUTS  results/{suite}/data/train.safetensors, validation.safetensors
OUTPUTS          results/{suite}/search/tokens{tokens}-lr{lr}-wd{decay}.csv
                 results/{suite}/search/candidates.csv
"""


rule try_candidate:
    """Train one candidate and record its full-precision perplexity."""
    input:
        train="results/{suite}/data/train.safetensors",
        validation="results/{suite}/data/validation.safetensors",
    output:
        curve="results/{suite}/search/tokens{tokens}-lr{lr}-wd{decay}.csv",
    log:
        "logs/{suite}/try_candidate/tokens{tokens}-lr{lr}-wd{decay}.log",
    benchmark:
        "benchmarks/{suite}/try_candidate/tokens{tokens}-lr{lr}-wd{decay}.tsv"
    wildcard_constraints:
        suite=suites_from("pretrain"),
        tokens=r"\d+",
        lr=r"\d+\.\d+",
        decay=r"\d+\.\d+",
    conda:
        "../envs/torch.yaml"
    params:
        settings=planned("search_settings"),
        code=code_hash("workflow_scripts/try_candidate.py"),
    message:
        "Trying {wildcards.tokens} tokens, lr {wildcards.lr}, weight decay {wildcards.decay}"
    script:
        "../workflow_scripts/try_candidate.py"


rule rank_candidates:
    """Score every candidate by the criterion, the best first."""
    input:
        curves=collect(
            "results/{{suite}}/search/tokens{tokens}-lr{lr}-wd{decay}.csv",
            tokens=[131072, 262144, 524288],
            lr=[0.003, 0.01],
            decay=[0.0, 0.1],
        ),
    output:
        table="results/{suite}/search/candidates.csv",
    log:
        "logs/{suite}/rank_candidates.log",
    benchmark:
        "benchmarks/{suite}/rank_candidates.tsv"
    conda:
        "../envs/torch.yaml"
    params:
        code=code_hash("workflow_scripts/rank_candidates.py"),
    message:
        "Ranking the candidates"
    script:
        "../workflow_scripts/rank_candidates.py"
