"""A corpus on disk and in the server's cache: reading, chunking, the manifest, warming."""
