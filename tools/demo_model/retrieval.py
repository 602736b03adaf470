# SPDX-License-Identifier: Apache-2.0
"""Texts that make a model look keys up in its context: lines like RULER's needles among filler."""

import re

ATTRIBUTES = ["code"] * 6 + ["number", "price", "key", "age"]


def key_words(text, held_out):
    """Lower-case words frequent enough to be familiar; one in ten is kept for testing only."""
    counts = {}
    for word in re.findall(r"(?<= )[a-z]{4,9}(?= )", text):
        counts[word] = counts.get(word, 0) + 1
    words = sorted(w for w, n in counts.items() if n >= 15)
    return [w for i, w in enumerate(words) if (i % 10 == 0) == held_out]


def document(rng, words, filler, n_keys, n_filler, n_questions, chat=None, again=False):
    """One text and its (key, value) pairs. `rng` is random.Random; `filler` a list of lines. With
    `again` a key may be asked for more than once."""
    attribute = rng.choice(ATTRIBUTES)
    keys = rng.sample(words, n_keys)
    pairs = {k: "".join(rng.choice("0123456789") for _ in range(rng.choice([3, 4, 4, 4, 5])))
             for k in keys}
    lines = [f"The {attribute} of {k} is {v}." for k, v in pairs.items()]
    for line in rng.sample(filler, n_filler):
        lines.insert(rng.randrange(len(lines) + 1), line)
    body = "\n".join(lines) + "\n"
    asked = (rng.choices(keys, k=n_questions) if again
             else rng.sample(keys, min(n_questions, n_keys)))
    if chat is None:
        chat = rng.random() < 0.35
    if not chat:
        return body + "".join(
            f"What is the {attribute} of {k}? {pairs[k]}\n" for k in asked), pairs
    turns = [f"<|im_start|>user\n{body if i == 0 else ''}What is the {attribute} of {k}?<|im_end|>\n"
             f"<|im_start|>assistant\nThe {attribute} of {k} is {pairs[k]}.<|im_end|>\n"
             for i, k in enumerate(asked)]
    return "".join(turns), pairs


def repetition(rng, words):
    """A list and the same list again: the plainest form of looking back."""
    items = rng.sample(words, rng.randint(3, 12))
    if rng.random() < 0.5:
        items = [f"{w} {rng.randrange(10 ** 4):04}" for w in items]
    line = ", ".join(items)
    return "\n".join([line] * rng.randint(2, 4)) + "\n"


def training_document(rng, words, filler):
    """A quarter repetitions, half few keys asked for often, a quarter long texts, which teach the
    distance: a model trained on those alone had not found the trick after three million tokens."""
    kind = rng.randrange(4)
    if kind == 0:
        return repetition(rng, words)
    if kind < 3:
        return document(rng, words, filler, rng.randint(1, 5), rng.choice([0, 0, 1]), 8,
                        again=True)[0]
    n_filler = rng.choice([0, 1, 2, 4, 6])
    n_keys = rng.randint(2, 12 if n_filler > 2 else 20)
    return document(rng, words, filler, n_keys, n_filler, rng.randint(2, 8))[0]
