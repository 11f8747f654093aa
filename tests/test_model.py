"""Models and processors from folders and bare configurations: typed right, float32, safetensors only, quiet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForObjectDetection,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
    ViTImageProcessorPil,
)

from taskrecipe.errors import UsageError
from taskrecipe.model import ModelSource, require_embeddings

TINY: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "vocab_size": 50,
    "max_position_embeddings": 16,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT classifier of two labels, saved in bfloat16, with a tokenizer."""
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(**TINY, id2label={0: "no", 1: "yes"}))
    model.to(torch.bfloat16).save_pretrained(folder)
    words = Tokenizer(WordLevel({"[UNK]": 0, "[PAD]": 1, "a": 2}, unk_token="[UNK]"))
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", pad_token="[PAD]").save_pretrained(folder)
    return folder


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A folder with a configuration and nothing else."""
    BertConfig(**TINY).save_pretrained(tmp_path)
    return tmp_path


def test_weights_are_read_and_are_float32(folder: Path) -> None:
    model = ModelSource(str(folder)).model(AutoModelForSequenceClassification)
    saved = BertForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert model.config.dtype == torch.float32
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), saved.parameters(), strict=True))


def test_a_head_of_another_size_is_new_and_told_once(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.warns(UserWarning, match=r"2 of \d+ weights are new .*classifier\.bias, classifier\.weight") as told:
        model = ModelSource(str(folder)).model(AutoModelForSequenceClassification, id2label={0: "a", 1: "b", 2: "c"})
    assert len(told) == 1
    assert model.classifier.weight.shape[0] == 3
    assert model.config.label2id == {"a": 0, "b": 1, "c": 2}
    assert capfd.readouterr() == ("", "")


def test_another_head_is_new_and_the_rest_is_kept(folder: Path) -> None:
    with pytest.warns(UserWarning, match="weights are new"):
        model = ModelSource(str(folder)).model(AutoModelForMaskedLM)
    saved = BertForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    assert torch.equal(model.bert.embeddings.word_embeddings.weight, saved.bert.embeddings.word_embeddings.weight)


def test_sizes_that_leave_nothing_of_the_weights_are_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"37 of 39 weights .* another shape there.*pretrained = false"):
        ModelSource(str(folder), config_values={"hidden_size": 32}).model(AutoModel)


def test_without_pretrained_the_configuration_is_kept_and_weights_are_random(folder: Path) -> None:
    model = ModelSource(str(folder), pretrained=False).model(AutoModelForSequenceClassification)
    saved = BertForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    assert model.config.id2label == {0: "no", 1: "yes"}
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert not torch.equal(model.bert.pooler.dense.weight, saved.bert.pooler.dense.weight)


def test_a_folder_with_a_configuration_only_starts_at_random(bare: Path) -> None:
    source = ModelSource(str(bare))
    assert not source.has_weights
    assert source.model(AutoModel).config.hidden_size == 16


def test_an_architecture_is_built_from_its_type(folder: Path) -> None:
    source = ModelSource(None, type="bert", config_values={**TINY, "layer_norm_eps": 1}, processor=str(folder))
    config = source.model(AutoModel).config
    assert (config.hidden_size, config.layer_norm_eps) == (16, 1.0)
    assert source.tokenizer()("a")["input_ids"] == [2]


def test_layer_types_follow_the_number_of_layers() -> None:
    config = ModelSource(None, type="qwen3", config_values={"num_hidden_layers": 3}).config()
    assert len(config.layer_types) == 3


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        ("resnet", {"hidden_sizes": [8, 16, 32], "depths": [1, 1, 1]}),
        ("swin", {"depths": [1, 1], "num_heads": [2, 2]}),
        ("convnext", {"num_stages": 2, "hidden_sizes": [8, 16], "depths": [1, 1]}),
        ("dinov2", {"num_hidden_layers": 3}),
    ],
)
def test_stages_follow_the_number_of_layers(type_: str, values: dict[str, Any]) -> None:
    ours, theirs = ModelSource(None, type=type_, config_values=values).config(), AutoConfig.for_model(type_, **values)
    assert (ours.stage_names, ours.out_features) == (theirs.stage_names, theirs.out_features)


def test_dots_lead_into_nested_configurations() -> None:
    values = {
        "backbone_config.model_type": "resnet",
        "backbone_config.depths": [1, 1],
        "backbone_config.hidden_sizes": [8, 8],
        "hidden_size": 32,
    }
    config = ModelSource(None, type="detr", config_values=values).config(num_labels=3)
    assert (config.backbone_config.model_type, config.backbone_config.depths) == ("resnet", [1, 1])
    assert (config.d_model, config.num_labels) == (32, 3)


WRONG_VALUES = {
    "misspelt": ({"hiden_size": 8}, r"bert has no 'hiden_size'; did you mean 'hidden_size'"),
    "text for a number": ({"hidden_size": "large"}, "'hidden_size' expected int, got str"),
    "float for a count": ({"num_hidden_layers": 1.5}, "'num_hidden_layers' expected int, got float"),
    "parts of a number": ({"hidden_size.x": 1}, "'hidden_size' of bert has no parts"),
}


@pytest.mark.parametrize("name", WRONG_VALUES)
def test_wrong_configuration_values_are_refused(name: str, bare: Path) -> None:
    values, message = WRONG_VALUES[name]
    with pytest.raises(UsageError, match=message):
        ModelSource(str(bare), config_values=values).config()


def test_an_unknown_type_is_refused_with_a_hint() -> None:
    with pytest.raises(UsageError, match=r"\[model\]\.type: 'brt' is not an architecture .* did you mean 'bert'"):
        ModelSource(None, type="brt").config()


def test_a_pickle_is_refused_and_never_opened(bare: Path) -> None:
    (bare / "pytorch_model.bin").write_bytes(b"\x80\x04cposix\nsystem\n(S'exit 1'\ntR.")
    with pytest.raises(UsageError, match=r"only 'pytorch_model\.bin', a pickle, which can run code"):
        ModelSource(str(bare)).model(AutoModel)
    assert ModelSource(str(bare), pretrained=False).model(AutoModel) is not None


BROKEN_CONFIGS = {
    "none": (None, r"there is no config\.json"),
    "not json": ("{", "not a valid JSON"),
    "unknown architecture": ('{"model_type": "zzz"}', "zzz"),
}


@pytest.mark.parametrize("name", BROKEN_CONFIGS)
def test_a_folder_that_is_no_model_is_refused(name: str, tmp_path: Path) -> None:
    content, message = BROKEN_CONFIGS[name]
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(UsageError, match=message):
        ModelSource(str(tmp_path)).config()


def test_truncated_weights_are_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:500])
    with pytest.raises(UsageError, match="header"):
        ModelSource(str(tmp_path)).model(AutoModel)


def test_an_architecture_without_the_head_is_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"BertConfig.* AutoModelForObjectDetection"):
        ModelSource(str(folder)).model(AutoModelForObjectDetection)


def test_sharded_weights_count_as_weights(folder: Path, tmp_path: Path) -> None:
    BertForSequenceClassification.from_pretrained(folder).save_pretrained(tmp_path, max_shard_size="2KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert ModelSource(str(tmp_path)).has_weights
    assert ModelSource(str(tmp_path)).model(AutoModelForSequenceClassification) is not None


def test_a_folder_without_a_vocabulary_has_no_tokenizer(bare: Path) -> None:
    with pytest.raises(UsageError, match="has no tokenizer"):
        ModelSource(str(bare)).tokenizer()


def test_a_type_alone_brings_no_processor() -> None:
    with pytest.raises(UsageError, match=r"\[model\]\.processor is missing"):
        ModelSource(None, type="bert").tokenizer()


def test_image_processors_need_only_pillow(tmp_path: Path) -> None:
    ViTImageProcessorPil(size={"height": 8, "width": 8}).save_pretrained(tmp_path)
    processor = ModelSource(str(tmp_path)).image_processor()
    assert type(processor).__name__ == "ViTImageProcessorPil"


def test_a_model_without_an_image_processor_is_refused(bare: Path) -> None:
    with pytest.raises(UsageError, match="the image processor of"):
        ModelSource(str(bare)).image_processor()


def test_quantized_weights_are_refused_and_their_architecture_is_not(folder: Path, tmp_path: Path) -> None:
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match=r"is quantized \(gptq\), and such weights can't be trained; name the model"):
        ModelSource(str(tmp_path)).model(AutoModel)
    model = ModelSource(str(tmp_path), pretrained=False).model(AutoModel)
    assert not hasattr(model.config, "quantization_config")


@pytest.mark.parametrize("ids", [[[1, 50]], [[[1], [2, 50]]]])
def test_ids_beyond_the_embeddings_are_refused(ids: list[Any], folder: Path) -> None:
    model = ModelSource(str(folder)).model(AutoModelForSequenceClassification)
    tokenizer = ModelSource(str(folder)).tokenizer()
    rows = Dataset.from_dict({"input_ids": ids})
    require_embeddings(model, tokenizer, [rows.data.column("input_ids")])  # its own tokenizer has three tokens
    tokenizer.add_tokens([f"new{number}" for number in range(60)])
    with pytest.raises(UsageError, match=r"gives token ids up to 50, and the model has embeddings for 50 tokens"):
        require_embeddings(model, tokenizer, [rows.data.column("input_ids")])
    smaller = Dataset.from_dict({"input_ids": [[1, 49]]})
    require_embeddings(model, tokenizer, [smaller.data.column("input_ids")])
    with pytest.raises(UsageError, match="they don't belong together"):
        require_embeddings(model, tokenizer, [])  # streamed rows can't be looked at
