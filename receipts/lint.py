"""Strict reading of a TOML file against a model: every fault at once, each with its line.

A fault is one line ``file:line: key.path: what (did you mean 'nearest'?)``. A misspelt key is read as the key it
was meant to be after it was reported, so that it costs one line, not two, and everything behind it is still checked.
"""

from __future__ import annotations

import re
import stat
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, DecimalException
from pathlib import Path
from typing import Annotated, Any, Final, Generic, Literal, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from receipts.errors import FaultsError, InputError
from receipts.names import UnknownWordError, one_line, quoted
from receipts.nearest import LIKE_VALUE, nearest
from receipts.toml_lines import KeyPath, LineMap, line_map, path_text, second_mention

MAX_FILE_BYTES: Final = 1 << 20

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class Fault:
    """One thing wrong at one place; ``meant`` is the nearest valid name, if one is near."""

    line: int
    path: KeyPath
    what: str
    meant: str | None = None

    def text(self, source: str) -> str:
        place = f"{source}:{self.line}: " + (f"{path_text(self.path)}: " if self.path else "")
        return place + self.what + (f" (did you mean {quoted(self.meant)}?)" if self.meant else "")


@dataclass(frozen=True)
class Document:
    """A TOML document as read: raw bytes, values (floats as Decimal), and the line of every key."""

    source: str
    raw: bytes
    data: Mapping[str, Any]
    lines: LineMap

    def fault(self, path: KeyPath, what: str, meant: str | None = None) -> Fault:
        """A fault at ``path``, with its line."""
        return Fault(self.lines.line_of(path), path, what, meant)


@dataclass(frozen=True)
class Inspection(Generic[Model]):
    """What reading a document against a model gave: the value, None with faults, and what was written where.

    ``data`` is the document with misspelt keys read as meant; ``written`` maps a path in it to the path as written.
    """

    document: Document
    value: Model | None
    data: Mapping[str, Any]
    faults: tuple[Fault, ...]
    written: Mapping[KeyPath, KeyPath]

    def fault(self, path: KeyPath, what: str, meant: str | None = None) -> Fault:
        """A fault at ``path`` of ``data``, shown at the place where that was written."""
        return self.document.fault(_as_written(path, self.written), what, meant)

    def checked(self, more: Iterable[Fault] = ()) -> Model:
        """The value; FaultsError with every fault, ``more`` included, ordered by line."""
        faults = {fault.text(self.document.source): fault for fault in (*self.faults, *more)}
        if faults or self.value is None:
            raise FaultsError(sorted(faults, key=lambda text: (faults[text].line, path_text(faults[text].path))))
        return self.value


def read_document(path: Path) -> Document:
    """Read and parse ``path``. FaultsError or InputError, each one clear message."""
    source = one_line(str(path), 400)
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise InputError("is a directory, not a TOML file", where=source)
        if not stat.S_ISREG(mode):
            raise InputError("is not a regular file", where=source)
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise InputError("no such file", where=source) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(f"cannot be read: {reason}", where=source) from None
    return parse_document(raw, source)


def parse_document(raw: bytes, source: str) -> Document:
    """Parse the bytes of a TOML file; ``source`` names it in messages. Raises FaultsError with one fault."""
    if len(raw) > MAX_FILE_BYTES:
        raise FaultsError([f"{source}:1: larger than {MAX_FILE_BYTES} bytes, the most that is read"])
    if raw.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        raise FaultsError([f"{source}:1: begins with a byte order mark; save it as UTF-8 without one"])
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise FaultsError([f"{source}:{line}: not UTF-8: {error.reason} at byte {error.start}"]) from None
    try:
        data = tomllib.loads(text, parse_float=Decimal)
    except RecursionError:
        raise FaultsError([f"{source}:1: not TOML we read: nested too deeply"]) from None
    except (ValueError, DecimalException) as error:  # TOMLDecodeError is a ValueError
        raise FaultsError([_syntax_fault(error, text, source)]) from None
    return Document(source, raw, data, line_map(text))


def inspect(document: Document, model: type[Model]) -> Inspection[Model]:
    """Read ``document`` as ``model``; collects every fault, raises none."""
    speller = _Speller(document)
    data = speller.read(document.data, model, None, ())
    value: Model | None = None
    faults = list(speller.faults)
    try:
        value = model.model_validate(data)
    except ValidationError as error:
        for found in error.errors(include_url=False):
            path, what, meant = _told(found, model)
            faults.append(document.fault(_as_written(path, speller.written), what, meant))
    return Inspection(document, None if faults else value, data, tuple(faults), dict(speller.written))


def load(path: Path, model: type[Model]) -> Model:
    """Read ``path`` strictly as ``model``. FaultsError with all faults."""
    return inspect(read_document(path), model).checked()


