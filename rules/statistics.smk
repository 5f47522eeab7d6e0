"""Phases, statistical tests, and verdicts on the paper's claims."""


rule detect_phases:
    """FP32 convergence, onset of the divergence and three segments, with intervals."""
    input:
        suite_table="results/{suite}/suite.csv",
        audit="results/{suite}/audit.csv",
        sequences="results/{suite}/audit_sequences.parquet",
    output:
        phases="results/{suite}/phases.json",
    log:
        "logs/{suite}/detect_phases.log",
    benchmark:
        "benchmarks/{suite}/detect_phases.tsv"
    localrule: True
    conda:
        "../envs/analysis.yaml"
    params:
        spacing=planned(lambda suite: suite.spacing),
        resamples=setting("phases.resamples"),
        seed=0,
        code=code_hash("workflow_scripts/detect_phases.py"),
    message:
        "Detecting the phases of {wildcards.suite}"
    script:
        "../workflow_scripts/detect_phases.py"


rule fit_scaling_law:
    """The low-bit loss as a power of the tokens seen up to convergence, and the final excess."""
    input:
        audit="results/{suite}/audit.csv",
        phases="results/{suite}/phases.json",
    output:
        law="results/{suite}/scaling_law.json",
    log:
        "logs/{suite}/fit_scaling_law.log",
    benchmark:
        "benchmarks/{suite}/fit_scaling_law.tsv"
    localrule: True
    conda:
        "../envs/analysis.yaml"
    params:
        spacing=planned(lambda suite: suite.spacing),
        code=code_hash("workflow_scripts/fit_scaling_law.py"),
    message:
        "Fitting the scaling law of {wildcards.suite}"
    script:
        "../workflow_scripts/fit_scaling_law.py"


rule compute_statistics:
    """Every summary and test, with the probe and with the seed as the unit."""
    input:
        audit="results/{suite}/audit.csv",
        kurtosis="results/{suite}/kurtosis.csv",
        phases="results/{suite}/phases.json",
        forks="results/{suite}/forks.csv",
        sequences=collect(
            "results/{suite}/forks/{fork}.parquet",
            fork=planned(plan_forks.runs, series="forks"),
            allow_missing=True,
        ),
        cooled=planned(plan_forks.cooled_table),
    output:
        statistics=in_report("results/{suite}/statistics.csv", "Tests", "All tests"),
    log:
        "logs/{suite}/compute_statistics.log",
    benchmark:
        "benchmarks/{suite}/compute_statistics.tsv"
    localrule: True
    conda:
        "../envs/analysis.yaml"
    params:
        spacing=planned(lambda suite: suite.spacing),
        baseline=CONTROL,
        primary=planned(plan_forks.primary),
        resamples=setting("probe.resamples"),
        seed=0,
        code=code_hash("workflow_scripts/compute_statistics.py"),
    message:
        "Computing the statistics of {wildcards.suite}"
    script:
        "../workflow_scripts/compute_statistics.py"


rule warn_early:
    """Rules that should warn of the onset, compared with the observed onset."""
    input:
        audit="results/{suite}/audit.csv",
        sequences="results/{suite}/audit_sequences.parquet",
        phases="results/{suite}/phases.json",
    output:
        table=in_report("results/{suite}/early_warning.csv", "Tests", "Early warning"),
    log:
        "logs/{suite}/warn_early.log",
    benchmark:
        "benchmarks/{suite}/warn_early.tsv"
    localrule: True
    conda:
        "../envs/analysis.yaml"
    params:
        spacing=planned(lambda suite: suite.spacing),
        code=code_hash("workflow_scripts/warn_early.py"),
    message:
        "Early warnings on {wildcards.suite}"
    script:
        "../workflow_scripts/warn_early.py"


# The paper's files that the ledger of claims reads.
OF_THE_PAPER = {
    "claims": own_path("resources/paper/claims.yaml"),
    "excerpts": own_path("resources/paper/excerpts.yaml"),
    "table1": own_path("resources/paper/table1.csv"),
    "table2": own_path("resources/paper/table2.csv"),
    "lambada": own_path("resources/paper/pythia_lambada.csv"),
    "page_html": own_path("resources/templates/claims.html.j2"),
    "page_md": own_path("resources/templates/claims.md.j2"),
}


rule judge_claims:
    """Every claim of the paper, compared with its text, public sources and the suite."""
    input:
        unpack(planned(plan.ledger_files)),
        **OF_THE_PAPER,
    output:
        "results/{suite}/claims.csv",
        "results/{suite}/claims.md",
        in_report("results/{suite}/claims.html", "Ledger", "All claims"),
    log:
        "logs/{suite}/judge_claims.log",
    benchmark:
        "benchmarks/{suite}/judge_claims.tsv"
    # results/paper has rules of its own below. Its name is no suite, so the inputs would fail.
    wildcard_constraints:
        suite=r"(?!paper/)[^/]+",
    localrule: True
    conda:
        "../envs/analysis.yaml"
    params:
        suite=planned(plan.ledger_facts),
        code=code_hash("workflow_scripts/judge_claims.py"),
    message:
        "Judging the paper's claims on {wildcards.suite}"
    script:
        "../workflow_scripts/judge_claims.py"


use rule judge_claims as judge_claims_one with:
    output:
        "results/{suite}/claims/{claim}.json",
    log:
        "logs/{suite}/judge_claims/{claim}.log",
    benchmark:
        "benchmarks/{suite}/judge_claims/{claim}.tsv"
    params:
        suite=planned(plan.claim_facts, "claim", ledger=OF_THE_PAPER["claims"]),
    message:
        "Judging claim {wildcards.claim} on {wildcards.suite}"


# The paper's printed tables alone: a suite without a model, judged in seconds.
use rule judge_claims as judge_claims_paper with:
    input:
        **OF_THE_PAPER,
    output:
        "results/paper/claims.csv",
        "results/paper/claims.md",
        in_report("results/paper/claims.html", "Ledger", "All claims", suite="printed tables"),
    log:
        "logs/paper/judge_claims.log",
    benchmark:
        "benchmarks/paper/judge_claims.tsv"
    params:
        suite=None,
    message:
        "Judging the paper's claims on its own printed tables"


use rule judge_claims_paper as judge_claims_paper_one with:
    output:
        "results/paper/claims/{claim}.json",
    log:
        "logs/paper/judge_claims/{claim}.log",
    benchmark:
        "benchmarks/paper/judge_claims/{claim}.tsv"
    message:
        "Judging claim {wildcards.claim} on the paper's own printed tables"


ruleorder: judge_claims_paper > judge_claims
ruleorder: judge_claims_paper_one > judge_claims_one
