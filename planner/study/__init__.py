"""What a plan means for a whole training: checkpoints and failures, more cards, one change at a time."""
