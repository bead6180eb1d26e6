#!/usr/bin/env python3
"""Writes the corpus of the sample model: ten domains of generated text, in three splits without a common document.

Usage:
    make_corpus.py SPLIT BYTES FILE [--domain NAME]

SPLIT is train, calibration or test. The text is a pure function of the split, the size and the domain: the same
arguments give the same bytes. Documents of all domains follow each other in random order, separated by an empty
line; --domain keeps one domain only.

Wherever a document combines two words that carry its content (a cook's main ingredient and method, a hero and a
task, a function's verb and noun), the pair belongs to exactly one split. Test and calibration therefore speak the
language of the training text but never repeat its stories.
"""

import argparse
import json
import random
import re
import zlib

SEEDS = {"train": 20101, "calibration": 20102, "test": 20103}
WORLD_SEED = 77
ALTERNATIVES = re.compile(r"\[([^\[\]]*)\]")


def owner(first, second):
    """Returns the split that owns a pair of words: eight tenths go to training, a tenth each to the others."""
    slot = zlib.crc32(f"{first}|{second}".encode()) % 10
    return {0: "calibration", 1: "test"}.get(slot, "train")


def with_article(phrase):
    """Puts the indefinite article before a phrase."""
    return ("an " if phrase[0] in "aeiouAEIOU" else "a ") + phrase


class Source:
    """Seeded choices for one split."""

    def __init__(self, split, seed):
        self.split = split
        self.random = random.Random(seed)

    def pick(self, items):
        """Returns one item."""
        return items[int(self.random.random() * len(items))]

    def number(self, low, high):
        """Returns an integer in low..high."""
        return low + int(self.random.random() * (high - low + 1))

    def chance(self, probability):
        """Returns True with the given probability."""
        return self.random.random() < probability

    def some(self, items, count):
        """Returns count different items in random order."""
        rest = list(items)
        return [rest.pop(self.number(0, len(rest) - 1)) for _ in range(count)]

    def pair(self, first, second):
        """Returns one item of each list such that the pair belongs to this split."""
        while True:
            chosen = self.pick(first), self.pick(second)
            if owner(*chosen) == self.split:
                return chosen

    def say(self, template, **slots):
        """Fills a template: [a|b] is a choice and may nest, {name} is a slot."""
        while match := ALTERNATIVES.search(template):
            template = template[:match.start()] + self.pick(match[1].split("|")) + template[match.end():]
        return template.format(**slots)


# Names and places ----------------------------------------------------------------------------------------------------

WOMEN = """Anna Brigid Chloé Dora Edda Flora Greta Hanna Ines Jutta Klara Lena Mira Nora Odile Petra Renée Selma Tilda
Ursula Vera Wanda Yara Zoé""".split()
MEN = """Anton Bruno Caspar Dirk Emil Felix Gustav Henrik Ivo Jonas Karl Lorenz Matthis Nils Oskar Paul Quentin René
Stefan Tobias Ulrich Viktor Willem Yannick""".split()
PEOPLE = WOMEN + MEN
SURNAMES = """Adler Brandt Carver Dahl Engel Falk Grieve Holt Ibsen Jansen Keller Lindt Moreau Nyberg Oswald Pryce Quist
Rossi Sander Thorne Ulm Vance Weber Ziegler""".split()
TOWNS = """Alderbrook Birkenfeld Cresswick Dunmore Eastmarsh Fennhaven Gullbay Harrowgate Inverloch Juniper_Hill
Kestrel_Bay Longford Millbrook Northwick Oakhurst Pinewater Quarrytown Redcliff Saltmere Thornbury Upper_Vale Westering
Yarrow Zellbach""".split()
TOWNS = [name.replace("_", " ") for name in TOWNS]
MONTHS = "January February March April May June July August September October November December".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()


def person(source):
    """Returns a first name with its pronouns: subject, object, possessive."""
    if source.chance(0.5):
        return source.pick(WOMEN), "she", "her", "her"
    return source.pick(MEN), "he", "him", "his"


# Folk tales ----------------------------------------------------------------------------------------------------------

HEROES = """miller shepherd tailor fisherman weaver woodcutter goatherd blacksmith ferryman beekeeper potter baker
tinker fiddler charcoal-burner saddler""".split()
TEMPERS = "poor lazy clever stubborn kind foolish proud lonely cheerful greedy honest quiet brave patient".split()
BEASTS = "fox raven hedgehog wolf toad owl hare badger stork pike bear mouse swan cricket goat eagle".split()
TREASURES = """golden_comb silver_bell glass_apple talking_kettle red_cloak bone_flute ring_of_tin lamp_without_oil
book_without_words key_of_ice bag_of_wind cup_that_never_empties spinning_wheel iron_shoe""".split()
TREASURES = [words.replace("_", " ") for words in TREASURES]
VILLAINS = """old witch of the marsh|giant under the hill|king's grey steward|water spirit of the well|thief with three
hats|stone troll at the bridge|north wind's daughter|dragon that slept in the mill""".replace("\n", " ").split("|")
TASKS = """count the grains in a heap of barley|carry water in a sieve|spin a rope out of sand|guard a candle for three
nights|find the needle that fell into the sea|make the princess laugh|shear a ram that nobody could catch|build a bridge
of straw|plough a field of stones|bring back an echo in a sack|wake the sleeping bell|sort the ashes from the
poppy seed""".replace("\n", " ").split("|")
MORALS = """He who listens to small voices will hear great things.|A full sack is heavy, but a full heart is
light.|Whoever digs a pit for a neighbour should measure it for himself.|Borrowed luck must be paid back with
work.|Patience is a slow horse, but it knows the way home.|The tongue is soft, and yet it breaks bones.|Not every door
that creaks is closed.|What the fox promises at night, the morning forgets.""".replace("\n", " ").split("|")


