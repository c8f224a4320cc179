"""Hosts: the native Hugging Face mixture-of-experts architectures. One file a host, named by its families."""

from registry.hosts.host import Host

__all__ = ["Host"]
