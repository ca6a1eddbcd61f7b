"""The rollout server: episodes for remote trainers, leased over HTTP, and the monitor of its sessions."""
