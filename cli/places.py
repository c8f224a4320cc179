"""Paths on a command line, and what of them may be the URL of a bucket."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.output import COPIES, progress
from store.bucket import url_of
from store.errors import InvalidInputError
from store.object_store import is_url

if TYPE_CHECKING:
    _Path = click.Path[Any]
else:
    _Path = click.Path  # not generic at run time


class LocalPath(_Path):
    """A path; a URL is refused, where it would become a folder named `s3:`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        if is_url(value):
            self.fail(
                f"{value!r} is a URL, and this takes a path; compositions go to a bucket: reg compose --out URL",
                param,
                ctx,
            )
        return super().convert(value, param, ctx)


class OutputPlace(_Path):
    """The path of a folder, or the URL of a prefix in a bucket as a text."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path, or the URL in its recorded form."""
        if not is_url(value):
            return super().convert(value, param, ctx)
        try:
            return url_of(value)
        except InvalidInputError as error:
            self.fail(f"{error.message}; {error.hint}", param, ctx)


class InBucket(str):
    """The URL of a composed folder, of which the command gets a local copy (`bring_copies`)."""


class ComposedPlace(_Path):
    """The path of a model folder, or the URL of a composed one in a bucket."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path, or the URL as `InBucket`."""
        if not is_url(value):
            return super().convert(value, param, ctx)
        return InBucket(output_place.convert(value, param, ctx))


def bring_copies(ctx: click.Context) -> None:
    """Replace the URLs among a command's parameters by paths of local copies, which are deleted when it ends.

    Raises:
        RegError: there is no composed folder, or it cannot be read.
    """
    for name, value in ctx.params.items():
        if isinstance(value, InBucket):
            ctx.params[name] = _copy(ctx, value)
        elif isinstance(value, tuple) and any(isinstance(one, InBucket) for one in value):
            ctx.params[name] = tuple(_copy(ctx, one) if isinstance(one, InBucket) else one for one in value)


def _copy(ctx: click.Context, url: InBucket) -> Path:
    from cli.session import Session
    from registry.destination.fetch import fetched
    from registry.home import Home

    session = ctx.ensure_object(Session)
    path = ctx.with_resource(fetched(url, Home.locate(session.home, session.database), progress()))
    ctx.meta.setdefault(COPIES, {})[str(path)] = str(url)
    return path


local_path = LocalPath(path_type=Path)
output_place = OutputPlace(path_type=Path)
composed_place = ComposedPlace(path_type=Path)
composed_text = ComposedPlace()  # which may be a digest too
