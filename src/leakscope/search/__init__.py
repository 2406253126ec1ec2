"""Scores of transformation policies and the search for good ones. Names are loaded on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leakscope.core.lazy import load_lazily

if TYPE_CHECKING:
    from leakscope.search.accuracy_score import accuracy_scores as accuracy_scores
    from leakscope.search.privacy_score import attack_scores as attack_scores
    from leakscope.search.privacy_score import Line as Line, privacy_scores as privacy_scores
    from leakscope.search.utility import (
        Examples as Examples,
        Recipe as Recipe,
        Schedule as Schedule,
        train_network as train_network,
    )
else:
    load_lazily(__name__)
