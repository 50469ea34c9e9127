"""An observation against thresholds and a plan: where the step goes, what limits it, what to change first."""
