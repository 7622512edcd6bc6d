"""Your own encoder, any function from texts to vectors, on your own documents.

python examples/custom_encoder.py
"""

import hashlib

import numpy as np

import bench


def encode(texts: list[str]) -> np.ndarray:
    """Hashed words: replace it by your model."""
    vectors = np.zeros((len(texts), 256), dtype=np.float32)
    for row, text in enumerate(texts):
        for word in text.lower().split():
            vectors[row, hashlib.blake2b(word.encode()).digest()[0]] += 1
    return vectors


corpus = {
    "d1": {"title": "Aspirin", "text": "Aspirin reduces fever and relieves mild pain."},
    "d2": {"title": "Insulin", "text": "Insulin lowers the sugar in the blood."},
    "d3": {"title": "Caffeine", "text": "Caffeine keeps people awake."},
}
queries = {"q1": "what lowers blood sugar", "q2": "what relieves pain"}
qrels = {"q1": {"d2": 1}, "q2": {"d1": 1}}

dataset = bench.Dataset.from_dicts(corpus, queries, qrels, name="medicines")
# The fingerprint changes whenever the vectors would; without one they are encoded each time.
result = bench.evaluate(encode, dataset, name="hashed-words", fingerprint="v1", similarity="cos")

print(result.measures)
print(result.per_query)
