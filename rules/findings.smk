"""Beyond the paper: findings and the ledger with them. No part of `all`."""


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
        unpack(planned(plan_forks.fork_measurements)),
        **OF_THE_PAPER,
        **OF_THE_SUITE,
        mechanism="results/{suite}/mechanism/findings.csv",
    output:
        "results/{suite}/claims_extended.csv",
        "results/{suite}/claims_extended.md",
        in_report("results/{suite}/claims_extended.html", "Beyond the paper", "Ledger"),
    log:
        "logs/{suite}/judge_claims/extended.log",
    benchmark:
        "benchmarks/{suite}/judge_claims/extended.tsv"
    message:
        "Judging the paper's claims on {wildcards.suite}, with what was measured beyond it"
