"""Registration: freezing a spec in the ledger before any run, and finding what was frozen (DESIGN section 6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from campaigns import registry, sizes
from campaigns.registry import LoadedSpec
from campaigns.spec import FilePrompt, TextPrompt, resolve, resolved_sha256
from campaigns.weaker import weaker_than
from ledger.entry import MAX_DOCUMENT_BYTES, MAX_LEAF_BYTES, Entry, Ref
from ledger.reader import LedgerReader
from ledger.store import Ledger
from producer.lane import Lane
from receipts import canonical
from receipts.errors import InputError
from receipts.leaves import Registration
from receipts.store import read_bounded


@dataclass(frozen=True)
class Registered:
    """A registration as it stands in the ledger."""

    entry: Entry
    data: Registration
    fresh: bool
    """Whether this call made it."""


def register(ledger: Ledger, loaded: LoadedSpec, resolved: dict[str, Any], reason: str | None) -> Registered:
    """Freeze the spec by raw and resolved digest; the ledger signs a checkpoint over a registration.

    The same spec again changes nothing. A changed one becomes an amendment that names its parent; what it promises
    less than any earlier registration of the id is written into it.
    """
    campaign = loaded.spec.id
    require_reason(reason)
    ledger.signing_key()  # a lost key is found before the entry that it is to sign over

    def build(reader: LedgerReader) -> tuple[str, Any, Ref | None]:
        # Read under the write lock: what another process registers meanwhile is compared with too.
        earlier = list(reader.entries(kinds={"registration"}, subject=campaign))
        if earlier:
            _require_reason(earlier[-1], loaded, resolved, reason)
        return campaign, _registration(reader, earlier, loaded, resolved, reason).document(), None

    try:
        entry = ledger.append_built("registration", build)
    except _UnchangedError as unchanged:
        return Registered(unchanged.entry, Registration.read(unchanged.entry.data), False)
    return Registered(entry, Registration.read(entry.data), True)


def require_reason(reason: str | None) -> None:
    """Raises InputError for a reason that says nothing, or is longer than a registration keeps."""
    if reason is not None and not reason.strip():
        raise InputError("an empty reason says nothing", where="--reason")
    size = 0 if reason is None else len(canonical.dumps(reason))
    if size > sizes.MAX_REASON_BYTES:
        raise InputError(f"the reason has {size} bytes, and the most that is kept is {sizes.MAX_REASON_BYTES}")


class _UnchangedError(Exception):
    """The last registration is of this very spec: nothing is appended."""

    def __init__(self, entry: Entry) -> None:
        super().__init__(entry.seq)
        self.entry = entry


def _require_reason(latest: Entry, loaded: LoadedSpec, resolved: dict[str, Any], reason: str | None) -> None:
    last = Registration.read(latest.data)
    if (last.spec_sha256, last.resolved_sha256) == (loaded.spec_sha256, resolved_sha256(resolved)):
        raise _UnchangedError(latest)
    if reason is None:
        raise InputError(
            f"{loaded.spec.id} is registered with another text or another meaning (entry {latest.seq})",
            where=loaded.source,
            details=difference(last, loaded, resolved),
            next_step="amend it with --reason TEXT: the amendment is kept beside what it amends",
        )


def _registration(
    reader: LedgerReader, earlier: Sequence[Entry], loaded: LoadedSpec, resolved: dict[str, Any], reason: str | None
) -> Registration:
    campaign = loaded.spec.id
    registration = Registration(
        campaign=campaign,
        family=loaded.spec.family,
        spec_sha256=loaded.spec_sha256,
        resolved_sha256=resolved_sha256(resolved),
        spec=loaded.raw.decode("utf-8"),
        resolved=resolved,
        parent_seq=earlier[-1].seq if earlier else None,
        after_attempt=_attempts(reader, campaign) if earlier else None,
        reason=reason,
        weaker=_weaker(earlier, resolved),
    )
    _require_room_for_weaker(registration, loaded)
    return registration


def _require_room_for_weaker(registration: Registration, loaded: LoadedSpec) -> None:
    """What is weaker stands in the registration and in every verdict: neither may become larger than an entry."""
    size = len(canonical.dumps(registration.document()))
    verdict = sizes.verdict_bytes(loaded.spec, weaker=registration.weaker)
    if size > MAX_LEAF_BYTES - _LEAF_AROUND_BYTES or verdict > MAX_DOCUMENT_BYTES:
        raise InputError(
            f"it is weaker than the earlier registrations in {len(registration.weaker)} places, and an entry of the "
            "ledger holds no more",
            where=loaded.source,
            next_step="register what promises so much less under an id of its own; the family may stay",
        )


_LEAF_AROUND_BYTES: Final = 1024
"""What a leaf holds around a registration: origin, digests, host, tool."""


def require_registered(ledger: Ledger, loaded: LoadedSpec, resolved: dict[str, Any]) -> Registered:
    """The registration that this very spec has. Raises InputError showing the difference in either digest."""
    latest = ledger.latest("registration", loaded.spec.id)
    if latest is None:
        raise InputError(
            f"{loaded.spec.id} was never registered in this ledger",
            where=str(ledger.home.path),
            next_step=f"run `soakledger campaign register {_named(loaded)}` before any run",
        )
    data = Registration.read(latest.data)
    if (data.spec_sha256, data.resolved_sha256) != (loaded.spec_sha256, resolved_sha256(resolved)):
        raise InputError(
            f"{loaded.spec.id} has changed since it was registered (entry {latest.seq})",
            where=loaded.source,
            details=difference(data, loaded, resolved),
            next_step="launch the registered spec, or register the change as an amendment with --reason",
        )
    _require_room_for_earlier(ledger, loaded, data)
    return Registered(latest, data, False)


def _require_room_for_earlier(ledger: Ledger, loaded: LoadedSpec, data: Registration) -> None:
    """An attempt whose verdict would not fit is not opened: every verdict names all of its family before it."""
    opened = (entry.data for entry in ledger.entries(kinds={"attempt_open"}))
    earlier = [(item["campaign"], item["attempt"]) for item in opened if item["family"] == data.family]
    size = sizes.verdict_bytes(loaded.spec, weaker=data.weaker, earlier=earlier)
    if size > MAX_DOCUMENT_BYTES:
        raise InputError(
            f"the verdict could have {size} bytes, and the most that an entry takes is {MAX_DOCUMENT_BYTES}: it names "
            f"each of the {len(earlier)} attempts of the family {data.family}",
            where=loaded.source,
            next_step="register it under an id and a family of its own",
        )


def difference(registered: Registration, loaded: LoadedSpec, resolved: dict[str, Any]) -> list[str]:
    """What changed in one line, then both digests and, where one differs, what differs: lines safe to print."""
    lines = [
        registry.changes_in_words(registered.resolved, resolved),
        f"spec     registered {registered.spec_sha256}",
        f"         now        {loaded.spec_sha256}",
        f"resolved registered {registered.resolved_sha256}",
        f"         now        {resolved_sha256(resolved)}",
    ]
    if registered.spec_sha256 != loaded.spec_sha256:
        return lines + registry.raw_difference(registered.spec.encode("utf-8"), loaded.raw)
    # The same text with another meaning: of a prompt file, of a tokenizer, of a default.
    return lines + registry.resolved_difference(registered.resolved, resolved)


def resolved_for(loaded: LoadedSpec, lane: Lane | None) -> tuple[dict[str, Any], dict[str, list[int]]]:
    """The resolved spec, and the token ids of its text and file prompts by digest.

    Those need the lane's tokenizer: without a lane they are refused.
    """
    ids_by_digest: dict[str, list[int]] = {}

    def read_prompt(prompt: TextPrompt | FilePrompt) -> Sequence[int]:
        from producer.requests import tokenise
        from receipts.prompts import prompt_sha256

        if lane is None:
            raise InputError(
                f"a prompt from {prompt.source} needs the lane's tokenizer",
                where=loaded.source,
                next_step="give --lane",
            )
        ids = tokenise(lane.producer.checkpoint, _prompt_text(prompt, loaded))
        ids_by_digest[prompt_sha256(ids)] = ids
        return ids

    return resolve(loaded.spec, read_prompt), ids_by_digest


def stage_tables(resolved: dict[str, Any], ids_by_digest: dict[str, list[int]]) -> list[dict[str, Any]]:
    """The stages of a resolved spec with the token ids beside prompts that are not seeded."""
    tables = []
    for stage in resolved["stage"]:
        table = dict(stage)
        for key in ("prompt", "control"):
            prompt = table.get(key)
            if prompt and prompt["prompt_sha256"] in ids_by_digest:
                table[key] = {**prompt, "ids": ids_by_digest[prompt["prompt_sha256"]]}
        tables.append(table)
    return tables


def _prompt_text(prompt: TextPrompt | FilePrompt, loaded: LoadedSpec) -> str:
    from producer.requests import MAX_LINE_BYTES

    if isinstance(prompt, TextPrompt):
        return prompt.text
    if loaded.folder is None:
        raise InputError(
            "its prompt is a file that lies beside the spec", where=loaded.source, next_step="name the spec by its path"
        )
    path = loaded.folder / prompt.path
    try:
        return read_bounded(path, MAX_LINE_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"the prompt file cannot be read: {why}", where=str(path)) from None


def _weaker(earlier: Sequence[Entry], resolved: dict[str, Any]) -> tuple[dict[str, str | None], ...]:
    found = []
    for entry in earlier:
        for item in weaker_than(entry.data["resolved"], resolved):
            shown = item.document()
            found.append(
                {
                    "field": str(shown["field"]),
                    "old": _text(shown["old"]),
                    "new": _text(shown["new"]),
                    "than_seq": str(entry.seq),
                }
            )
    return tuple(found)


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else canonical.dumps(value).decode("utf-8")


def _attempts(ledger: LedgerReader, campaign: str) -> int:
    return sum(1 for _ in ledger.entries(kinds={"attempt_open"}, subject_prefix=f"{campaign}/"))


def _named(loaded: LoadedSpec) -> str:
    """How the spec is named on a command line: a shipped one by its id, another by its path."""
    return loaded.spec.id if loaded.folder is None else loaded.source
