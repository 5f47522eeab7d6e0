"""Beyond the paper: measurements at checkpoints that ask why. No part of `all`.

REQUIRED INPUTS  results/{suite}/checkpoints/step{step}/
                 results/{suite}/data/validation.safetensors, train.safetensors
OUTPUTS          results/{suite}/mechanism/{measure}/{steps}.csv
                 results/{suite}/mechanism/{measure}.csv
                 results/{suite}/mechanism/drift.csv, displacement.csv, phase_flips.csv
"""


rule probe_layers:
    """One matrix quantized alone, and all but one."""
    input:
        checkpoints=planned("measure_files", "steps", measure="layers"),
        validation="results/{suite}/data/validation.safetensors",
    output:
        table="results/{suite}/mechanism/layers/{steps}.csv",
    log:
        "logs/{suite}/probe_layers/{steps}.log",
    benchmark:
        "benchmarks/{suite}/probe_layers/{steps}.tsv"
    conda:
        "../envs/torch.yaml"
    threads: planned("threads")
    resources:
        gpu=planned("gpus"),
    params:
        folders=planned("measure_folders", "steps", measure="layers"),
        settings=planned("measure_settings", measure="layers"),
        quantizer=planned("probed_quantizer", role="low_bit"),
        code=code_hash("workflow_scripts/probe_layers.py"),
    message:
        "Layer by layer probes of {wildcards.suite} {wildcards.steps}"
    script:
        "../workflow_scripts/probe_layers.py"


rule measure_sensitivity:
    """Quantization noise, and what the loss makes of it."""
    input:
        checkpoints=planned("measure_files", "steps", measure="sensitivity"),
        validation="results/{suite}/data/validation.safetensors",
    output:
        table="results/{suite}/mechanism/sensitivity/{steps}.csv",
    log:
        "logs/{suite}/measure_sensitivity/{steps}.log",
    benchmark:
        "benchmarks/{suite}/measure_sensitivity/{steps}.tsv"
    conda:
        "../envs/torch.yaml"
    threads: planned("threads")
    resources:
        gpu=planned("gpus"),
    params:
        folders=planned("measure_folders", "steps", measure="sensitivity"),
        settings=planned("measure_settings", measure="sensitivity"),
        quantizers=planned("probed_quantizers"),
        code=code_hash("workflow_scripts/measure_sensitivity.py"),
    message:
        "Noise and sensitivity of {wildcards.suite} {wildcards.steps}"
    script:
        "../workflow_scripts/measure_sensitivity.py"


rule measure_curvature:
    """Largest eigenvalue and trace of the Hessian."""
    input:
        checkpoints=planned("measure_files", "steps", measure="curvature"),
        validation="results/{suite}/data/validation.safetensors",
    output:
        table="results/{suite}/mechanism/curvature/{steps}.csv",
    log:
        "logs/{suite}/measure_curvature/{steps}.log",
    benchmark:
        "benchmarks/{suite}/measure_curvature/{steps}.tsv"
    conda:
        "../envs/torch.yaml"
    threads: planned("threads")
    resources:
        gpu=planned("gpus"),
    params:
        folders=planned("measure_folders", "steps", measure="curvature"),
        settings=planned("measure_settings", measure="curvature"),
        layers=planned("kurtosis_layers"),
        code=code_hash("workflow_scripts/measure_curvature.py"),
    message:
        "Curvature of {wildcards.suite} {wildcards.steps}"
    script:
        "../workflow_scripts/measure_curvature.py"


rule measure_activations:
    """Activation kurtosis, rounded activations and anisotropy."""
    input:
        checkpoints=planned("measure_files", "steps", measure="activations"),
        validation="results/{suite}/data/validation.safetensors",
    output:
        table="results/{suite}/mechanism/activations/{steps}.csv",
    log:
        "logs/{suite}/measure_activations/{steps}.log",
    benchmark:
        "benchmarks/{suite}/measure_activations/{steps}.tsv"
    conda:
        "../envs/torch.yaml"
    threads: planned("threads")
    resources:
        gpu=planned("gpus"),
    params:
        folders=planned("measure_folders", "steps", measure="activations"),
        settings=planned("measure_settings", measure="activations"),
        quantizer=planned("probed_quantizer", role="low_bit"),
        code=code_hash("workflow_scripts/measure_activations.py"),
    message:
        "Activations of {wildcards.suite} {wildcards.steps}"
    script:
        "../workflow_scripts/measure_activations.py"


rule gather_mechanism:
    """The table of one measurement over all its checkpoints."""
    input:
        tables=planned("measure_tables", "measure"),
    output:
        table="results/{suite}/mechanism/{measure}.csv",
    log:
        "logs/{suite}/gather_mechanism/{measure}.log",
    benchmark:
        "benchmarks/{suite}/gather_mechanism/{measure}.tsv"
    wildcard_constraints:
        measure="|".join(RANGED),
    conda:
        "../envs/analysis.yaml"
    params:
        code=code_hash("workflow_scripts/gather_mechanism.py"),
    message:
        "Gathering the {wildcards.measure} of {wildcards.suite}"
    script:
        "../workflow_scripts/gather_mechanism.py"


rule measure_drift:
    """Where weights sit in their grids, which codes flip, and how far they move."""
    input:
        weights=planned("drift_files"),
    output:
        drift="results/{suite}/mechanism/drift.csv",
        displacement="results/{suite}/mechanism/displacement.csv",
    log:
        "logs/{suite}/measure_drift.log",
    benchmark:
        "benchmarks/{suite}/measure_drift.tsv"
    conda:
        "../envs/torch.yaml"
    params:
        weights=planned("measure_weights", measure="drift"),
        quantizer=planned("probed_quantizer", role="low_bit"),
        layers=planned("kurtosis_layers"),
        spacing=planned("spacing"),
        code=code_hash("workflow_scripts/measure_drift.py"),
    message:
        "Following the weights of {wildcards.suite}"
    script:
        "../workflow_scripts/measure_drift.py"


rule trace_phase_flips:
    """Codes that flip in single bumps and cool phases of OLI, beside the baseline."""
    input:
        unpack(planned("phase_flip_inputs")),
        train="results/{suite}/data/train.safetensors",
    output:
        table="results/{suite}/mechanism/phase_flips.csv",
    log:
        "logs/{suite}/trace_phase_flips.log",
    benchmark:
        "benchmarks/{suite}/trace_phase_flips.tsv"
    conda:
        "../envs/torch.yaml"
    threads: planned("threads")
    resources:
        gpu=planned("gpus"),
    params:
        settings=planned("phase_flip_settings"),
        quantizer=planned("probed_quantizer", role="low_bit"),
        code=code_hash("workflow_scripts/trace_phase_flips.py"),
    message:
        "Following the codes of {wildcards.suite} through bumps and cool phases"
    script:
        "../workflow_scripts/trace_phase_flips.py"
