"""Short plain stories from a small grammar: the training text of the example checkpoint.

Every sentence here was written for this project. A story is one paragraph of about 100 words: a hero, a
friend, a place, a trouble with a cause, and an end that follows from it. Names of villages and dishes carry
rare letters, so that a byte-level tokenizer splits some characters over several tokens.

The same seed gives the same stories on every supported Python: only `random.Random.random()` is drawn from,
whose sequence Python guarantees, never `choice` or `shuffle`, whose use of it may change.

    python -m examples.qwen3.stories --count 3 --seed 7
"""

import argparse
import random
import re
from collections.abc import Iterator, Sequence
from typing import TypeVar

__all__ = ["generate", "main"]

T = TypeVar("T")
_ALTERNATIVES = re.compile(r"\[([^\[\]]*)\]")

HE = ("Noé", "Tom", "Ben", "Loïc", "Finn", "Otto", "Max", "Emil", "Hugo", "Sam", "Pip", "Léo")
SHE = ("Zoë", "Mia", "Anna", "Inès", "Ida", "Lena", "Rosa", "Nora", "Chloé", "Eva", "Lily", "May")
ANIMALS = (
    "fox", "hare", "badger", "otter", "mouse", "hedgehog", "squirrel", "bear", "owl", "duck", "goat", "cat",
)  # fmt: skip
KINDS = ("a small", "a young", "a brave", "a shy", "an old", "a clever", "a naïve", "a cheerful", "a quiet")
VILLAGES = (
    "Ålund", "Öxby", "Løkka", "Šumice", "Žitna", "Célas", "Grünau", "Castañar", "Vårdal", "Ænes", "Łąka",
    "Čerin", "Œuvry", "Þorsnes", "São Brás", "Übersee", "Tőkés", "Île-Verte", "Kõrve", "Mâlin",
)  # fmt: skip
HOMES = (
    "by the river", "at the edge of the forest", "near the old mill", "on a hill above the sea",
    "in a house with a green door", "under a big oak", "next to the lighthouse", "behind the bakery",
)  # fmt: skip
DISHES = ("crêpes", "rösti", "köfte", "gâteau", "jalapeño soup", "smörgås", "pâté", "açaí", "crème")
FOODS = ("apple", "loaf of bread", "bowl of soup", "piece of cheese", "plum cake", "honey cake", "pear")

LOST = (
    ("red scarf", "on a thorn bush", "the wind had carried it there"),
    ("silver key", "under the doormat", "it had slipped through a hole in a pocket"),
    ("wooden flute", "inside a hollow tree", "a magpie had hidden it there"),
    ("blue kite", "on the roof of the barn", "its string had broken"),
    ("brass bell", "in the long grass", "its strap had come loose"),
    ("picture book", "under the bed", "it had fallen down in the night"),
    ("little boat", "among the reeds", "the current had taken it"),
    ("straw hat", "on the scarecrow", "the farmer had needed one"),
)
BROKEN = (
    ("bridge", "the river rose and carried the bridge away", "long planks", "nailed them together"),
    ("roof", "the wind tore the roof open", "a pile of straw", "tied it down with rope"),
    ("fence", "a tree fell on the fence", "new posts", "hammered them into the ground"),
    ("boat", "a rock made a hole in the boat", "tar and a board", "closed the hole"),
    ("window", "a branch broke the glass", "a new pane", "set it into the frame"),
    ("garden wall", "the rain washed the stones out", "a cart of stones", "piled them up again"),
)
NOISES = (
    ("tapping", "a branch that knocked on the window", "cut the branch"),
    ("scratching", "a kitten that wanted to come in", "opened the door and gave it milk"),
    ("humming", "the kettle that had been left on the stove", "put out the fire"),
    ("rattling", "a loose shutter in the wind", "tied the shutter with a string"),
    ("hooting", "an owl that had lost its way", "showed it the way to the forest"),
    ("dripping", "a leak in the roof", "put a bucket under it"),
)
SKILLS = (
    ("swim", "swallowed a lot of water", "kick slowly", "swam across the pond"),
    ("whistle", "made no sound at all", "make a small round mouth", "whistled a whole song"),
    ("skate", "fell on the ice", "bend the knees", "skated around the lake"),
    ("bake", "burned the bread", "wait for a smaller fire", "baked a golden loaf"),
    ("paint", "spilled the paint", "use less water", "painted the whole valley"),
    ("juggle", "dropped every ball", "look up and not down", "juggled with four pears"),
)
SEEDS = (
    ("bean", "climbed up to the window", "beans for the whole village"),
    ("pumpkin seed", "covered half of the garden", "a pumpkin as big as a cart"),
    ("sunflower seed", "grew taller than the house", "a flower like a little sun"),
    ("cherry stone", "became a slim young tree", "a basket of sweet cherries"),
)