def tale_opening(source, slots):
    """Introduces the hero and the wish."""
    return source.say(
        "[Once upon a time|Long ago, when wishing still helped|In the days of the old king|Many winters ago] there "
        "[lived|was] {temper} {hero} named {name}, who had [nothing but|no more than] [a hut|a leaking roof|a blind "
        "horse|three hens|an empty purse] [at the edge of the forest|by the river|near {town}|behind the seven hills]. "
        "[One evening|One cold morning|On the eve of the fair|When the first snow fell], {villain} [came by night and "
        "stole|took away|laid a spell on] the {treasure} that {possessive} [mother|grandfather|godmother] had left "
        "{object}, and {name} [wept|swore|could not sleep] [until the cock crowed|for three days|and ate no bread].",
        **slots)


def tale_meeting(source, slots):
    """Lets the hero meet the helper."""
    return source.say(
        "So {name} [took a stick and a crust of bread|tied on {possessive} boots|locked the door] and [went out into "
        "the world|followed the road to the north|walked until the stars came out]. [In the forest|At a crossroads|"
        "Under a bridge|Beside a dry well] {subject} met {beast} [caught in a snare|with a thorn in its foot|that was "
        "too hungry to stand|shivering in the rain]. \"[Help me|Set me free|Share your bread with me], and I will "
        "[help you three times|repay you|not forget it],\" said the {animal}. {name} [laughed, but|thought of "
        "{possessive} own trouble, and yet|had pity and] {subject} [did as it asked|gave it half of the crust|sat down "
        "and helped].", **slots)


def tale_trial(source, slots, ordinal, task):
    """Tells one of the tasks."""
    return source.say(
        "On the {ordinal} day {villain} said: \"You shall have the {treasure} if you can {task}.\" [{name} sat down "
        "and wept|{name} did not know what to do|The {hero} scratched {possessive} head], but the {animal} [whispered: "
        "\"Go to sleep, the night is wiser than the evening.\"|called all its brothers and sisters.|said: \"That is "
        "the smallest of my troubles.\"|laughed and set to work.] [In the morning|Before the sun rose|When the clock "
        "struck twelve] [everything was done|the work was finished|it was as if a hundred hands had helped].",
        ordinal=ordinal, task=task, **slots)


def tale_ending(source, slots):
    """Ends the tale with a reward and sometimes a moral."""
    end = source.say(
        "[Then|At last|When the third cock crowed] {villain} [burst with anger|turned to stone|had to give way|ran off "
        "and was never seen again], and {name} [carried|brought] the {treasure} home. {Subject} [shared {possessive} "
        "supper with|built a warm nest for|never forgot] the {animal}, and [they lived in peace until the end of their "
        "days|if they have not died, they are living still|at the wedding the whole village danced for seven days].",
        Subject=slots["subject"].capitalize(), **slots)
    return end + (" " + source.pick(MORALS) if source.chance(0.5) else "")


def tale(source):
    """A folk tale: loss, helper, one to three tasks, reward."""
    hero, treasure = source.pair(HEROES, TREASURES)
    temper, animal = source.pair(TEMPERS, BEASTS)
    name, subject, object_, possessive = person(source)
    slots = dict(hero=hero, temper=with_article(temper), treasure=treasure, animal=animal,
                 beast=with_article(animal), villain="the " + source.pick(VILLAINS), name=name, subject=subject,
                 object=object_, possessive=possessive, town=source.pick(TOWNS))
    trials = [tale_trial(source, slots, ordinal, task)
              for ordinal, task in zip(("first", "second", "third"), source.some(TASKS, source.number(1, 3)))]
    title = source.say("The [{hero}|{hero}|{temper}] and the [{animal}|{treasure}]", hero=hero.capitalize(),
                       temper=temper.capitalize() + " " + hero.capitalize(), animal=animal.capitalize(),
                       treasure=treasure.capitalize())
    return "\n".join([title, tale_opening(source, slots), tale_meeting(source, slots), *trials,
                      tale_ending(source, slots)])


# Recipes -------------------------------------------------------------------------------------------------------------

