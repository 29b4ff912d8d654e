"""The API under inputs that nobody thought of: made from its own OpenAPI document, answered as that document says."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import checks
from tests.app.conftest import CNN

import sightline
from sightline.app.limits import Limits
from sightline.app.server import create_app

CHECKS = (
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
)
EXAMPLES = 20  # of each route
FUZZED = settings(max_examples=EXAMPLES, deadline=None, derandomize=True, database=None,
                  suppress_health_check=list(HealthCheck))  # fmt: skip


@pytest.fixture(scope="module")
def routes() -> Any:
    application = create_app({CNN: sightline.load(CNN)}, limits=Limits(visitors=20))
    headers = {"Host": "localhost"}
    schema = schemathesis.openapi.from_asgi("/api/openapi.json", application, headers=headers)
    yield {route.ok().label: route.ok() for route in schema.get_all_operations()}
    application.state.server.queues.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode))
def test_every_answer_is_one_that_the_document_names(routes, mode):
    assert {"POST /api/jobs", "POST /api/pictures", "GET /api/jobs/{job}/events"} <= set(routes)
    tried = 0
    for route in routes.values():
        strategy = route.as_strategy(generation_mode=mode)

        @FUZZED
        @given(strategy)
        def answers(case: Any) -> None:
            nonlocal tried
            tried += 1
            case.call_and_validate(checks=CHECKS, headers={"Host": "localhost"})

        try:
            answers()
        except Unsatisfiable:
            continue  # a route without anything that could be wrong
    assert tried > 5 * len(routes)
