"""Every metric: name, unit, kind, range, scope, and the exact function that derives it (DESIGN sections 3 and 5).

The only place where a figure is derived from what was observed. Pure; figures are fractions, never floats. A
function gives an Observation: the value, or why there is none to trust.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, Literal

from receipts import canonical

Kind = Literal["acknowledgement", "deaths", "duration", "rate", "digest", "identity", "size", "count"]
Scope = Literal["rep", "run", "stage"]
Value = Fraction | str
Body = Mapping[str, Any]

NS_PER_S: Final = 10**9
SLEEP_TOLERANCE_NS: Final = 50_000_000
"""How far two clock readings beside one another may drift apart before the host is said to have slept: the
counting and the stopping clock are read one after the other, and a preempted process is not a sleeping host."""
SHOWN_DIGITS: Final = 9


@dataclass(frozen=True)
class Observation:
    """One metric of one rep: a value, or ``untrusted`` with the reason, or neither (it was not observed)."""

    value: Value | None
    untrusted: str | None = None


NOT_OBSERVED: Final = Observation(None)


@dataclass(frozen=True)
class Metric:
    """One metric. ``low`` and ``high`` end its range; None is no end, and digests have none at all."""

    name: str
    unit: str
    kind: Kind
    scope: Scope
    low: Fraction | None
    high: Fraction | None
    stage_kinds: frozenset[str]
    transfers: frozenset[str]
    modes: frozenset[str]
    """Producer modes in which this release can observe it; exact is not built yet, so it is in none."""
    of_body: Callable[[Body], Observation] | None
    """From a handoff's body; None for metrics of events, of admissions and of runs."""


def instance_text(block: Body) -> str:
    """``host/boot_id/pid/start_ticks`` of anything that has the four."""
    return f"{block['host']}/{block['boot_id']}/{block['pid']}/{block['start_ticks']}"


def _instance(body: Body) -> Observation:
    producer = body["producer"]
    return NOT_OBSERVED if producer is None else Observation(instance_text(producer))


def _text(name: str) -> Callable[[Body], Observation]:
    return lambda body: Observation(body[name])


def _of_producer(name: str) -> Callable[[Body], Observation]:
    def read(body: Body) -> Observation:
        producer = body["producer"]
        if producer is None or producer[name] is None:
            return NOT_OBSERVED
        return Observation(Fraction(producer[name]))

    return read


def _payload_bytes(body: Body) -> Observation:
    size = body["payload_bytes"]
    return NOT_OBSERVED if size is None else Observation(Fraction(size))


def _total_s(body: Body) -> Observation:
    runner = body["runner"]
    elapsed = int(runner["ended_ns"]) - int(runner["started_ns"])
    awake = int(runner["awake_end_ns"]) - int(runner["awake_start_ns"])
    return _duration(elapsed, abs(elapsed - awake))


def _prefill_s(body: Body) -> Observation:
    return _producer_span(body, "compute_start_ns", "last_token_ns")


def _burst_gbps(body: Body) -> Observation:
    """Payload bits ÷ (first byte sent → verified ACK), 10⁹ bit/s; only where nothing was sent before the last token."""
    size = body["payload_bytes"]
    if body["transfer"] != "after" or size is None:
        return NOT_OBSERVED
    span = _producer_span(body, "first_byte_ns", "ack_ns")
    if not isinstance(span.value, Fraction):
        return span
    if span.value == 0:
        return Observation(None, "the burst took no time at all")
    return Observation(Fraction(size * 8) / (span.value * NS_PER_S))


def _producer_span(body: Body, start: str, end: str) -> Observation:
    producer = body["producer"]
    if producer is None or producer[start] is None or producer[end] is None:
        return NOT_OBSERVED
    return _duration(int(producer[end]) - int(producer[start]), _slept_ns(producer))


def _slept_ns(producer: Body) -> int:
    """How long the producer's host slept during the request: what the counting clock has over the stopping one."""
    names = ("request_ns", "ack_ns", "awake_start_ns", "awake_end_ns")
    if any(producer[name] is None for name in names):
        return 0
    counting = int(producer["ack_ns"]) - int(producer["request_ns"])
    stopping = int(producer["awake_end_ns"]) - int(producer["awake_start_ns"])
    # The awake pair also spans what lies behind the ACK, so only an excess of the counting clock says sleep.
    return max(0, counting - stopping)


def _duration(elapsed_ns: int, slept_ns: int) -> Observation:
    if elapsed_ns < 0:
        return Observation(None, f"negative duration of {elapsed_ns} ns")
    if slept_ns > SLEEP_TOLERANCE_NS:
        return Observation(None, f"the host slept: its clocks differ by {slept_ns} ns")
    return Observation(Fraction(elapsed_ns, NS_PER_S))


_SOAK: Final = frozenset({"soak"})
_ANY: Final = frozenset({"after", "streaming"})
_AFTER: Final = frozenset({"after"})
_BUILT_MODES: Final = frozenset({"native"})
_ZERO: Final = Fraction(0)

