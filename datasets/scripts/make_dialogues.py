#!/usr/bin/env python3
"""Writes the corpus of the Switch sample: generated dialogues with their summaries, as JSON lines.

Usage:
    make_dialogues.py SPLIT STYLE ROWS FILE

SPLIT is train, calibration or test. STYLE is friends (messages between two friends, five domains), service (calls to a
service desk, five other domains) or both (alternating). A row has the fields id, style, domain, dialogue and summary.
The rows are a pure function of the arguments: the same arguments give the same bytes.

What a summary needs is said once and often taken back ("no, make it five"); around it stand greetings, small talk and
times and places that do not matter. Each row is about a pair of people, and a pair belongs to exactly one split: no
dialogue of calibration or test, and no two people in them, occur in training.
"""

import argparse
import json
import random
import re
import zlib

SEEDS = {"train": 30101, "calibration": 30102, "test": 30103}
ALTERNATIVES = re.compile(r"\[([^\[\]]*)\]")

WOMEN = """Alice Bella Clara Diana Emma Fiona Grace Helen Irene Julia Kate Laura Maria Nina Olivia Paula Rita Sarah
Tina Vera""".split()
MEN = """Adam Ben Carl David Eric Frank George Harry Ivan Jack Kevin Leo Mark Nick Oscar Peter Robert Simon Tom
Victor""".split()
SURNAMES = """Adams Baker Carter Dixon Evans Fisher Grant Harris Irving Jones King Lewis Morgan Nelson Owens Parker Quinn
Reed Stone Turner Walker Young""".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
HOURS = "one two three four five six seven eight nine ten eleven noon".split()
NUMBERS = "two three four five six seven eight nine ten twelve".split()
PLACES = """library station museum cinema park harbour market bridge cafe gym school theatre stadium church
bakery""".split()
CITIES = """London Paris Rome Berlin Madrid Vienna Oslo Dublin Athens Lisbon Prague Warsaw Geneva Milan Hamburg""".split()
VEHICLES = "train bus car plane ferry coach".split()
GOODS = """apples lemons onions eggs carrots bottles candles cups plates pillows tomatoes melons pears buns
towels""".split()
GIFTS = """watch guitar camera lamp scarf jacket kettle puzzle bicycle tent backpack teapot carpet radio""".split()
THINGS = """keys wallet umbrella phone glasses passport gloves notebook hat ticket charger purse""".split()
ROOMS = "kitchen garage office garden hall bathroom attic cellar".split()
CHORES = ["water the plants", "feed the cat", "walk the dog", "collect the mail", "paint the fence", "clean the windows"]
DEVICES = "printer router laptop scanner monitor keyboard tablet server speaker".split()
FAULTS = ["does not start", "makes a noise", "shows an error", "is very slow", "loses the connection", "gets too hot",
          "prints blank pages", "switches itself off"]
REMEDIES = ["restart it", "change the cable", "install the update", "clear the memory", "reset the password",
            "replace the battery"]
DONE = {"restart it": "restarted it", "change the cable": "changed the cable", "install the update":
        "installed the update", "clear the memory": "cleared the memory", "reset the password": "reset the password",
        "replace the battery": "replaced the battery"}
STREETS = "Mill Oak River Castle Garden Church Hill Market North Queen School Bridge".split()
PARTS = "brakes engine lights tyres horn mirrors doors wipers".split()
CARS = "van truck taxi motorbike bus car scooter".split()
CHECKS = ["eyes", "teeth", "knee", "back", "heart", "ears", "shoulder", "foot"]


def owner(first, second):
    """Returns the split that owns a pair of names: eight tenths go to training, a tenth each to the others."""
    slot = zlib.crc32("|".join(sorted((first, second))).encode()) % 10
    return {0: "calibration", 1: "test"}.get(slot, "train")


class Source:
    """Seeded choices for one split."""

    def __init__(self, split, seed):
        self.split = split
        self.random = random.Random(seed)

    def pick(self, items):
        """Returns one item of a list."""
        return items[self.random.randrange(len(items))]

    def picks(self, items, count):
        """Returns different items of a list."""
        return self.random.sample(items, count)

    def chance(self, probability):
        """Is true with a probability."""
        return self.random.random() < probability

    def pair(self, first, second):
        """Returns one item of each list, different ones, such that the pair belongs to this split."""
        while True:
            chosen = self.pick(first), self.pick(second)
            if chosen[0] != chosen[1] and owner(*chosen) == self.split:
                return chosen

    def say(self, template, **slots):
        """Fills a template: [a|b] is a choice and may nest, {name} is a slot."""
        while match := ALTERNATIVES.search(template):
            template = template[:match.start()] + self.pick(match[1].split("|")) + template[match.end():]
        return template.format(**slots)


