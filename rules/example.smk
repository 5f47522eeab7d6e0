"""A small example of a run of your own: Trainer.train(), the command audit, a notebook."""


# The example is not a suite: it does not read config.yaml and is not part of `all`.
rule train_example:
    """A small model, trained by the transformers Trainer with the convergence monitor."""
    output:
        run=directory("results/example/run"),
        validation="results/example/validation.jsonl",
        record="results/example/monitor.json",
    log:
        "logs/example/train_example.log",
    benchmark:
        "benchmarks/example/train_example.tsv"
    conda:
        "../envs/torch.yaml"
    params:
        code=code_hash("workflow_scripts/train_example.py"),
    message:
        "Training the example run"
    script:
        "../workflow_scripts/train_example.py"


rule audit_example:
    """The audit of the example run, made by the command `flatminima audit`."""
    input:
        run="results/example/run",
        validation="results/example/validation.jsonl",
    output:
        table="results/example/audit/audit.csv",
        sequences="results/example/audit/audit_sequences.parquet",
        record="results/example/audit/audit.json",
        figure=multiext("results/example/audit/audit", ".pdf", ".svg", ".png", ".html"),
    log:
        "logs/example/audit_example.log",
    benchmark:
        "benchmarks/example/audit_example.tsv"
    conda:
        "../envs/torch.yaml"
    params:
        options={"length": 64, "batch_size": 16},
        code=code_hash("workflow_scripts/audit_example.py"),
    message:
        "Auditing the example run"
    script:
        "../workflow_scripts/audit_example.py"


use rule render_notebook_tour as render_notebook_your_run with:
    input:
        notebook=own_path("notebooks/your_run.ipynb"),
        results=[
            "results/example/monitor.json",
            "results/example/audit/audit.csv",
            "results/example/audit/audit.json",
            "results/example/audit/audit.png",
        ],
    output:
        executed="results/example/your_run.ipynb",
        html="results/example/your_run.html",
    log:
        "logs/example/render_notebook/your_run.log",
    benchmark:
        "benchmarks/example/render_notebook/your_run.tsv"
    params:
        suite="example",
        code=code_hash("workflow_scripts/render_notebook.py", "notebooks/your_run.ipynb"),
    message:
        "Notebook of the example run"
