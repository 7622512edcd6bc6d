"""What is attacked, by name."""

from tests.fuzz.subjects.base import Subject
from tests.fuzz.subjects.caches import Corpora, Vectors
from tests.fuzz.subjects.command_line import CommandLine
from tests.fuzz.subjects.layouts import Beir, Dpr, Msmarco, RunFile
from tests.fuzz.subjects.models import Adapter, Card, Checkpoint
from tests.fuzz.subjects.records import Reports, Results, TomlFile

SUBJECTS: dict[str, Subject] = {
    one.name: one
    for one in (
        *(Beir(), Msmarco(), Dpr(), RunFile(), Card(), Checkpoint(), Adapter(), Results()),
        *(TomlFile(), Reports(), Vectors(), Corpora(), CommandLine()),
    )
}
