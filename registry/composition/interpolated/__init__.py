"""SIMoEs: experts that were trained together as masks of shared weights, in one folder as they were trained."""
