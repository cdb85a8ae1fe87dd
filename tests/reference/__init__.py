"""The slow, obviously right twins of the compiled kernels: plainest Python, which defines what each kernel does."""
