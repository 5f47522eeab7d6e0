"""The Hugging Face hub: revisions, checkpoints, tokenizers and text, through its own libraries.

``HF_HUB_OFFLINE``, ``HF_HOME``, ``HF_ENDPOINT`` and ``HF_TOKEN`` work as they do there.
Import from the module that is meant, so that a rule depends on no more code than it runs.
"""
