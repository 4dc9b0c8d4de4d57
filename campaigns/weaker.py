"""Where a registration promises less than an earlier one of the same campaign id (DESIGN section 10). Pure.

Compares resolved specs, which registrations hold whole. What cannot be compared counts as weaker.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from campaigns.spec import soak_samples
from receipts.metrics import METRICS


@dataclass(frozen=True)
class Weakening:
    """One field that promises less; ``old`` and ``new`` are JSON values, None for what is not there."""

    field: str
    old: Any
    new: Any

    def document(self) -> dict[str, Any]:
        return {"field": self.field, "old": self.old, "new": self.new}


def weaker_than(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> tuple[Weakening, ...]:
    """What ``later`` promises less than ``earlier``; empty if it is as strict or stricter.

    Titles, ``why``, ``question`` and further stages or criteria are no weakening.
    """

    def compare(at: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Weakening]:
        return _criterion(at, old, new, _Samples(_expected_samples(old, earlier), _expected_samples(new, later)))

    found = [*_named("stage", earlier, later, _stage), *_named("criterion", earlier, later, compare)]
    before, after = ([item["name"] for item in spec["stage"]] for spec in (earlier, later))
    kept = [name for name in after if name in before]
    if kept != [name for name in before if name in after]:
        found.append(Weakening("stage order", before, after))
    if later["family"] != earlier["family"]:
        found.append(Weakening("family", earlier["family"], later["family"]))
    old_aborts, new_aborts = earlier.get("abort_if", []), later.get("abort_if", [])
    if any(item not in old_aborts for item in new_aborts):
        found.append(Weakening("abort_if", old_aborts, new_aborts))
    return tuple(found)


def _named(key: str, earlier: Mapping[str, Any], later: Mapping[str, Any], compare: Any) -> Iterator[Weakening]:
    now = {item["name"]: item for item in later[key]}
    for old in earlier[key]:
        at = f"{key}.{old['name']}"
        if old["name"] not in now:
            yield Weakening(at, old["name"], None)
        else:
            yield from compare(at, old, now[old["name"]])


_FEWER: Final = ("runs", "reps")
_LONGER: Final = ("rep_deadline_s", "watchdog_s")


def _stage(at: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Weakening]:
    if old["kind"] != new["kind"]:
        yield Weakening(f"{at}.kind", old["kind"], new["kind"])
        return
    for key in old:
        before, after = old[key], new.get(key)
        if before == after or key == "name":
            continue
        if key in ("prompt", "control"):
            yield from _prompt(f"{at}.{key}", before, after)
        elif key in _FEWER:
            if after < before:
                yield Weakening(f"{at}.{key}", before, after)
        elif key in _LONGER:
            if before is None or after is None or after > before:
                yield Weakening(f"{at}.{key}", before, after)
        elif key != "fresh_start" or not after:
            yield Weakening(f"{at}.{key}", before, after)


def _prompt(at: str, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> Iterator[Weakening]:
    if old is None:
        return  # a control that was added
    if new is None:
        yield Weakening(at, old["prompt_sha256"], None)
        return
    if new["tokens"] < old["tokens"]:
        yield Weakening(f"{at}.tokens", old["tokens"], new["tokens"])
        return
    for key in ("source", "seed", "id_range"):
        if old.get(key) != new.get(key):
            yield Weakening(f"{at}.{key}", old.get(key), new.get(key))
            return
    # A longer seeded prompt begins with the shorter one; any other text is another prompt.
    if new["source"] != "seeded" and new["prompt_sha256"] != old["prompt_sha256"]:
        yield Weakening(f"{at}.prompt_sha256", old["prompt_sha256"], new["prompt_sha256"])


def _criterion(at: str, old: Mapping[str, Any], new: Mapping[str, Any], samples: _Samples) -> Iterator[Weakening]:
    for key in ("stage", "metric", "aggregate", "by", "include_control"):
        if old[key] != new[key]:
            yield Weakening(f"{at}.{key}", old[key], new[key])
    share = samples.share(old)
    over = ("", "") if share == 1 else (f" over {samples.before} samples", f" over {samples.after} samples")
    if _looser_bound(old, new, share):
        before, after = (f"{item['op']} {item['value']}{text}" for item, text in zip((old, new), over, strict=True))
        yield Weakening(f"{at}.value", before, after)
    if samples.grew and _one_suffices(old):
        yield Weakening(f"{at}.samples", samples.before, samples.after)
    if _looser_second(old, new, share):
        yield Weakening(f"{at}.deviate_to", old["deviate_to"], new["deviate_to"])


@dataclass(frozen=True)
class _Samples:
    """How many samples a criterion expects in both registrations. Fewer are named at the stage."""

    before: int
    after: int

    @property
    def grew(self) -> bool:
        return self.after > self.before

    def share(self, criterion: Mapping[str, Any]) -> Fraction:
        """What the least sum that is asked for grows by, so that as large a part of the samples may fail as before."""
        asks_a_sum = criterion["aggregate"] == "sum" and criterion["op"] in _AT_LEAST
        return Fraction(self.after, self.before) if self.grew and asks_a_sum else Fraction(1)


_AT_LEAST: Final = frozenset({">", ">=", "=="})
_AT_MOST: Final = frozenset({"<", "<=", "=="})


def _one_suffices(criterion: Mapping[str, Any]) -> bool:
    """Whether one sample more can meet a bound that all the others miss: the more of them, the easier it is met."""
    name, op, value = criterion["aggregate"], criterion["op"], Fraction(criterion["value"])
    # ``==`` at the end of the range (no death, one value, all acknowledged) is a promise of every sample.
    if name in {"max", "distinct"}:
        return op in _AT_LEAST and not (op == "==" and value <= (1 if name == "distinct" else 0))
    return name == "min" and op in _AT_MOST and not (op == "==" and value >= 1)


def _expected_samples(criterion: Mapping[str, Any], resolved: Mapping[str, Any]) -> int:
    stage = next(item for item in resolved["stage"] if item["name"] == criterion["stage"])
    controls = bool(stage["control"] and criterion["include_control"])
    scope = METRICS[criterion["metric"]].scope
    return soak_samples(scope, int(stage["runs"]), int(stage["reps"]), with_controls=controls)


def _looser_bound(old: Mapping[str, Any], new: Mapping[str, Any], share: Fraction) -> bool:
    """Whether something that the old bound refuses could meet the new one, or the two cannot be compared."""
    before, after = Fraction(old["value"]) * share, Fraction(new["value"])
    old_op, new_op = old["op"], new["op"]
    if old_op == "==":
        return bool(new_op != "==" or before != after)
    if new_op == "==":  # stricter where the one value met the old bound
        met = {">=": after >= before, ">": after > before, "<=": after <= before, "<": after < before}
        return not met[old_op]
    if old_op[0] != new_op[0]:
        return True
    if before == after:
        return bool(len(old_op) < len(new_op))  # > became >=, < became <=
    return after < before if old_op[0] == ">" else after > before


def _looser_second(old: Mapping[str, Any], new: Mapping[str, Any], share: Fraction) -> bool:
    if new["deviate_to"] is None:
        return False
    if old["deviate_to"] is None or old["op"][0] != new["op"][0]:
        return True
    before, after = Fraction(old["deviate_to"]) * share, Fraction(new["deviate_to"])
    return after < before if new["op"][0] == ">" else after > before
