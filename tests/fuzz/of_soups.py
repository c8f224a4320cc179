"""Files of a soup that were changed: what a version is in it, and the router with the domains' centroids."""

import shutil

import numpy as np

from registry import Registry
from registry.checkpoint.soup_files import SOUP_FILE, SOUP_ROUTER, SoupRouter, pack_router, pack_soup
from tests.fuzz.fuzz_world import EXPERTS, SETTINGS, World, soup_router
from tests.fuzz.reading import CLI_SHARE, Act, cli, put
from tests.mutations import Draw, changed_json, changed_safetensors

WEIGHTS: tuple[dict[str, float], ...] = (
    {"a": 1.0},
    {"b": 3, "a": 1},
    {"a": 1e308, "b": 1e308},
    {"c": 1.0},
    {"a": -1.0},
    {"a": float("nan")},
    {},
)


def soup(world: World, draw: Draw) -> Act:
    """Return a registration of a soup of which a file was changed, and an instantiation of it."""
    shared, home = world.copy(world.soup), shutil.copytree(world.home, world.scratch / "home")
    what = draw.random()
    if what < 0.35:
        put(shared / SOUP_FILE, changed_json(draw, (world.soup / SOUP_FILE).read_bytes()))
    elif what < 0.6:
        put(shared / SOUP_ROUTER, changed_safetensors(draw, (world.soup / SOUP_ROUTER).read_bytes()))
    else:
        put(shared / SOUP_ROUTER, pack_router(_extreme(draw)))
    theirs = [world.copy(world.soup.with_name(f"soup-{n}"), f"expert-{n}") for n, _ in enumerate(EXPERTS, start=1)]
    of_expert, weights = draw.random() < 0.2, draw.choice(WEIGHTS)
    like, by_hand = draw.random() < 0.3, draw.random() < CLI_SHARE

    def act() -> None:
        with Registry(home, create=False) as registry:
            digest = registry.add_base("mix", shared).version.digest
            for number, folder in enumerate(theirs, start=1):
                own = pack_soup({"soup": digest, "number": number})
                put(folder / SOUP_FILE, changed_json(draw, own) if of_expert else own)
                registry.add_expert(f"mix-{number}", folder, data=[world.text], settings=SETTINGS)
            if not by_hand and like:
                registry.instantiate("mix", world.scratch / "out", like=[world.text])
            elif not by_hand:
                registry.instantiate("mix", world.scratch / "out", weights=weights)
        if by_hand:
            words = [f"{name}={weight}" for name, weight in weights.items()]
            cli(world, "instantiate", "mix", "--weights", ",".join(words), "--out", world.scratch / "out", home=home)

    return act


def _extreme(draw: Draw) -> SoupRouter:
    """Return a router of numbers from within float32 that nobody trains."""
    router = soup_router(np.random.default_rng(draw.randrange(100)))
    part = getattr(router, draw.choice(sorted(vars(router))))
    part[...] *= np.float32(draw.choice((0.0, 1e-45, 1e20, 3e38)))
    if draw.random() < 0.3:
        part.flat[0] = draw.choice((float("nan"), float("inf"), -3e38))
    return router
