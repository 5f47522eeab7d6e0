"""Beyond the paper: which property of the grid costs what. No part of `all`.

REQUIRED INPUTS  results/{suite}/checkpoints/step{step}/
                 results/{suite}/data/validation.safetensors
OUTPUTS          results/{suite}/mechanism/factorial/{steps}.csv, .parquet
                 results/{suite}/mechanism/factorial.csv, factors.csv
                 results/{suite}/figures/fig6_factorial.*
"""


rule probe_factorial:
    """Every combination of bits, symmetry, granularity and layers."""
    input:
        checkpoints=planned("measure_files", "steps", measure="factorial"),
        validation="results/{suite}/data/validation.safetensors",
    output:
        table="results/{suite}/mechanism/factorial/{steps}.csv",
        sequences="results/{suite}/mechanism/factorial/{steps}.parquet",
    log:
        "logs/{suite}/probe_factorial/{steps}.log",
    benchmark:
        "benchmarks/{suite}/probe_factorial/{steps}.tsv"
    conda:
        "../envs/torch.yaml"
    threads: planned("threads")
    resources:
        gpu=planned("gpus"),
    params:
        folders=planned("measure_folders", "steps", measure="factorial"),
        settings=planned("measure_settings", measure="factorial"),
        probed=planned("probed_cells"),
        code=code_hash("workflow_scripts/probe_factorial.py"),
    message:
        "Factorial probe of {wildcards.suite} {wildcards.steps}"
    script:
        "../workflow_scripts/probe_factorial.py"


rule analyse_factorial:
    """Main effects, interactions, and one sensitivity times step²."""
    input:
        cells="results/{suite}/mechanism/factorial.csv",
        sequences=planned("measure_tables", measure="factorial", suffix="parquet"),
    output:
        effects="results/{suite}/mechanism/factors.csv",
    log:
        "logs/{suite}/analyse_factorial.log",
    benchmark:
        "benchmarks/{suite}/analyse_factorial.tsv"
    conda:
        "../envs/analysis.yaml"
    params:
        probed=planned("probed_cells"),
        resamples=200,
        code=code_hash("workflow_scripts/analyse_factorial.py"),
    message:
        "Separating the factors of {wildcards.suite}"
    script:
        "../workflow_scripts/analyse_factorial.py"
