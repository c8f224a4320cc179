"""Files of a composition's weights as tasks of a cluster."""
