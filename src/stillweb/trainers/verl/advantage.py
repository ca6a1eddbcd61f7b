"""verl: GRPO advantages without fully masked samples (`algorithm.adv_estimator: grpo_masked`).

A failed episode has no reward. Counted as 0, it would lower the mean of its group and raise the advantages of
the other samples. Import this module in the trainer's process: the import registers the estimator's name with
verl.
"""

from __future__ import annotations

from typing import Any

from stillweb.errors import ExtraNotInstalled

try:
    import torch
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage, register_adv_est
except ImportError as missing:
    raise ExtraNotInstalled(f"verl is not installed: {missing}", hint="pip install verl") from missing


@register_adv_est("grpo_masked")  # type: ignore[untyped-decorator]
def compute_grpo_masked(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: Any, **named: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return advantages and returns; samples with an all-zero response mask get 0 and influence no other."""
    scored = response_mask.sum(dim=-1) > 0
    advantages = torch.zeros_like(token_level_rewards)
    if scored.any():
        scored_index = index[scored.cpu().numpy()]
        advantages[scored] = compute_grpo_outcome_advantage(
            token_level_rewards[scored], response_mask[scored], scored_index, **named
        )[0]
    return advantages, advantages
