"""Parquet and Arrow files (including Feather and the data sets that Hugging Face saves), read with pyarrow."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

from keepstep import _engine
from keepstep._errors import KeepstepError

MAX_COMPLAINTS = 5  # like src/data/build/document_reader.h
BATCH_ROWS = 1024


def _pyarrow(path: str) -> Any:
    try:
        import_module("pyarrow.ipc")
        import_module("pyarrow.parquet")
        return import_module("pyarrow")
    except ImportError as error:
        raise KeepstepError(
            f"'{path}' is read with pyarrow, which cannot be imported ({error}): pip install pyarrow"
        ) from error


def row_groups(path: str) -> int:
    """The number of row groups in a Parquet file."""
    arrow = _pyarrow(path)
    try:
        return int(arrow.parquet.read_metadata(path).num_row_groups)
    except (OSError, arrow.ArrowException) as error:
        raise KeepstepError(f"'{path}' is no Parquet file that can be read: {error}") from error


def whole_rows(path: str, format: str) -> Iterator[dict[str, Any]]:
    """Every row as a dict, without the columns that are null in it. KeepstepError: the file cannot be read."""
    arrow = _pyarrow(path)
    try:
        for batch in _parquet_batches(arrow, path) if format == "parquet" else _ipc_batches(arrow, path):
            for row in batch.to_pylist():
                yield {name: value for name, value in row.items() if value is not None}
    except (OSError, arrow.ArrowException) as error:
        raise KeepstepError(f"'{path}': no {format} file that can be read to its end: {error}") from error


def _parquet_batches(arrow: Any, path: str) -> Iterator[Any]:
    with arrow.parquet.ParquetFile(path) as file:
        yield from file.iter_batches(BATCH_ROWS)


def _ipc_batches(arrow: Any, path: str) -> Iterator[Any]:
    with arrow.memory_map(path) as file:
        start = file.read(6)
        file.seek(0)
        if start == b"ARROW1":
            reader = arrow.ipc.open_file(file)
            yield from (reader.get_batch(number) for number in range(reader.num_record_batches))
        else:
            yield from arrow.ipc.open_stream(file)


class ColumnReader:
    """Like _engine.DocumentReader, for a column. `rows`: row groups [begin, end) of a Parquet file."""

    def __init__(self, path: str, format: str, rows: tuple[int, int] | None, field: str, skip: bool, size: int) -> None:
        self._arrow = _pyarrow(path)
        self._path, self._format, self._rows = path, format, rows
        self._field, self._skip, self._size = field, skip, size
        self._row = 0  # counted in the file, or in these row groups
        self._share = 0.0
        self.documents = self.text_bytes = self.empty = self.unreadable = 0
        self.complaints: list[str] = []
        self._batches = self._guarded(self._parquet() if format == "parquet" else self._ipc())

    @property
    def position(self) -> int:
        """About how many bytes of the piece have been read."""
        return int(self._size * self._share)

    def _guarded(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The columns as text. A file that cannot be read to its end is an error, or ends here with a complaint."""
        try:
            for batch in batches:
                yield self._texts(batch)
        except (OSError, self._arrow.ArrowException) as error:
            self._complain(f"'{self._path}': no {self._format} file that can be read to its end: {error}")

    def _complain(self, text: str) -> None:
        if not self._skip:
            raise KeepstepError(text)
        self.unreadable += 1
        if len(self.complaints) < MAX_COMPLAINTS:
            self.complaints.append(text)

    def _check(self, schema: Any) -> None:
        if self._field not in schema.names:
            names = ", ".join(schema.names[:20]) or "none"
            raise KeepstepError(f"'{self._path}': no column '{self._field}'; it has {names}. Choose with --field")
        kind = schema.field(self._field).type
        types = self._arrow.types
        plain = kind.value_type if types.is_dictionary(kind) else kind
        if not (types.is_string(plain) or types.is_large_string(plain) or types.is_string_view(plain)):
            raise KeepstepError(
                f"'{self._path}': column '{self._field}' has {kind}, which is no text; choose with --field"
            )

    def _parquet(self) -> Iterator[Any]:
        with self._arrow.parquet.ParquetFile(self._path) as file:
            self._check(file.schema_arrow)
            begin, end = self._rows or (0, file.num_row_groups)
            for number, group in enumerate(range(begin, end)):
                for batch in file.iter_batches(BATCH_ROWS, row_groups=[group], columns=[self._field]):
                    yield batch.column(0)
                self._share = (number + 1) / (end - begin)

    def _ipc(self) -> Iterator[Any]:
        arrow = self._arrow
        with arrow.memory_map(self._path) as file:
            start = file.read(6)
            file.seek(0)
            if start == b"ARROW1":  # the IPC file format; Feather uses it too
                reader = arrow.ipc.open_file(file)
                self._check(reader.schema)
                for number in range(reader.num_record_batches):
                    yield reader.get_batch(number).column(self._field)
                    self._share = (number + 1) / reader.num_record_batches
            else:
                stream = arrow.ipc.open_stream(file)
                self._check(stream.schema)
                for batch in stream:
                    yield batch.column(self._field)
                    self._share = min(1.0, file.tell() / max(1, self._size))

    def _texts(self, column: Any) -> Any:
        """`column` as large_string, without nulls and without values that are not UTF-8."""
        first, self._row = self._row, self._row + len(column)
        try:
            column = column.cast(self._arrow.large_string())
            column.validate(full=True)
        except self._arrow.ArrowInvalid:
            column = self._arrow.array(
                [self._decoded(value.as_buffer(), first + row) if value.is_valid else None
                 for row, value in enumerate(column.cast(self._arrow.large_binary(), safe=False))],
                self._arrow.large_string(),
            )  # fmt: skip
            return column.drop_null()
        for row in range(len(column)) if column.null_count else ():
            if not column[row].is_valid:
                self._complain(f"'{self._path}' row {first + row}: column '{self._field}' is null there")
        return column.drop_null()

    def _decoded(self, raw: Any, row: int) -> str | None:
        try:
            return raw.to_pybytes().decode() if raw is not None else None
        except UnicodeDecodeError:
            self._complain(f"'{self._path}' row {row}: no valid UTF-8 in column '{self._field}'")
            return None

    def copy_to(self, writer: _engine.TokenWriter, end: int, most: int) -> bool:
        """Like _engine.DocumentReader.copy_to: about `most` bytes of text; False at the end."""
        before = self.text_bytes
        for column in self._batches:
            _, offsets, data = column.buffers()
            if len(column) > 0 and offsets is not None:
                documents, text_bytes, empty = _engine.add_strings(
                    writer, offsets.address + 8 * column.offset, len(column), data.address if data else 0,
                    data.size if data else 0, end,
                )  # fmt: skip
                self.documents += documents
                self.text_bytes += text_bytes
                self.empty += empty
            if self.text_bytes - before >= most:
                return True
        return False

    def take(self, most: int) -> list[str]:
        """The next texts, about `most` characters in total; empty at the end."""
        texts: list[str] = []
        characters = 0
        for column in self._batches:
            for text in column.to_pylist():
                if text:
                    texts.append(text)
                    characters += len(text)
                    self.text_bytes += len(text.encode())
                else:
                    self.empty += 1
            if characters >= most:
                break
        self.documents += len(texts)
        return texts
