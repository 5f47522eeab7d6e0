"""The ledger of the paper's claims: rows in ``resources/paper/claims.yaml``, computed here."""
