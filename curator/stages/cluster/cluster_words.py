"""Words for clusters: those that CLIP finds nearer to a cluster than to the clips as a whole.

Shape letters: K clusters, W words, D dimensions.
"""
# ruff: noqa: N803, N806 - shape letters

import numpy as np
from numpy.typing import NDArray

from curator.models.catalogue import ModelEntry
from curator.models.clip_model import text_embedder
from curator.models.weight_store import ModelStore

N_WORDS = 3  # most words of a cluster
PROMPT = "a photo of {}"  # the prompt of CLIP's authors for classes without one of their own
_LEAST = 1e-3  # difference of cosines from which a word says something of a cluster
# Plain nouns: places, things, people and animals, what people do, and kinds of pictures.
WORDS = tuple(
    word.strip()
    for word in """
a beach, the sea, a river, a lake, a waterfall, mountains, a forest, a desert, a field, a garden,
a park, flowers, trees, grass, snow, rain, clouds, the sky, a sunset, the night, stars, fire, smoke,
rocks, a cave, an island, a harbour, a city, a skyline, a street, a crossroads, a motorway,
a bridge, a tunnel, a car park, a building, a house, a church, a castle, ruins, a tower, a factory,
a farm, a construction site, an airport, a railway station, a shop, a market, a restaurant, a bar,
a kitchen, a bathroom, a bedroom, a living room, an office, a classroom, a library, a laboratory,
a hospital, a gym, a stadium, a swimming pool, a playground, a stage, a theatre, a museum,
a cinema, a corridor, stairs, a workshop, a warehouse, a studio, a car, a bus, a lorry, a train,
a tram, a bicycle, a motorcycle, an aeroplane, a helicopter, a drone, a ship, a boat, a rocket,
a tractor, a robot, a machine, a computer, a telephone, a camera, a screen, a keyboard, a book,
paper, a map, a clock, money, clothes, shoes, jewellery, a bottle, a cup, a plate, food, fruit,
vegetables, bread, meat, fish, a cake, coffee, a table, a chair, a bed, a door, a window, a lamp,
a mirror, a toy, a ball, a tool, a knife, a weapon, a flag, a statue, a painting, a musical
instrument, a guitar, a piano, drums, a microphone, a man, a woman, a child, a baby, a face, eyes,
hands, feet, hair, a couple, a family, a crowd, a soldier, a police officer, a doctor, a cook,
a worker, an athlete, a musician, a speaker, an animal, a dog, a cat, a horse, a cow, sheep, a bird,
chickens, an elephant, a lion, a bear, a monkey, a snake, an insect, a butterfly, a whale,
people walking, running, dancing, singing, people talking, an interview, a meeting, a speech,
a wedding, a party, a concert, a parade, a protest, cooking, eating, drinking, shopping, cleaning,
reading, writing, drawing, painting a wall, sewing, repairing, gardening, driving, cycling, sailing,
surfing, swimming, diving, skiing, skating, climbing, hiking, fishing, riding, football,
basketball, tennis, golf, boxing, gymnastics, yoga, a race, a video game, a cartoon, an animation,
a drawing, a diagram, a chart, a slide, text, a title, credits, a logo, a web page, a news
programme, an advertisement, an old film, a black and white picture, a view from above, a close-up,
a time lapse, slow motion, darkness, a blurred picture, an abstract pattern
""".replace("\n", " ").split(",")
)


def cluster_words(
    centroids_KD: NDArray[np.float32],
    mean_D: NDArray[np.float32],
    clip: ModelEntry,
    models: ModelStore,
) -> list[list[str]]:
    """Returns the words of each cluster, the fittest first; none that fits all clips as well.

    Args:
        centroids_KD: Mean embedding of each cluster, of unit length.
        mean_D: Mean embedding of all clips, of unit length.
        clip: The model that embedded the clips.
        models: Where its weights are.

    Raises:
        ModelError: The weights or open_clip are missing.
    """
    vectors_WD, _ = text_embedder(clip, models.find(clip))([PROMPT.format(word) for word in WORDS])
    gains_KW = (centroids_KD - mean_D) @ vectors_WD.T
    best_KW = np.argsort(-gains_KW, axis=1, kind="stable")[:, :N_WORDS]
    return [
        [WORDS[word] for word in best.tolist() if gains[word] > _LEAST]
        for best, gains in zip(best_KW, gains_KW, strict=True)
    ]
