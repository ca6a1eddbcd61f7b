"""Chrome DevTools Protocol connections and page probes."""
