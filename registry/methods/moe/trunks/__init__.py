"""Trunk methods: one file a method."""
