"""Beyond the paper: figures, findings and the ledger with them. No part of `all`.

REQUIRED INPUTS  results/{suite}/mechanism/*.csv, audit.csv, kurtosis.csv, phases.json and what
                 the ledger reads
OUTPUTS          results/{suite}/figures/fig6_factorial.*, fig7_layers.*, fig9_sensitivity.* …
                 results/{suite}/mechanism/findings.csv
                 results/{suite}/claims_extended.csv, claims_extended.md, claims_extended.html
"""


rule plot_factorial:
    """Figure 6: which property of the grid costs what."""
    input:
        cells="results/{suite}/mechanism/factorial.csv",
        factors="results/{suite}/mechanism/factors.csv",
    output:
        figure("results/{suite}/figures/fig6_factorial", "Beyond the paper", "6"),
    log:
        "logs/{suite}/plot_factorial.log",
    benchmark:
        "benchmarks/{suite}/plot_factorial.tsv"
    localrule: True
    conda:
        "../envs/analysis.yaml"
    params:
        suite=planned(plan.facts),
        code=code_hash("workflow_scripts/plot_factorial.py"),
    message:
        "Figure 6 of {wildcards.suite}"
    script:
        "../workflow_scripts/plot_factorial.py"


rule plot_layers:
    """Figure 7: which matrix breaks when."""
    input:
        layers="results/{suite}/mechanism/layers.csv",
        phases="results/{suite}/phases.json",
    output:
        figure("results/{suite}/figures/fig7_layers", "Beyond the paper", "7"),
    log:
        "logs/{suite}/plot_layers.log",
    benchmark:
        "benchmarks/{suite}/plot_layers.tsv"
    localrule: True
    conda:
        "../envs/torch.yaml"
    params:
        suite=planned(plan.facts),
        code=code_hash("workflow_scripts/plot_layers.py"),
    message:
        "Figure 7 of {wildcards.suite}"
    script:
        "../workflow_scripts/plot_layers.py"


rule plot_sensitivity:
    """Figure 9: noise, sensitivity and their product."""
    input:
        sensitivity="results/{suite}/mechanism/sensitivity.csv",
        phases="results/{suite}/phases.json",
    output:
        figure("results/{suite}/figures/fig9_sensitivity", "Beyond the paper", "9"),
    log:
        "logs/{suite}/plot_sensitivity.log",
    benchmark:
        "benchmarks/{suite}/plot_sensitivity.tsv"
    localrule: True
    conda:
        "../envs/analysis.yaml"
    params:
        suite=planned(plan.facts),
        low=setting("probe.low_bit"),
        code=code_hash("workflow_scripts/plot_sensitivity.py"),
    message:
        "Figure 9 of {wildcards.suite}"
    script:
        "../workflow_scripts/plot_sensitivity.py"


rule plot_curvature:
    """Figure 10: how flat the minimum is."""
    input:
        curvature="results/{suite}/mechanism/curvature.csv",
        audit="results/{suite}/audit.csv",
        phases="results/{suite}/phases.json",
    output:
        figure("results/{suite}/figures/fig10_curvature", "Beyond the paper", "10"),
    log:
        "logs/{suite}/plot_curvature.log",
    benchmark:
        "benchmarks/{suite}/plot_curvature.tsv"
    localrule: True
    conda:
        "../envs/analysis.yaml"
    params:
        suite=planned(plan.facts),
        code=code_hash("workflow_scripts/plot_curvature.py"),
    message:
        "Figure 10 of {wildcards.suite}"
    script:
        "../workflow_scripts/plot_curvature.py"


rule plot_drift:
    """Figure 11: weights on the points of the grid."""
    input:
        drift="results/{suite}/mechanism/drift.csv",
        displacement="results/{suite}/mechanism/displacement.csv",
        phase_flips="results/{suite}/mechanism/phase_flips.csv",
        phases="results/{suite}/phases.json",
    output:
        figure("results/{suite}/figures/fig11_drift", "Beyond the paper", "11"),
    log:
        "logs/{suite}/plot_drift.log",
    benchmark:
        "benchmarks/{suite}/plot_drift.tsv"
    localrule: True
    conda:
        "../envs/analysis.yaml"
    params:
        suite=planned(plan.facts),
        code=code_hash("workflow_scripts/plot_drift.py"),
    message:
        "Figure 11 of {wildcards.suite}"
    script:
        "../workflow_scripts/plot_drift.py"


