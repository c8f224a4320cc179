"""Context routing of a composition: the members' evidence, and the experts that it chooses."""
