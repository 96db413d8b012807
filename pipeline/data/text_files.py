"""Text files of problems: JSON lines, one JSON document, CSV. They may be compressed, in UTF-8 or UTF-16, with lines that end in CR or LF.

A file is never in memory as a whole, but for a JSON document. Compression and encoding are told by the first bytes, not by the name.
"""

import codecs
import csv
import json
import lzma
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import BufferedReader, RawIOBase
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec

from pipeline.data import rows
from pipeline.data.rows import Flaw, Record, Source, distinct
from pipeline.errors import InputError, reason

BOM = b"\xef\xbb\xbf"
COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bz2",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
    b"\xfd7zXZ\x00": "xz",
}
"""The first bytes of compressed files, and by what they are compressed, as pyarrow calls it."""
OTHERS = {
    b"PAR1": "a Parquet file; name it .parquet",
    b"ARROW1": "an Arrow file; name it .arrow",
    b"PK\x03\x04": "a ZIP archive (or a spreadsheet, which is one); unpack it, or save it as CSV",
    b"version https://git-lfs": "a Git LFS pointer instead of the file; fetch the file with `git lfs pull`",
}
"""First bytes of what is no text file of problems, and what it is."""
ROW_KEYS = {"problem", "question", "prompt", "messages"}
"""Keys by which an object is told to be one row, whatever arrays it holds."""
Piece = bytes | msgspec.Raw
"""Some JSON."""
HEAD = 1 << 16
"""Bytes that are looked at to tell an encoding."""


class JsonLines:
    """A file of one JSON object a line; blank lines are skipped, and are no rows."""

    BLANK = re.compile(rb"\s*")
    MAX_NAMES = 1000
    """Most names of columns remembered for error messages."""

    def __init__(self, path: Path) -> None:
        self._path, self.remark = path, ""
        self.names: dict[str, None] = {}
        self._decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

    def records(self, wanted: tuple[str, ...] | None) -> Iterator[tuple[int, Record]]:
        row = 0
        with _text_lines(self._path) as lines:
            for line in lines.each():
                if not isinstance(line, Flaw) and (line.isspace() or (line[0] > 127 and line.decode(errors="replace").isspace())):
                    lines.skip(self.BLANK)
                    continue
                row += 1
                record = line if isinstance(line, Flaw) else self._record(line, wanted)
                if isinstance(record, Flaw) and lines.number != row:
                    record = Flaw(f"line {lines.number}: {record}")
                yield row, record

    def _record(self, line: bytes, wanted: tuple[str, ...] | None) -> Record:
        try:
            raw = self._decode(line.decode())
            if len(self.names) < self.MAX_NAMES:
                self.names.update(dict.fromkeys(raw))
            return {name: _value(name, raw[name]) for name in (raw if wanted is None else wanted) if name in raw}
        except UnicodeDecodeError:
            return Flaw("not UTF-8")
        except RecursionError:
            return Flaw("nested too deeply")
        except Flaw as flaw:
            return flaw
        except msgspec.ValidationError:
            return self._no_object(line)
        except msgspec.DecodeError as error:
            return self._lenient(line, wanted, error)

    def _lenient(self, line: bytes, wanted: tuple[str, ...] | None, error: msgspec.DecodeError) -> Record:
        """A line as Python's own decoder reads it, which takes NaN, Infinity and halves of surrogate pairs, as others write them; without
        other white space than JSON's around it, such as U+2028."""
        try:
            found = json.loads(line.decode().strip())
        except (ValueError, RecursionError):
            return Flaw(f"not JSON ({error})")
        if not isinstance(found, dict):
            return self._no_object(line)
        self.names.update(dict.fromkeys(found))
        record = {name: found[name] for name in (found if wanted is None else wanted) if name in found}
        for name, value in record.items():
            with suppress(UnicodeEncodeError):
                msgspec.json.encode(value)
                continue
            return Flaw(f"`{name}` contains a lone surrogate, which is not a character")
        return record

    def _no_object(self, line: bytes) -> Flaw:
        if not line.lstrip().startswith(b"["):
            return Flaw("not a JSON object")
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            msgspec.json.decode(line)
            return Flaw("an array, not a JSON object: write one object per line")
        if self.names:
            return Flaw("not JSON (an array that is not closed)")
        raise InputError(str(self._path), "one JSON array over many lines; write one object per line, or name the file .json")


