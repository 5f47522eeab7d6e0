"""Numbers that the paper prints and that more than one module needs.

The tables of the paper are in ``resources/paper``, and so is what the ledger of claims reads.
"""

PAPER_MODEL = "Pythia-160m"
PAPER_FORK_STEP = 70_000  # the start of the forks (section 5.1)
PAPER_LAST_STEP = 143_000
PAPER_SPACING = 1_000  # steps between the evenly spaced checkpoints
PAPER_TOKENS_PER_STEP = 2_097_152  # 1,024 sequences of 2,048 tokens
PAPER_WEIGHTS = 84_934_656  # of the linear layers in the blocks of Pythia-160m
PAPER_LAYERS = "blocks"  # the set of layers that the paper quantizes

PAPER_BEST_STEP = 77_000  # the lowest FP32 perplexity (section 4.2)
PAPER_ONSET_STEP = 82_000  # section 4.3
# The paper does not print where rapid learning ends. It is what our rule (phases.RULE) finds in
# the ten rows of Table 1.
PAPER_RAPID_LEARNING_END = 7_000
PAPER_KURTOSIS_CHECKPOINTS = 16  # section 4.5
