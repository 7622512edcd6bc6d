"""The proof that this program is right and fast on one GPU, in a few minutes, offline.

``python -m tests.benchmarks.gpu_proof --out DIR``. Each part is timed and caught, and is in
``DIR/proof.json`` as soon as it is done:

- ``machine``: what it is; rates of copies and of matrix products;
- ``correctness``: attention, encoders in half precision, the same bytes twice, many networks;
- ``encoding``: tokens/s from texts to the vector store, beside the GPU's own matrix products and
  beside sentence-transformers; milliseconds of single queries;
- ``search``: exact search equal to the CPU's bit for bit, its rates, FAISS where it is installed;
- ``training``: some steps of RetroMAE and of DPR fine-tuning in bfloat16;
- ``memory``: search and encoding where the GPU has too little of it.

Weights are random and of the real shapes unless a folder of real ones is given: speed does not
depend on them, and correctness is measured against float32, with passages that differ.
"""