class Dialogue:
    """The turns of two speakers."""

    def __init__(self, source, first, second):
        self.source, self.speakers, self.turns = source, (first, second), []

    def add(self, who, template, **slots):
        """Lets speaker 0 or 1 say something; turns of one speaker in a row become one."""
        text = self.source.say(template, a=self.speakers[0], b=self.speakers[1], **slots)
        if self.turns and self.turns[-1][0] == who:
            self.turns[-1] = (who, self.turns[-1][1] + " " + text)
        else:
            self.turns.append((who, text))

    def correct(self, who, kinds):
        """Takes one of the facts back with some probability: kinds maps a fact's name to its values and the words for a
        change. Returns the facts as they hold at the end."""
        facts = {name: self.source.pick(values) for name, (values, _) in kinds.items()}
        final = dict(facts)
        if self.source.chance(0.6):
            name = self.source.pick(list(kinds))
            values, words = kinds[name]
            final[name] = self.source.pick([value for value in values if value not in facts.values()])
            self.change = (who, words.format(new=final[name]))
        else:
            self.change = None
        return facts, final

    def finish(self):
        """Says the change, if there is one, and has it accepted."""
        if self.change:
            self.add(self.change[0], "[no, wait,|sorry,|oh no,|wait,] " + self.change[1])
            self.add(1 - self.change[0], "[fine with me.|no problem.|all right.|that works too.|ok, noted.]")

    def text(self):
        """Returns the turns as lines."""
        return "\n".join(f"{self.speakers[who]}: {text}" for who, text in self.turns)


# Friends -------------------------------------------------------------------------------------------------------------

SMALL_TALK = """how are you?|what a rainy day!|I am so tired today.|did you sleep well?|the bus was late again.|I worked
until {hour} yesterday.|I was in {city} last week.|my brother says hello.|I just had lunch.|we were at the {place} on
{day}.|have you seen the new film?|the weather is lovely.|I lost {number} games of chess.""".replace("\n", " ").split("|")


def greet(talk, source):
    """Opens a conversation between friends."""
    slots = dict(hour=source.pick(HOURS), city=source.pick(CITIES), place=source.pick(PLACES), day=source.pick(DAYS),
                 number=source.pick(NUMBERS))
    talk.add(0, "[hi|hello|hey] {b}! [" + "|".join(source.picks(SMALL_TALK, 4)) + "]", **slots)
    talk.add(1, "[hi {a}!|hello {a}!|oh, {a}!] [" + "|".join(source.picks(SMALL_TALK, 4)) + "|nice to hear from you.]",
             **slots)


def part(talk, source):
    """Ends a conversation between friends."""
    if source.chance(0.6):
        talk.add(0, "[great,|perfect,|good,] [see you soon!|thank you!|bye!|talk to you later!]")
    if source.chance(0.4):
        talk.add(1, "[bye!|take care!|you are welcome.]")


def meeting(talk, source):
    """Two friends agree on a time and a place."""
    facts, final = talk.correct(source.random.randrange(2), {
        "hour": (HOURS, "[make it {new}|let us say {new}|{new} is better]."),
        "day": (DAYS, "[make it {new}|{new} is better|I only have time on {new}]."),
        "place": (PLACES, "[let us take the {new}|the {new} is better|make it the {new}].")})
    talk.add(0, "[shall we meet|do you want to meet|let us meet] at the {place} on {day}[?|, maybe?]", **facts)
    talk.add(1, "[sure, when?|yes, at what time?|good idea. when exactly?]")
    talk.add(0, "[at {hour}.|is {hour} good for you?|{hour}, I think.]", **facts)
    talk.add(1, "[yes.|ok.|good.]")
    talk.finish()
    summary = "{a} and {b} will meet at the {place} on {day} at {hour}."
    if source.chance(0.5):
        who, thing = source.random.randrange(2), source.pick(GIFTS)
        talk.add(who, "[I will bring the {thing}.|and I bring the {thing}.|I can bring the {thing} along.]", thing=thing)
        summary += " {bringer} will bring the {thing}."
        final = {**final, "bringer": talk.speakers[who], "thing": thing}
    return summary, final