BURST_RATIO: Final = "handoff.burst_last3_over_first3"
ACKNOWLEDGED: Final = "handoff.acknowledged"
DEATHS: Final = "producer.deaths"
BURST: Final = "handoff.burst_gbps"
BURST_REPS: Final = 3
MOST_DEATHS: Final = 64
"""Deaths that one criterion lists: a verdict is one entry, however often a producer died. All of them are counted."""
ACK_LABEL: Final = b"soakledger/ack/1\n"
_NO_RECORD: Final = "sha256:" + "0" * 64
"""What record 1 names as the one before it."""


def _metric(
    name: str,
    unit: str,
    kind: Kind,
    of_body: Callable[[Body], Observation] | None,
    *,
    scope: Scope = "rep",
    low: Fraction | None = _ZERO,
    high: Fraction | None = None,
    transfers: frozenset[str] = _ANY,
) -> Metric:
    return Metric(name, unit, kind, scope, low, high, _SOAK, transfers, _BUILT_MODES, of_body)


METRICS: Final[Mapping[str, Metric]] = {
    item.name: item
    for item in (
        _metric(ACKNOWLEDGED, "1", "acknowledgement", None, high=Fraction(1)),
        _metric("handoff.payload_root", "digest", "digest", _text("payload_root"), low=None),
        _metric("handoff.tensors_root", "digest", "digest", _text("tensors_root"), low=None),
        _metric(BURST, "Gbit/s", "rate", _burst_gbps, transfers=_AFTER),
        _metric(BURST_RATIO, "1", "rate", None, scope="run", transfers=_AFTER),
        _metric("handoff.total_s", "s", "duration", _total_s),
        _metric("handoff.prefill_s", "s", "duration", _prefill_s),
        _metric("handoff.payload_bytes", "B", "size", _payload_bytes),
        _metric("producer.instance", "instance", "identity", _instance, low=None),
        _metric(DEATHS, "deaths", "deaths", None),
        _metric("producer.rss_bytes", "B", "size", _of_producer("rss_bytes")),
        _metric("producer.free_blocks", "blocks", "count", _of_producer("free_blocks")),
        _metric("producer.fds", "descriptors", "count", _of_producer("fds")),
        _metric("producer.threads", "threads", "count", _of_producer("threads")),
    )
}


def burst_ratio(bursts: list[Fraction]) -> Fraction | None:
    """Sum of the last three bursts ÷ sum of the first three; None under six reps or over a sum of zero."""
    if len(bursts) < 2 * BURST_REPS or not (first := sum(bursts[:BURST_REPS])):
        return None
    return sum(bursts[-BURST_REPS:], _ZERO) / first


def is_acknowledged(handoff: Body, admission: Body | None, opened: Body, enrollment: Body | None) -> bool:
    """Whether a handoff counts as acknowledged: every part of its proof holds for the identity of its attempt.

    The outcome is ``acknowledged``, the admission receipt is there with the digest that the handoff names, both roots
    are equal, the producer is the enrolled one (``opened`` is the attempt's ``attempt_open``), and the signature
    verifies with the public key of the attempt's ``enrollment``.
    """
    receiver, producer = handoff["receiver"], handoff["producer"]
    if handoff["outcome"] != "acknowledged" or None in (admission, receiver, producer, enrollment):
        return False
    assert admission is not None and enrollment is not None
    if canonical.sha256(canonical.file_bytes(dict(admission))) != receiver["admission"]:
        return False
    if admission["handoff_id"] != handoff["handoff_id"] or admission["root"] != receiver["root"]:
        return False
    if handoff["payload_root"] != receiver["root"] or admission["prompt_sha256"] != handoff["prompt_sha256"]:
        return False
    if any(producer[name] != opened[name] for name in ("identity", "cache_identity")):
        return False  # bytes of another identity are comparable with nothing that was registered
    return receiver["enrollment_seq"] == opened["enrollment_seq"] and _signature_holds(enrollment, handoff, admission)


