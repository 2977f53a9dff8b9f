"""Find headless sentences: clauses that begin with "what", "who" or "whose" and have no noun before it.

"What has left is dropped" makes a reader guess what has left; "Expired units are dropped" does not. This reads every
docstring and comment of the source and every paragraph of the documentation, and lists the sentences where such a word
is the subject or the object of a clause by itself. An indirect question after a verb of saying, asking or knowing
("the message says what was expected") has its head in the verb and is no finding; neither is a real question.

    python3 scripts/headless_sentences.py [PATH ...]      lists them and their share; exits with 1 above 0.5 %

Without paths it reads src, docs and README.md.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
MOST: Final = 0.005
"""The largest share of headless sentences that is accepted."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ASKING: Final = _words("""
    answer ask call check choose compare compute count decide define describe determine document examine explain
    expect find guess hide hint know known learn list look log match mean name note notice print prove publish read
    record remember repeat report reveal said say see seen show shown sum state tell told test think understand
    understood watch wonder write written
""")
_ENDINGS: Final = ("", "s", "es", "d", "ed", "ing")
_SPELT_OTHERWISE: Final = {"choosing", "deciding", "naming", "saying"}
_QUESTION_HEADS: Final = {word + end for word in _ASKING for end in _ENDINGS} | _SPELT_OTHERWISE
_QUESTION_WORDS: Final = _words("what who whom whose how when where which whether why to you us it")
_NO_NOUN: Final = _words("""
    a about above after against all also an and are as at be because been before below beside between but by can
    could did do does even for from had has have how if in into is it its like may might more most must never no nor
    not of off on once only onto or over per same shall should since so some such than that the their them then
    there these they this those through till to under unless until up was were when where whether which while will
    with within without would yet
""")
_HAS_HEAD: Final = _words("""
    all anyone anybody everyone everybody nobody someone somebody those one they others
""")
_PREPOSITIONS: Final = {"by", "for", "from", "in", "of", "on", "to", "under", "with"}
_RELATIVE: Final = {"who", "whom", "whose"}
_VERB: Final = re.compile(
    r"(?:a|is|are|was|were|has|have|had|does|do|did|can|may|must|will|would|should|could|it|they|we|you|[a-z]+s|[a-z]+ed)"
)
_WORD: Final = re.compile(r"`[^`]*`|[\w'-]+|[^\w\s]")
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])[\"')\]*_]*\s+(?=[\"'(\[*_`]*[A-Z0-9`])")


def headless(sentence: str) -> bool:
    """Return whether a clause of the sentence begins with "what", "who" or "whose" and no noun stands before it."""
    if sentence.rstrip("\"')*_ ").endswith("?"):
        return False
    words = _WORD.findall(sentence)
    for place, word in enumerate(words):
        lower = word.lower()
        if lower not in {"what", "who", "whom", "whose", "whoever", "whatever"}:
            continue
        before = words[place - 1].lower() if place else ""
        after = words[place + 1].lower() if place + 1 < len(words) else ""
        if lower in {"whatever", "whoever"} and before not in {"", ","}:
            continue
        if after == "to":  # "say what to do", "what to write instead"
            continue
        if before in _QUESTION_HEADS or _asked_before(words[:place]):
            continue
        if lower in _RELATIVE and before and _is_head(before, words[:place]):
            continue
        if lower in {"what", "whatever"} and not _VERB.fullmatch(after):
            continue  # "what kind of store": a determiner
        return True
    return False


def _asked_before(words: list[str]) -> bool:
    """Return whether the clause continues a list of questions: "says who is refused and what is left"."""
    lower = [word.lower() for word in words[-9:]]
    return any(first in _QUESTION_HEADS and second in _QUESTION_WORDS for first, second in pairwise(lower))


def _is_head(before: str, words: list[str]) -> bool:
    """Return whether a noun stands before a relative pronoun, past a comma or a preposition: "rules, all of whose"."""
    if before == "," and len(words) > 1:
        before = words[-2].lower()
    if before in _PREPOSITIONS and len(words) > 1:
        before = words[-2].lower()
    return before in _HAS_HEAD or ((before[0].isalnum() or before[0] in "`)") and before not in _NO_NOUN)


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of running text: paragraphs and list items, without code, headings and tables' rules."""
    text = re.sub(r"```.*?```|~~~.*?~~~|<!--.*?-->", "\n\n", text, flags=re.S)
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*+]|\d+\.)\s)|\n(?=\s*\w+: )|\n(?=\s*[#>|])|\|", text):
        flat = " ".join(block.split()).strip("#>|-*+ ")
        if not flat or set(flat) <= set("-: "):
            continue
        yield from (part for part in _SENTENCE_END.split(flat) if len(part.split()) > 1)


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of everything that people read: docstrings and blocks of comments, or a whole page."""
    source = path.read_text("utf-8")
    if path.suffix == ".lua":
        comments = ((number, re.match(r"\s*--+\s?(.*)", line)) for number, line in enumerate(source.splitlines(), 1))
        yield from _blocks((number, comment[1]) for number, comment in comments if comment is not None)
    elif path.suffix == ".py":
        for node in ast.walk(ast.parse(source)):
            body = getattr(node, "body", None)
            for child in body if isinstance(body, list) else ():
                if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                    yield child.lineno, str(child.value.value)
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        yield from _blocks((t.start[0], t.string.lstrip("#: ")) for t in tokens if t.type == tokenize.COMMENT)
    else:
        yield 1, source


def _blocks(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Join the comments of neighbouring lines."""
    start, last = 0, -1
    block: list[str] = []
    for number, line in lines:
        if number != last + 1 and block:
            yield start, "\n".join(block)
            block = []
        if not block:
            start = number
        block.append(line)
        last = number
    if block:
        yield start, "\n".join(block)


def files(paths: list[Path]) -> Iterator[Path]:
    """Yield the files to read."""
    for path in paths:
        if path.is_file():
            yield path
        else:
            yield from sorted(p for p in path.rglob("*") if p.suffix in {".py", ".md", ".lua"})


def main(arguments: list[str]) -> int:
    """List headless sentences; return 1 if there are too many."""
    paths = [Path(argument) for argument in arguments] or [ROOT / "src", ROOT / "docs", ROOT / "README.md"]
    total = found = 0
    for path in files(paths):
        for line, text in texts(path):
            for sentence in sentences(text):
                total += 1
                if headless(sentence):
                    found += 1
                    print(f"{path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}:{line}: {sentence}")
    share = found / total if total else 0.0
    print(f"{found} headless of {total} sentences: {share:.2%}")
    return 1 if share > MOST else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
