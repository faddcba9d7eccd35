"""Start the server: ``python -m examples.serve``."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Sequence

# The host backend's device is one thread. Idle threads of numpy's BLAS spin on the cores that building, copying and the
# event loop need, so it gets none unless the user asks for them; numpy reads this when it is first imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from async_orch import OrchError, open_backend
from examples.qwen3.config import ModelError
from examples.serve.app import Settings, serving
from examples.serve.front import AccessLog
from examples.serve.options import Options, parse_options
from examples.serve.served_qwen3 import ServedQwen3
from examples.serve.server import HttpServer, listen


def _report(event: str, detail: str) -> None:
    print(f"examples.serve: {event}{': ' if detail else ''}{detail}", file=sys.stderr, flush=True)


async def _serve(options: Options) -> int:
    """Serve until a signal comes; returns the exit status."""
    settings = Settings(
        name=options.name,
        mode=options.mode,
        slots=options.slots,
        waiting_room=options.waiting_room,
        request_s=options.request_s,
        step_log=options.step_log,
        otel=options.otel,
    )
    with contextlib.ExitStack() as stack:
        backend = open_backend(options.backend)
        stack.callback(backend.close)
        served = ServedQwen3(
            options.model, backend, batch=options.batch, context=options.context, kv_blocks=options.kv_blocks
        )
        socket = stack.enter_context(listen(options.host, options.port))
        log = None
        if options.access_log is not None:
            access = AccessLog(options.access_log)
            stack.callback(access.close)
            log = access.write
        served.model.check_memory(backend, slots=options.slots)
        server: HttpServer | None = None

        def report(event: str, detail: str) -> None:
            _report(event, detail)
            if event == "device_failed" and server is not None:
                server.stop()  # only a new process gets the device back

        async with serving(served, served.codec, backend, settings, access_log=log, report=report) as opened:
            server = HttpServer(opened, drain_s=options.drain_s, connections=options.connections)
            host, port = socket.getsockname()[:2]
            print(f"serving {options.name} on http://{host}:{port}", flush=True)
            with server.stopping_on_signals():
                await server.serve(sockets=[socket])
        return 1 if opened.engine.state == "failed" else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; one line on standard error for what cannot be served."""
    options = parse_options(arguments)
    try:
        return asyncio.run(_serve(options))
    except (ModelError, OrchError, ImportError, OSError, ValueError) as exc:
        print(f"examples.serve: error: {' '.join(str(exc).split())}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
