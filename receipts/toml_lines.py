"""On which line each key of a TOML document stands.

``tomllib`` keeps no positions. This scanner runs over text that ``tomllib`` has already accepted, so it only has
to find its way, never to judge: table headers, arrays of tables, dotted and quoted keys, inline tables, arrays,
the four kinds of strings, comments (TOML 1.0).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from receipts.names import one_line

KeyPath = tuple[str | int, ...]
"""Keys and, for arrays and arrays of tables, indices from 0: ``("stage", 1, "prompt", "seed")``."""

_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
_SPACE: Final = " \t\r\n"
_ESCAPES: Final = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", '"': '"', "\\": "\\"}


@dataclass(frozen=True)
class LineMap:
    """Lines, from 1, of every key, array item and table of a document; a table's line is its header's."""

    lines: Mapping[KeyPath, int]

    def line_of(self, path: KeyPath) -> int:
        """The line of ``path``, or of its nearest ancestor that is written down; 1 for the root."""
        while path:
            if path in self.lines:
                return self.lines[path]
            path = path[:-1]
        return 1


def line_map(text: str) -> LineMap:
    """Lines of every key in ``text``, which must be valid TOML."""
    scanner = _Scanner(text)
    scanner.document()
    return LineMap(scanner.lines)


def second_mention(text: str, line: int) -> tuple[KeyPath, int, int] | None:
    """(key path, line of the first, line of the second) of what ``text`` defines twice, at or above ``line``.

    For text that ``tomllib`` refused because of it; None where no such key is found. A part of a dotted key that is
    a value already counts as its second mention.
    """
    scanner = _Scanner(text, once=True)
    try:
        scanner.document()
    except _TwiceError as twice:
        return None if twice.second > line else (twice.path, twice.first, twice.second)
    except (AssertionError, IndexError, KeyError, ValueError):
        pass  # what is no TOML further down is not ours to judge
    return None


class _TwiceError(Exception):
    def __init__(self, path: KeyPath, first: int, second: int) -> None:
        super().__init__(path)
        self.path, self.first, self.second = path, first, second


def path_text(path: KeyPath) -> str:
    """``stage[1].prompt.seed``; a key that is not bare is quoted, on one line whatever it holds."""
    shown = ""
    for part in path:
        if isinstance(part, int):
            shown += f"[{part}]"
        else:
            key = part if _BARE_KEY.fullmatch(part) else json.dumps(one_line(part), ensure_ascii=False)
            shown += f".{key}" if shown else key
    return shown


class _Scanner:
    def __init__(self, text: str, *, once: bool = False) -> None:
        self.text = text.replace("\r\n", "\n")
        self.at = 0
        self.lines: dict[KeyPath, int] = {}
        self._once = once
        self._defined: dict[KeyPath, int] = {}  # values, headers and what dotted keys made: none may come again
        self._values: set[KeyPath] = set()
        self._last_item: dict[KeyPath, int] = {}  # array of tables → index of the table that is open
        self._counted_to = 0
        self._line = 1

    def document(self) -> None:
        table: KeyPath = ()
        while self._skip_blank():
            if self.text.startswith("[[", self.at):
                table = self._header(brackets=2)
            elif self.text[self.at] == "[":
                table = self._header(brackets=1)
            else:
                self._key_value(table)

    def _here(self) -> int:
        self._line += self.text.count("\n", self._counted_to, self.at)
        self._counted_to = self.at
        return self._line

    def _mark(self, path: KeyPath, line: int) -> None:
        self.lines.setdefault(path, line)

    def _skip_blank(self) -> bool:
        """Go past white space, newlines and comments; False at the end of the text."""
        while self.at < len(self.text):
            if self.text[self.at] in _SPACE:
                self.at += 1
            elif self.text[self.at] == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                return True
        return False

    def _header(self, *, brackets: int) -> KeyPath:
        line = self._here()
        self.at += brackets
        keys = self._dotted_key()
        self.at += brackets
        path: KeyPath = ()
        for key in keys[:-1]:
            path = (*path, key)
            self._mark(path, line)
            if path in self._last_item:
                path = (*path, self._last_item[path])
        path = (*path, keys[-1])
        if brackets == 2:
            self._mark(path, line)
            if path not in self._last_item:
                self._define(path, line)
            self._last_item[path] = self._last_item.get(path, -1) + 1
            path = (*path, self._last_item[path])
        self._define(path, line)
        self.lines[path] = line  # a header says more than an earlier mention as somebody's parent
        return path

    def _key_value(self, table: KeyPath) -> None:
        line = self._here()
        path = table
        *parents, last = self._dotted_key()
        made = []
        for key in parents:
            path = (*path, key)
            self._mark(path, line)
            if path in self._values:
                self._define(path, line)
            made.append(path)
        path = (*path, last)
        self._mark(path, line)
        self._define(path, line)
        for parent in made:
            self._defined.setdefault(parent, line)
        self._values.add(path)
        self.at += 1  # the equals sign
        self._value(path)

    def _define(self, path: KeyPath, line: int) -> None:
        """``path`` is given its one meaning here; a second one is what ``second_mention`` looks for."""
        if self._once and path in self._defined:
            raise _TwiceError(path, self._defined[path], line)
        self._defined[path] = line

    def _dotted_key(self) -> list[str]:
        keys = []
        while True:
            self._skip_blank()
            keys.append(self._key())
            self._skip_blank()
            if self.text[self.at] != ".":
                return keys
            self.at += 1

    def _key(self) -> str:
        quote = self.text[self.at]
        if quote not in "\"'":
            match = _BARE_KEY.match(self.text, self.at)
            assert match is not None, "tomllib accepted a key that is neither bare nor quoted"
            self.at = match.end()
            return match.group()
        start = self.at + 1
        self._string()
        inner = self.text[start : self.at - 1]
        return _unescaped(inner) if quote == '"' else inner

    def _value(self, path: KeyPath) -> None:
        self._skip_blank()
        character = self.text[self.at]
        if character in "\"'":
            self._string()
        elif character == "[":
            self._array(path)
        elif character == "{":
            self._inline_table(path)
        else:
            while self.at < len(self.text) and self.text[self.at] not in ",]}#\n":
                self.at += 1

    def _array(self, path: KeyPath) -> None:
        self.at += 1
        index = 0
        while True:
            self._skip_blank()
            if self.text[self.at] == "]":
                self.at += 1
                return
            if self.text[self.at] == ",":
                self.at += 1
                continue
            self._mark((*path, index), self._here())
            self._value((*path, index))
            index += 1

    def _inline_table(self, path: KeyPath) -> None:
        self.at += 1
        while True:
            self._skip_blank()
            if self.text[self.at] == "}":
                self.at += 1
                return
            if self.text[self.at] == ",":
                self.at += 1
                continue
            self._key_value(path)

    def _string(self) -> None:
        quote = self.text[self.at]
        multi_line = self.text.startswith(quote * 3, self.at)
        closing = quote * 3 if multi_line else quote
        self.at += len(closing)
        while not self.text.startswith(closing, self.at):
            self.at += 2 if quote == '"' and self.text[self.at] == "\\" else 1
        self.at += len(closing)
        extra = 0
        while multi_line and extra < 2 and self.text.startswith(quote, self.at):
            self.at += 1  # up to two quotes may stand right before the closing three
            extra += 1


def _unescaped(text: str) -> str:
    def one(match: re.Match[str]) -> str:
        code = match.group(1)
        return chr(int(code[1:], 16)) if code[0] in "uU" else _ESCAPES[code]

    return re.sub(r"\\(u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)", one, text)