MAINS = """potato leek pumpkin lentil mushroom chicken trout beetroot carrot barley cabbage spinach bean salmon lamb
cauliflower pea parsnip tomato chestnut apple pear plum cherry""".split()
DISHES = {
    "soup": ("pot", "simmer", "Purée until smooth"), "stew": ("heavy pot", "braise", "Skim the fat"),
    "gratin": ("baking dish", "bake", "Let the crust turn golden"), "pie": ("pie tin", "bake", "Brush with egg yolk"),
    "salad": ("large bowl", "toss", "Chill for half an hour"),
    "dumplings": ("wide pan", "poach", "Lift out with a spoon"),
    "pancakes": ("frying pan", "fry", "Keep warm under a cloth"), "curry": ("deep pan", "simmer", "Taste for salt"),
    "crêpes": ("flat pan", "fry", "Fold into quarters"), "soufflé": ("buttered mould", "bake", "Serve at once"),
}
PANTRY = [("flour", "g"), ("butter", "g"), ("sugar", "g"), ("rice", "g"), ("grated cheese", "g"), ("milk", "ml"),
          ("cream", "ml"), ("vegetable stock", "ml"), ("white wine", "ml"), ("olive oil", "tbsp"), ("honey", "tbsp"),
          ("vinegar", "tbsp"), ("mustard", "tsp"), ("paprika", "tsp"), ("cinnamon", "tsp"), ("caraway seeds", "tsp"),
          ("crème fraîche", "tbsp"), ("breadcrumbs", "tbsp")]
AMOUNTS = {"g": [50, 80, 100, 120, 150, 200, 250, 300], "ml": [100, 125, 150, 200, 250, 400, 500, 750],
           "tbsp": [1, 2, 3, 4], "tsp": ["½", "1", "1½", "2"]}
ONES = [("onion", "onions"), ("clove of garlic", "cloves of garlic"), ("bay leaf", "bay leaves"), ("egg", "eggs"),
        ("lemon", "lemons"), ("sprig of thyme", "sprigs of thyme"), ("stick of celery", "sticks of celery")]
STEPS = [
    "[Melt|Heat|Warm] the {x} in the {vessel} over a [low|medium|high] heat and [add|stir in] the {y}.",
    "[Mix|Whisk|Stir] the {x} with the {y} until [smooth|no lumps remain|the mixture thickens].",
    "Add the {x} and [cook|fry|sweat] for {minutes} minutes, stirring [often|now and then|gently].",
    "[Sprinkle|Scatter] the {x} over the {main} and season with [salt|pepper|salt and pepper|nutmeg].",
    "Pour in the {x}, [cover|put the lid on] and wait until the {main} is [tender|soft|done].",
    "[Chop|Peel|Rinse] the {one} [carefully|at once|as usual] and set [aside|to one side].",
]


def amount_line(source, item, unit):
    """One line of the list of ingredients."""
    return f"- {source.pick(AMOUNTS[unit])} {unit} {item}"


def recipe(source):
    """A recipe whose steps use the listed ingredients."""
    main, dish = source.pair(MAINS, list(DISHES))
    vessel, verb, last = DISHES[dish]
    pantry = source.some(PANTRY, source.number(3, 6))
    one, several = source.pick(ONES)
    count = source.number(1, 3)
    style = source.pick(["Simple", "Hearty", "Quick", "Sunday", "Grandmother's", "Spicy", "Light", source.pick(TOWNS)])
    minutes = source.number(2, 12) * 5
    lines = [f"{style} {main} {dish}",
             source.say("Serves {n}. [Ready in|Takes] {t} minutes.", n=source.number(1, 4) * 2,
                        t=minutes + source.number(2, 6) * 5),
             "Ingredients:", f"- {source.number(2, 9) * 100} g {main}",
             *(amount_line(source, *entry) for entry in pantry),
             f"- {count} {one if count == 1 else several}", "Method:"]
    names = [name for name, _ in pantry]
    steps = [source.say("[Wash|Rinse|Clean] the {main} and cut it into [cubes|slices|small pieces|wedges].", main=main)]
    for template in source.some(STEPS, source.number(2, 4)):
        x, y = source.some(names, 2)
        steps.append(source.say(template, x=x, y=y, vessel=vessel, one=one if count == 1 else several,
                                main=main, minutes=source.number(2, 15)))
    heat = source.say(" at {c} °C", c=source.pick([160, 170, 180, 190, 200, 220])) if verb == "bake" else ""
    steps.append(source.say("Now {verb} everything in the {vessel}{heat} for {minutes} minutes. {last}.", verb=verb,
                            vessel=vessel, heat=heat, minutes=minutes, last=last))
    steps.append(source.say("Serve [hot|warm|lukewarm|at once] with [bread|rice|a green salad|{x}|a spoon of {x}].",
                            x=source.pick(names)))
    return "\n".join(lines + [f"{number}. {step}" for number, step in enumerate(steps, 1)])


# Arithmetic word problems --------------------------------------------------------------------------------------------

GOODS = "apples marbles stamps candles tickets eggs bricks pencils coins shells buttons tulips chairs postcards".split()
BOXES = "bags boxes crates baskets packs trays".split()


def problem_boxes(source, name, goods, box):
    """Addition of a product."""
    have, count, each = source.number(3, 60), source.number(2, 12), source.number(2, 12)
    text = source.say("{name} has {have} {goods} and [buys|finds|is given] {count} {box} with {each} {goods} [each|in "
                      "every one]. How many {goods} does {name} have [now|in total|altogether]?",
                      name=name, have=have, goods=goods, count=count, box=box, each=each)
    product = count * each
    return text, [f"{count} × {each} = {product}", f"{have} + {product} = {have + product}"], have + product


