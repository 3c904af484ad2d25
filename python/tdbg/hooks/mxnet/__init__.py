"""The hook for MXNet Gluon; ``tdbg.mxnet`` has its public names."""
