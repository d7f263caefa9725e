"""Routes that Starlette serves, and that FastAPI describes once the OpenAPI document is asked for.

FastAPI costs a third of the start of a process and a tenth of a turn, and this API reads its bodies itself.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import cached_property
from inspect import Parameter as Argument
from inspect import Signature, signature
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from tealagents.api import query
from tealagents.api.v1alpha1.context import exchange_of

if TYPE_CHECKING:
    from fastapi import APIRouter

Endpoint = Callable[..., Awaitable[Response]]
E = TypeVar("E", bound=Endpoint)


class InvalidQuery(Exception):
    """A query that an endpoint cannot be called with; `wrong` are pydantic's errors."""

    def __init__(self, wrong: list[ErrorDetails]) -> None:
        super().__init__(wrong)
        self.wrong = wrong


class RouteParameter:
    """What the document says of a parameter of a path or a query, and what a value has to keep to."""

    def __init__(
        self,
        description: str,
        *,
        at_least: int | None = None,
        at_most: int | None = None,
        longest: int | None = None,
        schema: dict[str, Any] | None = None,
        examples: list[str] | None = None,
    ) -> None:
        """`schema` is described and not checked: the endpoint does that."""
        self.bounds: dict[str, Any] = {"ge": at_least, "le": at_most, "max_length": longest}
        self.described: dict[str, Any] = {
            "description": description,
            "json_schema_extra": schema,
            "examples": examples,
            **self.bounds,
        }


class Query(NamedTuple):
    """A parameter of the query of an endpoint."""

    name: str
    default: Any
    adapter: TypeAdapter[Any]


class RouteOperation(NamedTuple):
    """An endpoint at a path, for some methods."""

    path: str
    methods: tuple[str, ...]
    endpoint: Endpoint
    #: what FastAPI's decorator takes besides
    options: dict[str, Any]


class Routes:
    """The operations of one part of the API, declared as with FastAPI's router.

    An endpoint takes the request, the ids in the path, which are not checked, and parameters of the query.
    """

    def __init__(self, prefix: str = "", **options: Any) -> None:
        """`options` are FastAPI's of a router: tags, and whether its routes are in the document."""
        self._prefix = prefix
        self._options = options
        self._operations: list[RouteOperation] = []

    def add(self, path: str, *methods: str, **options: Any) -> Callable[[E], E]:
        def declare(endpoint: E) -> E:
            self._operations.append(RouteOperation(path, methods, endpoint, options))
            return endpoint

        return declare

    def get(self, path: str, **options: Any) -> Callable[[E], E]:
        return self.add(path, "GET", **options)

    def post(self, path: str, **options: Any) -> Callable[[E], E]:
        return self.add(path, "POST", **options)

    def patch(self, path: str, **options: Any) -> Callable[[E], E]:
        return self.add(path, "PATCH", **options)

    def delete(self, path: str, **options: Any) -> Callable[[E], E]:
        return self.add(path, "DELETE", **options)

    def served(self, prefix: str) -> list[Route]:
        """The routes below a prefix, in the order of their declaration."""
        return [self._served(prefix + self._prefix, each) for each in self._operations]

    def _served(self, prefix: str, operation: RouteOperation) -> Route:
        shown = {**self._options, **operation.options}.get("include_in_schema", True)
        app = _Answering(operation.endpoint)
        route = Route(prefix + operation.path, app, methods=list(operation.methods), include_in_schema=shown)
        route.methods = set(operation.methods)  # without HEAD, which the host answers as GET
        return route

    def described(self) -> "APIRouter":
        from fastapi import APIRouter

        router = APIRouter(prefix=self._prefix, **self._options)
        for path, methods, endpoint, options in self._operations:
            router.add_api_route(path, _described(path, endpoint), methods=list(methods), **options)
        return router


class _Answering:
    """An endpoint as an ASGI application, called with what it takes besides the request.

    Around a function Starlette would handle errors a second time, for as long as a stream is open.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._takes_more = len(signature(endpoint).parameters) > 1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        given = self._arguments(request) if self._takes_more else {}
        try:
            response = await self._endpoint(request, **given)
        except asyncio.CancelledError as canceled:
            raise exchange_of(request).cut_off(canceled) from None
        await response(scope, receive, send)

    @cached_property
    def _queries(self) -> Sequence[Query]:
        """What has a default is of the query."""
        return [
            Query(name, argument.default, _adapter(argument.annotation))
            for name, argument in signature(self._endpoint).parameters.items()
            if argument.default is not Argument.empty
        ]

    def _arguments(self, request: Request) -> dict[str, Any]:
        """What the endpoint takes of the path and the query. `InvalidQuery`."""
        found: dict[str, Any] = dict(request.path_params)
        wrong: list[ErrorDetails] = []
        for name, default, adapter in self._queries:
            given = request.query_params.getlist(name)
            if len(given) > 1:
                wrong.append({"type": "twice", "loc": (name,), "msg": "is given twice", "input": None})
                continue
            try:
                found[name] = adapter.validate_python(given[0]) if given else default
            except ValidationError as error:
                for each in error.errors(include_url=False, include_input=False):
                    each["loc"] = (name,)
                    wrong.append(each)
        if wrong:
            raise InvalidQuery(wrong)
        return found


def _adapter(hint: Any) -> TypeAdapter[Any]:
    kind, parameter = hint.__origin__, hint.__metadata__[0]
    reading = [BeforeValidator(query.integer)] if kind is int else []
    return TypeAdapter(Annotated[kind, Field(**parameter.bounds), *reading])  # type: ignore[arg-type]


def _described(path: str, endpoint: Endpoint) -> Endpoint:
    """The endpoint as FastAPI reads it: its name, and its parameters as FastAPI's own."""
    from fastapi import Path
    from fastapi import Query as InQuery

    def parameter(argument: Argument) -> Argument:
        if not hasattr(argument.annotation, "__metadata__"):
            return argument
        kind, described = argument.annotation.__origin__, argument.annotation.__metadata__[0].described
        made = Path(**described) if f"{{{argument.name}}}" in path else InQuery(**described)
        return argument.replace(annotation=Annotated[kind, made])

    async def shown() -> None: ...

    arguments = [parameter(each) for each in signature(endpoint).parameters.values()]
    shown.__name__ = endpoint.__name__
    vars(shown)["__signature__"] = Signature(arguments)
    return shown  # type: ignore[return-value]
