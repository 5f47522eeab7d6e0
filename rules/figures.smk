"""Tables, figures and the front page of a suite."""


rule tabulate_audit:
    """Table 1: perplexity and gaps at ten steps."""
    input:
        audit="results/{suite}/audit.csv",
        phases="results/{suite}/phases.json",
        paper="resources/paper/table1.csv",
    output:
        table("results/{suite}/tables/table1", "Audit", "1"),
    log:
        "logs/{suite}/tabulate_audit.log",
    benchmark:
        "benchmarks/{suite}/tabulate_audit.tsv"
    localrule: True
    conda:
        "../envs/analysis.yaml"
    params:
        suite=planned(plan.facts),
        code=code_hash("workflow_scripts/tabulate_results.py"),
    message:
        "Table 1 of {wildcards.suite}"
    script:
        "../workflow_scripts/tabulate_results.py"


# Table 2: final and mean gaps of the forks.
use rule tabulate_audit as tabulate_forks with:
    input:
        forks="results/{suite}/forks.csv",
        statistics="results/{suite}/statistics.csv",
        paper="resources/paper/table2.csv",
    output:
        table("results/{suite}/tables/table2", "Forks", "2"),
    log:
        "logs/{suite}/tabulate_forks.log",
    benchmark:
        "benchmarks/{suite}/tabulate_forks.tsv"
    params:
        suite=planned(plan_forks.fork_facts),
    message:
        "Table 2 of {wildcards.suite}"


# What figures are drawn from, by their category in the report: results of the suite, and what
# the paper printed. The script of fig1_audit is plot_audit.py, whose `draw` gets what is in each
# file under its name without the ending; its caption is rules/report/fig1_audit.rst.
PRINTED = "resources/paper/table1.csv"
FIGURES = {
    "Audit": {
        "fig1_audit": ["audit.csv", "phases.json", PRINTED],
        "fig5_bit_widths": ["audit.csv", PRINTED],
        "fig14_scaling_law": ["audit.csv", "kurtosis.csv", "scaling_law.json", PRINTED],
    },
    "Forks": {"fig3_forks": ["forks.csv", "audit.csv"]},
    "Kurtosis": {"fig2_kurtosis": ["kurtosis.csv", "audit.csv", "phases.json"]},
    "Beyond the paper": {
        "fig6_factorial": ["mechanism/factorial.csv", "mechanism/factors.csv"],
        "fig7_layers": ["mechanism/layers.csv", "phases.json"],
        "fig8_rivals": ["rivals.csv"],
        "fig9_sensitivity": ["mechanism/sensitivity.csv", "audit.csv", "phases.json"],
        "fig10_curvature": ["mechanism/curvature.csv", "audit.csv", "phases.json"],
        "fig11_drift": [
            *("mechanism/drift.csv", "mechanism/displacement.csv", "mechanism/phase_flips.csv"),
            "phases.json",
        ],
        "fig12_activations": ["mechanism/activations.csv", "kurtosis.csv", "phases.json"],
        "fig13_replication": ["mechanism/replication_runs.csv", "mechanism/replication.csv"],
        "fig15_tokens": ["mechanism/replication_runs.csv", PRINTED],
    },
}
# What a script gets besides, in place of the facts of its suite or beside them.
TOLD = {
    "fig3_forks": {"suite": planned(plan_forks.fork_facts)},
    "fig12_activations": {"bits": setting("mechanism.activations.bits")},
}
OPTIONAL = {"fig3_forks": {"cooled": planned(plan_forks.cooled_table)}}

for category, stem in [(group, stem) for group, stems in FIGURES.items() for stem in stems]:
    number, _, drawn = stem.removeprefix("fig").partition("_")

    rule:
        """A figure as PDF, SVG and PNG."""
        name:
            f"plot_{drawn}"
        input:
            **{
                Path(file).stem: file if file == PRINTED else f"results/{{suite}}/{file}"
                for file in FIGURES[category][stem]
            },
            **OPTIONAL.get(stem, {}),
        output:
            figure(f"results/{{suite}}/figures/{stem}", category, number),
        log:
            f"logs/{{suite}}/plot_{drawn}.log",
        benchmark:
            f"benchmarks/{{suite}}/plot_{drawn}.tsv"
        localrule: True
        conda:
            "../envs/analysis.yaml"
        params:
            **{"suite": planned(plan.facts), **TOLD.get(stem, {})},
            draws=f"plot_{drawn}",  # the path of a script is read when its job runs
            code=code_hash(f"workflow_scripts/plot_{drawn}.py"),
        message:
            f"Figure {number} of {{wildcards.suite}}"
        script:
            "../workflow_scripts/{params.draws}.py"


rule plot_lambada:
    """Figure 4: LAMBADA perplexity of Pythia's checkpoints, as its authors published it."""
    input:
        lambada="resources/paper/pythia_lambada.csv",
    output:
        figure("results/paper/figures/fig4_lambada", "Audit", "4"),
    log:
        "logs/paper/plot_lambada.log",
    benchmark:
        "benchmarks/paper/plot_lambada.tsv"
    localrule: True
    conda:
        "../envs/analysis.yaml"
    params:
        code=code_hash("workflow_scripts/plot_lambada.py"),
    message:
        "Figure 4: published LAMBADA perplexities"
    script:
        "../workflow_scripts/plot_lambada.py"


rule draw_index:
    """The front page of a suite: drawings to look around in, claims, links to the rest."""
    input:
        unpack(planned(plan.index_files)),
    output:
        page=in_report("results/{suite}/index.html", "Audit", "Front page"),
    log:
        "logs/{suite}/draw_index.log",
    benchmark:
        "benchmarks/{suite}/draw_index.tsv"
    localrule: True
    conda:
        "../envs/analysis.yaml"
    params:
        suite=planned(plan.facts),
        links=planned(plan.page_links, outputs=OUTPUTS),
        code=code_hash("workflow_scripts/draw_index.py"),
    message:
        "Front page of {wildcards.suite}"
    script:
        "../workflow_scripts/draw_index.py"
