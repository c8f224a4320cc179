"""Mathematics of sparse interpolated experts (SIMoE, Chen et al. 2025): gates, masks, layers between experts."""
