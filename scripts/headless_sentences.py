"""Find headless sentences: clauses that begin with "what", "who" or "whose" and have no noun before it.

"What has left is dropped" makes a reader guess what has left; "Expired units are dropped" does not. This reads every
docstring, comment and error message of the source and every paragraph of the documentation, and lists the sentences
where such a word is the subject or the object of a clause by itself. These are no findings: an indirect question
after a word of saying, asking or knowing ("the message says what was expected"), also in a list of such things; a
relative clause with its noun ("a client who waits"); a concession ("..., whatever the clock says"); a real question;
and a title, such as a heading or the head of a column.

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
PLACES: Final = ("src", "docs", "README.md")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ASKING: Final = _words("""
    answer ask call care check choose clear compare compute consider control count decide define depend depending
    describe determine document examine explain expect find forget guess hide hint know known learn list log look match
    matter mean name note notice print prove publish question read record regardless remember repeat report reveal said
    say see seen show shown state sure tell told think unclear understand understood unknown watch wonder write written
""")
_ENDINGS: Final = ("", "s", "es", "d", "ed", "ing")
_SPELT_OTHERWISE: Final = {"choosing", "deciding", "naming"}
_QUESTION_HEADS: Final = {word + end for word in _ASKING for end in _ENDINGS} | _SPELT_OTHERWISE
_QUESTION_WORDS: Final = _words("what who whom whose how when where which whether why to you us it them")
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
_PREPOSITIONS: Final = _words("about at by for from in of on to under upon with")
_RELATIVE: Final = {"who", "whom", "whose"}
_EVER: Final = {"whatever", "whoever"}
_JOINING: Final = {"and", "or", "but"}
_SUBORDINATING: Final = _words("and because but if or since so that though unless when where while")
_BEFORE_RELATIVE: Final = _PREPOSITIONS | {",", '"', "'", "*", ")", "all", "both", "many", "most"}
_SUBJECTS: Final = {"a", "it", "they", "we", "you"}
_FINITE: Final = _words("is are was were be has have had does do did can may must will would should could")
_VERB: Final = re.compile(
    r"(?:a|is|are|was|were|has|have|had|does|do|did|can|may|must|will|would|should|could|it|they|we|you|[a-z]+s|[a-z]+ed)"
)
_WORD: Final = re.compile(r"`[^`]*`|[\w'-]+|[^\w\s]")
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])[\"')\]*_]*\s+(?=[\"'(\[*_`]*[A-Z0-9`])")
_CLAUSE_ENDS: Final = {";", ":", ".", "?", "!"}


def headless(sentence: str) -> bool:
    """Return whether a clause of the sentence begins with "what", "who" or "whose" and no noun stands before it."""
    if sentence.rstrip("\"')*_ ").endswith("?"):
        return False
    words = [word.lower() for word in _WORD.findall(sentence)]
    return any(
        _headless_at(words, place) for place, word in enumerate(words) if word in {"what", "whom"} | _RELATIVE | _EVER
    )


def _headless_at(words: list[str], place: int) -> bool:
    """Return whether the question word at this place is the head of its clause by itself."""
    word, before = words[place], words[:place]
    after, then, *_ = *words[place + 1 : place + 3], "", ""
    last = before[-1] if before else ";"
    if last == after == '"':
        return False  # The word itself is meant.
    if word in _EVER:
        if "," in words[place : place + 7]:  # "Whatever the clock says, ..."
            return False
        return last in _CLAUSE_ENDS or (
            last in _SUBORDINATING and after not in _SUBJECTS and bool(_VERB.fullmatch(after))
        )
    if after == "to" or _asked(before) or (word in _RELATIVE and _is_head(before)):
        return False  # "say what to do", "what to write instead"
    # A determiner: "what kind of store", "what objects were asked for".
    return word != "what" or (
        _VERB.fullmatch(after) is not None
        and not (after.endswith("s") and after not in _FINITE and then in _FINITE | {"of"})
    )


def _asked(before: list[str]) -> bool:
    """Return whether a word of asking, saying or knowing governs what follows, directly or through a list."""
    if not before:
        return False
    last = before[-1]
    if last in _QUESTION_HEADS or (last in _PREPOSITIONS and len(before) > 1 and before[-2] in _QUESTION_HEADS):
        return True
    if last in _JOINING | {","}:
        clause = before[max((place + 1 for place, word in enumerate(before) if word in _CLAUSE_ENDS), default=0) :]
        # "names the file, the line and what was expected"; "says who is refused, for how long, and what is left"
        if any(one in _QUESTION_HEADS and two in _QUESTION_WORDS for one, two in pairwise(clause)):
            return True
        asking = max((place for place, word in enumerate(clause) if word in _QUESTION_HEADS), default=-1)
        return asking >= 0 and not set(clause[asking:]) & (_FINITE | {"so"})
    return False


def _is_head(before: list[str]) -> bool:
    """Return whether a noun stands before a relative pronoun: "rules, all of whose", "keys, whose ... and whose"."""
    words = list(before)
    if words and words[-1] in _JOINING and _RELATIVE & set(words):
        return True
    while words and words[-1] in _BEFORE_RELATIVE:
        words.pop()
    if not words:
        return False
    return words[-1] in _HAS_HEAD or ((words[-1][0].isalnum() or words[-1][0] == "`") and words[-1] not in _NO_NOUN)


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of running text: paragraphs, list items and cells, without code and titles."""
    text = re.sub(r"```.*?```|~~~.*?~~~|<!--.*?-->", "\n\n", text, flags=re.S)
    text = re.sub(r"^#+ .*$", "", text, flags=re.M)
    text = re.sub(r"\]\([^)\s]*\)", "]", text)
    text = re.sub(r"^\|.*\|\s*\n(?=\|[\s:|-]+\|\s*$)", "", text, flags=re.M)
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*+]|\d+\.)\s)|\n(?=\s*\w+: )|\n(?=\s*[#>|])|\|", text):
        flat = " ".join(block.split()).strip("#>|-*+ ")
        if not flat or set(flat) <= set("-=: "):
            continue
        yield from (part for part in _SENTENCE_END.split(flat) if len(part.split()) > 1)


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of everything that people read: docstrings, comments and error messages, or a whole page."""
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
            if isinstance(node, ast.Raise) and node.exc is not None:
                yield from ((node.lineno, message) for message in _messages(node.exc))
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        yield from _blocks((t.start[0], t.string.lstrip("#: ")) for t in tokens if t.type == tokenize.COMMENT)
    else:
        yield 1, source


def _messages(raised: ast.expr) -> Iterator[str]:
    """Yield the texts of an exception, with a word in place of each value."""
    inside = {id(part) for node in ast.walk(raised) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    for node in ast.walk(raised):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "`value`" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.value


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


def find(paths: list[Path]) -> tuple[list[tuple[Path, int, str]], int]:
    """Return the headless sentences, each with file and line, and the number of all sentences."""
    found, total = [], 0
    for path in files(paths):
        for line, text in texts(path):
            for sentence in sentences(text):
                total += 1
                if headless(sentence):
                    found.append((path, line, sentence))
    return found, total


def main(arguments: list[str]) -> int:
    """List headless sentences; return 1 if there are too many."""
    found, total = find([Path(argument) for argument in arguments] or [ROOT / place for place in PLACES])
    for path, line, sentence in found:
        print(f"{path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}:{line}: {sentence}")
    share = len(found) / total if total else 0.0
    print(f"{len(found)} headless of {total} sentences: {share:.2%}")
    return 1 if share > MOST else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
