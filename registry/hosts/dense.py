"""The dense class as its own host, for a composition that is one dense model."""

from registry.hosts.host import Host, PerExpert, dense_config


def dense_host(model_type: str, class_name: str, layers: str) -> Host:
    """Return the dense class as the host of a model without routers (arguments as `remote_code_host`)."""
    return Host(
        model_type=model_type,
        class_name=class_name,
        gate="",
        experts=PerExpert(""),
        config=lambda architecture, experts, top_k: {"vocab_size": architecture.vocab_size},
        layers=layers,
        dense_config=dense_config,
    )
