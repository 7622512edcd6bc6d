"""The part of the Hugging Face Hub's API that downloads a dataset, on the loopback interface."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.file_server import FileServer, hash_content, serve

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextmanager
def serve_dataset(folder: Path, repository: str) -> Iterator[FileServer]:
    """Serve ``folder`` as the only commit of a dataset."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
    siblings = [{"rfilename": name} for name in files]
    info = {"id": repository, "sha": COMMIT, "siblings": siblings, "private": False}
    tree = [
        {"type": "file", "path": name, "size": len(content), "oid": hash_content(content)}
        for name, content in files.items()
    ]
    with serve() as server:
        server.headers["X-Repo-Commit"] = COMMIT
        for name, content in files.items():
            server.files[f"datasets/{repository}/resolve/{COMMIT}/{name}"] = content
        for end in ("", "/revision/main", f"/revision/{COMMIT}"):
            server.files[f"api/datasets/{repository}{end}"] = json.dumps(info).encode()
        listed = f"api/datasets/{repository}/tree/{COMMIT}"  # huggingface-hub 1
        server.files[listed] = json.dumps(tree).encode()
        yield server
