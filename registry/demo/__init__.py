"""A whole session: text that any machine has, a tiny base model, three experts, and every promise shown."""

from registry.demo.run import DemoResult, run_demo

__all__ = ["DemoResult", "run_demo"]
