"""Watching a run: a ledger of its steps, a callback that writes it, rules that find what is wrong."""
