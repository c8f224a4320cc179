"""Hosts: the native Hugging Face mixture-of-experts architectures, one file each."""

from registry.hosts.host import Fused, Host, PerExpert, Projections
from registry.hosts.tensors import Constant, Experts, RowSelection, Trunk

__all__ = ["Constant", "Experts", "Fused", "Host", "PerExpert", "Projections", "RowSelection", "Trunk"]