def _value(name: str, raw: msgspec.Raw) -> Any:
    """The value of a field; raises `Flaw` for JSON whose numbers no computer holds, which is all that it can be refused for."""
    try:
        return msgspec.json.decode(raw)
    except msgspec.ValidationError:
        raise Flaw(f"`{name}` holds a number that is out of range") from None


class JsonDocument(JsonLines):
    """A file that is one JSON document, read as a whole: an array of objects, an object that holds one such array, or one row."""

    MAX_BYTES = 1 << 30

    def records(self, wanted: tuple[str, ...] | None) -> Iterator[tuple[int, Record]]:
        with _text_lines(self._path) as lines:
            content = lines.rest(self.MAX_BYTES)
        if content is None:
            raise InputError(
                str(self._path), f"a JSON document of more than {self.MAX_BYTES >> 30} GiB; write one object per line (.jsonl)"
            )
        for row, line in enumerate(self._rows(content), 1):
            yield row, self._record(bytes(line), wanted)

    def _rows(self, content: bytes) -> Sequence[Piece]:
        try:
            found = _pieces(content)
        except (ValueError, RecursionError) as error:
            what = f"not a JSON document: {reason(error)}; write one array of objects, or one object per line (.jsonl)"
            raise InputError(str(self._path), what) from error
        if isinstance(found, list):
            return found
        if found and all(bytes(value).lstrip().startswith(b"{") for value in found.values()):
            what = "holds one object per column, the pandas default; write it with orient='records'"
            raise InputError(str(self._path), what)
        arrays = {} if found.keys() & ROW_KEYS else {name: rows for name, value in found.items() if (rows := _objects(value))}
        if len(arrays) > 1:
            what = f"holds several arrays of objects, `{'`, `'.join(arrays)}`; write the one with the problems to a separate file"
            raise InputError(str(self._path), what)
        for name, rows_within in arrays.items():
            self.remark = f"its rows are those of `{name}`"
            return rows_within
        return [content]

    def _no_object(self, line: bytes) -> Flaw:
        return Flaw("not a JSON object")


def _pieces(content: Piece) -> list[Piece] | dict[str, Piece]:
    """The elements of a JSON array or the fields of an object, each as JSON; raises `ValueError`."""
    try:
        return cast(list[Piece] | dict[str, Piece], msgspec.json.decode(content, type=list[msgspec.Raw] | dict[str, msgspec.Raw]))
    except msgspec.DecodeError:
        found = json.loads(bytes(content))  # it may hold NaN
    if isinstance(found, dict):
        return {name: json.dumps(value).encode() for name, value in found.items()}
    if isinstance(found, list):
        return [json.dumps(value).encode() for value in found]
    raise ValueError("neither an array nor an object")


def _objects(content: Piece) -> list[Piece]:
    """The elements of an array of objects that are no messages of a chat; none of anything else."""
    with suppress(ValueError, RecursionError):
        elements = _pieces(content)
        if isinstance(elements, list) and elements:
            first = _pieces(elements[0])
            return elements if isinstance(first, dict) and not {"role", "content"} <= first.keys() else []
    return []


def json_source(path: Path) -> Source:
    """A file called `.json`: one JSON document, or one object a line."""
    with _text_lines(path) as lines:
        lines.skip(JsonLines.BLANK)
        begins = lines.ahead(1)
        start = [each.strip() for each in islice(lines.each(), 2) if begins == b"{" and not isinstance(each, Flaw)]
    lone = len(start) < 2 or not (start[1].startswith(b"{") or _is_json(start[0]))
    return (JsonDocument if begins == b"[" or (begins == b"{" and lone) else JsonLines)(path)