rule plot_activations:
    """Figure 12: activations beside weights."""
    input:
        activations="results/{suite}/mechanism/activations.csv",
        kurtosis="results/{suite}/kurtosis.csv",
        phases="results/{suite}/phases.json",
    output:
        figure("results/{suite}/figures/fig12_activations", "Beyond the paper", "12"),
    log:
        "logs/{suite}/plot_activations.log",
    benchmark:
        "benchmarks/{suite}/plot_activations.tsv"
    localrule: True
    conda:
        "../envs/analysis.yaml"
    params:
        suite=planned(plan.facts),
        bits=setting("mechanism.activations.bits"),
        code=code_hash("workflow_scripts/plot_activations.py"),
    message:
        "Figure 12 of {wildcards.suite}"
    script:
        "../workflow_scripts/plot_activations.py"


rule plot_replication:
    """Figure 13: small runs against their own FP32 minimum."""
    input:
        runs="results/{suite}/mechanism/replication_runs.csv",
        comparison="results/{suite}/mechanism/replication.csv",
    output:
        figure("results/{suite}/figures/fig13_replication", "Beyond the paper", "13"),
    log:
        "logs/{suite}/plot_replication.log",
    benchmark:
        "benchmarks/{suite}/plot_replication.tsv"
    localrule: True
    conda:
        "../envs/analysis.yaml"
    params:
        suite=planned(plan.facts),
        code=code_hash("workflow_scripts/plot_replication.py"),
    message:
        "Figure 13 of {wildcards.suite}"
    script:
        "../workflow_scripts/plot_replication.py"


rule plot_tokens:
    """Figure 15: added loss against the tokens that a weight has seen."""
    input:
        runs="results/{suite}/mechanism/replication_runs.csv",
        paper_table="resources/paper/table1.csv",
    output:
        figure("results/{suite}/figures/fig15_tokens", "Beyond the paper", "15"),
    log:
        "logs/{suite}/plot_tokens.log",
    benchmark:
        "benchmarks/{suite}/plot_tokens.tsv"
    localrule: True
    conda:
        "../envs/analysis.yaml"
    params:
        suite=planned(plan.facts),
        code=code_hash("workflow_scripts/plot_tokens.py"),
    message:
        "Figure 15 of {wildcards.suite}"
    script:
        "../workflow_scripts/plot_tokens.py"


rule summarise_mechanism:
    """The answers of all measurements beyond the paper, with intervals."""
    input:
        unpack(planned(plan_mechanism.findings_inputs)),
        audit="results/{suite}/audit.csv",
        phases="results/{suite}/phases.json",
    output:
        findings="results/{suite}/mechanism/findings.csv",
    log:
        "logs/{suite}/summarise_mechanism.log",
    benchmark:
        "benchmarks/{suite}/summarise_mechanism.tsv"
    localrule: True
    conda:
        "../envs/analysis.yaml"
    params:
        spacing=planned(lambda suite: suite.spacing),
        code=code_hash("workflow_scripts/summarise_mechanism.py"),
    message:
        "Findings about the mechanism in {wildcards.suite}"
    script:
        "../workflow_scripts/summarise_mechanism.py"


# The ledger once more, with what `all` does not measure.
use rule judge_claims as judge_claims_extended with:
    input:
        unpack(planned(plan_mechanism.extended_measurements)),
        **OF_THE_PAPER,
        suite_table="results/{suite}/suite.csv",
        audit="results/{suite}/audit.csv",
        kurtosis="results/{suite}/kurtosis.csv",
        phases="results/{suite}/phases.json",
        scaling_law="results/{suite}/scaling_law.json",
        forks="results/{suite}/forks.csv",
        statistics="results/{suite}/statistics.csv",
        early_warning="results/{suite}/early_warning.csv",
    output:
        "results/{suite}/claims_extended.csv",
        "results/{suite}/claims_extended.md",
        in_report(
            "results/{suite}/claims_extended.html",
            "claims_extended",
            "Beyond the paper",
            item="Ledger",
            suite="{suite}",
        ),
    log:
        "logs/{suite}/judge_claims/extended.log",
    benchmark:
        "benchmarks/{suite}/judge_claims/extended.tsv"
    message:
        "Judging the paper's claims on {wildcards.suite}, with what was measured beyond it"