def shopping(talk, source):
    """One asks the other to buy something."""
    first, second = source.picks(GOODS, 2)
    facts, final = talk.correct(0, {
        "count": (NUMBERS, "make it {new} " + first + "."), "many": (NUMBERS, "[I need|get] {new} " + second + "."),
        "place": (["market", "bakery", "station", "harbour", "supermarket"], "[go to|better try] the {new}.")})
    talk.add(0, "[can you buy|could you get me|please buy] {count} {first} [for me?|today?]", first=first, **facts)
    talk.add(1, "[sure. where?|of course. at which shop?|yes. where should I go?]")
    talk.add(0, "[at the {place}.|the {place} has them.|try the {place}.]", **facts)
    talk.add(1, "[anything else?|is that all?]")
    talk.add(0, "[and also|yes, and] {many} {second}.", second=second, **facts)
    talk.finish()
    return "{b} will buy {count} {first} and {many} {second} at the {place} for {a}.", {
        **final, "first": first, "second": second}


def travel(talk, source):
    """One leaves for a city, the other looks after something."""
    facts, final = talk.correct(0, {
        "city": (CITIES, "[it is {new}|I mean {new}|I am going to {new}]."),
        "vehicle": (VEHICLES, "[I take the {new}|I go by {new}|I changed to the {new}]."),
        "nights": (NUMBERS, "[it is {new} nights|I stay {new} nights].")})
    chore = source.pick(CHORES)
    talk.add(0, "[I am going to|I leave for|tomorrow I travel to] {city}.", **facts)
    talk.add(1, "[how nice! how do you get there?|lovely! do you fly?|great! how will you travel?]")
    talk.add(0, "[by {vehicle}.|I take the {vehicle}.] [I stay for|I will be there for] {nights} nights.", **facts)
    talk.add(0, "[can you|could you please|would you] {chore}?", chore=chore)
    talk.add(1, "[of course.|I will, do not worry.|sure, no problem.]")
    talk.finish()
    return "{a} is going to {city} by {vehicle} for {nights} nights. {b} will {chore}.", {**final, "chore": chore}


def present(talk, source):
    """Two friends choose a present for a third."""
    friend = source.pick([name for name in WOMEN + MEN if name not in talk.speakers])
    facts, final = talk.correct(source.random.randrange(2), {
        "gift": (GIFTS, "[let us take the {new}|a {new} is better|I prefer the {new}]."),
        "day": (DAYS, "[the party is on {new}|it is on {new}].")})
    wish = source.pick([gift for gift in GIFTS if gift not in (facts["gift"], final["gift"])])
    talk.add(0, "[it is the birthday of {friend}|{friend} has a birthday] on {day}.", friend=friend, **facts)
    talk.add(1, "[right! what do we give?|oh yes. any ideas?|I forgot! what shall we buy?]")
    talk.add(0, "[a {wish}?|maybe a {wish}?|how about a {wish}?]", wish=wish)
    talk.add(1, "[{name} has one already. rather a {gift}.|too expensive. I would buy a {gift}.|no, a {gift}.]",
             name="she" if friend in WOMEN else "he", **facts)
    talk.add(0, "[good.|I like that.|yes, good idea.]")
    talk.finish()
    return "{a} and {b} will give {friend} a {gift} on {day}.", {**final, "friend": friend}


def lost(talk, source):
    """One has lost something, the other has found it."""
    facts, final = talk.correct(1, {
        "thing": (THINGS, "[it is your {new}|I mean the {new}]."),
        "room": (ROOMS, "[it was the {new}|in the {new}, I mean].")})
    day = source.pick(DAYS)
    talk.add(0, "[I lost something at your house.|I think I left something with you.|did I forget anything at your place?]")
    talk.add(1, "[yes, your {thing}.|I found your {thing}.|your {thing} was here.]", **facts)
    talk.add(0, "[where?|where was it?|really? where?]")
    talk.add(1, "[in the {room}.|it lay in the {room}.]", **facts)
    talk.finish()
    talk.add(0, "[I will come on {day}.|can I fetch it on {day}?|I pick it up on {day}.]", day=day)
    talk.add(1, "[ok.|sure.|I am at home.]")
    return "{b} found the {thing} of {a} in the {room}. {a} will pick it up on {day}.", {**final, "day": day}


# Service desks -------------------------------------------------------------------------------------------------------

