"""Our own recipes pass the kit that we give to others."""

from taskrecipe.testing import conformance

test_clm = conformance("clm")
test_detection = conformance("detection")
test_glue = conformance("glue", name="mrpc")
test_mim = conformance("mim")
test_mlm = conformance("mlm")
test_swag = conformance("swag")
