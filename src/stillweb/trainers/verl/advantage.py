"""verl: GRPO's advantages without samples that are masked wholly (`algorithm.adv_estimator: grpo_masked`).

What failed by our fault has no reward; counted as 0 it would lower its group's mean and so praise the others.
Import this module where the trainer starts, so that verl knows the name.
"""

from __future__ import annotations

from typing import Any

from stillweb.errors import ExtraNotInstalled

__all__ = ["compute_grpo_masked"]

try:
    import torch
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage, register_adv_est
except ImportError as missing:
    raise ExtraNotInstalled(f"verl is not here: {missing}", hint="pip install verl") from missing


@register_adv_est("grpo_masked")  # type: ignore[untyped-decorator]
def compute_grpo_masked(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: Any, **named: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return advantages and returns; 0 for samples whose response mask is all 0, which no other sees."""
    kept = response_mask.sum(dim=-1) > 0
    advantages = torch.zeros_like(token_level_rewards)
    if kept.any():
        of_kept = index[kept.cpu().numpy()]
        advantages[kept] = compute_grpo_outcome_advantage(
            token_level_rewards[kept], response_mask[kept], of_kept, **named
        )[0]
    return advantages, advantages
