"""Modelling files of composed folders, which stand beside the weights (`registry.hosts.remote_code`)."""
