"""One small detector of each architecture that the detection recipe trains."""

from __future__ import annotations

from typing import Any

import torch

SIZE = 64

RESNET = {
    "model_type": "resnet",
    "layer_type": "basic",
    "embedding_size": 8,
    "hidden_sizes": [8, 16],
    "depths": [1, 1],
    "out_features": ["stage2"],
}
RT_RESNET = {
    "model_type": "rt_detr_resnet",
    "layer_type": "basic",
    "embedding_size": 8,
    "hidden_sizes": [8, 8, 16, 16],
    "depths": [1, 1, 1, 1],
    "out_features": ["stage2", "stage3", "stage4"],
}
DETR = {
    "backbone_config": RESNET,
    "d_model": 16,
    "encoder_layers": 1,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_layers": 2,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 16,
    "num_queries": 6,
    "dropout": 0.0,
    "auxiliary_loss": True,
}
RT_DETR = {
    "backbone_config": RT_RESNET,
    "encoder_hidden_dim": 16,
    "encoder_in_channels": [8, 16, 16],
    "encoder_ffn_dim": 16,
    "encoder_attention_heads": 2,
    "decoder_in_channels": [16] * 3,
    "d_model": 16,
    "decoder_layers": 2,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 16,
    "num_queries": 6,
    "num_denoising": 8,
}
GROUPED = {
    "d_model": 16,
    "decoder_layers": 2,
    "decoder_ffn_dim": 16,
    "decoder_n_points": 2,
    "decoder_self_attention_heads": 2,
    "decoder_cross_attention_heads": 2,
    "num_queries": 6,
    "group_detr": 3,
    "dropout": 0.0,
    "c2f_num_blocks": 1,
}
VIT = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "out_features": ["stage1", "stage2"]}

CONFIGS: dict[str, dict[str, Any]] = {
    "detr": DETR,
    "table-transformer": DETR,
    "yolos": {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "image_size": [SIZE, SIZE],
        "patch_size": 16,
        "num_detection_tokens": 6,
        "use_mid_position_embeddings": False,
    },
    "conditional_detr": DETR,
    "deformable_detr": {**DETR, "d_model": 32, "num_feature_levels": 1, "with_box_refine": True},
    "dab-detr": {**DETR, "hidden_size": 16},
    "rt_detr": RT_DETR,
    "rt_detr_v2": RT_DETR,
    "lw_detr": {
        **GROUPED,
        "backbone_config": {
            "model_type": "lw_detr_vit",
            **VIT,
            "image_size": 64,
            "pretrain_image_size": 64,
            "num_windows": 4,
        },
        "projector_scale_factors": [1.0],
    },
    "rf_detr": {
        **GROUPED,
        "backbone_config": {
            "model_type": "rf_detr_dinov2",
            **VIT,
            "image_size": 64,
            "patch_size": 16,
            "num_windows": 1,
        },
        "projector_scale_factors": [1.0],
    },
}


def detector(kind: str, **values: Any) -> Any:
    """A detector of three classes, always the same at the start, with weights as if it had been trained a little."""
    from transformers import AutoConfig, AutoModelForObjectDetection

    config = AutoConfig.for_model(kind, **{**CONFIGS[kind], **values})
    config.num_labels = 3
    torch.manual_seed(0)
    model = AutoModelForObjectDetection.from_config(config)
    with torch.no_grad():
        for weight in model.parameters():  # fresh weights can be so small that normalizing them loses all digits
            weight += 0.1 * torch.randn_like(weight)
    return model


def targets(counts: list[int]) -> list[dict[str, torch.Tensor]]:
    """Images with so many boxes each."""
    random = torch.Generator().manual_seed(1)
    return [
        {
            "class_labels": torch.randint(3, (count,), generator=random),
            "boxes": torch.rand(count, 4, generator=random, dtype=torch.float64) * 0.3 + 0.2,
        }
        for count in counts
    ]
