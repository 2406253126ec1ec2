"""Scores of reconstructions against the private data, and statistics over many trials.

Names are loaded on first use: statistics (`Estimate`, `wilson`) do not load torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leakscope.core.lazy import load_lazily

if TYPE_CHECKING:
    from leakscope.metrics.catalogue import (
        METRICS as METRICS, ContextMetric as ContextMetric, Direction as Direction, Metric as Metric,
    )  # fmt: skip
    from leakscope.metrics.context import Context as Context
    from leakscope.metrics.identification import (
        feature_distance as feature_distance, iip_features as iip_features, iip_pixels as iip_pixels,
        rank_features as rank_features, rank_pixels as rank_pixels,
    )  # fmt: skip
    from leakscope.metrics.image import (
        item_dimensions as item_dimensions, mse as mse, psnr as psnr, rmse_relative as rmse_relative, ssim as ssim,
    )  # fmt: skip
    from leakscope.metrics.interval import (
        PSNR_CAP as PSNR_CAP, Estimate as Estimate, estimate_mean as estimate_mean, estimate_rate as estimate_rate,
        wilson as wilson,
    )  # fmt: skip
    from leakscope.metrics.labels import label_correct as label_correct, label_overlap as label_overlap
    from leakscope.metrics.multiscale import ms_ssim as ms_ssim
    from leakscope.metrics.prior_gain import rdlv as rdlv
    from leakscope.metrics.recovery import Recovery as Recovery, recovery as recovery, recovery_curve as recovery_curve
    from leakscope.metrics.reidentification import (
        Reidentification as Reidentification, reidentification as reidentification,
    )  # fmt: skip
    from leakscope.metrics.scoring import (
        Scores as Scores, arrange as arrange, clean as clean, match as match, score as score,
        trial_means as trial_means,
    )  # fmt: skip
    from leakscope.metrics.success import (
        DEFAULT_RULE as DEFAULT_RULE, ContentRule as ContentRule, curve as curve, whole_trials as whole_trials,
    )  # fmt: skip
    from leakscope.metrics.summary import Spread as Spread, Summary as Summary, summarise as summarise
    from leakscope.metrics.wavelet import cw_ssim as cw_ssim
    from leakscope.metrics.text_scoring import score_sentences as score_sentences, text_means as text_means
    from leakscope.metrics.tabular import TableScores as TableScores, score_rows as score_rows
else:
    load_lazily(__name__)
