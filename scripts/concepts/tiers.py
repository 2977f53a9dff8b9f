"""The three tiers: how many workers share the counts, and how much passes in all."""

from __future__ import annotations

from typing import Final, NamedTuple

from slidegate.core import Limit, Ring, new_window

from .paper import Paper, Picture

HOSTS: Final = 2
WORKERS: Final = 2
LIMIT: Final = Limit(100, "1m")


class Tier(NamedTuple):
    """Where the counts of one tier are: `windows` of them over all hosts."""

    name: str
    windows: int


TIERS: Final = (
    Tier("Memory", HOSTS * WORKERS),
    Tier("LMDB", HOSTS),
    Tier("Redis", 1),
)


def admitted(tier: Tier) -> int:
    """Return how many of very many requests pass at one moment, which come to all workers in turn."""
    windows: list[Ring] = [new_window(LIMIT) for _ in range(tier.windows)]
    passed = 0
    for number in range(1_000):
        worker = number % (HOSTS * WORKERS)
        window = windows[worker * tier.windows // (HOSTS * WORKERS)]
        passed += window.spend(0, LIMIT.amount, 1)[3] == 0
    return passed


def _draw_tiers(paper: Paper) -> None:
    for row, tier in enumerate(TIERS):
        top = 42 + 118 * row
        paper.text(12, top + 12, tier.name, "ours", bold=True)
        paper.text(348, top + 12, f"{admitted(tier)} pass in all", anchor="end")
        for host in range(HOSTS):
            left = 12 + 124 * host
            paper.box((left, top + 22), (114, 78), "faint", outline=True, round=6)
            for worker in range(WORKERS):
                x = left + 10 + 50 * worker
                paper.box((x, top + 32), (44, 24), "other", outline=True, round=4)
                paper.text(x + 22, top + 48, "app", "faint", anchor="middle")
                if tier.windows == HOSTS * WORKERS:
                    paper.line((x + 22, top + 56), (x + 22, top + 72), "faint")
                    paper.box((x + 10, top + 72), (24, 18), "ours", round=3)
                else:
                    paper.line((x + 22, top + 56), (x + 22, top + 66), "faint")
            if tier.windows < HOSTS * WORKERS:
                paper.line((left + 32, top + 66), (left + 82, top + 66), "faint")
                paper.line((left + 57, top + 66), (left + 57, top + 81 if tier.windows == 1 else top + 72), "faint")
            if tier.windows == HOSTS:
                paper.box((left + 45, top + 72), (24, 18), "ours", round=3)
        if tier.windows == 1:
            paper.line((69, top + 81), (284, top + 81), "faint")
            paper.box((284, top + 70), (34, 22), "ours", round=3)
            paper.text(301, top + 62, "server", "faint", anchor="middle")


def pictures() -> list[Picture]:
    """Return the picture of the page about tiers."""
    said = "; ".join(f"{tier.name}: {tier.windows} windows, {admitted(tier)} pass" for tier in TIERS)
    return [
        Picture(
            "tiers",
            f"{LIMIT} on {HOSTS} hosts with {WORKERS} workers each",
            f"The counts of one client, and the workers that share them. {said}.",
            390,
            _draw_tiers,
        )
    ]
