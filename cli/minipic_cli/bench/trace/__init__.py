"""`minipic bench trace`: throughput and latency on traces of RAG prompts."""
