from taskrecipe.core.testing import conformance

test_recipe = conformance("bits")
