"""Companion notebooks: executed on the suite's results and rendered.

REQUIRED INPUTS  notebooks/{notebook}.ipynb and the suite's results that it reads
OUTPUTS          results/{suite}/notebooks/{notebook}.html
"""

# A rule per notebook: each carries the hash of the code in its own cells.
for notebook, needed in {**NOTEBOOKS, **EXTENDED_NOTEBOOKS}.items():

    rule:
        """A notebook executed on the suite's results; a failing cell fails the rule."""
        name:
            f"render_notebook_{notebook}"
        input:
            notebook=f"notebooks/{notebook}.ipynb",
            results=[f"results/{{suite}}/{name}" for name in needed],
        output:
            html=in_report(
                f"results/{{suite}}/notebooks/{notebook}.html",
                "notebook",
                "Notebooks",
                item=notebook,
                suite="{suite}",
            ),
        log:
            f"logs/{{suite}}/render_notebook/{notebook}.log",
        benchmark:
            f"benchmarks/{{suite}}/render_notebook/{notebook}.tsv"
        localrule: True
        conda:
            "../envs/notebook.yaml"
        params:
            folder="results",
            code=code_hash("workflow_scripts/render_notebook.py", f"notebooks/{notebook}.ipynb"),
        message:
            f"Notebook {notebook} of {{wildcards.suite}}"
        script:
            "../workflow_scripts/render_notebook.py"
