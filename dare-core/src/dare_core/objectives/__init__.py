"""What several algorithm packages share: advantages, ratios, clips, KL forms, loss reductions."""
