"""The GPU side: attention backend, model state, CUDA graphs and worker for vLLM's model runner V2."""
