"""The Compose page: from ticked experts and a form to a plan, its command, and changes that mend it."""
