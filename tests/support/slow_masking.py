"""Masks drawn one token at a time, with the semantics of `objectives.masking`."""

import random

Words = list[int]  # number of each token's word, -1 at special tokens and padding


def words_of(words: Words) -> dict[int, list[int]]:
    """Places of the tokens of each word."""
    places: dict[int, list[int]] = {}
    for place, word in enumerate(words):
        if word != -1:
            places.setdefault(word, []).append(place)
    return places


def whole_word_mask(words: Words, rate: float, draw: random.Random) -> list[bool]:
    """Words in a random order, while they fit; the one that does not, with its part's chance."""
    masked = [False] * len(words)
    groups = list(words_of(words).values())
    draw.shuffle(groups)
    left = rate * sum(len(group) for group in groups)
    for number, group in enumerate(groups):
        part = left / len(group)
        if number == 0 or draw.random() < part:
            for place in group:
                masked[place] = True
        left -= len(group)
        if left <= 0:
            break
    return masked


def replace_masked(
    ids: list[int], masked: list[bool], mask_id: int, vocabulary: int, draw: random.Random
) -> list[int]:
    """80 % the mask, 10 % a random id, 10 % as it was."""
    shown = list(ids)
    for place, hidden in enumerate(masked):
        if hidden:
            chance = draw.random()
            if chance < 0.8:
                shown[place] = mask_id
            elif chance < 0.9:
                shown[place] = draw.randrange(vocabulary)
    return shown


def context_mask(
    words: Words, real: list[bool], rate: float, draw: random.Random
) -> list[list[bool]]:
    """What each token may attend to: one of up to 256 masks of the text."""
    seen = []
    drawn = [whole_word_mask(words, rate, draw) for _ in range(min(sum(real), 256))]
    for row in range(len(words)):
        hidden = draw.choice(drawn)
        seen.append(
            [
                column == 0 or (real[column] and column != row and not hidden[column])
                for column in range(len(words))
            ]
        )
    return seen
