"""A technique that exports an adapter: the run loads it on its base model, and an export has it merged."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import torch
from tests.support.distributions import install
from tests.support.runs import write_spec

from taskrecipe import Run, UsageError, train
from taskrecipe.plugins.registry import installed

ADAPTER = '''
    from pathlib import Path

    from pydantic import Field
    from taskrecipe import Effect, Technique


    class Thin(Technique):
        """Train a thin matrix beside the head, and nothing else."""

        wrong: bool = Field(default=False, description="Merge it wrongly.")

        def build(self, recipe, source):
            return Beside()

        def load_exported(self, module, folder):
            from safetensors.torch import load_file

            module = Beside().change_model(module)
            module.classifier.thin.data = load_file(Path(folder) / "adapter.safetensors")["thin"]
            return module

        def merge(self, module):
            adapted = module.classifier
            adapted.inner.weight.data += adapted.thin.data * (2 if self.wrong else 1)
            module.classifier = adapted.inner
            return module


    class Beside(Effect):
        def change_model(self, module):
            import torch

            class Adapted(torch.nn.Module):
                def __init__(self, inner):
                    super().__init__()
                    self.inner = inner
                    self.thin = torch.nn.Parameter(torch.zeros(inner.out_features, inner.in_features))

                def forward(self, x):
                    return self.inner(x) + x @ self.thin.T

            module.requires_grad_(False)
            module.classifier = Adapted(module.classifier)
            return module

        def saved_names(self, module):
            return {"classifier.thin"}

        def export(self, module, folder):
            from safetensors.torch import save_file

            save_file({"thin": module.classifier.thin.detach()}, Path(folder) / "adapter.safetensors")
            module.config.save_pretrained(folder)
            return True

'''


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A spec whose base model has weights, with the technique installed for this process and those it starts."""
    site = tmp_path / "site"
    install(site, "acme-thin", {"techniques": {"thin": "acme_thin:Thin"}}, {"acme_thin": ADAPTER})
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", f"{site}{os.pathsep}{os.environ['PYTHONPATH']}")
    monkeypatch.delitem(sys.modules, "acme_thin", raising=False)
    installed.cache_clear()
    path = write_spec(tmp_path)
    path.write_text(path.read_text().replace("updates = 9", "updates = 3") + '[[techniques]]\nname = "thin"\n')
    from transformers import AutoConfig, AutoModelForSequenceClassification

    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(tmp_path / "model", id2label={0: "0", 1: "1"}, label2id={"0": 0, "1": 1})
    AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path / "model")
    yield path
    installed.cache_clear()


def test_the_adapter_is_loaded_on_its_base_and_merged_for_an_export(spec: Path, tmp_path: Path) -> None:
    run = train(spec, out=tmp_path / "run", quiet=True)
    names = {path.name for path in (run.folder / "model").iterdir()}
    assert "adapter.safetensors" in names
    assert "model.safetensors" not in names
    model = Run(run.folder).model()
    assert model.classifier.thin.abs().max() > 0
    exported = run.export(to="hf", folder=tmp_path / "hf")
    assert exported.difference < 1e-6
    from transformers import AutoModelForSequenceClassification

    merged = AutoModelForSequenceClassification.from_pretrained(tmp_path / "hf")
    batch = {"input_ids": torch.tensor([[2, 9, 11, 3]])}
    with torch.no_grad():
        assert torch.allclose(merged.eval()(**batch).logits, model(**batch).logits, atol=1e-6)
    assert "base" not in json.loads((tmp_path / "hf" / "recipe.json").read_text())


def test_a_wrong_merge_is_noticed(spec: Path, tmp_path: Path) -> None:
    spec.write_text(spec.read_text() + "wrong = true\n")
    run = train(spec, out=tmp_path / "run", quiet=True)
    from taskrecipe import ExportError

    with pytest.raises(ExportError, match="is not the trained one"):
        run.export(to="hf", folder=tmp_path / "out" / "hf")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_form_that_is_unknown_is_refused(spec: Path, tmp_path: Path) -> None:
    run = train(spec, out=tmp_path / "run", quiet=True)
    with pytest.raises(UsageError, match="can be exported to hf, onnx, hub; not to 'gguf'"):
        run.export(to="gguf")
