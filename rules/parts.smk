"""The headline and Table 1: a few revisions of a suite, measured before all others.

A part is made from the probes of the complete suite, which are kept. So the complete suite never
measures them again.
"""


use rule gather_suite as gather_suite_of_part with:
    input:
        tables=of_part("results/{suite}/revisions/{steps}.csv"),
        fingerprints=of_part("results/{suite}/revisions/{steps}.parquet"),
    output:
        table="results/{suite}/{part}/suite.csv",
    log:
        "logs/{suite}/gather_suite/{part}.log",
    benchmark:
        "benchmarks/{suite}/gather_suite/{part}.tsv"
    params:
        severity=planned(plan.integrity),
        measured_by=planned(lambda suite: "probe_revision" if suite.source == "hub" else None),
        refused="results/{suite}/unfinished/gather_suite/{part}.csv",
        code=code_hash("workflow_scripts/gather_suite.py"),
    message:
        "Gathering the revisions of {wildcards.suite} ({wildcards.part})"


use rule gather_audit as gather_audit_of_part with:
    input:
        suite_table=planned(plan_parts.suite_table, "part"),
        tables=of_part("results/{suite}/probes/{steps}.csv"),
        scores=of_part("results/{suite}/probes/{steps}.parquet"),
        provenance=of_part("results/{suite}/probes/{steps}.json"),
    output:
        audit="results/{suite}/{part}/audit.csv",
        sequences="results/{suite}/{part}/audit_sequences.parquet",
    log:
        "logs/{suite}/gather_audit/{part}.log",
    benchmark:
        "benchmarks/{suite}/gather_audit/{part}.tsv"
    message:
        "Gathering the audit of {wildcards.suite} ({wildcards.part})"


rule state_headline:
    """A part's numbers beside the paper's, and the ledger's verdicts that they decide."""
    input:
        **OF_THE_PAPER,
        audit="results/{suite}/{part}/audit.csv",
        suite_table=planned(plan_parts.suite_table, "part"),
        manifest="results/{suite}/data/validation.json",
        provenance=of_part("results/{suite}/probes/{steps}.json"),
        headline_html="resources/templates/headline.html.j2",
        headline_md="resources/templates/headline.md.j2",
    output:
        "results/{suite}/{part}.csv",
        "results/{suite}/{part}.md",
        in_report("results/{suite}/{part}.html", "Audit", "Headline", caption="headline"),
    log:
        "logs/{suite}/state_headline/{part}.log",
    benchmark:
        "benchmarks/{suite}/state_headline/{part}.tsv"
    wildcard_constraints:
        part="headline|table1",
    localrule: True
    conda:
        "../envs/analysis.yaml"
    params:
        suite=planned(plan_parts.part_facts, "part"),
        code=code_hash("workflow_scripts/state_headline.py"),
    message:
        "The {wildcards.part} of {wildcards.suite}"
    script:
        "../workflow_scripts/state_headline.py"


use rule judge_claims as judge_claims_of_part with:
    input:
        **OF_THE_PAPER,
        audit="results/{suite}/{part}/audit.csv",
        suite_table=planned(plan_parts.suite_table, "part"),
    output:
        "results/{suite}/{part}/claims.csv",
        "results/{suite}/{part}/claims.md",
        "results/{suite}/{part}/claims.html",
    log:
        "logs/{suite}/judge_claims/{part}.log",
    benchmark:
        "benchmarks/{suite}/judge_claims/{part}.tsv"
    message:
        "Judging the paper's claims on the measured part of {wildcards.suite}"


use rule detect_phases as detect_phases_of_part with:
    input:
        suite_table=planned(plan_parts.suite_table, "part"),
        audit="results/{suite}/{part}/audit.csv",
        sequences="results/{suite}/{part}/audit_sequences.parquet",
    output:
        phases="results/{suite}/{part}/phases.json",
    log:
        "logs/{suite}/detect_phases/{part}.log",
    benchmark:
        "benchmarks/{suite}/detect_phases/{part}.tsv"
    message:
        "Detecting the phases of {wildcards.suite} ({wildcards.part})"


use rule tabulate_audit as tabulate_audit_of_part with:
    input:
        audit="results/{suite}/{part}/audit.csv",
        phases="results/{suite}/{part}/phases.json",
        paper="resources/paper/table1.csv",
    output:
        table("results/{suite}/{part}/table1", "Audit", "1"),
    log:
        "logs/{suite}/tabulate_audit_of_part/{part}.log",
    benchmark:
        "benchmarks/{suite}/tabulate_audit_of_part/{part}.tsv"
    message:
        "Table 1 of {wildcards.suite} ({wildcards.part})"


use rule plot_audit as plot_audit_of_part with:
    input:
        audit="results/{suite}/{part}/audit.csv",
        phases="results/{suite}/{part}/phases.json",
        table1="resources/paper/table1.csv",
    output:
        figure("results/{suite}/{part}/fig1_audit", "Audit", "1"),
    log:
        "logs/{suite}/plot_audit/{part}.log",
    benchmark:
        "benchmarks/{suite}/plot_audit/{part}.tsv"
    message:
        "Figure 1 of {wildcards.suite} ({wildcards.part})"