OPENINGS = (
    "Once upon a time, {kind} {a} called {A} lived {home}.",
    "Once upon a time, there was {kind} {a} named {A}. {He} lived {home}.",
    "There was once {kind} {a} called {A}, who lived {home}.",
    "{A} was {kind} {a}. {He} lived {home} with {his} friend {B}.",
    "{Home}, there lived {kind} {a} called {A}.",
)
ENDINGS = (
    "From that day on, {A} and {B} were the best of friends.",
    "That night, {A} slept very well.",
    "“[We make a good team|What a day|That was well done],” said {B}, and both laughed.",
    "Then [they|{A} and {B}] went home and ate [{dish}|{dish}|warm soup] by the fire.",
    "And if you come by today, you can still hear them laugh {home}.",
    "“Thank you, {B},” said {A}. “[I will not forget it|You are a good friend|You are the best].”",
)
# Each plot: its table, whose columns fill {x0}, {x1}, ..., and its sentences.
PLOTS: tuple[tuple[Sequence[Sequence[str]], str], ...] = (
    (
        LOST,
        (
            "One [sunny|windy|grey|cold] [morning|afternoon], {A} could not find {his} {x0}. {He} looked "
            "[in the kitchen|behind the stove|in every drawer] and [in the garden|down in the cellar|along "
            "the road], but it was not there. “[Do not cry|Do not worry],” said {B} the {b}. “[Two see more"
            " than one|Let us look together].” They walked [slowly|step by step] [along the path|down to "
            "the water|around the house]. At last {B} saw the {x0} {x1} — {x2}. {A} was so [happy|glad] "
            "that {he} [danced|jumped for joy|sang all the way home]."
        ),
    ),
    (
        BROKEN,
        (
            "One night there was a [terrible|great|wild] storm, and {x1}. In the morning {A} looked at the "
            "{x0} and [sighed|shook {his} head]. “I cannot mend the {x0} alone,” {he} said. So {he} [went "
            "to|called|asked] {his} friend {B} the {b}, who brought {x2}. {A} and {B} {x3}. They worked "
            "until [the sun went down|noon|the moon came out]. The next storm came [in the autumn|a week "
            "later|soon after], but this time the {x0} held, because [they had built it well|two had built "
            "it]."
        ),
    ),
    (
        NOISES,
        (
            "Late one [evening|night], {A} heard a strange {x0} in the dark. {His} heart beat fast, and "
            "{he} pulled the blanket over {his} [head|ears]. “Who is there?” [{he} whispered|{he} called]. "
            "Nobody answered — only the {x0} went on. So {A} [took a lantern|lit a candle] and woke {B} the"
            " {b}. Together they [crept|tiptoed] down the stairs. It was only {x1}! They {x2}, and then it "
            "was quiet. “[A thing you know|What you can see] is never so bad,” said {B}."
        ),
    ),
    (
        SKILLS,
        (
            "{A} wanted to learn to {x0}. On the first day {he} {x1}, and [everybody|the ducks|the crows] "
            "laughed. “I will never learn it,” said {A}. But {B} the {b} [sat down beside {him}|smiled]. "
            "“You must {x2},” said {B}. “And try again tomorrow.” So {A} tried again the next day, and the "
            "day after that — [a little better|less badly] each time. When [spring|summer|winter] came, "
            "{he} {x3}, and this time everybody clapped."
        ),
    ),
    (
        SEEDS,
        (
            "In spring, {A} found a {x0} [on the road|in an old coat|under a stone] and put it into the "
            "ground. {He} watered it every [morning|evening]. But then [it did not rain for a month|the "
            "well ran dry], and the leaves turned yellow. “[My plant is thirsty|It will die],” said {A}. "
            "{B} the {b} heard it and carried water [from the river|from the lake|up the hill], one bucket "
            "after the other. So it lived, and it {x1}. In the autumn there was {x2}, and {A} gave half of "
            "it to {B}."
        ),
    ),
    (
        tuple((food,) for food in FOODS),
        (
            "One [cold|snowy|wet] day, {A} sat down to eat {his} last {x0}. Then somebody knocked at the "
            "door. It was {B} the {b}, [wet and tired|cold and hungry|with snow on {his2} nose]. “I have "
            "eaten nothing since yesterday,” said {B}. {A} looked at the {x0} and cut it into two halves. "
            "“[Half is enough for me|It tastes better together],” {he} said. [A week|A month] later {A} was"
            " ill and could not leave the house. Who came with a [full|heavy] basket? It was {B}, because "
            "{he2} had not forgotten."
        ),
    ),
    (
        (("old mill",), ("harbour",), ("big rock",), ("chapel",), ("end of the lake",)),
        (
            "One [sunny|bright|warm] day, {A} and {B} the {b} ran a race to the {x0}. “I am faster than "
            "you!” [called|cried] {B}, and {he2} was soon far ahead. But {he2} did not look at the path, "
            "stepped into a hole and hurt {his2} foot. {A} could have [run past|won]. Instead {he} stopped "
            "and [helped {him2} up|took {him2} by the arm]. They reached the {x0} together, [very late|when"
            " the sun was low]. “Who has won?” asked [an old crow|the miller]. “Both,” said {B}, and so it "
            "was."
        ),
    ),
    (
        (("the baker",), ("the teacher",), ("the doctor",), ("the old captain",), ("the clockmaker",)),
        (
            "One [foggy|rainy|windy] morning, {A} had to carry a letter to {x0}. The road was long, and in "
            "the [fog|wood] {he} lost the way. {He} [sat down on a stone|stood still] and listened. Far "
            "away, a bell rang — it was {B} the {b}, who [rang it|rang the bell] whenever [the fog was "
            "thick|someone was late]. {A} followed the sound [step by step|over the fields] and came to the"
            " house of {x0} before [noon|dark]. The letter said: “Come to my feast, and bring a friend.” So"
            " {A} brought {B}, and all of them ate {dish}."
        ),
    ),
)  # fmt: skip


