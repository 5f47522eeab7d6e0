"""Tables and figures of the paper, one rule each.

REQUIRED INPUTS  results/{suite}/audit.csv, kurtosis.csv, phases.json, forks.csv, statistics.csv
                 resources/paper/table1.csv, table2.csv
OUTPUTS          results/{suite}/tables/table1.*, table2.*             (csv, md, tex)
                 results/{suite}/figures/fig1_audit.*, fig2_kurtosis.*, fig3_forks.*, fig5_bit_widths.*
                 results/{suite}/index.html
                 results/paper/figures/fig4_lambada.*              (pdf, svg, png)
"""


rule tabulate_audit:
    """Table 1: perplexity and gaps at ten steps."""
    input:
        audit="results/{suite}/audit.csv",
        phases="results/{suite}/phases.json",
        paper_table="resources/paper/table1.csv",
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
        code=code_hash("workflow_scripts/tabulate_audit.py"),
    message:
        "Table 1 of {wildcards.suite}"
    script:
        "../workflow_scripts/tabulate_audit.py"


rule tabulate_forks:
    """Table 2: final and mean gaps of the forks."""
    input:
        forks="results/{suite}/forks.csv",
        statistics="results/{suite}/statistics.csv",
        paper_table="resources/paper/table2.csv",
    output:
        table("results/{suite}/tables/table2", "Forks", "2"),
    log:
        "logs/{suite}/tabulate_forks.log",
    benchmark:
        "benchmarks/{suite}/tabulate_forks.tsv"
    localrule: True
    conda:
        "../envs/analysis.yaml"
    params:
        suite=planned(plan.facts),
        code=code_hash("workflow_scripts/tabulate_forks.py"),
    message:
        "Table 2 of {wildcards.suite}"
    script:
        "../workflow_scripts/tabulate_forks.py"


rule plot_audit:
    """Figure 1: gaps, perplexity and learning rate over training."""
    input:
        audit="results/{suite}/audit.csv",
        phases="results/{suite}/phases.json",
        paper_table="resources/paper/table1.csv",
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
    """Figure 2: weight kurtosis over training and against the gap."""
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
    """Figure 3: the forks' gaps and absolute perplexities."""
    input:
        forks="results/{suite}/forks.csv",
        cooled=planned(plan_forks.cooled_table),
        audit="results/{suite}/audit.csv",
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
        suite=planned(plan.fork_facts),
        code=code_hash("workflow_scripts/plot_forks.py"),
    message:
        "Figure 3 of {wildcards.suite}"
    script:
        "../workflow_scripts/plot_forks.py"


rule plot_scaling_law:
    """Figure 14: the low-bit loss against its own power law, beside the paper's ten rows."""
    input:
        audit="results/{suite}/audit.csv",
        kurtosis="results/{suite}/kurtosis.csv",
        law="results/{suite}/scaling_law.json",
        paper_table="resources/paper/table1.csv",
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


rule plot_bit_widths:
    """Figure 5: what INT8 costs against what INT4 costs, beside the printed Table 1."""
    input:
        audit="results/{suite}/audit.csv",
        paper_table="resources/paper/table1.csv",
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
        page=in_report(
            "results/{suite}/index.html", "index", "Audit", item="Front page", suite="{suite}"
        ),
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
