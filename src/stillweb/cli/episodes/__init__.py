"""Commands that read stored episodes: view, compare, why, rescore."""