class _Draw:
    """Choices that depend on `random.Random.random()` only."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def one(self, options: Sequence[T]) -> T:
        return options[int(self._random.random() * len(options))]

    def chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def expand(self, template: str) -> str:
        count = 1
        while count:
            template, count = _ALTERNATIVES.subn(lambda match: self.one(match[1].split("|")), template)
        return template


def _story(draw: _Draw) -> str:
    words: dict[str, str] = {"kind": draw.one(KINDS), "dish": draw.one(DISHES)}
    hero_is_he, friend_is_he = draw.chance(0.5), draw.chance(0.5)
    words["A"] = draw.one(HE if hero_is_he else SHE)
    words["B"] = draw.one([name for name in (HE if friend_is_he else SHE) if name != words["A"]])
    words["a"], words["b"] = draw.one(ANIMALS), draw.one(ANIMALS)
    he, his, him = ("he", "his", "him") if hero_is_he else ("she", "her", "her")
    words.update(he=he, his=his, him=him, He=he.capitalize(), His=his.capitalize())
    he, his, him = ("he", "his", "him") if friend_is_he else ("she", "her", "her")
    words.update(he2=he, his2=his, him2=him)
    home = f"in the village of {draw.one(VILLAGES)}" if draw.chance(0.3) else draw.one(HOMES)
    words.update(home=home, Home=home[0].upper() + home[1:])
    table, plot = draw.one(PLOTS)
    words.update((f"x{index}", text) for index, text in enumerate(draw.one(table)))
    parts = (draw.one(OPENINGS), plot, draw.one(ENDINGS))
    return " ".join(draw.expand(part).format_map(words) for part in parts)


def generate(count: int, seed: int) -> Iterator[str]:
    """Yield `count` stories, each one paragraph without line breaks; the same seed gives the same stories.

    Raises:
        ValueError: `count` is negative.
    """
    if count < 0:
        raise ValueError(f"count is {count}; a number of stories is 0 or more")
    draw = _Draw(seed)
    return (_story(draw) for _ in range(count))


def main(argv: Sequence[str] | None = None) -> int:
    """Print stories, one a line."""
    parser = argparse.ArgumentParser(prog="python -m examples.qwen3.stories", description="Print short stories.")
    parser.add_argument("--count", type=int, default=3, help="number of stories (default 3)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the generator (default 0)")
    options = parser.parse_args(argv)
    if options.count < 0:
        parser.error(f"--count is {options.count}; give 0 or more")
    for text in generate(options.count, options.seed):
        print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