def welcome(talk, source, name, desk):
    """Opens a call."""
    talk.add(0, "[good morning|good afternoon|welcome], [this is the {desk}|you are talking to the {desk}|{desk} here]. "
             "[how can I help you?|what can I do for you?|may I have your name?]", desk=desk)
    talk.add(1, "[hello, my name is {name}.|this is {name} speaking.|good day, {name} here.] [I waited for {number} "
             "minutes.|I called on {day} already.|can you hear me?|thank you for taking my call.|I am in a hurry.]",
             name=name, number=source.pick(NUMBERS), day=source.pick(DAYS))


def goodbye(talk, source):
    """Ends a call."""
    if source.chance(0.7):
        talk.add(0, "[is there anything else?|thank you for calling.|have a nice day.|we are always here for you.]")
    if source.chance(0.5):
        talk.add(1, "[no, thank you.|goodbye.|thanks for your help.]")


def support(talk, source, name):
    """A device does not work."""
    facts, final = talk.correct(source.random.randrange(2), {
        "day": (DAYS, "[it must be {new}|only {new} is possible]."),
        "hour": (HOURS, "[at {new}, please|it has to be {new}].")})
    device, fault, remedy = source.pick(DEVICES), source.pick(FAULTS), source.pick(REMEDIES)
    talk.add(1, "[my|the new|our] {device} {fault}.", device=device, fault=fault)
    talk.add(0, "[did you|have you tried to|could you] {remedy}?", remedy=remedy)
    talk.add(1, "[I did, it does not help.|yes, but it is still the same.|yes, three times.]")
    talk.add(0, "[then we send|I will send you] a technician on {day} at {hour}.", **facts)
    talk.add(1, "[good.|very well.|ok.]")
    talk.finish()
    return ("The {device} of {name} {fault} although the customer {did}. A technician will come on {day} at {hour}.",
            {**final, "device": device, "fault": fault, "did": DONE[remedy]})


def booking(talk, source, name):
    """A table in a restaurant."""
    facts, final = talk.correct(1, {
        "people": (NUMBERS, "[we are {new}|make it {new} people|it is for {new}]."),
        "day": (DAYS, "[on {new}, please|I meant {new}]."), "hour": (HOURS, "[we come at {new}|at {new}, please].")})
    spot = source.pick(["window", "garden", "bar", "door", "fireplace", "balcony"])
    talk.add(1, "[I would like|I need|could I have] a table for {people} [people.|persons, please.]", **facts)
    talk.add(0, "[for which day?|when will you come?|on which day, and when?]")
    talk.add(1, "[on {day} at {hour}.|{day}, {hour}.]", **facts)
    talk.add(0, "[and where would you like to sit?|any wishes about the place?]")
    talk.add(1, "[near the {spot}.|by the {spot}, please.]", spot=spot)
    talk.finish()
    return "{name} books a table for {people} near the {spot} on {day} at {hour}.", {**final, "spot": spot}


def delivery(talk, source, name):
    """A parcel has not come or is broken."""
    facts, final = talk.correct(source.random.randrange(2), {
        "street": (STREETS, "[it is {new} Street|{new} Street, I mean]."), "day": (DAYS, "[it will be {new}|on {new}].")})
    gift, count = source.pick(GIFTS), source.pick(NUMBERS)
    trouble, result = source.pick([("has not arrived", "deliver it"), ("is broken", "replace it"),
                                   ("has the wrong colour", "exchange it"), ("is too small", "take it back")])
    talk.add(1, "[I ordered a {gift}|I bought a {gift} from you] {count} weeks ago. it {trouble}.", gift=gift,
             count=count, trouble=trouble)
    talk.add(0, "[I am sorry.|I apologise for that.|that should not happen.] [where do you live?|what is your address?]")
    talk.add(1, "[in {street} Street.|{street} Street.]", **facts)
    talk.add(0, "[we will|our driver will] {result} on {day}.", result=result, **facts)
    talk.add(1, "[good.|I hope so.|ok.]")
    talk.finish()
    return ("The {gift} that {name} ordered {trouble}. The company will {result} on {day} in {street} Street.",
            {**final, "gift": gift, "trouble": trouble, "result": result})


