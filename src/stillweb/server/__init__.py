"""The rollout server: episodes for trainers elsewhere, leased over HTTP, and the page that shows them."""
