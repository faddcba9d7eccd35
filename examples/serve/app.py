"""The server as an ASGI application: an engine and its orchestrator, routes, and what surrounds every request."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import anyio
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from async_orch import Orchestrator, metrics
from async_orch.abc import Backend
from examples.serve.answers import model, models
from examples.serve.engine import IN_FLIGHT, Engine
from examples.serve.errors import ApiError
from examples.serve.front import Front, error_response
from examples.serve.live import PAGE, Live, Spans
from examples.serve.observed import Observed
from examples.serve.openapi import openapi
from examples.serve.requests import Generate, Service
from examples.serve.scheduler import Scheduler, ServedModel
from examples.serve.schema import ChatRequest, CompletionRequest
from examples.serve.text import Codec

if TYPE_CHECKING:
    from examples.serve.traces import RequestSpans

__all__ = ["Serving", "Settings", "serving"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How the server runs; sizes of the model are the model's.

    ``waiting_room``: requests that may wait beyond those that find a free row; further ones get 429.
    ``body_nbytes``, ``body_s``, ``request_s``: limits of one request, see `Service`.
    ``otel``: report requests and steps to OpenTelemetry, spans by ``tracer_provider`` (default: the global one).
    """

    name: str
    mode: str = "pipelined"
    slots: int = 3
    waiting_room: int = 128
    body_nbytes: int = 1 << 20
    body_s: float = 10.0
    request_s: float = 300.0
    fence_timeout_s: float = 60.0
    step_log: Any = None
    otel: bool = False
    tracer_provider: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class Serving:
    """A server that is open: hand ``app`` to an ASGI server."""

    app: Front
    engine: Engine
    orchestrator: Orchestrator[Any, Any]
    observed: Observed


@contextlib.asynccontextmanager
async def serving(
    served: ServedModel,
    codec: Codec,
    backend: str | Backend,
    settings: Settings,
    *,
    access_log: Callable[[dict[str, Any]], None] | None = None,
    report: Callable[[str, str], None] = lambda event, detail: None,
) -> AsyncIterator[Serving]:
    """Open the model on the backend and run the engine; on leaving it drains. Raises what opening the model raises."""
    registry, spans = CollectorRegistry(), Spans()
    options: dict[str, Any] = {"mode": settings.mode, "step_log": settings.step_log}
    orchestrator: Orchestrator[Any, Any] = Orchestrator(
        served.programs,
        backend,
        slots=settings.slots,
        max_inflight=IN_FLIGHT,
        policy="discard_dependents",
        fence_timeout_s=settings.fence_timeout_s,
        observers=[spans],
        **options,
    )
    metrics.prometheus(orchestrator, registry)
    requests: RequestSpans | None = None
    if settings.otel:
        metrics.opentelemetry(orchestrator, tracer_provider=settings.tracer_provider)
        requests = importlib.import_module("examples.serve.traces").RequestSpans(settings.tracer_provider)
    async with orchestrator:
        scheduler = Scheduler(served, waiting_room=settings.waiting_room)
        observed = Observed(registry, scheduler, settings.name)
        engine = Engine(orchestrator, scheduler, on_token=observed.token, report=report)
        service = Service(
            engine,
            codec,
            observed,
            settings.name,
            body_nbytes=settings.body_nbytes,
            body_s=settings.body_s,
            request_s=settings.request_s,
        )
        app = Front(_routes(service, Live(orchestrator, engine, observed, spans)), access_log, report, requests)
        failure: Exception | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(engine.run, name="engine")
            try:
                yield Serving(app, engine, orchestrator, observed)
                engine.drain()
            except Exception as exc:  # noqa: BLE001 - raised below, not wrapped in a group
                failure = exc
                tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure


def _routes(service: Service, live: Live) -> Starlette:
    created = int(time.time())
    engine, context, name = service.engine, service.engine.scheduler.limits.context, service.model
    document = openapi(name)

    async def list_models(request: Request) -> Response:
        return JSONResponse(models(name, created, context))

    async def one_model(request: Request) -> Response:
        if request.path_params["name"] != name:
            raise ApiError(404, f"this server has the model {name!r} only", code="model_not_found", param="model")
        return JSONResponse(model(name, created, context))

    async def health(request: Request) -> Response:
        engine.check_serving()
        return JSONResponse({"status": "ok"})

    async def scrape(request: Request) -> Response:
        return Response(generate_latest(service.observed.registry), media_type=CONTENT_TYPE_LATEST)

    async def description(request: Request) -> Response:
        return JSONResponse(document)

    async def page(request: Request) -> Response:
        return FileResponse(PAGE / "live.html", headers={"content-security-policy": "default-src 'self'"})

    app = Starlette(
        routes=[
            Route("/v1/models", list_models),
            Route("/v1/models/{name:path}", one_model),
            Route("/v1/completions", Generate(service, CompletionRequest), methods=["POST"]),
            Route("/v1/chat/completions", Generate(service, ChatRequest), methods=["POST"]),
            Route("/health", health),
            Route("/metrics", scrape),
            Route("/openapi.json", description),
            Route("/", page),
            Route("/live", live, methods=["GET"]),
            Mount("/page", StaticFiles(directory=PAGE)),
        ],
        exception_handlers={ApiError: _api_error, HTTPException: _http_error},
    )
    app.router.redirect_slashes = False  # a redirect would repeat the client's Host header
    return app


def _api_error(request: Request, error: Exception) -> Response:
    return error_response(error) if isinstance(error, ApiError) else Response(status_code=500)


def _http_error(request: Request, error: Exception) -> Response:
    """Unknown paths and methods, in the same shape as everything else."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    headers = error.headers if isinstance(error, HTTPException) else None
    text = {404: "no such path", 405: "no such method on this path"}.get(status, "the request cannot be served")
    body = ApiError(status, text, code={404: "not_found", 405: "method_not_allowed"}.get(status)).body()
    return JSONResponse(body, status_code=status, headers=headers)
