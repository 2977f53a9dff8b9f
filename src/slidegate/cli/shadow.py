"""``slidegate shadow``: what turning shadow rules on would do."""

from __future__ import annotations

import click

from .output import Output, with_output
from .store import open_session, with_store


@click.group()
def shadow() -> None:
    """Look at what shadow rules would do.

    \b
    Example: slidegate shadow report --store redis://localhost:6379/0
    """


@shadow.command()
@with_store
@click.option("--window", default="1h", show_default=True, metavar="DURATION", help="How far back the figures go.")
@with_output()
def report(out: Output, /, store: str | None, window: str) -> None:
    """Add up what shadow rules would have refused, from the figures that workers publish in a store.

    They count the refusals of a shadow rule, and not who was refused.

    \b
    Example: slidegate shadow report --store redis://localhost:6379/0
    """
    with open_session(store) as session:
        stats = session.wait(session.limiter.stats_all(window))
    passed, total = stats.total.passed, stats.total.passed + stats.total.refused
    refusals = {name: traffic.shadow_refused for name, traffic in stats.rules.items() if traffic.shadow_refused}
    if not total and not refusals:
        out.note(f"no figures of the last {window} are in this store")
    elif not refusals:
        out.note(f"no shadow rule would have refused one of the last {passed:,} requests")
    rows = [
        (name, refusals[name], passed, round(min(refusals[name] / passed, 1.0), 6) if passed else 0.0)
        for name in sorted(refusals, key=lambda name: (-refusals[name], name))
    ]
    if out.form == "text":
        rows = [(name, f"{count:,}", f"{passed:,}", f"{share:.2%}") for name, count, passed, share in rows]  # type: ignore[misc]
    out.rows(("rule", "would_refuse", "passed", "share"), rows)