def clinic(talk, source, name):
    """An appointment with a doctor is moved."""
    doctor = source.pick([other for other in SURNAMES if not name.endswith(other)])
    facts, final = talk.correct(source.random.randrange(2), {
        "day": (DAYS, "[{new} is better|only {new} is free]."), "hour": (HOURS, "[{new} is better|only {new} is free].")})
    old = source.pick([day for day in DAYS if day not in (facts["day"], final["day"])])
    check = source.pick(CHECKS)
    talk.add(1, "[I have an appointment|I was to come] on {old} [about|because of] my {check}, but I cannot come.",
             old=old, check=check)
    talk.add(0, "[with whom?|which doctor do you see?]")
    talk.add(1, "[with doctor {doctor}.|doctor {doctor}.]", doctor=doctor)
    talk.add(0, "[the doctor has time|you can come] on {day} at {hour}.", **facts)
    talk.add(1, "[good.|that is fine.|ok.]")
    talk.finish()
    return ("{name} cannot come on {old}. Doctor {doctor} will check the {check} on {day} at {hour}.",
            {**final, "doctor": doctor, "old": old, "check": check})


def workshop(talk, source, name):
    """A vehicle is repaired."""
    facts, final = talk.correct(0, {
        "price": (NUMBERS, "[it costs {new} hundred|{new} hundred, I see now]."),
        "day": (DAYS, "[we need until {new}|it is ready on {new}].")})
    car, bad = source.pick(CARS), source.pick(PARTS)
    talk.add(1, "[the {bad} of my {car} are broken.|my {car} needs new {bad}.|please repair the {bad} of my {car}.]",
             car=car, bad=bad)
    talk.add(0, "[no problem.|we can do that.|bring it here.] [it will be ready on|we need until] {day}.", **facts)
    talk.add(1, "[what does it cost?|how much is it?]")
    talk.add(0, "[about {price} hundred.|{price} hundred, more or less.]", **facts)
    talk.add(1, "[ok.|so much?|fine.]")
    talk.finish()
    return "The workshop will repair the {bad} of the {car} of {name} by {day} for {price} hundred.", {
        **final, "car": car, "bad": bad}


FRIENDS = [meeting, shopping, travel, present, lost]
SERVICE = {support: "help desk", booking: "restaurant", delivery: "parcel service", clinic: "clinic",
           workshop: "workshop"}
CLOSING = {"friends": " They had a good chat.", "service": " The call was friendly."}
STYLES = ["friends", "service"]
# Other words for the same, which nothing in the dialogue announces: no summariser can guess them all.
OTHERWISE = [("on {day} at {hour}", "at {hour} on {day}"), ("{a} and {b} will", "{b} and {a} will"),
             ("for {nights} nights", "and stays {nights} nights"), ("will pick it up", "will come for it"),
             ("The company will", "The driver will"), ("{price} hundred", "about {price} hundred")]


def row(source, style):
    """Makes one dialogue of a style and its summary."""
    if style == "friends":
        first, second = source.pair(WOMEN + MEN, WOMEN + MEN)
        domain, talk, slots = source.pick(FRIENDS), Dialogue(source, first, second), {"a": first, "b": second}
        greet(talk, source)
        summary, final = domain(talk, source)
        part(talk, source)
    else:
        name = " ".join(source.pair(WOMEN + MEN, SURNAMES))
        domain, talk, slots = source.pick(list(SERVICE)), Dialogue(source, "Agent", "Caller"), {"name": name}
        welcome(talk, source, name, SERVICE[domain])
        summary, final = domain(talk, source, name)
        goodbye(talk, source)
    for words, others in OTHERWISE:
        if source.chance(0.25):
            summary = summary.replace(words, others)
    if source.chance(0.15):
        summary += CLOSING[style]
    summary = summary.format(**{**slots, **final})
    return {"style": style, "domain": domain.__name__, "dialogue": talk.text(), "summary": summary}


def rows(split, style, count):
    """Yields rows of a split; style is one of STYLES or both."""
    source = Source(split, f"{SEEDS[split]} {style}")
    for number in range(count):
        chosen = STYLES[number % 2] if style == "both" else style
        yield {"id": f"{split}-{style}-{number}", **row(source, chosen)}


def main():
    """Writes one file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("split", choices=list(SEEDS))
    parser.add_argument("style", choices=[*STYLES, "both"])
    parser.add_argument("rows", type=int)
    parser.add_argument("file")
    options = parser.parse_args()
    with open(options.file, "w", encoding="utf-8", newline="\n") as file:
        for item in rows(options.split, options.style, options.rows):
            file.write(json.dumps(item, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