def _is_json(line: bytes) -> bool:
    try:
        msgspec.json.decode(line, type=msgspec.Raw)
    except msgspec.DecodeError:
        return False
    return True


class Csv:
    """A file of values under a header, separated by commas, semicolons, tabs or bars; quoted fields may hold them, and line breaks."""

    remark = ""
    SEPARATORS = ",;\t|"
    BLANK = re.compile(rb"[\r\n]*")

    def __init__(self, path: Path) -> None:
        self._path = path
        # A limit of the process, only ever raised: the default refuses fields over 128 KiB.
        csv.field_size_limit(max(csv.field_size_limit(), rows.MAX_ROW_BYTES))
        with _text_lines(path) as lines:
            self._separator = self._found_separator(next(lines.each(), b""))
        with _text_lines(path) as lines:
            header = next(self._rows(lines), [])
        if isinstance(header, Flaw):
            raise InputError(str(path), f"the header is {header}")
        if not header:
            raise InputError(str(path), "holds no rows")
        self.names = distinct(path, header)

    def records(self, wanted: tuple[str, ...] | None) -> Iterator[tuple[int, Record]]:
        places = {name: place for place, name in enumerate(self.names) if wanted is None or name in wanted}
        with _text_lines(self._path) as lines:
            for row, fields in enumerate(islice(self._rows(lines), 1, None), 1):
                if isinstance(fields, Flaw):
                    yield row, fields
                elif len(fields) != len(self.names):
                    yield row, Flaw(f"{len(fields)} fields, the header has {len(self.names)}")
                else:
                    yield row, {name: fields[place] for name, place in places.items()}

    def _found_separator(self, header: bytes | Flaw) -> str:
        """The separator that is most frequent in the first line outside quotes, of equals the first of `SEPARATORS`."""
        if isinstance(header, Flaw):
            return self.SEPARATORS[0]
        plain = re.sub(r'"[^"]*"', "", _escaped(header))
        return max(self.SEPARATORS, key=plain.count)

    def _rows(self, lines: "LineReader") -> Iterator[list[str] | Flaw]:
        reader = csv.reader(map(_escaped, lines), delimiter=self._separator, strict=True)
        while True:
            lines.new_row()
            try:
                fields = next(reader)
                "".join(fields).encode()
                if fields:
                    yield fields
                else:
                    lines.skip(self.BLANK)
            except StopIteration:
                return
            except UnicodeEncodeError:
                yield Flaw("not UTF-8")
            except csv.Error as error:
                unclosed = "unexpected end" in str(error)
                yield Flaw("a quote that is opened in it is never closed" if unclosed else f"not CSV ({error})")
            except Flaw as flaw:
                yield flaw


class LineReader:
    """Reads the lines of a text file; the lines of one row together have at most `rows.MAX_ROW_BYTES`, or `Flaw` is raised."""

    def __init__(self, stream: BufferedReader) -> None:
        self._stream, self._room = stream, rows.MAX_ROW_BYTES
        self.number = 0
        """The number of the last line that was read, from 1."""
        if stream.peek(3)[:3] == BOM:
            stream.read(3)

    def new_row(self) -> None:
        """The next line starts a new row."""
        self._room = rows.MAX_ROW_BYTES

    def __iter__(self) -> "LineReader":
        return self

    def __next__(self) -> bytes:
        line = self._stream.readline(self._room + 1)
        self._room -= len(line)
        if not line:
            raise StopIteration
        self.number += 1
        if self._room < 0:
            while line and not line.endswith(b"\n"):
                line = self._stream.readline(1 << 16)
            raise Flaw(f"longer than {rows.MAX_ROW_BYTES >> 20} MiB")
        return line

    def skip(self, blank: re.Pattern[bytes]) -> None:
        """Skip the lines that are next and `blank`, many at once: a few bytes of a compressed file may expand to millions of them."""
        while found := blank.match(ahead := self._stream.peek(1)):
            whole = ahead.rfind(b"\n", 0, found.end()) + 1
            if not whole:
                return
            self._stream.read(whole)
            self.number += ahead.count(b"\n", 0, whole)

    def ahead(self, count: int) -> bytes:
        """The bytes that come next, which stay there."""
        return self._stream.peek(count)[:count]

    def rest(self, most: int) -> bytes | None:
        """All that follows, at once; None where it is more than `most` bytes."""
        content = self._stream.read(most + 1)
        return None if len(content) > most else content

    def each(self) -> Iterator[bytes | Flaw]:
        """All lines, each a separate row; a `Flaw` in place of one that is too long."""
        while True:
            self.new_row()
            try:
                yield next(self)
            except Flaw as flaw:
                yield flaw
            except StopIteration:
                return


