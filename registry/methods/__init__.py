"""Methods of combining experts: one folder an output, each with its plan, its card and its training."""
