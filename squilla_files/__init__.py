"""squilla_files: a file-based, local-first session store for desktop AI agents."""
