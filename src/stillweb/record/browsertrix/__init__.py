"""Record with browsertrix-crawler, a separate AGPL program; nothing of it is imported or copied."""
