"""The draw of changes of the source: the same for a seed, each in one node, with the tests of its file."""

import ast
from difflib import unified_diff

from scripts import mutants


def test_a_seed_draws_the_same_changes_each_of_one_node_in_a_source_that_compiles() -> None:
    changes = mutants.drawn(1, 20)
    assert changes == mutants.drawn(1, 20)
    for path, what, source in changes:
        compile(source, path, "exec")
        before = ast.unparse(ast.parse(path.read_text("utf-8")))
        differing = unified_diff(before.splitlines(), source.splitlines(), lineterm="", n=0)
        assert source != before, what
        assert sum(line.startswith("@@") for line in differing) == 1, what


def test_a_change_is_tried_with_the_tests_of_its_file_first() -> None:
    package = mutants.SOURCE / "slidegate"
    chosen = mutants.tests_of(package / "core" / "ring.py")
    assert chosen == tuple(
        str(mutants.TESTS / name) for name in ("core", "test_messages.py", "stores/memory", "limiter")
    )
    first, *_ = mutants.tests_of(package / "files" / "config.py")
    assert first == str(mutants.TESTS / "files" / "test_config.py")
    first, *_ = mutants.tests_of(package / "_outbound.py")
    assert first == str(mutants.TESTS / "httpx")
