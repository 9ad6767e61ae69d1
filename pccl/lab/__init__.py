"""What `pccl stress`, `pccl demo` and benchmarks share: free ports, folders for results, numbers on command lines."""
