"""The text engine: llama.cpp behind one thread, with continuous batching over several decode lanes."""
