"""What to do about a pair of profiles, what it would gain, and what cannot be said. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from opsctl.autospec.bands import Band, percent
from opsctl.autospec.mechanism import Choice
from opsctl.autospec.pair import Pair
from opsctl.autospec.replay import Replay, load

SCHEMA = "opsctl/advise/v1"
DAY = 24.0


def band_document(band: Band) -> dict[str, Any]:
    """Return one context's verdict as JSON can hold it."""
    return {
        "context": band.context,
        "kind": band.kind,
        "means": band.means,
        "words": band.words,
        "concurrency": band.concurrency,
        "low": band.low,
        "high": band.high,
    }


def verdict(bands: Sequence[Band], pair: Pair) -> str:
    """Return one sentence for all contexts."""
    speculative, baseline = pair.names
    if not bands:
        return f"{speculative} and {baseline} were measured at no context in common"
    kinds = {band.kind for band in bands}
    if "unknown" in kinds:
        means = {band.means for band in bands}
        said = {"always": "faster", "never": "slower"}
        one = said.get(next(iter(means))) if len(means) == 1 else None
        words = f"{one} everywhere by the means" if one else "it depends on load by the means"
        return f"{speculative}: nothing significant can be claimed without intervals; {words}"
    everywhere = {
        "always": f"{speculative} is faster wherever it was measured: serve it",
        "never": f"{speculative} is slower wherever it was measured: serve {baseline}",
        "no significant difference": f"{speculative} and {baseline} cannot be told apart",
    }
    if len(kinds) == 1 and (kind := next(iter(kinds))) in everywhere:
        return everywhere[kind]
    if kinds <= {"never", "undecided", "no significant difference"}:
        return f"{speculative} was not seen to be faster anywhere: serve {baseline}"
    return f"{speculative} is faster at some loads, {baseline} at others: see the contexts"


def document(
    pair: Pair, source: str, bands: Sequence[Band], choice: Choice | None, played: Replay | None
) -> dict[str, Any]:
    """Return the advice as JSON can hold it, `schema` left out."""
    return {
        "speculative": pair.names[0],
        "baseline": pair.names[1],
        "source": source,
        "verdict": verdict(bands, pair),
        "contexts": [band_document(band) for band in bands],
        "mechanism": None if choice is None else _mechanism(choice),
        "load": None if played is None else _load(played),
        "day": None if played is None else list(_day(played)),
        "refused": list(refused(pair, bands, choice, played)),
    }


def _mechanism(choice: Choice) -> dict[str, Any]:
    return {
        "name": choice.mechanism,
        "why_not": {name: list(reasons) for name, reasons in choice.why_not.items()},
        "words": choice.sentence(),
    }


def _load(played: Replay) -> dict[str, Any]:
    setting = played.setting
    return {
        "trace": setting.case.trace,
        "pattern": setting.case.pattern,
        "mechanism": setting.case.mechanism,
        "closed_s": setting.cost.closed,
        "hours": setting.requests.hours,
        "requests": len(setting.requests),
        "mean_context": setting.requests.mean_context,
        "share": load(setting),
    }


def _day(played: Replay) -> Iterator[dict[str, Any]]:
    """Each row over a day of this load, and what it saves against the better fixed profile."""
    verdict_, setting = played.verdict, played.setting
    scale = DAY / setting.requests.hours
    best = verdict_.row(f"always:{verdict_.best_fixed}")
    rows = [(row.policy, row.outcome) for row in verdict_.rows]
    rows.append(("best in hindsight", verdict_.hindsight.outcome))
    for policy, outcome in rows:
        yield {
            "policy": policy,
            "mean_latency_s": outcome.mean,
            "request_seconds": outcome.request_seconds * scale,
            "switches": len(outcome.switches) * scale,
            "saves_s_a_request": best.mean - outcome.mean,
            "saves_request_seconds": (best.request_seconds - outcome.request_seconds) * scale,
        }


def refused(
    pair: Pair, bands: Sequence[Band], choice: Choice | None, played: Replay | None
) -> Iterator[str]:
    """What is not claimed, and why; each a sentence."""
    if any(band.kind == "unknown" for band in bands) or not bands:
        yield (
            "whether a difference is more than chance: the surfaces have no intervals; measure "
            "with `opsctl bench run`, three repeats or more"
        )
    surfaces = (pair.speculative, pair.baseline)
    if not all(surface.fingerprint for surface in surfaces):
        yield "that it holds on this host: these surfaces are not of a profile measured here"
    if pair.speculative.accept_length(1, 0) is None:
        yield (
            "what other prompts would give: how many drafts were accepted at measurement is not "
            "known"
        )
    for band in bands:
        last = band.cells[-1].concurrency if band.cells else 0
        if band.kind == "always" or (band.kind == "unknown" and band.means == "always"):
            gain = percent(band.cells[-1].ratio)
            yield f"where it stops to pay at context {band.context}: {gain} at {last}, the most"
    if choice is None:
        yield "which mechanism applies: no configuration with this pair of profiles is at hand"
    if played is None:
        yield "what a day would gain: no load was given (--history, --trace or --pattern)"
    else:
        yield from _of_load(pair, played)


def _of_load(pair: Pair, played: Replay) -> Iterator[str]:
    setting = played.setting
    hours, context = setting.requests.hours, setting.requests.mean_context
    if hours < DAY:
        yield f"what a whole day gives: {hours:.3g} h of load were given, the rest is taken alike"
    share = load(setting)
    if share > 1:
        yield (
            f"a latency: the load is {share * 100:.0f} % of what the faster profile can serve, so "
            "queues only grow"
        )
    contexts = sorted(set(pair.speculative.contexts) & set(pair.baseline.contexts))
    if contexts and not contexts[0] <= context <= contexts[-1]:
        near = contexts[0] if context < contexts[0] else contexts[-1]
        yield (
            f"the speed at a context of {context:.0f} tokens, the mean of this load: measured up "
            f"to {near}, whose speed is used"
        )
    most = min(pair.speculative.most, pair.baseline.most)
    judged = played.judged
    peak = max(played.tracks[judged].in_flight, default=0) if judged is not None else 0
    if peak > most:
        yield (
            f"the speed of more than {most} requests at once: with {judged} {peak} ran, at the "
            f"speed of {most}"
        )
    yield "the time to read prompts: surfaces hold what streams get while they are answered"
    yield "that tomorrow's load is like this one"