def _syntax_fault(error: Exception, text: str, source: str) -> str:
    message = str(error)
    place = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)$", message)
    if place is None:  # a number of more digits than Python converts, or an exponent past Decimal's
        number = re.search(r"[0-9_]{4000,}|[eE][+-]?[0-9_]{16,}", text)
        line = text.count("\n", 0, number.start()) + 1 if number else 1
        return f"{source}:{line}: not TOML we read: a number is too long"
    what = one_line(message[: place.start()], 200)
    if re.match(r"Cannot (overwrite|declare|mutate)|Duplicate inline", message):
        last = int(place.group(1)) if place.group(1) else text.count("\n") + 1
        if (twice := second_mention(text, last)) is not None:
            path, first, second = twice
            return f"{source}:{second}: {path_text(path)}: is defined twice; the first stands in line {first}"
    if place.group(1) is None:
        return f"{source}:{text.rstrip().count(chr(10)) + 1}: not TOML: {what} (at the end of the file)"
    return f"{source}:{place.group(1)}: not TOML: {what} (column {place.group(2)})"


# Shapes: what a model's annotation says about a place in the document.


@dataclass(frozen=True)
class _Shape:
    kind: Literal["table", "choice", "items", "values", "words", "other"]
    model: type[BaseModel] | None = None
    inner: Any = None  # of items and values
    members: Mapping[str, type[BaseModel]] | None = None  # of a choice, by tag
    discriminator: str = ""
    words: tuple[str, ...] = ()


_OTHER: Final = _Shape("other")


def _shape(annotation: Any, field: FieldInfo | None = None) -> _Shape:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        inner_field = next((item for item in arguments[1:] if isinstance(item, FieldInfo)), field)
        return _shape(arguments[0], inner_field)
    if origin in (typing.Union, types.UnionType):
        members = [item for item in arguments if item is not type(None)]
        if len(members) == 1:
            return _shape(members[0], field)
        if field is not None and isinstance(field.discriminator, str):
            return _choice(members, field.discriminator)
        return _OTHER
    if origin is Literal:
        return _Shape("words", words=tuple(str(word) for word in arguments))
    if origin in (tuple, list):
        return _Shape("items", inner=arguments[0])
    if origin in (dict, Mapping):
        return _Shape("values", inner=arguments[1])
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _Shape("table", model=annotation)
    return _OTHER


def _choice(members: Sequence[Any], discriminator: str) -> _Shape:
    by_tag: dict[str, type[BaseModel]] = {}
    for member in members:
        model = typing.get_args(member)[0] if typing.get_origin(member) is Annotated else member
        for tag in _shape(model.model_fields[discriminator].annotation).words:
            by_tag[tag] = model
    return _Shape("choice", members=by_tag, discriminator=discriminator)


def _offered(members: Mapping[str, type[BaseModel]]) -> list[str]:
    """The tags to offer for a mistyped one: a model with ``OFFERED = False`` names what can only be refused."""
    return [tag for tag, model in members.items() if getattr(model, "OFFERED", True)]


def _fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    return {field.alias or name: field for name, field in model.model_fields.items()}


