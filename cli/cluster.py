"""The Ray cluster that --ray names."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from cli.options import advanced, options

if TYPE_CHECKING:
    from registry.distributed import Cluster

ray_option = advanced(
    "--ray",
    metavar="ADDRESS",
    help="Run parts of the work as tasks of a Ray cluster: local for the processors of this machine, auto for the "
    "cluster of this node, or HOST:PORT. The result is the same, bit for bit.",
)
cluster_options = options(
    ray_option,
    advanced(
        "--num-gpus",
        type=click.FloatRange(min=0),
        metavar="N",
        help="With --ray: GPUs that each task takes; 0.5 lets two tasks share one. [default: 0: tasks compute on the "
        "processor]",
    ),
)


@contextmanager
def connected(ray: str | None, num_gpus: float | None = None) -> "Iterator[Cluster | None]":
    """Connect to the cluster that the options name; None without --ray.

    Raises:
        click.UsageError: --num-gpus stands alone.
        ClusterError: there is no cluster.
    """
    if ray is None:
        if num_gpus is not None:
            raise click.UsageError("--num-gpus goes with --ray.")
        yield None
        return
    from registry.distributed import connect

    with connect(ray, gpus=num_gpus or 0.0) as cluster:
        yield cluster
