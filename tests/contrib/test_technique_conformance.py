"""Our own techniques pass the kit that we give to others, each alone and all together."""

from __future__ import annotations

import pytest

from taskrecipe.plugins.registry import installed
from taskrecipe.testing import technique_conformance
from taskrecipe.testing.subject import Check, Subject
from taskrecipe.testing.technique_checks import TECHNIQUE_CHECKS

pytestmark = pytest.mark.filterwarnings("ignore:freeze:UserWarning", "ignore:.*new and start at random:UserWarning")

test_distillation = technique_conformance("distillation", teacher="none")
test_adversarial = technique_conformance("adversarial")
test_adversarial_by_pgd = technique_conformance("adversarial", method="pgd", steps=2, step_size=0.015)
test_freeze = technique_conformance("freeze", layers=0)
test_freeze_until_after_the_resume = technique_conformance("freeze", layers=1, until=3)
test_layerwise_lr = technique_conformance("layerwise_lr", decay=0.8)
test_lora = technique_conformance("lora", dropout=0.1)
test_dora = technique_conformance("lora", use_dora=True)
test_distillation_of_tokens = technique_conformance(
    "distillation", recipe="token_classification", task={"max_length": 64}, teacher="none"
)

ALL = [
    {"name": "distillation", "teacher": "none", "mix": 0.3},
    {"name": "adversarial"},
    {"name": "layerwise_lr", "decay": 0.9},
    {"name": "freeze", "layers": 0, "until": 3},
]


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    return Subject("glue", {"name": "mrpc"}, installed(), tmp_path_factory.mktemp("together"), ALL)


@pytest.mark.parametrize("check", TECHNIQUE_CHECKS, ids=lambda check: check.__name__)
def test_several_at_once(check: Check, together: Subject) -> None:
    check(together)