@contextmanager
def _text_lines(path: Path) -> Iterator[LineReader]:
    with path.open("rb") as file, opened(file, path) as stream:
        yield LineReader(stream)


@contextmanager
def opened(file: BinaryIO, path: Path) -> Iterator[BufferedReader]:
    """The text of a file, decompressed, in UTF-8 and with lines that end in LF; raises `InputError` for what is no text."""
    with _decompressed(file) as stream:
        head = stream.peek(64)[:64]
        for magic, what in OTHERS.items():
            if head.startswith(magic):
                raise InputError(str(path), f"is {what}")
        if head[:4] in (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE):
            raise InputError(str(path), "not UTF-8 text, but UTF-32; save it as UTF-8")
        if head[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            decoder = codecs.getincrementaldecoder("utf-16")("surrogatepass")
            stream = _recoded(stream, lambda data: decoder.decode(data, not data).encode(errors="surrogatepass"))
        elif b"\0" in head:
            raise InputError(str(path), "not UTF-8 text (binary, or UTF-16 without a byte order mark); save it as UTF-8")
        begun = stream.peek(HEAD)
        if b"\r" in begun and b"\n" not in begun:
            stream = _recoded(stream, lambda data: data.replace(b"\r", b"\n"))
        yield stream


@contextmanager
def _decompressed(file: BinaryIO) -> Iterator[BufferedReader]:
    head = file.read(6)
    file.seek(0)
    codec = next((codec for magic, codec in COMPRESSED.items() if head.startswith(magic)), None)
    if codec is None:
        yield BufferedReader(cast(RawIOBase, file), HEAD)
    elif codec == "xz":
        with lzma.LZMAFile(file) as unpacked:
            yield BufferedReader(cast(RawIOBase, unpacked), HEAD)
    else:
        import pyarrow as pa  # heavy: imported only where it is needed

        with pa.CompressedInputStream(pa.PythonFile(file, "r"), codec) as unpacked:
            yield BufferedReader(unpacked, HEAD)


def _recoded(stream: BufferedReader, recode: Callable[[bytes], bytes]) -> BufferedReader:
    return BufferedReader(_Recoded(stream, recode), HEAD)


class _Recoded(RawIOBase):
    """What `recode` makes of each piece of a stream; at the end it is asked once more, with nothing."""

    def __init__(self, stream: BufferedReader, recode: Callable[[bytes], bytes]) -> None:
        self._stream, self._recode, self._left, self._over = stream, recode, b"", False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left and not self._over:
            piece = self._stream.read1(HEAD)
            self._over = not piece
            self._left = self._recode(piece)
        count = min(len(buffer), len(self._left))
        buffer[:count], self._left = self._left[:count], self._left[count:]
        return count


def _escaped(line: bytes) -> str:
    """`line` as text; bytes that are not UTF-8 become lone surrogates, which fail when the text is encoded."""
    return line.decode(errors="surrogateescape")
