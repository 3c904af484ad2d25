"""SQL over runs: docs/tables.md, "SQL".

DuckDB answers; it sees the tables of the runs and nothing else.  A query can read no
file, write none and load no extension.

Thread safety: may be used from any thread; each query has a database of its own.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tdbg.config.libraries import library
from tdbg.config.messages import nearest, short
from tdbg.errors import QueryError
from tdbg.query.answer import QueryAnswer
from tdbg.query.found import FoundRuns, Runs
from tdbg.trial import TABLES

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from tdbg.query.snapshot import Snapshot

__all__ = ["Database", "sql"]

_SETTINGS = {
    "enable_external_access": "false",
    "python_enable_replacements": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
}
_BY_NAME = ("last", "best", "settings")
_UNKNOWN_TABLE = re.compile(r"Table with name (\S+) does not exist")
_UNKNOWN_KEY = re.compile(r'Could not find key "(.*?)" in struct')

Parameters = Sequence[Any] | Mapping[str, Any]


def sql(
    query: str, runs: Runs = "runs", *, parameters: Parameters | None = None
) -> QueryAnswer:
    """Ask runs in SQL, as they are now.

    Args:
        query: One SELECT, of the tables statistics, scalars, steps, findings, events
            and runs: docs/tables.md has their columns.
        runs: Trials, or paths or URLs of runs, of folders of runs, or patterns.
        parameters: Values for ``?`` or ``$name`` in the query.

    Raises:
        NotARun: If there is no run.
        QueryError: If the query is wrong, or would do more than read.
        ConfigurationError: If DuckDB is not installed.

    Example:
        >>> print(tdbg.sql("select run, loss, best_loss from runs", "runs/*"))
        run     loss    best_loss
        digits  0.4312  0.4287
    """
    return Database(runs).sql(query, parameters)


class Database:
    """Runs that are asked again and again: they stay open.

    Args:
        runs: As of ``sql``.

    Raises:
        NotARun: If there is no run.

    Example:
        database = Database("runs/*")
        database.sql("select run, max(l2) from statistics group by run")
    """

    def __init__(self, runs: Runs = "runs") -> None:
        self._runs = FoundRuns(runs)

    def sql(self, query: str, parameters: Parameters | None = None) -> QueryAnswer:
        """Return the answer to a query, of the runs as they are now; see ``sql``."""
        duckdb = _duckdb()
        from tdbg.query.snapshot import Snapshot

        self._runs.unreadable.clear()
        with (
            tempfile.TemporaryDirectory(prefix="tdbg-sql-") as folder,
            _connection(duckdb, folder) as connection,
            Snapshot(self._runs) as snapshot,
        ):
            try:
                _check(duckdb, connection, query)
                for name, table in _tables(query, snapshot).items():
                    connection.register(name, table)
                found = connection.sql(query, params=parameters).to_arrow_table()
            except duckdb.Error as error:
                raise (snapshot.error or QueryError(_message(error))) from error
        unread = {name: str(error) for name, error in self._runs.unreadable.items()}
        return QueryAnswer(_with_plain_numbers(found), unread)


def _duckdb() -> Any:
    library("pyarrow", "'tdbg[sql]'", "SQL")  # The tables are its datasets.
    return library("duckdb", "'tdbg[sql]'", "SQL")


def _connection(duckdb: Any, folder: str) -> duckdb.DuckDBPyConnection:
    """Return a database that can do nothing but compute.

    What does not fit into memory goes to the folder.
    """
    connection = duckdb.connect(
        ":memory:", config={**_SETTINGS, "temp_directory": folder}
    )
    connection.execute("set timezone = 'UTC'")
    connection.execute("set lock_configuration = true")
    return connection


def _check(duckdb: Any, connection: Any, query: str) -> None:
    """Refuse what is no single question.

    Raises:
        QueryError: If it is not.
    """
    statements = connection.extract_statements(query)
    if len(statements) != 1:
        msg = f"ask one SELECT at a time, not {len(statements)}"
        raise QueryError(msg)
    kind = statements[0].type
    if kind not in (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN):
        msg = f"runs are only read: use SELECT, not {kind.name}"
        raise QueryError(msg)


def _tables(query: str, snapshot: Snapshot) -> dict[str, Any]:
    """Return the tables that the query may name."""
    from tdbg.query.dataset import TableOfRuns
    from tdbg.query.runs_table import TableRuns

    words = {*re.findall(r"\w+", query.lower())}
    named = [name for name in TABLES if name in words]
    # A star may stand for any column.
    by_name = [each for each in _BY_NAME if each in words or "*" in query]
    return {
        name: TableRuns(snapshot, by_name)
        if name == "runs"
        else TableOfRuns(snapshot, name)
        for name in named
    }


def _message(error: Exception) -> str:
    """Return what DuckDB says, with our tables instead of its own."""
    text = str(error)
    unknown = _UNKNOWN_TABLE.search(text)
    if unknown:
        return f"there is no table {short(unknown[1])}; {nearest(unknown[1], TABLES)}"
    return text.strip()


def _with_plain_numbers(table: pa.Table) -> pa.Table:
    """Return the table with DuckDB's integers of 128 bits, of sums, as int64.

    Those that are larger become float64.
    """
    import pyarrow as pa

    for i, field in enumerate(table.schema):
        if pa.types.is_decimal(field.type) and field.type.scale == 0:
            try:
                column = table.column(i).cast(pa.int64())
            except pa.ArrowInvalid:
                column = table.column(i).cast(pa.float64())
            table = table.set_column(i, field.name, column)
    return table
