"""Our own recipes pass the kit that we give to others."""

from taskrecipe.core.testing import conformance

test_glue = conformance("glue", name="mrpc")