def _signature_holds(enrollment: Body, handoff: Body, admission: Body) -> bool:
    """The receiver's Ed25519 signature over what it admitted (DESIGN section 9), with the enrolled public key."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    producer = handoff["producer"]
    statement = {
        "lane": enrollment["lane"],
        "receiver": enrollment["receiver"],
        "identity": producer["identity"],
        "cache_identity": producer["cache_identity"],
        "mode": producer["mode"],
        "handoff_id": handoff["handoff_id"],
        "prompt_sha256": handoff["prompt_sha256"],
        "root": handoff["payload_root"],
        "total_bytes": handoff["payload_bytes"],
        "nonce_p": admission["nonces"]["p"],
        "nonce_r": admission["nonces"]["r"],
    }
    try:
        key = Ed25519PublicKey.from_public_bytes(_raw(enrollment["receiver_public_key"]))
        key.verify(_raw(admission["sig"]), ACK_LABEL + canonical.dumps(statement))
    except (InvalidSignature, ValueError):
        return False
    return True


def _raw(text: str) -> bytes:
    prefix, _, encoded = text.partition(":")
    if prefix != "ed25519":
        raise ValueError("not an ed25519 key or signature")
    return canonical.from_base64(encoded)


def is_gapless(events: Sequence[Body], heads: Sequence[Body]) -> bool:
    """Whether the journal that was taken in is one chain from record 1, and the one that the handoffs saw.

    ``events``: data of ``process_event`` entries; ``heads``: {n, head} of each handoff, in their order. A head that is
    not in the chain, or a shorter one after a longer, says that the journal was cut or forked between reps.
    """
    records = sorted(events, key=journal_n)
    digests = [_NO_RECORD]
    for n, event in enumerate(records, 1):
        record = event["record"]
        if record["n"] != n or record["prev"] != digests[-1]:
            return False
        if canonical.sha256(canonical.file_bytes(dict(record))) != event["record_sha256"]:
            return False
        digests.append(event["record_sha256"])
    if not records or any(later["n"] < earlier["n"] for earlier, later in itertools.pairwise(heads)):
        return False
    return all(head["n"] < len(digests) and digests[head["n"]] == head["head"] for head in heads)


_END_OF_BOOT_NS: Final = 1 << 61
"""Later than any stamp: 73 years of one boot."""


def deaths_on(events: Sequence[Body], host: str, boot_id: str) -> list[tuple[int, Body, bool]]:
    """(died_ns, body, injected) of each death there; an instance dies once, as its first record says.

    A death that was written under a later boot of the host lies behind every stamp of its instance's boot.
    """
    seen: set[str] = set()
    found = []
    for event in sorted(events, key=journal_n):
        record = event["record"]
        if record["kind"] != "death" or record["host"] != host:
            continue
        body = record["body"]
        if record["boot_id"] == boot_id:
            died_ns = int(body["died_ns"])
        elif body["instance"]["boot_id"] == boot_id:
            died_ns = _END_OF_BOOT_NS
        else:
            continue
        name = instance_text(body["instance"])
        if name not in seen:
            seen.add(name)
            found.append((died_ns, body, bool(event["injected"])))
    return found


def journal_n(event: Body) -> int:
    """The number of a taken-in record in its journal."""
    return int(event["record"]["n"])


def unobserved(stage: Body, receipts: Iterable[Body]) -> list[tuple[int, int]]:
    """(run, rep) of each registered rep of a soak (its resolved table) that no handoff receipt speaks of, in order.

    A verdict says how many samples are missing; which reps nobody observed is derived here and nowhere else. One that
    was cut short was observed to its interruption and is none of these.
    """
    seen = {
        (item["run"], item["rep"])
        for item in receipts
        if item["kind"] == "handoff" and item["stage"] == stage["name"] and item["case"] is None
    }
    places = itertools.product(range(1, stage["runs"] + 1), range(1, stage["reps"] + 1))
    return [place for place in places if place not in seen]


def measure_receipt(envelope: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Rows ``(metric, exact, shown)`` of one receipt for people's queries; a metric without a value has no row."""
    if envelope["kind"] != "handoff":
        return []
    rows = []
    for metric in METRICS.values():
        if metric.of_body is None:
            continue
        value = metric.of_body(envelope["body"]).value
        if value is not None:
            rows.append((metric.name, exact_text(value), shown_text(value)))
    return rows


def exact_text(value: Value) -> str:
    """``num/den`` of a fraction; text as it is."""
    return value if isinstance(value, str) else f"{value.numerator}/{value.denominator}"


def shown_text(value: Value, *, up: bool = False) -> str:
    """A fraction with 9 significant digits, rounded down, or up where that is toward failing; text as it is."""
    if isinstance(value, str):
        return value
    if value == 0:
        return "0"
    exponent = _magnitude(abs(value)) - SHOWN_DIGITS
    scaled = value / 10**exponent if exponent >= 0 else value * 10**-exponent
    digits = -(-scaled.numerator // scaled.denominator) if up else scaled.numerator // scaled.denominator
    return ("-" if value < 0 else "") + _placed(abs(digits), exponent)


def _magnitude(size: Fraction) -> int:
    """The least e with ``size`` < 10^e, from the lengths in bits and a comparison or two where they leave it open."""
    bits = size.numerator.bit_length() - size.denominator.bit_length()  # 2^(bits - 1) < size < 2^(bits + 1)
    least = (bits - 1) * 30103 // 100_000 - 1  # log10(2) is 4·10^-9 less: never too high under 10^8 bits
    while not _is_below(size, least):
        least += 1
    return least


def _is_below(size: Fraction, exponent: int) -> bool:
    numerator, denominator = size.as_integer_ratio()
    if exponent >= 0:
        return bool(numerator < denominator * 10**exponent)
    return bool(numerator * 10**-exponent < denominator)


def _placed(digits: int, exponent: int) -> str:
    if exponent >= 0:
        return str(digits) + "0" * exponent
    text = str(digits).rjust(1 - exponent, "0")
    return f"{text[:exponent]}.{text[exponent:]}".rstrip("0").rstrip(".")