class _Speller:
    """Reads misspelt keys and tags as what they were meant to be, and reports each once."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.faults: list[Fault] = []
        self.written: dict[KeyPath, KeyPath] = {}

    def read(self, value: Any, annotation: Any, field: FieldInfo | None, path: KeyPath) -> Any:
        shape = _shape(annotation, field)
        if shape.kind == "items" and isinstance(value, list):
            return [self.read(item, shape.inner, None, (*path, index)) for index, item in enumerate(value)]
        if not isinstance(value, Mapping):
            return value
        if shape.kind == "values":
            return {key: self.read(item, shape.inner, None, (*path, key)) for key, item in value.items()}
        if shape.kind == "choice":
            value, member = self._tagged(value, shape, path)
            return value if member is None else self._table(value, member, path)
        if shape.kind == "table" and shape.model is not None:
            return self._table(value, shape.model, path)
        return value

    def _tagged(
        self, value: Mapping[str, Any], shape: _Shape, path: KeyPath
    ) -> tuple[Mapping[str, Any], type[BaseModel] | None]:
        members, key = shape.members or {}, shape.discriminator
        if key not in value:
            known = {name for member in members.values() for name in _fields(member)}
            likely = [name for name in value if name not in known and nearest(name, [key])]
            if not likely:
                return value, None
            value = self._renamed(value, {likely[0]: key}, path)
        tag = value[key]
        if isinstance(tag, str) and tag not in members:
            offered = _offered(members)
            meant = nearest(tag, offered, LIKE_VALUE)
            if meant is None:
                return value, None
            self._report((*path, key), _none_of(tag, offered), meant)
            return {**value, key: meant}, members[meant]
        return value, members.get(tag) if isinstance(tag, str) else None

    def _table(self, value: Mapping[str, Any], model: type[BaseModel], path: KeyPath) -> Mapping[str, Any]:
        if model.model_config.get("extra") == "allow":
            return value
        fields = _fields(model)
        absent = [key for key in fields if key not in value]
        renamed: dict[str, str] = {}
        dropped: set[str] = set()
        for key in value:
            if key in fields:
                continue
            meant = nearest(key, absent)
            if meant is not None:
                absent.remove(meant)
                renamed[key] = meant
                continue
            dropped.add(key)
            near = nearest(key, fields)
            known = "" if near else f"; known here: {', '.join(fields)}"
            self._report((*path, key), f"unknown key{known}", near)
        value = self._renamed({key: item for key, item in value.items() if key not in dropped}, renamed, path)
        return {key: self.read(item, fields[key].annotation, fields[key], (*path, key)) for key, item in value.items()}

    def _renamed(self, value: Mapping[str, Any], names: Mapping[str, str], path: KeyPath) -> Mapping[str, Any]:
        for key, meant in names.items():
            self._report((*path, key), "unknown key", meant)
            self.written[(*path, meant)] = (*_as_written(path, self.written), key)
        return {names.get(key, key): item for key, item in value.items()}

    def _report(self, path: KeyPath, what: str, meant: str | None) -> None:
        self.faults.append(self.document.fault(_as_written(path, self.written), what, meant))


def _as_written(path: KeyPath, written: Mapping[KeyPath, KeyPath]) -> KeyPath:
    result: KeyPath = ()
    for length in range(1, len(path) + 1):
        result = written.get(path[:length], (*result, path[length - 1]))
    return result


# Words: what pydantic found, said to a person.


def _told(found: Any, model: type[BaseModel]) -> tuple[KeyPath, str, str | None]:
    path, shape = _placed(found["loc"], model)
    kind, given, context = found["type"], found["input"], found.get("ctx", {})
    if kind == "union_tag_invalid":
        tags = _offered(shape.members or {})
        return (*path, shape.discriminator), _none_of(given[shape.discriminator], tags), None
    if kind == "union_tag_not_found":
        return (*path, shape.discriminator), "is required but missing", None
    if kind == "literal_error":
        meant = nearest(given, shape.words, LIKE_VALUE) if isinstance(given, str) else None
        return path, _none_of(given, shape.words), meant
    if kind == "value_error":
        error = context["error"]
        words = error.words if isinstance(error, UnknownWordError) and isinstance(given, str) else ()
        return path, one_line(str(error), 400), nearest(str(given), words, LIKE_VALUE)
    telling = _TELLING.get(kind)
    what = telling(context, given) if telling else found["msg"][:1].lower() + found["msg"][1:]
    return path, one_line(what, 400), None


def _placed(location: Sequence[str | int], model: type[BaseModel]) -> tuple[KeyPath, _Shape]:
    """The key path of a pydantic location, which also holds the tags of unions, and the shape of that place."""
    path: KeyPath = ()
    shape = _shape(model)
    for part in location:
        if shape.kind == "choice":
            chosen = (shape.members or {}).get(str(part))
            shape = _Shape("table", model=chosen) if chosen else _OTHER
        elif shape.kind == "table" and shape.model is not None:
            path = (*path, part)
            field = _fields(shape.model).get(str(part))
            shape = _shape(field.annotation, field) if field else _OTHER
        elif shape.kind == "items" or (shape.kind == "values" and part != "[key]"):
            path = (*path, part)
            shape = _shape(shape.inner)
    return path, shape


def _none_of(given: Any, words: Sequence[str]) -> str:
    return f"{_shown(given)} is none of {' | '.join(words)}"


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value) if value.bit_length() < 256 else f"a number of {value.bit_length()} bits"
    if isinstance(value, Mapping):
        return "a table"
    return "an array" if isinstance(value, list) else one_line(str(value))


def _wanted(what: str) -> Callable[[Mapping[str, Any], Any], str]:
    return lambda _context, given: f"must be {what}, not {_shown(given)}"


def _limit(words: str, key: str) -> Callable[[Mapping[str, Any], Any], str]:
    return lambda context, given: f"must be {words} {context[key]}, not {_shown(given)}"


_TELLING: Final[Mapping[str, Callable[[Mapping[str, Any], Any], str]]] = {
    "missing": lambda _context, _given: "is required but missing",
    "extra_forbidden": lambda _context, _given: "unknown key",
    "string_type": _wanted("a string"),
    "int_type": _wanted("a whole number"),
    "int_from_float": _wanted("a whole number"),
    "bool_type": _wanted("true or false"),
    "tuple_type": _wanted("an array"),
    "list_type": _wanted("an array"),
    "dict_type": _wanted("a table"),
    "model_type": _wanted("a table"),
    "model_attributes_type": _wanted("a table"),
    "greater_than": _limit("greater than", "gt"),
    "greater_than_equal": _limit("at least", "ge"),
    "less_than": _limit("less than", "lt"),
    "less_than_equal": _limit("at most", "le"),
    "too_short": lambda context, _given: f"needs at least {context['min_length']} item(s)",
    "too_long": lambda context, _given: f"takes at most {context['max_length']} item(s)",
}
