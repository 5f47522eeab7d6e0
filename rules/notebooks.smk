"""Companion notebooks, executed on the suite's results and rendered."""

# The results that each notebook reads. The target extended builds `mechanism`.
NOTEBOOKS = {
    "tour": [
        *("suite.csv", "audit.csv", "kurtosis.csv", "forks.csv"),
        *("figures/fig1_audit.png", "figures/fig2_kurtosis.png", "figures/fig3_forks.png"),
    ],
    "audit": [
        *("suite.csv", "audit.csv", "phases.json", "tables/table1.md"),
        *("figures/fig1_audit.png", "figures/fig5_bit_widths.png"),
    ],
    "kurtosis": ["audit.csv", "kurtosis.csv", "statistics.csv", "figures/fig2_kurtosis.png"],
    "forks": ["forks.csv", "statistics.csv", "tables/table2.md", "figures/fig3_forks.png"],
    "mechanism": [
        *("mechanism/findings.csv", "mechanism/sensitivity.csv", "rivals.csv"),
        *("figures/fig6_factorial.png", "figures/fig7_layers.png", "figures/fig8_rivals.png"),
        *("figures/fig9_sensitivity.png", "figures/fig10_curvature.png"),
        *("figures/fig11_drift.png", "figures/fig12_activations.png"),
        "figures/fig13_replication.png",
    ],
}

# One rule per notebook, with the hash of the code in its cells.
for notebook, needed in NOTEBOOKS.items():

    rule:
        """A notebook, executed on the suite's results. If a cell fails, the rule fails."""
        name:
            f"render_notebook_{notebook}"
        input:
            notebook=own_path(f"notebooks/{notebook}.ipynb"),
            results=[f"results/{{suite}}/{name}" for name in needed],
        output:
            executed=f"results/{{suite}}/notebooks/{notebook}.ipynb",
            html=in_report(
                f"results/{{suite}}/notebooks/{notebook}.html",
                "Notebooks",
                notebook,
                caption="notebook",
            ),
        log:
            f"logs/{{suite}}/render_notebook/{notebook}.log",
        benchmark:
            f"benchmarks/{{suite}}/render_notebook/{notebook}.tsv"
        localrule: True
        conda:
            "../envs/notebook.yaml"
        params:
            code=code_hash("workflow_scripts/render_notebook.py", f"notebooks/{notebook}.ipynb"),
        message:
            f"Executing the notebook {notebook} of {{wildcards.suite}}"
        script:
            "../workflow_scripts/render_notebook.py"
