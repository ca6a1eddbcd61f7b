"""Names of the forms of observation that are text. Imported by clients, which need no browser."""

TEXT_FORMS = ("axtree", "dom", "compact", "markdown", "text", "html")
