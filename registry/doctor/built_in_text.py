"""Short passages of several kinds, for models of which no text is known."""

BUILT_IN = {
    "English": (
        "The old harbour was quiet in the morning. A few boats lay at the wall, and a man was mending a net beside "
        "the largest of them. He had come here every day for thirty years, first with his father and later with his "
        "son, and he knew the names of all the people who passed. When the church clock struck nine, the children ran "
        "down the hill to the school, and the shops along the street opened one after another. It was the first warm "
        "day of the year. By noon the square would be full of people who talked about the weather, the price of fish, "
        "and the new bridge over the river."
    ),
    "code": (
        "import json\n\n\ndef load(path):\n    with open(path) as file:\n        return json.load(file)\n\n\n"
        "class Counter:\n    def __init__(self):\n        self.counts = {}\n\n    def add(self, name):\n"
        "        if name not in self.counts:\n            self.counts[name] = 0\n        self.counts[name] += 1\n"
        "        return self.counts[name]\n\n\nfor i in range(10):\n    print(i, i * i)\n"
    ),
    "mathematics": (
        "Let n be a positive integer. We show that the sum of the first n odd numbers is n squared. For n = 1 the sum "
        "is 1, which is true. Suppose that the claim holds for n. Then the sum of the first n + 1 odd numbers is "
        "n * n + 2 * n + 1 = (n + 1) * (n + 1), so it holds for n + 1 too. If x + 3 = 7, then x = 4."
    ),
    "German": (
        "Der Wald liegt hinter dem Haus, und im Winter ist er still. Am Morgen gehen die Kinder über die Brücke in "
        "die Schule, und am Abend kommen sie mit der Bahn zurück. Die Stadt ist nicht groß, aber sie hat einen alten "
        "Markt, auf dem es jeden Samstag Brot, Käse und Blumen gibt."
    ),
}
"""Domain → its text."""
