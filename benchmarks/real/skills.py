"""Skills in chat, generated: a question of a user, and the one right answer. Two of three need what a model knows.

kinds       the kind of a thing: of words that training did not show
continents  the continent of a country: of countries that training did not show
change      what one pays, and what is given back: arithmetic in two steps
"""

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

Draw = random.Random
Pairs = list[tuple[str, str]]

_KINDS = {
    "animal": "dog cat horse cow sheep goat lion tiger elephant monkey rabbit mouse wolf fox bear deer camel zebra "
    "duck eagle owl parrot penguin shark whale dolphin salmon frog snake turtle spider bee ant",
    "plant": "rose tulip oak pine grass moss fern cactus bamboo ivy daisy lily maple birch willow palm clover mint "
    "basil wheat barley rice corn lavender orchid sunflower cedar elm thistle nettle sage thyme reed",
    "tool": "hammer saw drill wrench screwdriver pliers axe chisel shovel rake broom ladder scissors knife needle "
    "ruler level clamp file crowbar hoe sickle trowel brush spade plough anvil vise stapler mallet tongs whisk peeler",
    "food": "bread cheese butter soup cake pizza pasta sausage omelette salad sandwich pancake yoghurt honey jam "
    "chocolate biscuit stew pie porridge noodles burger steak curry pudding ice-cream toast waffle sauce muffin "
    "pretzel lasagne dumpling",
    "garment": "shirt coat jacket trousers skirt dress sock shoe boot glove hat cap scarf sweater blouse jeans belt "
    "tie vest cardigan hoodie shorts suit apron robe sandal slipper pyjamas raincoat cloak kilt mitten tunic",
}
_CONTINENTS = {
    "Africa": "Kenya Nigeria Egypt Ghana Ethiopia Morocco Algeria Tunisia Uganda Senegal Zambia Angola Mali Sudan Chad "
    "Niger Namibia Botswana Rwanda Somalia Madagascar Cameroon Libya Zimbabwe",
    "Asia": "China Japan India Thailand Vietnam Indonesia Malaysia Pakistan Bangladesh Nepal Mongolia Iran Iraq "
    "Kazakhstan Cambodia Laos Myanmar Jordan Lebanon Oman Kuwait Singapore Bhutan Yemen",
    "Europe": "France Germany Italy Spain Portugal Poland Sweden Norway Finland Denmark Austria Hungary Greece Ireland "
    "Belgium Croatia Romania Bulgaria Serbia Estonia Latvia Lithuania Iceland Switzerland",
    "South America": "Brazil Argentina Chile Peru Colombia Venezuela Bolivia Ecuador Paraguay Uruguay Guyana Suriname",
    "North America": "Canada Mexico Cuba Jamaica Panama Honduras Guatemala Haiti Nicaragua Belize",
}
_ASKED = {
    "kinds": (
        "Is {} an animal, a plant, a tool, a food or a garment?",
        "Sort this word by its kind (animal, plant, tool, food, garment): {}",
        "Animal, plant, tool, food or garment: what is {}?",
    ),
    "continents": ("On which continent is {}?", "Which continent does {} belong to?", "Name the continent of {}."),
}
_THINGS = ("apples", "pens", "books", "cups", "lamps", "chairs", "tickets", "stamps", "candles", "towels", "spoons")
_PEOPLE = ("Ana", "Ben", "Clara", "David", "Elif", "Farid", "Greta", "Hugo", "Ines", "Jonas", "Karim", "Lea", "Mila")
_TEST = 0.35  # share of the words that training does not show


def _words(table: dict[str, str], asked: str, draw: Draw) -> tuple[Pairs, Pairs]:
    """Return questions on the words that are trained on, and on the others."""
    parts: tuple[Pairs, Pairs] = [], []
    for answer, words in table.items():
        every = words.split()
        draw.shuffle(every)
        held = round(_TEST * len(every))
        for part, own in zip(parts, (every[held:], every[:held]), strict=True):
            part += [(form.format(word), answer) for word in own for form in _ASKED[asked]]
    for part in parts:
        draw.shuffle(part)
    return parts


def _change(draw: Draw) -> tuple[Pairs, Pairs]:
    """Return questions on what is given back, none twice."""
    found: dict[str, str] = {}
    while len(found) < 1200:
        count, price, thing, who = draw.randint(2, 12), draw.randint(2, 15), draw.choice(_THINGS), draw.choice(_PEOPLE)
        due = count * price
        note = next(note for note in (20, 50, 100, 200) if note > due)
        question = f"{who} buys {count} {thing} at {price} euros each and pays with {note} euros. What is given back?"
        found.setdefault(question, f"{count} * {price} = {due}. {note} - {due} = {note - due}. {note - due} euros.")
    pairs = list(found.items())
    return pairs[200:], pairs[:200]


SKILLS: dict[str, Callable[[Draw], tuple[Pairs, Pairs]]] = {
    "kinds": lambda draw: _words(_KINDS, "kinds", draw),
    "continents": lambda draw: _words(_CONTINENTS, "continents", draw),
    "change": _change,
}

FACTS = {  # a question of no expert → a word of a right answer
    "What is the capital of France?": "Paris",
    "What is the capital of Japan?": "Tokyo",
    "Which planet do we live on?": "Earth",
    "What is the largest ocean on Earth?": "Pacific",
    "Who wrote Romeo and Juliet?": "Shakespeare",
    "What gas do plants take in from the air?": "carbon dioxide",
    "What is the chemical symbol of water?": "H2O",
    "What is the opposite of hot?": "cold",
    "How many days are there in a week?": "seven|7",
    "What colour do you get from blue and yellow?": "green",
    "What do bees make?": "honey",
    "In which country is the Great Wall?": "China",
    "Who painted the Mona Lisa?": "Leonardo|da Vinci",
    "What language do people speak in Brazil?": "Portuguese",
    "What is the hottest planet of the solar system?": "Venus",
    "What is the boiling point of water in degrees Celsius?": "100",
    "Which animal is called the king of the jungle?": "lion",
    "What is the largest mammal?": "whale",
    "Which organ pumps blood?": "heart",
    "What is the first month of the year?": "January",
}


def write_skills(folder: Path) -> Path:
    """Write `task_NAME.{train,test}.jsonl.gz` of every skill to a folder, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in SKILLS.items():
        for part, pairs in zip(("train", "test"), make(Draw(name)), strict=True):
            with gzip.open(folder / f"task_{name}.{part}.jsonl.gz", "wt", encoding="utf-8") as file:
                file.writelines(json.dumps(conversation(*pair)) + "\n" for pair in pairs)
    return folder


def conversation(question: str, answer: str) -> dict[str, Any]:
    """Return a row of a question and its answer."""
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}
