"""Tiny models that classify masks, one of each architecture."""

from __future__ import annotations

from typing import Any

import torch

SIZE = 32

QUERIES = 4

_SWIN = {
    "model_type": "swin",
    "image_size": SIZE,
    "patch_size": 2,
    "embed_dim": 8,
    "depths": [1, 1, 1, 1],
    "num_heads": [1, 2, 2, 4],
    "window_size": 4,
    "drop_path_rate": 0.0,
    "out_features": ["stage1", "stage2", "stage3", "stage4"],
}

_DECODER = {
    "model_type": "detr",
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "num_queries": QUERIES,
    "dropout": 0.0,
}

CONFIGS: dict[str, dict[str, Any]] = {
    "mask2former": {
        "backbone_config": _SWIN,
        "feature_size": 32,
        "mask_feature_size": 32,
        "hidden_dim": 32,
        "encoder_feedforward_dim": 32,
        "dim_feedforward": 32,
        "encoder_layers": 1,
        "decoder_layers": 2,
        "num_attention_heads": 2,
        "num_queries": QUERIES,
        "train_num_points": 64,
    },
    "maskformer": {
        "backbone_config": _SWIN,
        "decoder_config": _DECODER,
        "fpn_feature_size": 32,
        "mask_feature_size": 32,
        "use_auxiliary_loss": True,
    },
}


def segmenter(kind: str) -> Any:
    """A model of `kind` with three classes, the same every time."""
    from transformers import AutoConfig, AutoModelForUniversalSegmentation

    torch.manual_seed(0)
    return AutoModelForUniversalSegmentation.from_config(AutoConfig.for_model(kind, **CONFIGS[kind], num_labels=3))
