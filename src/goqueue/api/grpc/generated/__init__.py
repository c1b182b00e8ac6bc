"""Made by `python -m goqueue.api.grpc.generate` from `proto/`; not to be edited."""
