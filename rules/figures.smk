"""Tables, figures and the front page of a suite."""


rule tabulate_audit:
    """Table 1: perplexity and gaps at ten steps."""
    input:
        audit="results/{suite}/audit.csv",
        phases="results/{suite}/phases.json",
        paper=own_path("resources/paper/table1.csv"),
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
        paper=own_path("resources/paper/table2.csv"),
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


# Each figure has a script of its own, whose `draw` gets the content of each input under the input's
# name. Its caption in the report is rules/report/{figure}.rst.


rule plot_audit:
    """Figure 1: FP32 perplexity, both gaps and the learning rate over training."""
    input:
        audit="results/{suite}/audit.csv",
        phases="results/{suite}/phases.json",
        table1=own_path("resources/paper/table1.csv"),
    output:
        figure("results/{suite}/figures/fig1_audit", "Audit", "1"),
    log:
        "logs/{suite}/plot_audit.log",
    benchmark:
        "benchmarks/{suite}/plot_audit.tsv"
    localrule: True
    conda:
        "../envs/analysis.yaml"
    params:
        suite=planned(plan.facts),
        code=code_hash("workflow_scripts/plot_audit.py"),
    message:
        "Figure 1 of {wildcards.suite}"
    script:
        "../workflow_scripts/plot_audit.py"


rule plot_kurtosis:
    """Figure 2: excess kurtosis of the weights beside the gap."""
    input:
        kurtosis="results/{suite}/kurtosis.csv",
        audit="results/{suite}/audit.csv",
        phases="results/{suite}/phases.json",
    output:
        figure("results/{suite}/figures/fig2_kurtosis", "Kurtosis", "2"),
    log:
        "logs/{suite}/plot_kurtosis.log",
    benchmark:
        "benchmarks/{suite}/plot_kurtosis.tsv"
    localrule: True
    conda:
        "../envs/analysis.yaml"
    params:
        suite=planned(plan.facts),
        code=code_hash("workflow_scripts/plot_kurtosis.py"),
    message:
        "Figure 2 of {wildcards.suite}"
    script:
        "../workflow_scripts/plot_kurtosis.py"


rule plot_forks:
    """Figure 3: gaps and learning rates of the forks."""
    input:
        forks="results/{suite}/forks.csv",
        audit="results/{suite}/audit.csv",
        cooled=planned(plan_forks.cooled_table),
    output:
        figure("results/{suite}/figures/fig3_forks", "Forks", "3"),
    log:
        "logs/{suite}/plot_forks.log",
    benchmark:
        "benchmarks/{suite}/plot_forks.tsv"
    localrule: True
    conda:
        "../envs/analysis.yaml"
    params:
        suite=planned(plan_forks.fork_facts),
        code=code_hash("workflow_scripts/plot_forks.py"),
    message:
        "Figure 3 of {wildcards.suite}"
    script:
        "../workflow_scripts/plot_forks.py"


rule plot_bit_widths:
    """Figure 5: gaps at every bit width."""
    input:
        audit="results/{suite}/audit.csv",
        phases="results/{suite}/phases.json",
        table1=own_path("resources/paper/table1.csv"),
    output:
        figure("results/{suite}/figures/fig5_bit_widths", "Audit", "5"),
    log:
        "logs/{suite}/plot_bit_widths.log",
    benchmark:
        "benchmarks/{suite}/plot_bit_widths.tsv"
    localrule: True
    conda:
        "../envs/analysis.yaml"
    params:
        suite=planned(plan.facts),
        code=code_hash("workflow_scripts/plot_bit_widths.py"),
    message:
        "Figure 5 of {wildcards.suite}"
    script:
        "../workflow_scripts/plot_bit_widths.py"


