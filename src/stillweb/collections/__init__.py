"""Collections: folders of archives, indexes, pages and baselines, and the packs made from them."""
