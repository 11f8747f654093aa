from taskrecipe.testing import conformance, technique_conformance

test_recipe = conformance("bits")
test_technique = technique_conformance("flip_bits", recipe="bits")