rule plot_scaling_law:
    """Figure 14: the low-bit loss as a power of the tokens seen."""
    input:
        audit="results/{suite}/audit.csv",
        kurtosis="results/{suite}/kurtosis.csv",
        scaling_law="results/{suite}/scaling_law.json",
        table1=own_path("resources/paper/table1.csv"),
    output:
        figure("results/{suite}/figures/fig14_scaling_law", "Audit", "14"),
    log:
        "logs/{suite}/plot_scaling_law.log",
    benchmark:
        "benchmarks/{suite}/plot_scaling_law.tsv"
    localrule: True
    conda:
        "../envs/analysis.yaml"
    params:
        suite=planned(plan.facts),
        code=code_hash("workflow_scripts/plot_scaling_law.py"),
    message:
        "Figure 14 of {wildcards.suite}"
    script:
        "../workflow_scripts/plot_scaling_law.py"


rule plot_factorial:
    """Figure 6: bits, symmetry and granularity apart."""
    input:
        factorial="results/{suite}/mechanism/factorial.csv",
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
    """Figure 7: each matrix rounded alone, and all but one."""
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
        "../envs/analysis.yaml"
    params:
        suite=planned(plan.facts),
        code=code_hash("workflow_scripts/plot_layers.py"),
    message:
        "Figure 7 of {wildcards.suite}"
    script:
        "../workflow_scripts/plot_layers.py"


rule plot_rivals:
    """Figure 8: every condition of the forks at its end."""
    input:
        rivals="results/{suite}/rivals.csv",
    output:
        figure("results/{suite}/figures/fig8_rivals", "Beyond the paper", "8"),
    log:
        "logs/{suite}/plot_rivals.log",
    benchmark:
        "benchmarks/{suite}/plot_rivals.tsv"
    localrule: True
    conda:
        "../envs/analysis.yaml"
    params:
        suite=planned(plan.facts),
        code=code_hash("workflow_scripts/plot_rivals.py"),
    message:
        "Figure 8 of {wildcards.suite}"
    script:
        "../workflow_scripts/plot_rivals.py"


rule plot_sensitivity:
    """Figure 9: rounding noise, and what the loss makes of it."""
    input:
        sensitivity="results/{suite}/mechanism/sensitivity.csv",
        audit="results/{suite}/audit.csv",
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
        code=code_hash("workflow_scripts/plot_sensitivity.py"),
    message:
        "Figure 9 of {wildcards.suite}"
    script:
        "../workflow_scripts/plot_sensitivity.py"


rule plot_curvature:
    """Figure 10: eigenvalue and trace of the Hessian."""
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
    """Figure 11: where weights sit in their grids, and which codes flip."""
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
    """Figure 12: kurtosis and rounding of activations."""
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
    """Figure 13: onsets of small runs beside their FP32 minima."""
    input:
        replication_runs="results/{suite}/mechanism/replication_runs.csv",
        replication="results/{suite}/mechanism/replication.csv",
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
    """Figure 15: onsets by tokens per weight."""
    input:
        replication_runs="results/{suite}/mechanism/replication_runs.csv",
        table1=own_path("resources/paper/table1.csv"),
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


# What `extended` draws, where all of it is measured.
FIGURES_BEYOND_THE_PAPER = {
    "fig6_factorial": drawn_from(rules.plot_factorial),
    "fig7_layers": drawn_from(rules.plot_layers),
    "fig8_rivals": drawn_from(rules.plot_rivals),
    "fig9_sensitivity": drawn_from(rules.plot_sensitivity),
    "fig10_curvature": drawn_from(rules.plot_curvature),
    "fig11_drift": drawn_from(rules.plot_drift),
    "fig12_activations": drawn_from(rules.plot_activations),
    "fig13_replication": drawn_from(rules.plot_replication),
    "fig15_tokens": drawn_from(rules.plot_tokens),
}


rule plot_lambada:
    """Figure 4: LAMBADA perplexity of Pythia's checkpoints, as its authors published it."""
    input:
        lambada=own_path("resources/paper/pythia_lambada.csv"),
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
        template=own_path("resources/templates/suite.html.j2"),
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