def problem_loss(source, name, goods, box):
    """Subtraction twice."""
    start = source.number(40, 150)
    first, second = source.number(2, start // 3), source.number(2, start // 3)
    text = source.say("There are {start} {goods} in the {box}. {name} [takes out|sells|loses] {first} [in the "
                      "morning|on {day}], and then {second} more. How many {goods} [are left|remain]?", start=start,
                      goods=goods, box=box, name=name, first=first, second=second, day=source.pick(DAYS))
    return text, [f"{start} - {first} = {start - first}", f"{start - first} - {second} = {start - first - second}"], \
        start - first - second


def problem_share(source, name, goods, box):
    """Division after a multiplication."""
    people, each, rest = source.number(2, 9), source.number(2, 12), source.number(0, 5)
    total = people * each + rest
    text = source.say("{name} [opens|buys] {box} with {total} {goods}, keeps {rest} and [shares|divides] the others "
                      "[equally|fairly] among {people} friends. How many {goods} does each friend get?", name=name,
                      box=box, total=total, goods=goods, rest=rest, people=people)
    return text, [f"{total} - {rest} = {people * each}", f"{people * each} ÷ {people} = {each}"], each


def problem_money(source, name, goods, box):
    """Change from a purchase."""
    count, price = source.number(2, 9), source.number(2, 9)
    paid = (count * price // 10 + 1) * 10
    text = source.say("[One of the {goods} costs|The price of each of the {goods} is] {price} €. {name} [buys|takes] "
                      "{count} of them and pays with {paid} €. How much [change|money] does {name} get back?",
                      goods=goods, price=price, name=name, count=count, paid=paid)
    return text, [f"{count} × {price} = {count * price}", f"{paid} - {count * price} = {paid - count * price}"], \
        paid - count * price


def arithmetic(source):
    """Word problems, each solved step by step."""
    lines = []
    for number in range(1, source.number(2, 4) + 1):
        name, goods = source.pair(PEOPLE, GOODS)
        problem = source.pick([problem_boxes, problem_loss, problem_share, problem_money])
        text, steps, answer = problem(source, name, goods, source.pick(BOXES))
        lines += [f"Problem {number}: {text}", f"Solution: {'; '.join(steps)}. Answer: {answer}"]
    return "\n".join(lines)


# Weather reports -----------------------------------------------------------------------------------------------------

REGIONS = """the northern coast|the lake district|the eastern plains|the high valleys|the river delta|the southern
foothills|the western isles|the central uplands|the border forests|the bay""".replace("\n", " ").split("|")
SKIES = {
    "sunny": ("clear skies", "a ridge of high pressure", "sunscreen is advised", 6),
    "cloudy": ("a grey cover of cloud", "a weak front", "brief sunny spells are possible", 1),
    "rainy": ("steady rain", "a low over the sea", "rivers may rise", -2),
    "stormy": ("gales and thunder", "a deep low", "small boats should stay in harbour", -1),
    "foggy": ("dense fog until noon", "moist and still air", "drivers should slow down", -3),
    "snowy": ("snow showers", "cold air from the pole", "mountain passes may close", -14),
}
WINDS = "north north-east east south-east south south-west west north-west".split()


def weather_region(source, region, base):
    """One paragraph on one region."""
    sky = source.pick(list(SKIES))
    look, cause, advice, shift = SKIES[sky]
    low = base + shift + source.number(-2, 2)
    wind = source.number(1, 11)
    return source.say(
        "[In|For|Over] {region}: {sky}, with {look} [brought by|because of|behind] {cause}. [Highs|Temperatures] "
        "[between {low} and {high} °C|of {low} to {high} °C], wind {force} from the {direction} at {speed} km/h"
        "[, gusts up to {gust} km/h|]. [Please note that|As a consequence,|Therefore] {advice}.",
        region=region, sky=sky, look=look, cause=cause, low=low, high=low + source.number(2, 7), advice=advice,
        force="light" if wind < 4 else "moderate" if wind < 8 else "strong", direction=source.pick(WINDS),
        speed=wind * 5, gust=wind * 5 + source.number(2, 5) * 5)


def weather(source):
    """A report for two to four regions and an outlook."""
    month = source.number(0, 11)
    base = [0, 1, 6, 10, 15, 19, 22, 22, 17, 12, 6, 2][month]
    day = source.number(0, 6)
    town, region = source.pair(TOWNS, REGIONS)
    regions = [region, *source.some([other for other in REGIONS if other != region], source.number(1, 3))]
    lines = [source.say("Weather [report|bulletin|forecast] issued at {town} on {day}, {date} {month}, {hour}:{half}",
                        town=town, day=DAYS[day], date=source.number(1, 30), month=MONTHS[month],
                        hour=f"{source.number(4, 22):02}", half=source.pick(["00", "30"]))]
    lines += [weather_region(source, region, base) for region in regions]
    lines.append(source.say("Outlook for {day}: [little change|a change of wind|temperatures will [rise|fall] by {n} "
                            "degrees|more of the same|the next front arrives by [noon|evening|midnight]]. [Chance of "
                            "rain|Humidity] {p} %, pressure {h} hPa and [rising|falling|steady].",
                            day=DAYS[(day + 1) % 7], n=source.number(2, 6), p=source.number(1, 19) * 5,
                            h=source.number(985, 1035)))
    return "\n".join(lines)


# Python functions ----------------------------------------------------------------------------------------------------

VERBS = "count collect merge filter sort group scale parse find remove split format check sum average".split()
NOUNS = "words rows prices orders nodes users lines scores tokens files dates points names items records edges".split()
FIELDS = "size price name score age weight level rank width color".split()


def singular(noun):
    """Returns the singular of a regular noun."""
    return noun[:-1]


def code_loop(source, verb, noun):
    """A loop that accumulates."""
    total, item, field = source.pick(["total", "result", "acc"]), singular(noun), source.pick(FIELDS)
    limit = source.pick([0, 1, 2, 5, 10, 100])
    return [f"def {verb}_{noun}({noun}, limit={limit}):",
            f'    """{verb.capitalize()} the {noun} whose {field} is above the limit."""',
            f"    {total} = 0", f"    for {item} in {noun}:",
            f"        if {item}.{field} {source.pick(['>', '>='])} limit:",
            f"            {total} += {source.pick(['1', f'{item}.{field}', f'{item}.{field} * 2'])}",
            f"    return {total}"]


def code_dict(source, verb, noun):
    """A dictionary of groups."""
    table, key, item = source.pick(["table", "groups", "index", "seen"]), source.pick(FIELDS), singular(noun)
    return [f"def {verb}_{noun}_by_{key}({noun}):", f'    """{verb.capitalize()} {noun} into a dict keyed by {key}."""',
            f"    {table} = {{}}", f"    for {item} in {noun}:", f'        key = {item}["{key}"]',
            *([f"        {table}[key] = {table}.get(key, 0) + 1"] if source.chance(0.5) else
              [f"        if key not in {table}:", f"            {table}[key] = []",
               f"        {table}[key].append({item})"]),
            f"    return {table}"]


def code_comprehension(source, verb, noun):
    """A comprehension, perhaps sorted."""
    item, field = singular(noun), source.pick(FIELDS)
    test = source.pick([f"{item}.{field} is not None", f"len({item}.{field}) > {source.number(1, 9)}",
                        f"{item}.{field} != other.{field}", f"not {item}.{field}"])
    body = f"[{item} for {item} in {noun} if {test}]"
    if source.chance(0.4):
        body = f"sorted({body}, key=lambda {item}: {item}.{field}, reverse={source.pick(['True', 'False'])})"
    return [f"def {verb}_{noun}({noun}{', other' if 'other' in test else ''}):",
            f'    """Return the {noun} to {verb}, tested by {field}."""', f"    return {body}"]


def code_recursion(source, verb, noun):
    """A recursion over a sequence."""
    empty = source.pick(["0", "[]", "None", '""'])
    limit = source.pick(["", f" or depth > {source.number(3, 99)}"])
    rest = f"{verb}_{noun}(rest, depth + 1)"
    result = source.pick([f"first + {rest}", f"[first] + {rest}", f"max(first, {rest})", f"min(first, {rest})"])
    return [f"def {verb}_{noun}({noun}, depth=0):", f'    """{verb.capitalize()} {noun} recursively."""',
            f"    if not {noun}{limit}:", f"        return {empty}",
            f"    first, *rest = {noun}", f"    return {result}"]


def code_error(source, verb, noun):
    """A function that checks its argument."""
    error = source.pick(["ValueError", "TypeError", "KeyError"])
    item = singular(noun)
    return [f"def {verb}_{item}(path, {item}=None):",
            f'    """{verb.capitalize()} one {item} and raise {error} on bad input."""',
            f"    if {item} is None:", f'        raise {error}("no {item} given")',
            f'    with open(path, "{source.pick("rwa")}") as file:',
            *source.pick([["        for line in file:",
                           f"            {item}.{source.pick(['append', 'add', 'push'])}(line.strip())"],
                          [f"        file.write(str({item}))"],
                          [f"        {item} = json.load(file)"]]), f"    return {item}"]


def python(source):
    """One to three functions, sometimes with imports and a call at the end."""
    lines = [f"import {source.pick(['json', 'os', 're', 'sys', 'math', 'random'])}"] if source.chance(0.4) else []
    for _ in range(source.number(1, 3)):
        verb, noun = source.pair(VERBS, NOUNS)
        make = source.pick([code_loop, code_dict, code_comprehension, code_recursion, code_error])
        lines += make(source, verb, noun)
    if source.chance(0.4):
        lines += ['if __name__ == "__main__":',
                  f"    print({verb}_{noun}([{source.number(1, 99)}, {source.number(1, 99)}]))"]
    return "\n".join(lines)


# Sensor logs ---------------------------------------------------------------------------------------------------------

SENSORS = {"temp": ("C", 5, 40), "humidity": ("%", 20, 95), "pressure": ("hPa", 980, 1040), "flow": ("l/s", 0, 60),
           "vibration": ("mm/s", 0, 12), "level": ("cm", 10, 300), "co2": ("ppm", 380, 1400),
           "voltage": ("V", 210, 245)}
SITES = "mill dam barn cellar tower pump lab roof greenhouse kiln dock silo".split()


def sensor(source):
    """JSON lines of one sensor: a random walk with alarms above the limit that the first line states."""
    site, name = source.pair(SITES, list(SENSORS))
    unit, low, high = SENSORS[name]
    node = f"{site}-{source.number(1, 9)}"
    limit = round(low + (high - low) * 0.6, 1)
    value = low + (high - low) * (0.3 + 0.4 * source.random.random())
    minute, step = source.number(0, 1200), source.pick([1, 5, 10, 15])
    day = f"20{source.number(21, 39)}-{source.number(1, 12):02}-{source.number(1, 28):02}"
    lines = [json.dumps({"event": "start", "node": node, "sensor": name, "unit": unit, "limit": limit})]
    for number in range(1, source.number(4, 9) + 1):
        value = min(high, max(low, value + (high - low) * 0.08 * (source.random.random() * 2 - 1)))
        reading = round(value, 1)
        entry = {"t": f"{day}T{minute // 60 % 24:02}:{minute % 60:02}:00Z", "node": node, "seq": number, name: reading,
                 "ok": reading <= limit}
        if reading > limit:
            entry["alarm"] = "high"
        lines.append(json.dumps(entry))
        minute += step
    lines.append(json.dumps({"event": "stop", "node": node, "rows": len(lines) - 1, "battery": source.number(5, 100)}))
    return "\n".join(lines)


# Dialogues -----------------------------------------------------------------------------------------------------------

SCENES = {
    "at the café": ("Waiter", ["a cup of tea", "a café au lait", "the plum cake", "two rolls", "the soup of the day"],
                    ["on the terrace", "by the window", "at the small table"]),
    "at the station": ("Clerk", ["a ticket to the coast", "a return ticket", "a seat by the aisle", "a timetable"],
                       ["from platform 2", "on the night train", "with one change"]),
    "in the library": ("Librarian", ["a book on bees", "the town's old maps", "a novel by Moreau", "last week's paper"],
                       ["on the second shelf", "in the reading room", "until the end of the month"]),
    "at the bike shop": ("Mechanic", ["a new chain", "two tyres", "a brighter lamp", "a softer saddle"],
                         ["by Friday", "while you wait", "without taking off the wheel"]),
    "at the doctor's": ("Doctor", ["something for the cough", "a note for the office", "drops for the ears"],
                        ["twice a day", "after meals", "with plenty of water"]),
    "at the market": ("Trader", ["a pound of cherries", "fresh trout", "the yellow pumpkin", "goat's cheese"],
                      ["wrapped in paper", "from this morning", "at half the price"]),
    "at the hotel": ("Porter", ["a quiet room", "a room with a bath", "an early breakfast", "a second key"],
                     ["on the third floor", "for two nights", "with a view of the lake"]),
}
ASKS = ["Good [morning|evening|afternoon]. [Could I have|I would like|Do you have] {thing}, please?",
        "Hello! [I'm looking for|I was hoping to get] {thing}[, if that's possible|].",
        "Excuse me, [is there any chance of|where can I get] {thing}?"]
OFFERS = ["[Of course|Certainly|Gladly], {name}. [Would you like it|Shall I note it down] {way}?",
          "[Let me see|One moment] ... [yes, we have {thing}|we do, but only {way}].",
          "[I'm afraid not|Not today|Sorry, no]. [But you could try {other} {way}|Would {other} do instead]?"]
REPLIES = ["[Yes, that would be lovely|That's perfect|Wonderful]. [And how much is it|What do I owe you]?",
           "Hmm, [I'm not sure|that's a pity|let me think]. [What about {other}|Do you also have {other}]?",
           "[Why|How come]? [Last week it was no trouble|My friend {friend} said you always have it]."]
CLOSES = ["[That will be|It comes to|Altogether] {price} €[, please|]. [Have a nice day|Take care|See you soon]!",
          "[It's free of charge|No charge today|It's on the house] – [just come again|say hello to {friend}]."]


def dialogue(source):
    """A short conversation in a named scene."""
    place, friend = source.pair(list(SCENES), PEOPLE)
    role, things, ways = SCENES[place]
    name = source.pick(PEOPLE)
    time = source.pick(["early in the morning", "late in the evening", "on a rainy afternoon", "at noon"])
    lines = [source.say("[Scene|Dialogue]: {place}, {time}.", place=place, time=time)]

    def turn(speaker, templates):
        thing, other = source.some(things, 2)
        lines.append(f"{speaker}: " + source.say(source.pick(templates), thing=thing, other=other, friend=friend,
                                                 name=name, way=source.pick(ways), price=source.number(2, 60)))

    turn(name, ASKS)
    for _ in range(source.number(1, 3)):
        turn(role, OFFERS)
        turn(name, REPLIES)
    turn(role, CLOSES)
    thanks = source.say("[Thank you|Thanks a lot|Much obliged]. [Goodbye|Until next time|Good night]!")
    lines.append(f"{name}: {thanks}")
    return "\n".join(lines)


# Card game records ---------------------------------------------------------------------------------------------------

SUITS = "♠♥♦♣"
RANKS = "7 8 9 10 J Q K A".split()
SEATS = "NESW"


def strength(card, led, trump):
    """Orders the cards of one trick: trumps, then the suit that was led, then the rest."""
    rank, suit = card
    return (2 if suit == trump else 1 if suit == led else 0, RANKS.index(rank))


def play(source, hand, led):
    """Takes one legal card out of a hand: players follow suit where they can."""
    legal = [card for card in hand if card[1] == led] or hand
    card = source.pick(legal)
    hand.remove(card)
    return card


def cards(source):
    """The record of a trick-taking game for four players with 32 cards, played by its rules."""
    deck = source.some([(rank, suit) for suit in SUITS for rank in RANKS], 32)
    hands = {seat: deck[8 * index:8 * index + 8] for index, seat in enumerate(SEATS)}
    trump, leader = source.pick(SUITS), source.number(0, 3)
    won = dict.fromkeys(SEATS, 0)
    names, town = source.some(PEOPLE, 4), source.pick(TOWNS)
    players = ", ".join(map(" ".join, zip(SEATS, names)))
    lines = [f"[Game {source.number(1, 400)}, {town}] {players}; trumps {trump}"]
    for trick in range(1, 9):
        table = {}
        for turn in range(4):
            seat = SEATS[(leader + turn) % 4]
            led = next(iter(table.values()))[1] if table else None
            table[seat] = play(source, hands[seat], led)
        led = next(iter(table.values()))[1]
        winner = max(table, key=lambda seat: strength(table[seat], led, trump))
        played = " ".join(f"{seat}:{rank}{suit}" for seat, (rank, suit) in table.items())
        lines.append(f"{trick}. {played} → {winner}")
        won[winner] += 1
        leader = SEATS.index(winner)
    best = max(won, key=won.get)
    lines.append("Tricks: " + ", ".join(f"{seat} {count}" for seat, count in won.items()) + f". Best: {best}")
    return "\n".join(lines)


# Encyclopedia of an invented world -----------------------------------------------------------------------------------

STARTS = "Vel Or Tham Quil Ash Mor Ser Dra Ilu Ker Nym Ost Pel Ruv Syl Tor Ux Wyn Yth Zar".split()
ENDS = "ara eth im onde uth avar issen olm ry enna ox ilde".split()
REALMS = ["Veloria", "Tharn", "Istamar", "the Grey Reach", "Oskeld", "Lumiria"]
TRADES = "salt copper silk amber glass timber wool dyes ink pearls honey slate".split()
FEATURES = """a bridge of nine arches|the tower of tides|a market held on boats|a school of mapmakers|the blue
baths|an observatory of brass|the hanging orchards|a library of knotted cords""".replace("\n", " ").split("|")
CREATURES = "marsh deer|lantern moth|stone otter|reed crane|glass beetle|snow lynx|river drake|dune fox".split("|")
FOODS = "moss|river snails|pine seeds|fallen fruit|small fish|night flowers|roots|beetles".split("|")
DEEDS = """drained the southern marshes|wrote the Book of Weights|sailed around the Cape of Nails|invented the double
loom|ended the War of the Lamps|charted the Cold Stars|founded the House of Ferries|abolished the bridge
toll""".replace("\n", " ").split("|")


def invent_world():
    """Invents the world's towns, rivers, animals and people: the same facts for every split."""
    source = Source("train", WORLD_SEED)
    names = source.some([start + end for start in STARTS for end in ENDS], 150)
    rivers = names[:20]
    towns = [dict(kind="town", name=name, realm=source.pick(REALMS), river=source.pick(rivers),
                  trade=source.pick(TRADES), year=source.number(120, 980), feature=source.pick(FEATURES),
people=source.number(2, 90) * 1000)              for name in names[20:70]]
    animals = [dict(kind="animal", name=name, creature=source.pick(CREATURES), realm=source.pick(REALMS),
                    food=source.pick(FOODS), weight=source.number(1, 60), young=source.number(1, 6),
                    river=source.pick(rivers)) for name in names[70:110]]
    people = [dict(kind="person", name=name, town=source.pick(towns)["name"], deed=source.pick(DEEDS),
                   born=source.number(200, 900), age=source.number(31, 88), trade=source.pick(TRADES),
                   realm=source.pick(REALMS)) for name in names[110:150]]
    return towns + animals + people


WORLD = invent_world()
HEADS = {
    "town": "{name} is a [town|trading town|walled town] in {realm}, [on the banks of|beside|at the mouth of] the "
            "river {river}.",
    "animal": "The {name} is a [species|kind] of {creature} [native to|found in|that lives in] {realm}.",
    "person": "{name} of {town} ([born {born}|{born}–{died}]) was a [scholar|traveller|merchant|engineer] from "
              "{realm}.",
}
FACTS = {
    "town": ["It was founded in [the year {year}|{year}][ by settlers from the coast|].",
             "[About|Some|Nearly] {people} people live there[, most of them within the walls|].",
             "Its [wealth|trade] [rests on|comes from] {trade}[, which is shipped down the {river}|].",
             "[Visitors come to see|It is known for] {feature}."],
    "animal": ["It feeds on {food}[, mostly at dusk|, mostly in winter|].", "Adults weigh [about|up to] {weight} kg.",
               "The female bears {young} young [each spring|every second year].",
               "[Large herds|Small groups] [gather|are seen] along the {river}[ in autumn|]."],
    "person": ["[In later life|As a young scholar|In the year {middle}] {name} {deed}.",
               "[The family|{name}'s mother] traded in {trade}.",
               "{name} died in {died} at the age of {age}.",
               "[A street|A statue|A ship] in {town} [bears the name|recalls the deed]."],
}


def encyclopedia(source):
    """An entry on one thing of the invented world and a link to another; every fact holds in every entry."""
    thing, other = source.pick(WORLD), source.pick(WORLD)
    while thing is other or owner(thing["name"], other["name"]) != source.split:
        thing, other = source.pick(WORLD), source.pick(WORLD)
    lines = []
    for entry in (thing, other):
        slots = dict(entry)
        if entry["kind"] == "person":
            slots.update(died=entry["born"] + entry["age"], middle=entry["born"] + source.number(20, 30))
        facts = source.some(FACTS[entry["kind"]], source.number(2, 4))
        body = " ".join(source.say(part, **slots) for part in [HEADS[entry["kind"]], *facts])
        lines.append(f"{entry['name'].upper()} ({entry['kind']}). {body}")
    if source.chance(0.6):
        lines[0] += f" See also: {other['name']}."
    return "\n".join(lines)


# Letters -------------------------------------------------------------------------------------------------------------

NEWS = [
    "[The harvest|The garden|The orchard] has been [good|poor|better than we feared] this year, and {friend} [sends "
    "you a jar of plum jam|says the pears are finally ripe|has already begun to dig the beds].",
    "{friend} and I [walked|took the early train|drove] to {town} [last week|on Sunday|for the fair], where we [saw|"
    "met|had tea with] old {surname}, who [asked after you|has not changed at all|now keeps bees].",
    "[The roof is mended at last|The new stove smokes|The well has run dry], [thanks to|in spite of|and so we wait "
    "for] {friend}, and we [sleep|cook|read] [in the small room|by the fire|with the windows open] [for now|"
    "until spring].",
    "I have [finished|begun|put aside] the [novel|essay|translation] that I [wrote you about|started in {month}]; "
    "{friend} thinks it [too long|charming|my best so far], but you know how {friend} is.",
    "You ask about my [health|work|plans]: I am [well|a little tired|busier than ever], though the [doctor|landlord|"
    "committee] [insists on rest|has other ideas|wants an answer by {month}].",
]
REQUESTS = [
    "Would you [send|lend|bring] me [the blue notebook|your map of the coast|a few stamps|the address of {surname}] "
    "[when you write|before {month}]?",
    "[Please tell|Do remind] {friend} that the [rent|key|parcel] is [still here|due on {day}|with the neighbours].",
    "[Come and see us|Do visit] in {month}: the [guest room is ready|lake is warm by then|children ask for you].",
]


def letter(source):
    """A private letter with place and date, news, a request and a farewell."""
    name, friend = source.pair(PEOPLE, PEOPLE)
    surname = source.pick(SURNAMES)

    def fill(template):
        return source.say(template, friend=friend, town=source.pick(TOWNS), surname=surname, month=source.pick(MONTHS),
                          day=source.pick(DAYS))

    lines = [f"{source.pick(TOWNS)}, {source.number(1, 28)} {source.pick(MONTHS)} {source.number(1884, 1931)}",
             source.say("[Dear|My dear|Dearest] {name},", name=name),
             fill("[Thank you for|I was so glad of|Forgive my late answer to] your [letter|kind lines|card] [of "
                  "{day}|from {town}], which [reached me yesterday|made us laugh|{friend} read aloud at supper]."),
             " ".join(map(fill, source.some(NEWS, source.number(1, 3)))), fill(source.pick(REQUESTS)),
             source.say("[Yours ever|With love|Your old friend|Fondly yours|In haste],")]
    return "\n".join(lines + [source.pick(PEOPLE) + (f" {source.pick(SURNAMES)}" if source.chance(0.4) else "")])


# The corpus ----------------------------------------------------------------------------------------------------------

DOMAINS = {"tale": tale, "recipe": recipe, "arithmetic": arithmetic, "weather": weather, "python": python,
           "sensor": sensor, "dialogue": dialogue, "cards": cards, "encyclopedia": encyclopedia, "letter": letter}


def documents(split, size, only=None):
    """Yields (domain, text) until the texts hold size bytes; domains get about equal shares of the bytes."""
    source = Source(split, f"{SEEDS[split]} {only}")
    written = dict.fromkeys([only] if only else DOMAINS, 0)
    while sum(written.values()) < size:
        fair = sum(written.values()) / len(written) + 1000
        domain = source.pick([name for name in written if written[name] < fair])
        text = DOMAINS[domain](source)
        written[domain] += len(text.encode()) + 2
        yield domain, text


def main():
    """Writes one file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("split", choices=SEEDS)
    parser.add_argument("bytes", type=int)
    parser.add_argument("file")
    parser.add_argument("--domain", choices=DOMAINS)
    options = parser.parse_args()
    with open(options.file, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(text + "\n\n" for _, text in documents(options.split, options.bytes, options.domain))


if __name__ == "__main__":
    main()
